package yamltext

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// most is how many bytes are allocated for each byte of a text, in all of a walk. At any time only
// a piece of it is in memory.
const most = 1200

// The memory for a text is bounded by a multiple of its size, whatever is in it.
func TestMemory(t *testing.T) {
	repeat := strings.Repeat
	lines := func(n int, format string) string {
		var b strings.Builder
		for i := 0; b.Len() < n; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, of := range map[string]func(n int) string{
		"brackets":          func(n int) string { return "a: " + repeat("[", n) },
		"brackets of lines": func(n int) string { return "a:\n" + repeat(" [\n", n/3) },
		"closed brackets":   func(n int) string { return "a: " + repeat("[", n/2) + repeat("]", n/2) },
		"braces":            func(n int) string { return "a: " + repeat("{", n) },
		"braces with keys":  func(n int) string { return repeat("{a: ", n/4) },
		"dashes":            func(n int) string { return "a:\n" + repeat("- ", n/2) },
		"dashes of keys":    func(n int) string { return "a:\n" + repeat("- b: ", n/5) },
		"questions":         func(n int) string { return repeat("? ", n/2) },
		"indented": func(n int) string {
			var b strings.Builder
			for i := 0; b.Len() < n; i++ {
				b.WriteString(repeat(" ", i) + "a:\n")
			}
			return b.String()
		},
		"keys":                func(n int) string { return lines(n, "b%d: 1\n") },
		"keys below a key":    func(n int) string { return "a:\n" + lines(n, "  b%d: 1\n") },
		"keys of an item":     func(n int) string { return "a:\n- x: 1\n" + lines(n, "  b%d: 1\n") },
		"keys below keys":     func(n int) string { return "a:\n  b:\n    c:\n" + lines(n, "      b%d: 1\n") },
		"empty keys":          func(n int) string { return lines(n, "b%d:\n") },
		"keys in braces":      func(n int) string { return "a: {" + lines(n, "b%d: 1,") + "}" },
		"items":               func(n int) string { return "a:\n" + repeat("- b\n", n/4) },
		"items with anchors":  func(n int) string { return "a:\n" + repeat("- &a b\n", n/7) },
		"items in brackets":   func(n int) string { return "a: [" + repeat("b,", n/2) + "]" },
		"commas":              func(n int) string { return "a: [" + repeat(",", n) + "]" },
		"comments":            func(n int) string { return "a: 1\n" + repeat("#c\n", n/3) },
		"comments before":     func(n int) string { return repeat("#c\n", n/3) + "a: 1\n" },
		"blank lines":         func(n int) string { return "a: 1\n" + repeat("\n", n) },
		"a line":              func(n int) string { return "a: " + repeat("x", n) },
		"quoted":              func(n int) string { return `a: "` + repeat("x", n) },
		"quoted lines":        func(n int) string { return `a: "` + repeat("x\n  ", n/4) + `"` },
		"quoted keys":         func(n int) string { return "a: \"\n" + repeat("b: 1\n", n/5) },
		"quotes":              func(n int) string { return "a: " + repeat("'' ", n/3) },
		"a literal":           func(n int) string { return "a: |\n" + repeat("  x\n", n/4) },
		"plain lines":         func(n int) string { return "a: x\n" + repeat("  x\n", n/4) },
		"anchors":             func(n int) string { return "a: " + repeat("&a ", n/3) },
		"tags":                func(n int) string { return "a: " + repeat("!!a ", n/4) },
		"merges":              func(n int) string { return repeat("<<: a\n", n/6) },
		"documents":           func(n int) string { return repeat("a\n---\n", n/6) },
		"documents that end":  func(n int) string { return repeat("a: 1\n...\n", n/9) },
		"documents of a line": func(n int) string { return repeat("---\n", n/4) },
		"directives":          func(n int) string { return repeat("%a\n", n/3) },
		"colons":              func(n int) string { return repeat("a: ", n/3) },
		"tabs":                func(n int) string { return "a: 1\n" + repeat("\t\n", n/2) },
		"carriage returns":    func(n int) string { return "a: 1" + repeat("\r", n) },
		"no text":             func(n int) string { return "a: " + repeat("\xff", n) },
	} {
		for _, n := range []int{8 << 10, 72 << 10} {
			text := []byte(of(n))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := time.Now()
			err := Walk(text, func(int, ast.Node, bool) error { return nil })
			took := time.Since(began)
			runtime.ReadMemStats(&after)
			if each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(text)); each > most {
				t.Errorf("%s: %d bytes for each of %d (%v, %.100v)", name, each, len(text), took, err)
			}
		}
	}
}

