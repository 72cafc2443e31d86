// Package scenario tests weir scenario, in small.
package scenario

import (
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
