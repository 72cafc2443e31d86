package generate

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"weir/internal/api"
)

// fieldRows is the table of docs/generate.md.
func fieldRows() string {
	var b strings.Builder
	for _, f := range Fields() {
		may := f.Accepts
		if f.Treatment == api.Refused && len(f.Defaults) > 0 {
			may = "`" + strings.Join(f.Defaults, "`, `") + "`"
		}
		if f.Needs != 0 {
			may += " (needs " + f.Needs.String() + ")"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Name, f.Treatment, may)
	}
	return b.String()
}

// WEIR_UPDATE=1 writes the table.
func TestManual(t *testing.T) {
	const file, head = "../../docs/generate.md", "| field | treatment | may be |\n|---|---|---|\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), head)
	_, after, _ := strings.Cut(rest, "\n\n")
	want := before + head + fieldRows() + "\n" + after
	if os.Getenv("WEIR_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !ok || string(text) != want {
		t.Errorf("%s is not what the code does; run WEIR_UPDATE=1 go test -run Manual ./internal/generate", file)
	}
}
