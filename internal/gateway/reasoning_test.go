package gateway

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/api"
	"weir/internal/chat"
	"weir/internal/chat/parse"
	"weir/internal/infer"
	"weir/internal/route"
	"weir/internal/tokenizer"
)

// How much a model is to reason goes to the variable that its template has.
func TestTemplateKwargs(t *testing.T) {
	think, _ := parse.Named("hermes", "think")
	harmony, _ := parse.Named("harmony", "harmony")
	for _, test := range []struct {
		source        string
		format        parse.Format
		effort, given string
		want          string // or the words of the refusal, after an exclamation mark
	}{
		{"{{ reasoning_effort }}", think, "", `{"a":1}`, `{"a":1}`},
		{"{{ reasoning_effort }}", think, "low", "", `{"reasoning_effort":"low"}`},
		{"{{ reasoning_effort }}", think, "low", ` { }`, `{"reasoning_effort":"low"}`},
		{"{{ reasoning_effort }}{{ enable_thinking }}", think, "none", `{ "a":1}`, `{"reasoning_effort":"none", "a":1}`},
		{"{% if enable_thinking %}{% endif %}", think, "none", "", `{"enable_thinking":false}`},
		{"{% if enable_thinking %}{% endif %}", think, "high", "", `{"enable_thinking":true}`},
		{"{% if thinking %}{% endif %}", think, "high", "", `{"thinking":true}`},
		{"{% if message.thinking %}{% endif %}", think, "high", "", "!nothing by which"},
		{"{{ my_reasoning_effort }}", think, "high", "", "!nothing by which"},
		{"{{ reasoning_effort }}", harmony, "high", "", `{"reasoning_effort":"high"}`},
		{"{{ reasoning_effort }}", harmony, "minimal", "", "!low, medium and high"},
		{"{{ reasoning_effort }}", think, "low", `{"a":1,"reasoning_effort":"high"}`, "!give one of them"},
	} {
		set, err := chat.ParseSet([]chat.Named{{Name: "default", Source: test.source}}, chat.Options{})
		if err != nil {
			t.Fatal(err)
		}
		req := &api.Request{Effort: test.effort, Fields: api.FieldNames{Effort: "reasoning.effort"}}
		if test.given != "" {
			req.ChatTemplateKwargs = []byte(test.given)
		}
		x := &exchange{req: req, folder: &Model{Templates: set, Format: test.format}, model: &route.Model{Name: "m"}}
		got, err := x.templateKwargs()
		if words, refused := strings.CutPrefix(test.want, "!"); refused {
			var e *infer.Error
			if !errors.As(err, &e) || e.Param != "reasoning.effort" || !strings.Contains(e.Message, words) {
				t.Errorf("%s, %q: %v", test.source, test.effort, err)
			}
		} else if err != nil || string(got) != test.want {
			t.Errorf("%s, %q: %s, %v; want %s", test.source, test.effort, got, err, test.want)
		}
	}
}

// However output is merged, the text is the same and so is the count of the
// tokens that said some of the reasoning.
func TestReasoningCount(t *testing.T) {
	m := simModel()
	count := func(text string, cut func(left int) int) (said string, tokens int) {
		ids, err := m.Encode(text, false)
		if err != nil {
			t.Fatal(err)
		}
		r := newReasoningCount(parse.Options{Format: m.Format, Calls: true})
		d := tokenizer.NewDetokenizer(m.Tokenizer, tokenizer.DetokenizerOptions{SkipSpecial: true, Keep: m.keepForCalls})
		var out []byte
		for used := 0; len(ids) > 0; ids = ids[used:] {
			out, used, _ = r.append(d, out, ids[:cut(len(ids))])
		}
		out, _ = d.Finish(out)
		return string(out), r.tokens
	}
	all := func(left int) int { return left }
	for text, want := range map[string]int{
		"no reasoning at all":                               0,
		"<think>one":                                        2,
		"<think>one</think>two":                             2,
		"<think></think>two":                                0,
		"<think>one</think>two <think>three</think>":        2,
		"<think>one</think>\n<tool_call>\n{\"name\": \"f\"": 2,
	} {
		if _, got := count(text, all); got != want {
			t.Errorf("%q: %d tokens of reasoning, want %d", text, got, want)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{"<think>", "</think>", "<tool_call>\n", "{\"name\": \"f\", \"arguments\": {}}", "</tool_call>", "\n", "dams é", "日", " "}), 0, 12).Draw(rt, "parts")
		text := strings.Join(parts, "")
		said, want := count(text, all)
		again, got := count(text, func(left int) int { return rapid.IntRange(1, left).Draw(rt, "cut") })
		if said != text || again != said || got != want {
			rt.Fatalf("%q: %d tokens at once, %d in pieces, saying %q and %q", text, want, got, said, again)
		}
	})
}
