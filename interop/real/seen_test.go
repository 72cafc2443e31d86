//go:build interop_engines

package real

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

var updateSeen = flag.Bool("update-sglang", false, "write what is seen of SGLang into docs/sglang.md; read it before it is committed")

// seen collects what is seen of SGLang, by row and column of a table of the page.
type seen struct {
	mu      sync.Mutex
	rows    []string
	columns []string
	cells   map[[2]string]string
}

// set notes a cell. One that is set again differently, by another form of the request, has both.
func (s *seen) set(row, column, cell string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cells == nil {
		s.cells = map[[2]string]string{}
	}
	if !slices.Contains(s.rows, row) {
		s.rows = append(s.rows, row)
	}
	if !slices.Contains(s.columns, column) {
		s.columns = append(s.columns, column)
	}
	if had, at := s.cells[[2]string{row, column}], [2]string{row, column}; had == "" {
		s.cells[at] = cell
	} else if !slices.Contains(strings.Split(had, "; "), cell) {
		all := append(strings.Split(had, "; "), cell)
		slices.Sort(all)
		s.cells[at] = strings.Join(all, "; ")
	}
}

// table returns the rows as a table in Markdown.
func (s *seen) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|%s\n", strings.Join(s.columns, " | "), strings.Repeat("---|", len(s.columns)+1))
	for _, row := range s.rows {
		fmt.Fprintf(&b, "| %s |", row)
		for _, column := range s.columns {
			fmt.Fprintf(&b, " %s |", s.cells[[2]string{row, column}])
		}
		b.WriteString("\n")
	}
	return b.String()
}

// written holds the page to what was seen, or writes it.
func (s *seen) written(t *testing.T, name string) {
	t.Helper()
	const page = "../../docs/sglang.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	before, rest, begun := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		t.Fatalf("%s has no %q", page, begin)
	}
	want := before + begin + "\n" + s.table() + "\n" + end + after
	switch {
	case t.Failed() || want == string(text):
	case *updateSeen:
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not have what was seen; -update-sglang writes it:\n%s", page, s.table())
	}
}
