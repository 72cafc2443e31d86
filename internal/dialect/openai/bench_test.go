package openai

import (
	"fmt"
	"strings"
	"testing"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// largeChat is a conversation of 160 KB in 40 messages.
func largeChat() []byte {
	turn := strings.Repeat("The quick brown fox said:\\n\\\"it's 5 o'clock\\\" and jumped over the lazy dog. ", 52)
	var b strings.Builder
	b.WriteString(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":512,"temperature":0.7,"messages":[`)
	for i := range 40 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":%q,"content":"%s"}`, []string{"user", "assistant"}[i%2], turn)
	}
	b.WriteString("]}")
	return []byte(b.String())
}

func BenchmarkDecode(b *testing.B) {
	chat := largeChat()
	ids := []byte(`{"model":"m","prompt":[` + strings.TrimSuffix(strings.Repeat("12345,", 40000), ",") + `]}`)
	for _, bench := range []struct {
		name     string
		body     []byte
		endpoint Endpoint
		full     bool
	}{
		{"chat 160KB head", chat, Chat, false},
		{"chat 160KB head+request", chat, Chat, true},
		{"small chat head+request", []byte(chatBody(`"stream":true,"max_tokens":16`)), Chat, true},
		{"40k ids head+request", ids, Completions, true},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(bench.body)))
			b.ReportAllocs()
			for b.Loop() {
				h, err := bench.endpoint.ParseHead(bench.body)
				if err == nil && bench.full {
					_, err = bench.endpoint.Request(h, "weir", 0)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendText(b *testing.B) {
	s := newStream(streamOptions{endpoint: Chat, AnswerOptions: dialect.AnswerOptions{ID: "0123456789abcdef", Created: 1700000000, Model: "llama-3.1-8b"}})
	buf := make([]byte, 0, 16<<10)
	for _, bench := range []struct{ name, text string }{
		{"5 bytes", " word"},
		{"4096 ASCII", strings.Repeat(" word and", 455)},
		{"4096 Chinese", strings.Repeat("水位一目了然", 227)},
	} {
		text := []byte(bench.text)
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.AppendText(buf, 0, text)
			}
		})
	}
}

func BenchmarkNewStream(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		newStream(streamOptions{endpoint: Chat, AnswerOptions: dialect.AnswerOptions{ID: "0123456789abcdef", Model: "llama-3.1-8b"}}).AppendFinish(nil, 0, dialect.Finish{Reason: infer.ReasonStop})
	}
}
