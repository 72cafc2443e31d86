package chat

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// longConversation is 100 messages of about 1,800 bytes, some 40k tokens, with
// tool calls and reasoning in between.
func longConversation(tb testing.TB) *Input {
	tb.Helper()
	word := "The quick brown fox jumps over the lazy dog, and \"quotes\" it.\nfunc f(x int) int { return x * 2 } "
	text := strings.Repeat(word, 18)
	var messages []map[string]any
	messages = append(messages, map[string]any{"role": "system", "content": text})
	for i := 0; len(messages) < 100; i++ {
		messages = append(messages, map[string]any{"role": "user", "content": fmt.Sprint(i, text)})
		if i%10 == 3 {
			messages = append(messages,
				map[string]any{"role": "assistant", "content": "", "tool_calls": []any{map[string]any{
					"id": "abcdefghi", "type": "function",
					"function": map[string]any{"name": "find", "arguments": map[string]any{"q": text, "n": i}},
				}}},
				map[string]any{"role": "tool", "tool_call_id": "abcdefghi", "content": text})
		}
		messages = append(messages, map[string]any{"role": "assistant", "content": "<think>\nhm " + text[:200] + "\n</think>\n\n" + text})
	}
	raw, err := json.Marshal(messages)
	if err != nil {
		tb.Fatal(err)
	}
	return &Input{
		Messages: raw, Tools: readRequest(tb, "tools").Tools, AddGenerationPrompt: true,
		SpecialTokens: map[string]string{"bos_token": "<s>", "eos_token": "</s>"},
	}
}

// BenchmarkRender renders a conversation of 40k tokens, the decoding of its
// JSON included.
func BenchmarkRender(b *testing.B) {
	in := longConversation(b)
	for _, name := range []string{"llama3.1", "llama4", "qwen3", "qwen3-coder", "deepseek-v3.1", "glm-4.5", "kimi-k2", "mistral", "gpt-oss"} {
		b.Run(name, func(b *testing.B) {
			tmpl := readTemplate(b, name)
			var dst []byte
			b.ReportAllocs()
			b.SetBytes(int64(len(in.Messages)))
			for b.Loop() {
				var err error
				if dst, err = tmpl.Render(context.Background(), dst[:0], in); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(dst)), "prompt-bytes")
		})
	}
}

// BenchmarkParse compiles the longest template.
func BenchmarkParse(b *testing.B) {
	source := readTemplate(b, "gpt-oss").source
	for b.Loop() {
		if _, err := Parse(source, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
