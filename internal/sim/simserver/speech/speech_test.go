package speech

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The parts of a text do not depend on how it was cut, and no byte of it is lost if it is not in
// the form that engines write.
func TestSpeech(t *testing.T) {
	texts := []string{
		" some words", "", "<think>\n a b\n</think>\n\n c d", "<think>\n never ends", "<thin", "<think> not",
		"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\", \"b\": [1, {}]}}\n</tool_call>",
		"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"x\": 1}}\n</tool_call>",
		"<think>\n a\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a", "text <tool_call> odd </tool_call> more", "<tool_call>{}", "<tool_ca", "a <tool_call> b <tool_call> c",
		"<tool_call>\n{\"name\": \"\\q\", \"arguments\": {}}</tool_call>",
	}
	join := func(parts []Part) (out []Part) {
		for _, p := range parts {
			tell(&out, p)
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom(texts).Draw(t, "text")
		if rapid.Bool().Draw(t, "random") {
			text = strings.Join(rapid.SliceOf(rapid.SampledFrom([]string{"<think>", "\n", "</think>", "<tool_call>", "</tool_call>", `{"name": "f", "arguments": `, "{", "}", `"`, "\\", " a", "<"})).Draw(t, "pieces"), "")
		}
		whole := (&Parser{tools: true}).Push(text, true)
		s := &Parser{tools: true}
		var parts []Part
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			parts = append(parts, s.Push(rest[:n], false)...)
			rest = rest[n:]
		}
		parts = append(parts, s.Push("", true)...)
		if got := join(parts); !slices.Equal(got, whole) {
			t.Fatalf("%q: in pieces %+v, whole %+v", text, got, whole)
		}
	})
	for text, want := range map[string]string{
		texts[3]: " never ends", texts[4]: "<thin", texts[9]: texts[9], texts[10]: texts[10], texts[11]: texts[11], texts[12]: texts[12],
	} {
		var got string
		for _, p := range (&Parser{tools: true}).Push(text, true) {
			got += p.Text
		}
		if got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func FuzzSpeech(f *testing.F) {
	f.Add("<think>\n a\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>", 3)
	f.Add("text <tool_call> odd", 1)
	f.Fuzz(func(t *testing.T, text string, size int) {
		size = max(1, size)
		whole := (&Parser{tools: true}).Push(text, true)
		s := &Parser{tools: true}
		var parts []Part
		for rest := text; rest != ""; rest = rest[min(size, len(rest)):] {
			for _, p := range s.Push(rest[:min(size, len(rest))], false) {
				tell(&parts, p)
			}
		}
		for _, p := range s.Push("", true) {
			tell(&parts, p)
		}
		if !slices.Equal(parts, whole) {
			t.Fatalf("%q in pieces of %d: %+v, whole %+v", text, size, parts, whole)
		}
	})
}
