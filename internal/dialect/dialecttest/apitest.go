// Package dialecttest checks that a dialect's manual and its code agree with its
// table of fields.
package dialecttest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/dialect"
)

// Manual checks the table of fields in a document, as Part does. If endpoints has
// names, one for each bit of dialect.Field.On, a column lists the endpoints that have
// the field.
func Manual(t *testing.T, file, begin string, fields []dialect.Field, endpoints ...string) {
	t.Helper()
	Part(t, file, begin, table(fields, endpoints))
}

// Part checks that the text between the line begin and the next line "<!-- end -->"
// of a document is as given. If WEIR_UPDATE is set, it writes that text instead.
func Part(t *testing.T, file, begin, want string) {
	t.Helper()
	const end = "<!-- end -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin+"\n")
	shown, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no table between %q and %q", file, begin, end)
	}
	if os.Getenv("WEIR_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(before+begin+"\n"+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("%s is not what the code does; WEIR_UPDATE=1 writes it: %s", file, diff)
	}
}

func table(fields []dialect.Field, endpoints []string) string {
	var b strings.Builder
	elsewhere := slices.ContainsFunc(fields, func(f dialect.Field) bool { return f.Elsewhere != "" })
	row := func(name, of, treatment, note, peers string) {
		if len(endpoints) > 0 {
			name += " | " + of
		}
		if elsewhere {
			note += " | " + peers
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, treatment, note)
	}
	row("field", "of", "treatment", "", "vLLM 0.33, SGLang 0.5.23")
	row("---", "---", "---", "---", "---")
	for i := range fields {
		f := &fields[i]
		row(nameOf(f), strings.Join(named(f, endpoints), ", "), f.Treatment.String(), noteOf(f), f.Elsewhere)
	}
	return b.String()
}

// nameOf puts a path into code, and leaves what is said behind one as it is: the type
// of a part.
func nameOf(f *dialect.Field) string {
	if path, kind, ok := strings.Cut(f.Name, " "); ok && path != "header" {
		return "`" + path + "` " + kind
	}
	return "`" + f.Name + "`"
}

func named(f *dialect.Field, endpoints []string) (of []string) {
	for i, name := range endpoints {
		if f.On == 0 || f.On&(1<<i) != 0 {
			of = append(of, name)
		}
	}
	return of
}

func noteOf(f *dialect.Field) string {
	var parts []string
	if f.Treatment != dialect.Carried && len(f.Defaults) > 0 {
		parts = append(parts, "except `"+strings.Join(f.Defaults, "`, `")+"`")
	}
	if f.Note != "" {
		parts = append(parts, f.Note)
	}
	if f.Needs != 0 {
		parts = append(parts, "needs "+f.Needs.String())
	}
	return strings.Join(parts, "; ")
}
