// Package relay tests what a client of the gateway sees over relayed engines.
package relay

import (
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
