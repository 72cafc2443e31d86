// Package serve tests what a client of the gateway sees over engines of ids, and what the
// gateway records of it.
package serve

import (
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
