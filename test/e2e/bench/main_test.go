// Package bench tests weir bench, weir report and the replays, against servers and files.
package bench

import (
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
