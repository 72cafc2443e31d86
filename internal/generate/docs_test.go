package generate

import (
	"testing"

	"weir/internal/api/apitest"
)

func TestManual(t *testing.T) {
	apitest.Manual(t, "../../docs/generate.md", "<!-- fields -->", Fields())
}
