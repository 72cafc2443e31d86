//go:build measure

// Package measure measures figures through the binary, each alone, for make
// measure. A figure is printed as a line "measure NAME VALUE UNIT", which make
// nightly compares with the last ones. A test fails where a count is wrong, or a
// figure is beyond what any machine explains.
package measure

import (
	"fmt"
	"testing"

	"weir/test/e2e/harness"
	"weir/test/e2e/neighbour"
)

func TestMain(m *testing.M) {
	neighbour.Role()
	harness.Main(m)
}

// figure prints a measured figure.
func figure(name string, value float64, unit string) {
	fmt.Printf("measure %s %.4g %s\n", name, value, unit)
}
