package answer

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/model/outputparse"
	"weir/internal/model/tokenizer"
)

// However output is merged, the text is the same and so is the count of the
// tokens that said some of the reasoning.
func TestReasoningCount(t *testing.T) {
	m := testModel()
	count := func(text string, cut func(left int) int) (said string, tokens int) {
		ids, err := encodeText(text)
		if err != nil {
			t.Fatal(err)
		}
		ch := choice{
			reasoning: newReasoningCount(outputparse.Options{Format: testFormat, Calls: true}),
			detok:     tokenizer.NewDetokenizer(m.Tokenizer, tokenizer.DetokenizerOptions{SkipSpecial: true, Keep: keptTokens(testFormat)}),
		}
		var out []byte
		for used := 0; len(ids) > 0; ids = ids[used:] {
			out, used, _ = ch.append(out, ids[:cut(len(ids))])
		}
		out, _ = ch.detok.Finish(out)
		return string(out), ch.reasoning.tokens
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
