// Package bench tests weir bench and the reports that it writes, against servers.
package bench

import (
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
