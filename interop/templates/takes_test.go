//go:build interop

package templates_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"weir/internal/model/chat"
)

const (
	takesPage  = "../../docs/templates.md"
	takesBegin = "<!-- published templates -->\n"
	takesEnd   = "<!-- end -->"
)

// The page has what each published template takes, those that take the same in one row.
func TestTakes(t *testing.T) {
	names := map[string][]string{} // by the cells of a row
	head := ""
	all := publishedTemplates(t)
	for _, p := range all {
		tmpl, err := chat.Parse(p.source, chat.Options{})
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
			continue
		}
		cells, columns := "", ""
		for _, r := range tmpl.Takes() {
			cells, columns = cells+" "+r.How+" |", columns+" "+r.Of+" |"
		}
		head = "| templates |" + columns + "\n|---|" + strings.Repeat("---|", strings.Count(columns, "|")) + "\n"
		names[cells] = append(names[cells], strings.TrimSuffix(p.name, ".jinja"))
	}
	rows := make([]string, 0, len(names))
	for _, cells := range slices.Sorted(maps.Keys(names)) {
		slices.Sort(names[cells])
		rows = append(rows, fmt.Sprintf("| %s |%s\n", strings.Join(names[cells], ", "), cells))
	}
	slices.Sort(rows)
	page := string(read(t, takesPage))
	before, rest, begun := strings.Cut(page, takesBegin)
	_, after, ended := strings.Cut(rest, takesEnd)
	if !begun || !ended {
		t.Fatalf("%s has no %q", takesPage, takesBegin)
	}
	want := before + takesBegin + head + strings.Join(rows, "") + takesEnd + after
	if *update {
		if err := os.WriteFile(takesPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		page = want
	}
	if page != want {
		t.Errorf("%s is not what the templates take; -update writes it", takesPage)
	}
	if len(all) < 100 {
		t.Errorf("%d templates: the page says too little", len(all))
	}
}
