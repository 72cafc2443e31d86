//go:build interop

package parsers

import (
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/model/outputparse"
	"weir/internal/model/outputparse/outputtest"
)

var seed = flag.Uint64("seed", 1, "of the answers that are written and spoiled")

// judgements are those of the kinds of differences from SGLang, by how the answer is spoiled;
// where it is not, by what SGLang makes of it too.
var judgements = map[string]string{
	"as it should be | SGLang raises an error":   "weir as meant. SGLang takes more than a second of CPU: its expression backtracks.",
	"as it should be | SGLang has more content":  "weir as meant. SGLang streams a section of DSML without its reader's name, harmony's preamble twice, and the rest of a list.",
	"as it should be | SGLang has less content":  "weir as meant.",
	"as it should be | SGLang reads fewer calls": "weir as meant: see docs/parsers.md, well-formed calls.",
	"as it should be | other arguments":          "weir as meant: a call without parameters has {}, also streamed; SGLang streams nothing, or spells true as True.",
	"as it should be | other content":            "weir as meant.",
	"as it should be | other tools":              "weir as meant. SGLang's reader of GLM takes all before the first line break for the name.",
	"as it should be | SGLang reads more calls":  "weir as meant.",
	"cut":                 "weir has the beginning of the call and says that it is unfinished, or, without a name, the text. SGLang loses it, or makes it whole.",
	"a tool that is none": "weir: content, as no tool of the request is called. SGLang drops it whole, and streamed calls the tool that is none.",
	"text between":        "weir: the text is content, or within a value the value's, whose call is then no complete one. SGLang drops it, with a call or from it.",
	"a part left out":     "weir: what is no call without the part is content; an end may be left out. SGLang drops one or the other, or reads a call of no name.",
	"a part twice":        "weir: the second one is content, or the value's. SGLang drops it or takes it for arguments.",
}

// vllmJudgements are those of the differences from vLLM.
var vllmJudgements = map[string]string{
	"as it should be | other reasoning":        "weir as meant. vLLM's readers of [THINK], which needs Mistral's own tokenizer, and of Gemma's channel were not run.",
	"as it should be | other arguments":        "weir as meant. In lists, vLLM takes Gemma's numbers and words for strings, and drops FunctionGemma's values that are not between markers; it takes Muse Glimmer's strings for JSON where they are. Streamed, it leaves out empty arguments, and the ends of later ones.",
	"as it should be | vLLM raises an error":   "weir as meant. vLLM's reader of InternLM takes one call.",
	"as it should be | other tools":            "weir as meant. vLLM takes a self closing tag of DSML for a part of the name.",
	"as it should be | vLLM has more content":  "weir as meant. vLLM shows the section around a self closing tag, and pythonic calls behind reasoning and an empty line; streamed, also calls in a list, or behind reasoning.",
	"as it should be | vLLM reads fewer calls": "weir as meant. vLLM reads no list of Mistral's by a tokenizer that has [ARGS], no self closing tags of DSML, and no pythonic calls behind an empty line; streamed, neither calls in a list nor those of Granite behind reasoning.",
	"cut":                 "weir has the beginning of the call and says that it is unfinished, or, without a name, the text. vLLM closes what was cut, of a name that was cut too, or loses it.",
	"a tool that is none": "weir: content, as no tool of the request is called. vLLM calls the tool that is none.",
	"text between":        "weir: the text is content, or within a value the value's, whose call is then no complete one. vLLM drops it, or takes all for content.",
	"a part left out":     "weir: what is no call without the part is content; an end may be left out. vLLM drops one or the other, makes a call of an empty name or of a parameter less, or takes all for content.",
	"a part twice":        "weir: the second one is content, or the value's. vLLM drops it, takes it for arguments or a name, or takes all for content.",
}

// TestWritten: answers of every family as they should be, and spoiled. Those that are as they
// should be are read by weir as they are meant; how SGLang and vLLM differ is judged by kind.
func TestWritten(t *testing.T) {
	t.Run("SGLang", func(t *testing.T) { testWritten(t, &sglang, "written.txt", judgements) })
	t.Run("vLLM", func(t *testing.T) { testWritten(t, &vllm, "written-vllm.txt", vllmJudgements) })
}

