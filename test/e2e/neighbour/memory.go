//go:build linux

package neighbour

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// Memory reads from docs/operating.md how much memory a gateway takes at most with 512
// good streams beside a bad neighbour of each kind, in bytes.
func Memory(t *testing.T) map[Kind]int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root, "docs", "operating.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "<!-- neighbours -->")
	table, _, _ = strings.Cut(table, "<!-- end -->")
	limits := map[Kind]int64{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !slices.Contains(Kinds, Kind(strings.TrimSpace(cells[1]))) {
			continue
		}
		number, _ := strings.CutSuffix(strings.TrimSpace(cells[len(cells)-2]), " MB")
		mb, err := strconv.ParseInt(strings.ReplaceAll(number, ",", ""), 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		limits[Kind(strings.TrimSpace(cells[1]))] = mb * 1e6
	}
	if len(limits) != len(Kinds) {
		t.Fatalf("docs/operating.md has the memory of %d neighbours, want %d: %v", len(limits), len(Kinds), limits)
	}
	return limits
}
