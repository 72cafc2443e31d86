package serve

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/test/e2e/harness"
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
	data, err := os.ReadFile("../../../internal/tokenizer/testdata/weir-sim.json")
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

// What weir tokenize prints are the reference's ids, and --decode gives the
// text back, both from a file and from standard input.
func TestTokenize(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	file := func(content string) string {
		path := filepath.Join(dir, "input")
		harness.WriteFile(t, path, content)
		return path
	}
	for _, g := range goldens(t) {
		want, err := json.Marshal(g.IDs)
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"-"}, {"--model", "../../../models/weir-sim", file(g.Text)}} {
			stdout, stderr, code := harness.Tokenize(t, g.Text, args...)
			if code != 0 || stderr != "" {
				t.Fatalf("%v: exit code %d: %s", args, code, stderr)
			}
			if stdout != string(want)+"\n" {
				t.Errorf("%.80q became %.200s, want %.200s", g.Text, stdout, want)
			}
			back, stderr, code := harness.Tokenize(t, stdout, "--decode", "-")
			if code != 0 || back != g.Text {
				t.Errorf("decoded to %.200q (exit code %d, %s), want %.200q", back, code, stderr, g.Text)
			}
		}
	}
}

// Ids that are not the whole of a rune decode as the tokenizer says, however
// they are spread over the input.
func TestTokenizeDecodesBytes(t *testing.T) {
	harness.Beside(t, harness.Light)
	ids, _, _ := harness.Tokenize(t, "\U0001F9FF", "-")
	var all []uint32
	if err := json.Unmarshal([]byte(ids), &all); err != nil || len(all) < 2 {
		t.Fatalf("want a rune of several tokens, have %s (%v)", ids, err)
	}
	cut, err := json.Marshal(append(slices.Clone(all[:len(all)-1]), all...))
	if err != nil {
		t.Fatal(err)
	}
	if text, stderr, code := harness.Tokenize(t, string(cut), "--decode", "-"); code != 0 || text != "\uFFFD\U0001F9FF" {
		t.Errorf("decoded to %q, exit code %d, %s", text, code, stderr)
	}
	if text, _, code := harness.Tokenize(t, " [ ] \n", "--decode", "-"); code != 0 || text != "" {
		t.Errorf("no ids decoded to %q, exit code %d", text, code)
	}
	if ids, _, code := harness.Tokenize(t, "", "-"); code != 0 || ids != "[]\n" {
		t.Errorf("no text became %q, exit code %d", ids, code)
	}
}

// The model of a configuration that is meant for weir serve is not that of weir
// tokenize.
func TestTokenizeIgnoresConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	harness.WriteFile(t, file, "model:\n  - other=/no/such/folder\n")
	t.Setenv("WEIR_CONFIG", file)
	t.Setenv("WEIR_MODEL", "other=/no/such/folder")
	if ids, stderr, code := harness.Tokenize(t, "a", "-"); code != 0 || ids != "[64]\n" {
		t.Errorf("exit code %d, %s, %s", code, ids, stderr)
	}
}