// A text that is parsed in pieces has the same keys, values and lines as one that is not.
func TestPieces(t *testing.T) {
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 1))
		var b strings.Builder
		var want []string
		line := 1
		write := func(format string, args ...any) {
			s := fmt.Sprintf(format, args...)
			b.WriteString(s)
			line += strings.Count(s, "\n")
		}
		if seed%2 == 1 {
			write("# a file\n---\n")
		}
		// some is a number of lines, of which many are more than a piece has.
		some := func() int {
			if random.IntN(4) == 0 && line < 4000 {
				return maxLines + random.IntN(200)
			}
			return 1 + random.IntN(4)
		}
		var level func(indent string, depth, n int)
		level = func(indent string, depth, n int) {
			for i := range n {
				want = append(want, fmt.Sprintf("%d %d k%d", line, depth, i))
				switch random.IntN(12) {
				case 0:
					write("%sk%d: {\n%s  a: [b,\n c]\n%s}\n", indent, i, indent, indent)
				case 1:
					write("%sk%d: \"v\n%s  it: is\n%s  quoted\"\n", indent, i, indent, indent)
				case 2:
					write("%sk%d: |\n%s  a: [\n%s  - {\n", indent, i, indent, indent)
				case 3:
					write("%sk%d: # some\n", indent, i)
					for range some() {
						write("%s- a: 1\n%s  b: 2\n", indent, indent)
					}
				case 4:
					write("%sk%d: v # a: {\n\n# [\n", indent, i)
				case 5:
					write("%sk%d:\n", indent, i)
					level(indent+"  ", depth+1, some())
				default:
					write("%sk%d: v\n", indent, i)
				}
			}
		}
		level("", 0, some()+some()+20)
		var got []string
		var add func(depth int, n ast.Node)
		add = func(depth int, n ast.Node) {
			var all []*ast.MappingValueNode
			switch n := n.(type) {
			case *ast.MappingNode:
				all = n.Values
			case *ast.MappingValueNode:
				all = append(all, n)
			}
			for _, e := range all {
				if strings.HasPrefix(e.Key.String(), "k") {
					got = append(got, fmt.Sprintf("%d %d %s", e.Key.GetToken().Position.Line, depth, e.Key))
				}
				add(depth+1, e.Value)
			}
		}
		if err := Walk([]byte(b.String()), func(depth int, n ast.Node, _ bool) error { add(depth, n); return nil }); err != nil {
			t.Fatalf("seed %d: %v of\n%.2000s", seed, err, b.String())
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			for i := range max(len(got), len(want)) {
				if i >= len(got) || i >= len(want) || got[i] != want[i] {
					t.Fatalf("entry %d of %d, %d: got %v, want %v, of\n%.3000s", i, len(got), len(want), got[min(i, len(got)):min(i+3, len(got))], want[min(i, len(want)):min(i+3, len(want))], b.String())
				}
			}
		}
	}
}

// Errors name the line, also behind many others.
func TestErrors(t *testing.T) {
	var many strings.Builder
	many.WriteString("keys:\n")
	for i := range 2000 {
		fmt.Fprintf(&many, "  k%d:\n    hash: x\n", i)
	}
	for text, want := range map[string]string{
		"  a: [b\n":                       "4002:",
		"  a: 'b\n":                       "4002:",
		"  a: b: c\n":                     "4002:",
		"  a: " + strings.Repeat("[", 40): "line 4002: lists and mappings",
		"  a: [" + strings.Repeat("b, ", 100<<10): "longer than 256 KiB",
		"---\n---\nb: 1\n":                        "line 4003: a second document",
	} {
		err := Walk([]byte(many.String()+text), func(int, ast.Node, bool) error { return nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
}
