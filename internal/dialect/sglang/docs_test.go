package sglang

import (
	"testing"

	"weir/internal/dialect/dialecttest"
)

func TestManual(t *testing.T) {
	dialecttest.Manual(t, "../../../docs/generate.md", "<!-- fields -->", Fields())
}
