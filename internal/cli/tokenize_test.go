package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// golden is a text with the ids that the reference gives it.
type golden struct {
	Text string   `json:"text"`
	IDs  []uint32 `json:"ids"`
}

// goldens are some of those that the tokenizer's own tests have: its longest,
// and one of every few.
func goldens(t *testing.T) []golden {
	t.Helper()
	data, err := os.ReadFile("../../internal/model/tokenizer/testdata/weir-sim.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []golden
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(all, func(a, b golden) int { return len(b.Text) - len(a.Text) })
	some := all[:3:3]
	for i := 3; i < len(all); i += len(all) / 9 {
		some = append(some, all[i])
	}
	return some
}

// weir tokenize prints the reference's ids, from a file and from standard
// input, by the built-in model and by its folder; --decode gives the text back.
func TestTokenize(t *testing.T) {
	commandLines(t)
	t.Parallel()
	dir := t.TempDir()
	file := func(content string) string {
		path := filepath.Join(dir, "input")
		writeFile(t, path, content)
		return path
	}
	for i, g := range goldens(t) {
		want, err := json.Marshal(g.IDs)
		if err != nil {
			t.Fatal(err)
		}
		forms := [][]string{{"-"}, {file(g.Text)}}
		if i < 3 { // the longest; the folder is read anew each time
			forms = append(forms, []string{"--model", "../../models/weir-sim", file(g.Text)})
		}
		for _, args := range forms {
			code, stdout, stderr := runWith(t, g.Text, append([]string{"tokenize"}, args...)...)
			if code != 0 || stderr != "" {
				t.Fatalf("%v: exit code %d: %s", args, code, stderr)
			}
			if stdout != string(want)+"\n" {
				t.Errorf("%.80q became %.200s, want %.200s", g.Text, stdout, want)
			}
		}
		code, back, stderr := runWith(t, string(want), "tokenize", "--decode", "-")
		if code != 0 || back != g.Text {
			t.Errorf("decoded to %.200q (exit code %d, %s), want %.200q", back, code, stderr, g.Text)
		}
	}
}

// Ids that are not the whole of a rune decode as the tokenizer says, however
// they are spread over the input.
func TestTokenizeDecodesBytes(t *testing.T) {
	t.Parallel()
	_, ids, _ := runWith(t, "\U0001F9FF", "tokenize", "-")
	var all []uint32
	if err := json.Unmarshal([]byte(ids), &all); err != nil || len(all) < 2 {
		t.Fatalf("want a rune of several tokens, have %s (%v)", ids, err)
	}
	cut, err := json.Marshal(append(slices.Clone(all[:len(all)-1]), all...))
	if err != nil {
		t.Fatal(err)
	}
	if code, text, stderr := runWith(t, string(cut), "tokenize", "--decode", "-"); code != 0 || text != "\uFFFD\U0001F9FF" {
		t.Errorf("decoded to %q, exit code %d, %s", text, code, stderr)
	}
	if code, text, _ := runWith(t, " [ ] \n", "tokenize", "--decode", "-"); code != 0 || text != "" {
		t.Errorf("no ids decoded to %q, exit code %d", text, code)
	}
	if code, ids, _ := runWith(t, "", "tokenize", "-"); code != 0 || ids != "[]\n" {
		t.Errorf("no text became %q, exit code %d", ids, code)
	}
}

// The model of a configuration that is meant for weir serve is not that of weir
// tokenize.
func TestTokenizeIgnoresConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	writeFile(t, file, "model:\n  - other=/no/such/folder\n")
	t.Setenv("WEIR_CONFIG", file)
	t.Setenv("WEIR_MODEL", "other=/no/such/folder")
	if code, ids, stderr := runWith(t, "a", "tokenize", "-"); code != 0 || ids != "[64]\n" {
		t.Errorf("exit code %d, %s, %s", code, ids, stderr)
	}
}

// An error of text that is not UTF-8, or ends early, has its place; the other errors are in
// testdata/script/tokenize_errors.txtar, which can hold neither.
func TestTokenizePlaces(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.txt")
	writeFile(t, broken, "fine\xff")
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        []string
	}{
		{"not UTF-8", "", []string{broken}, []string{broken, "UTF-8", "byte 4"}},
		{"not UTF-8, standard input", "\xc3", []string{"-"}, []string{"standard input", "byte 0"}},
		{"ids end early", "[1,2", []string{"--decode", "-"}, []string{"line 1, column 5", "end"}},
	} {
		code, _, stderr := runWith(t, c.stdin, append([]string{"tokenize"}, c.args...)...)
		if code != 1 {
			t.Errorf("%s: exit code %d: %s", c.name, code, stderr)
		}
		for _, part := range c.want {
			if !strings.Contains(stderr, part) {
				t.Errorf("%s: stderr %q lacks %q", c.name, stderr, part)
			}
		}
	}
}