// Errors name the file, the place in it, and what was wanted.
func TestTokenizeErrors(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.txt")
	harness.WriteFile(t, broken, "fine\xff")
	harness.WriteFile(t, filepath.Join(dir, "tokenizer.json"), `{"version":"9"}`)
	for _, c := range []struct {
		name, stdin string
		args        []string
		code        int
		want        []string
	}{
		{"no file named", "", nil, 2, []string{"file"}},
		{"no such file", "", []string{filepath.Join(dir, "none")}, 1, []string{filepath.Join(dir, "none") + ": no such file"}},
		{"a folder", "", []string{dir}, 1, []string{dir + ": is a directory"}},
		{"no such model", "x", []string{"--model", filepath.Join(dir, "none"), "-"}, 1, []string{"--model", "no such file"}},
		{"the model is a file", "x", []string{"--model", broken, "-"}, 1, []string{"--model", broken, "tokenizer.json"}},
		{"the model is broken", "x", []string{"--model", dir, "-"}, 1, []string{"--model " + dir, "tokenizer.json", "/version"}},
		{"not UTF-8", "", []string{broken}, 1, []string{broken, "UTF-8", "byte 4"}},
		{"not UTF-8, standard input", "\xc3", []string{"-"}, 1, []string{"standard input", "byte 0"}},
		{"ids are no array", `{"tokens":[1]}`, []string{"--decode", "-"}, 1, []string{"standard input", "line 1, column 1", "JSON array"}},
		{"ids are no JSON", "1 2 3", []string{"--decode", "-"}, 1, []string{"line 1", "JSON array"}},
		{"an id is text", "[1,\n \"2\"]", []string{"--decode", "-"}, 1, []string{"line 2", "[1]", `2`}},
		{"an id is negative", "[-1]", []string{"--decode", "-"}, 1, []string{"[0]", "-1", "0 to"}},
		{"an id is a fraction", "[1.5]", []string{"--decode", "-"}, 1, []string{"[0]", "1.5"}},
		{"an id is too high", "[1,4294967295]", []string{"--decode", "-"}, 1, []string{"[1]", "4294967295", "0 to"}},
		{"ids end early", "[1,2", []string{"--decode", "-"}, 1, []string{"line 1, column 5", "end"}},
		{"no ids at all", "", []string{"--decode", "-"}, 1, []string{"end", "JSON array"}},
		{"more than one array", "[1][2]", []string{"--decode", "-"}, 1, []string{"more after the array"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, stderr, code := harness.Tokenize(t, c.stdin, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, stderr)
			}
			for _, part := range c.want {
				if !strings.Contains(stderr, part) {
					t.Errorf("stderr %q lacks %q", stderr, part)
				}
			}
		})
	}
}

// The gateway's /tokenize gives the same ids as weir tokenize, and /detokenize
// the text again; bad input is refused by the field's name.
func TestTokenizeEndpoints(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up")
	for _, golden := range goldens(t) {
		body, err := json.Marshal(map[string]any{"model": "weir-sim", "prompt": golden.Text, "add_special_tokens": false})
		if err != nil {
			t.Fatal(err)
		}
		a := harness.Post(t, g.URL+"/tokenize", string(body))
		var got struct {
			Tokens      []uint32
			Count       int
			MaxModelLen int `json:"max_model_len"`
		}
		if err := json.Unmarshal(a.Body, &got); err != nil || a.Status != 200 || !slices.Equal(got.Tokens, golden.IDs) || got.Count != len(golden.IDs) || got.MaxModelLen != 131072 {
			t.Fatalf("%.80q: status %d, %.300s (%v)", golden.Text, a.Status, a.Body, err)
		}
		if body, err = json.Marshal(map[string]any{"model": "weir-sim", "tokens": golden.IDs, "skip_special_tokens": false}); err != nil {
			t.Fatal(err)
		}
		a = harness.Post(t, g.URL+"/detokenize", string(body))
		var back struct{ Prompt, Text string }
		if err := json.Unmarshal(a.Body, &back); err != nil || back.Prompt != golden.Text || back.Text != golden.Text {
			t.Fatalf("%.80q came back as %.300s (%v)", golden.Text, a.Body, err)
		}
	}
	for _, c := range []struct {
		path, body string
		status     int
		param      string
	}{
		{"/tokenize", `{"model":"gpt-9","prompt":"a"}`, 404, "model"},
		{"/tokenize", `{"model":"weir-sim"}`, 400, "prompt"},
		{"/tokenize", `{"model":"weir-sim","prompt":["a",1]}`, 400, "prompt[1]"},
		{"/tokenize", `{"model":"weir-sim","prompt":"a","max_tokens":5}`, 400, "max_tokens"},
		{"/detokenize", `{"model":"weir-sim","tokens":[40000]}`, 400, "tokens[0]"},
	} {
		a := harness.Post(t, g.URL+c.path, c.body)
		var e harness.APIError
		if err := json.Unmarshal(a.Body, &e); err != nil || a.Status != c.status || e.Error.Param == nil || *e.Error.Param != c.param {
			t.Errorf("%s %s: status %d, %s; want %d about %s", c.path, c.body, a.Status, a.Body, c.status, c.param)
		}
	}
	if metrics := string(harness.Get(t, g.Admin+"/metrics").Body); !strings.Contains(metrics, "weir_prefix_tokens_total") || !strings.Contains(metrics, `endpoint="/tokenize"`) {
		t.Error("the metrics do not tell of it")
	}
	g.Balanced()
}
