//go:build linux

package neighbour

import (
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) {
	Role()
	harness.Main(m)
}
