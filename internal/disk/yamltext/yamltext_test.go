package yamltext

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"
)

// most is how many bytes are allocated for each byte of a text.
const most = 200

// The memory for a text is bounded by a multiple of its size, whatever is in it, and so is the time.
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
		"prefixes of tags":    func(n int) string { return lines(n, "%%TAG !a%d! tag:x\n") },
		"directives":          func(n int) string { return repeat("%a\n", n/3) },
		"colons":              func(n int) string { return repeat("a: ", n/3) },
		"tabs":                func(n int) string { return "a: 1\n" + repeat("\t\n", n/2) },
		"carriage returns":    func(n int) string { return "a: 1" + repeat("\r", n) },
		"no text":             func(n int) string { return "a: " + repeat("\xff", n) },
	} {
		for _, n := range []int{8 << 10, 256 << 10} {
			text := []byte(of(n))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := used(t)
			_, err := Parse(text)
			took := used(t) - began
			runtime.ReadMemStats(&after)
			if each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(text)); each > most || took > time.Second {
				t.Errorf("%s: %d bytes for each of %d, %v (%.100v)", name, each, len(text), took, err)
			}
		}
	}
}

// used is the CPU time of this process.
func used(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Values are as they are written, and lines are those of the text.
func TestValues(t *testing.T) {
	for text, want := range map[string]string{
		"1e3": "1e3", "0x10": "0x10", "yes": "yes", "1_000": "1_000", "0o17": "0o17", "2026-01-02": "2026-01-02", "1.0": "1.0", "007": "007",
		"9007199254740993": "9007199254740993", "'it''s'": "it's", `"a\tb\u00e9"`: "a\tbé", "a b # c": "a b", "a#b": "a#b", "%a": "", "100%": "100%",
		"|\n  x\n   y\n": "x\n y\n", ">-\n  x\n  y\n": "x y", "x\n  y": "x y", "weir=h:1,a=b": "weir=h:1,a=b", "\"\"": "",
	} {
		for _, before := range []string{"", "\ufeff", "# a\n---\n", "\r\n"} {
			root, err := Parse([]byte(before + "a: 1\nkey: " + text + "\n"))
			if want == "" && text == "%a" {
				if err == nil {
					t.Errorf("%q: %v", text, root)
				}
				continue
			}
			if err != nil || len(root.Content) != 4 || root.Content[3].Value != want || root.Content[2].Line != 2+strings.Count(before, "\n") {
				t.Errorf("%q: %+v, %v", before+text, root, err)
			}
		}
	}
	for _, text := range []string{"", "\n", "# a\n", "\ufeff"} {
		if root, err := Parse([]byte(text)); root != nil || err != nil {
			t.Errorf("%q: %+v, %v", text, root, err)
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
	deep := strings.Repeat("[", 40)
	for text, want := range map[string]string{
		"  a: [b\n":            "line 4003: did not find expected ',' or ']' (while parsing a flow sequence that begins in line 4002)",
		"  a: 'b\n":            "line 4003:",
		"  a: b: c\n":          "line 4002:",
		"\ta: b\n":             "line 4002:",
		"  a: *b\n":            "line 4002: unknown anchor",
		"  a: " + deep:         "line 4002: lists and mappings are inside of each other more than 32",
		"---\n---\nb: 1\n":     "line 4002: a second document",
		"  a: b\xff\n":         "line 4002: the text is not UTF-8",
		"  a: \v\n":            "line 4002: control characters are not allowed",
		"%TAG ! tag:x\n":       "line 4002: a line begins with %",
		"\u2028%TAG ! tag:x\n": "line 4002: a line begins with %",
	} {
		_, err := Parse([]byte(many.String() + text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"%YAML 1.1\n---\na: 1\n":                   "line 1: a line begins with %",
		strings.Repeat("- ", 40) + "\n":            "line 1: lists and mappings",
		"a: &x [b, b]\nc: [*x, *x]\n":              "line 1: an alias of YAML is not taken",
		"a: &x [*x]\n":                             "alias",
		"a: 1\na: 2\n":                             `line 2: mapping key "a" already defined at line 1`,
		"a: [1\n":                                  "line 2:",
		"a: {b: 1}\nc: " + strings.Repeat("x", 20): "",
	} {
		var into map[string]any
		if err := Decode([]byte(text), &into); err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.30q: %v, want %q", text, err, want)
		}
	}
}

// FuzzParse wants an error with its line, or a root whose nodes are in the text's lines.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "a: 1\n", "- a\n# c\n- b\n", "a:\n  # x\n\n # y\nb: |\n  c\n", "{a: [b, {c: d}]} # e", "? a\n: b\n", "a: &x b\nc: *x\n", "--- a\n...\n", "\"a\\\n b\": 'c'\n", "a: !!int 1\n", "<<: {a: 1}\n", "\ufeff- - a\n  -\n", "a: >-\n  b\n\n  c\n# d\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := Parse(data)
		if err != nil {
			if line := 0; !strings.HasPrefix(err.Error(), "line ") {
				t.Errorf("%q: %v", data, err)
			} else if _, err := fmt.Sscanf(err.Error(), "line %d", &line); err != nil || line < 1 || line > 2+len(data) {
				t.Errorf("%q: %v", data, err)
			}
			return
		}
		var walk func(n *yaml.Node, depth int)
		walk = func(n *yaml.Node, depth int) {
			if n.Line < 1 || n.Line > 2+len(data) || depth > 2*maxDepth+2 {
				t.Fatalf("%q: line %d, depth %d", data, n.Line, depth)
			}
			for _, c := range n.Content {
				walk(c, depth+1)
			}
		}
		if root != nil {
			walk(root, 0)
		}
		var into any
		_ = Decode(data, &into)
	})
}
