// Package engines tests the ways to an engine: wires, faults, how the gateway finds out what is
// there, and the simulated engine's own flags.
package engines

import (
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