func testWritten(t *testing.T, p *peer, file string, judgements map[string]string) {
	t.Logf("-seed %d", *seed)
	tools, err := os.ReadFile(testdata + "tools.json")
	if err != nil {
		t.Fatal(err)
	}
	of := 12
	if testing.Short() {
		of = 6
	}
	// The sample of -short is a part of the whole one.
	draws := func(of string) *rand.Rand {
		h := fnv.New64a()
		h.Write([]byte(of))
		return rand.New(rand.NewPCG(*seed, h.Sum64()))
	}
	var cases []testCase
	var spoiled []string
	for _, format := range outputparse.ToolNames() {
		if slices.Contains(p.lacks, format) {
			continue
		}
		r := draws(format)
		for range of {
			a := outputtest.Write(r, format)
			c := testCase{Format: format, Text: a.Text, Reasoning: true}
			cases, spoiled = append(cases, c), append(spoiled, "as it should be")
			want := reading{Reasoning: a.Reasoning, Content: a.Content}
			for _, call := range a.Calls {
				want.Calls = append(want.Calls, [2]string{call.Name, call.Arguments})
			}
			if got := read(t, c, tools); got.String() != want.String() {
				t.Errorf("%s: %q is read as %s, want %s", format, a.Text, got, want)
			}
		}
		for _, spoiler := range outputtest.Spoilers() {
			r := draws(format + spoiler)
			for range of {
				a := outputtest.Spoil(r, format, spoiler)
				cases, spoiled = append(cases, testCase{Format: format, Text: a.Text, Reasoning: true}), append(spoiled, spoiler)
			}
		}
	}
	theirs := p.ask(t, tools, cases)
	found, examples := map[string]bool{}, map[string]string{}
	same := 0
	for i, c := range cases {
		mine := read(t, c, tools)
		for _, their := range theirs[p.ways*i : p.ways*(i+1)] {
			kinds := p.differ(mine, their)
			if len(kinds) == 0 {
				same++
			}
			for _, kind := range kinds {
				key := spoiled[i] + " | " + kind + " | " + c.Format
				found[key] = true
				examples[key] = fmt.Sprintf("%q\n  weir: %s\n  %s, %s: %s", c.Text, mine, p.name, their.Way, their)
			}
		}
	}
	t.Logf("of %d readings %d are the same", len(theirs), same)
	data, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if kind, rest, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			formats, _, _ := strings.Cut(rest, ". ")
			for _, format := range strings.Split(formats, ", ") {
				listed[kind+" | "+format] = true
			}
		}
	}
	if *update {
		for key := range found {
			listed[key] = true
		}
		if err := os.WriteFile(file, []byte(rows(t, listed, judgements)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		if !listed[key] {
			t.Errorf("a new kind of difference, %s: judge it, then -update:\n%s", key, examples[key])
		}
	}
	if diff := cmp.Diff(string(data), rows(t, listed, judgements)); diff != "" {
		t.Errorf("%s is not as it is written (want -, got +):\n%s", file, diff)
	}
}

// rows are the kinds of differences, the formats in which they were seen, and what they are
// judged.
func rows(t *testing.T, listed map[string]bool, judgements map[string]string) string {
	formats := map[string][]string{}
	for _, key := range slices.Sorted(maps.Keys(listed)) {
		i := strings.LastIndex(key, " | ")
		formats[key[:i]] = append(formats[key[:i]], key[i+len(" | "):])
	}
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(formats)) {
		spoiled, _, _ := strings.Cut(kind, " | ")
		judged := judgements[kind] + judgements[spoiled]
		if judged == "" {
			t.Errorf("%s has no judgement", kind)
		}
		fmt.Fprintf(&b, "%s: %s. %s\n", kind, strings.Join(formats[kind], ", "), judged)
	}
	return b.String()
}

// differ names the kinds of differences between two readings.
func (p *peer) differ(mine, their reading) (kinds []string) {
	if their.Error != "" {
		return []string{p.name + " raises an error"}
	}
	name := func(calls [][2]string) (names []string) {
		for _, c := range calls {
			names = append(names, c[0])
		}
		return names
	}
	switch a, b := name(mine.Calls), name(their.Calls); {
	case slices.Equal(a, b):
		for i := range mine.Calls {
			if canonical(mine.Calls[i][1]) != canonical(their.Calls[i][1]) {
				kinds = append(kinds, "other arguments")
				break
			}
		}
	case len(a) > len(b):
		kinds = append(kinds, p.name+" reads fewer calls")
	case len(a) < len(b):
		kinds = append(kinds, p.name+" reads more calls")
	default:
		kinds = append(kinds, "other tools")
	}
	space := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	switch a, b := space(mine.Content), space(their.Content); {
	case a == b:
	case strings.Contains(a, b):
		kinds = append(kinds, p.name+" has less content")
	case strings.Contains(b, a):
		kinds = append(kinds, p.name+" has more content")
	default:
		kinds = append(kinds, "other content")
	}
	if space(mine.Reasoning) != space(their.Reasoning) {
		kinds = append(kinds, "other reasoning")
	}
	return kinds
}
