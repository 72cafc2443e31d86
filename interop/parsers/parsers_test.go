//go:build interop

// Package parsers compares what weir, SGLang and vLLM read in the same answers, whole and, by
// SGLang, in tokens: the texts of internal/model/outputparse/testdata, and answers that outputtest
// writes and spoils. They differ in places. Each difference of the texts from SGLang is in
// differences.txt, and docs/parsers.md judges them; each kind of difference of the written
// answers is in written.txt and written-vllm.txt with its judgement. One that is not listed fails
// the test.
//
//	go test -tags interop ./interop/parsers/ [-seed N] [-update]
//
// WEIR_PYTHON names an interpreter with the requirements of interop and
// interop/engines installed, WEIR_SGLANG_PARSERS the folder that
// interop/parsers/requirements.txt was installed into, and WEIR_VLLM_SOURCE that of vLLM's source.
package parsers

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/model/outputparse"
	"weir/test/e2e/harness"
)

var update = flag.Bool("update", false, "write the differences found into differences.txt; judge the new ones in docs/parsers.md")

const testdata = "../../internal/model/outputparse/testdata/"

// testCase is a text of the goldens.
type testCase struct {
	Name      string `json:"-"`
	Format    string `json:"format"`
	Text      string `json:"text"`
	Opened    bool   `json:"opened"`
	Reasoning bool   `json:"reasoning"`
	prompt    string
}

// reading is what a parser finds in a text.
type reading struct {
	Way       string      `json:"way"`
	Reasoning string      `json:"reasoning"`
	Content   string      `json:"content"`
	Calls     [][2]string `json:"calls"`
	Error     string      `json:"error"`
}

func (r reading) String() string {
	if r.Error != "" {
		return r.Error
	}
	out := ""
	if r.Reasoning != "" {
		out += fmt.Sprintf(" reasoning %q", r.Reasoning)
	}
	if r.Content != "" {
		out += fmt.Sprintf(" content %q", r.Content)
	}
	for _, call := range r.Calls {
		out += fmt.Sprintf(" call %s %s", call[0], canonical(call[1]))
	}
	if out == "" {
		return "nothing"
	}
	return out[1:]
}

// trimmed is a reading without white space around its texts, which weir takes
// for the markers' and SGLang for the texts'.
func (r reading) trimmed() string {
	r.Reasoning, r.Content = strings.TrimSpace(r.Reasoning), strings.TrimSpace(r.Content)
	return r.String()
}

// canonical writes arguments in one way if they are JSON.
func canonical(arguments string) string {
	var v any
	if json.Unmarshal([]byte(arguments), &v) != nil {
		return fmt.Sprintf("%q", arguments)
	}
	out, _ := json.Marshal(v)
	return string(out)
}

func TestSGLang(t *testing.T) {
	tools, err := os.ReadFile(testdata + "tools.json")
	if err != nil {
		t.Fatal(err)
	}
	cases := slices.DeleteFunc(readCases(t), func(c testCase) bool { return slices.Contains(sglang.lacks, c.Format) })
	theirs := sglang.ask(t, tools, cases)
	var found strings.Builder
	same, spaced := 0, 0
	for i, c := range cases {
		mine := read(t, c, tools)
		ours := mine.String()
		var differ []string
		for _, r := range theirs[sglang.ways*i : sglang.ways*(i+1)] {
			if r.String() == ours {
				same++
				continue
			}
			if r.trimmed() == mine.trimmed() {
				spaced++
				continue
			}
			differ = append(differ, fmt.Sprintf("  SGLang, %s: %s\n", r.Way, r))
		}
		if len(differ) > 0 {
			fmt.Fprintf(&found, "%s: %s\n  weir: %s\n%s", c.Format, c.Name, ours, strings.Join(differ, ""))
		}
	}
	t.Logf("of %d readings %d are the same, %d differ in white space around content and reasoning alone", len(theirs), same, spaced)
	if *update {
		if err := os.WriteFile("differences.txt", []byte(found.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile("differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), found.String()); diff != "" {
		t.Errorf("the differences have changed (want -, got +); judge them, then -update:\n%s", diff)
	}
}

func readCases(t *testing.T) []testCase {
	paths, err := filepath.Glob(testdata + "*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	var cases []testCase
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		format := strings.TrimSuffix(filepath.Base(path), ".txt")
		prompt := ""
		for _, part := range strings.Split("\n"+string(data), "\n-- ")[1:] {
			name, text, _ := strings.Cut(part+"\n", " --\n")
			text = strings.TrimSuffix(text, "\n")
			switch {
			case strings.HasSuffix(name, ", prompt"):
				prompt = text
			case !strings.HasSuffix(name, "/events"):
				cases = append(cases, testCase{
					Name: name, Format: format, Text: text, prompt: prompt, Reasoning: true,
					Opened: strings.HasSuffix(prompt, "<think>"),
				})
				prompt = ""
			}
		}
	}
	return cases
}

func read(t *testing.T, c testCase, tools []byte) reading {
	reasoning := "think"
	if slices.Contains(outputparse.ReasoningNames(), c.Format) {
		reasoning = c.Format
	}
	format, ok := outputparse.Named(c.Format, reasoning)
	if !ok {
		t.Fatalf("no format %q", c.Format)
	}
	p := outputparse.New(outputparse.Options{Format: format, Calls: true, Tools: outputparse.ReadTools(tools), Prompt: []byte(c.prompt)})
	var out reading
	for _, e := range p.Append(nil, []byte(c.Text), true) {
		switch e.Kind {
		case outputparse.Content:
			out.Content += string(e.Text)
		case outputparse.Reasoning:
			out.Reasoning += string(e.Text)
		case outputparse.CallBegin:
			out.Calls = append(out.Calls, [2]string{e.Name})
		case outputparse.Arguments:
			out.Calls[e.Call][1] += string(e.Text)
		}
	}
	return out
}

// peer is another reader of answers.
type peer struct {
	name, program, folder string
	ways                  int      // how many readings there are of each case
	lacks                 []string // the formats that it has no reader of, or none that runs here
}

var (
	sglang = peer{"SGLang", "sglang_parsers.py", "WEIR_SGLANG_PARSERS", 2, []string{"json", "functiongemma", "muse-glimmer"}}
	vllm   = peer{"vLLM", "vllm_parsers.py", "WEIR_VLLM_SOURCE", 2, []string{"harmony"}} // whose tokens it reads by the package openai_harmony
)

// ask returns the readings of each case.
func (p *peer) ask(t *testing.T, tools []byte, cases []testCase) []reading {
	input, err := json.Marshal(map[string]any{"tools": json.RawMessage(tools), "cases": cases})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), harness.Python(t), p.program, os.Getenv(p.folder))
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s's parsers (make interop-ready fetches them): %v", p.name, err)
	}
	var all []reading
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var r reading
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if len(all) != p.ways*len(cases) {
		t.Fatalf("%d readings of %d cases", len(all), len(cases))
	}
	return all
}
