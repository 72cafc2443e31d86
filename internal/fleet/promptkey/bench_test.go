package promptkey

import (
	"fmt"
	"strings"
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/internal/fleet/kvindex"
)

// chatBody returns a body of about so many bytes: a conversation with the system prompt,
// tools and turns of an agent's, and lines of code in it.
func chatBody(size int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"m","temperature":0.2,"tools":[`)
	for i := range 12 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"type":"function","function":{"name":"tool_%d","description":"Reads the %d. part of a file and gives it back.","parameters":{"type":"object","properties":{"path":{"type":"string","description":"Which file"},"line":{"type":"integer"}},"required":["path"]}}}`, i, i)
	}
	b.WriteString(`],"messages":[{"role":"system","content":"You are an engineer.\n\nAnswer in short sentences."}`)
	line := `	if err := decoder.next(\"value\", place); err != nil { // see above\n		return nil, err\n	}\n`
	line = strings.ReplaceAll(line, "\t", `\t`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `,{"role":"user","content":[{"type":"text","text":"%d. Have a look at this: %s"}]}`, i, strings.Repeat(line, 40))
		fmt.Fprintf(&b, `,{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d","type":"function","function":{"name":"tool_1","arguments":"{\"path\":\"a.go\"}"}}]}`, i)
		fmt.Fprintf(&b, `,{"role":"tool","tool_call_id":"call_%d","content":"%s"}`, i, strings.Repeat("The quick brown fox jumps over the lazy dog, and then it goes home. ", 20))
	}
	b.WriteString(`],"stream":true}`)
	return []byte(b.String())
}

// tester is what tests, benchmarks and properties are.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

func headOf(tb tester, e dialect.Endpoint, body []byte) *dialect.Head {
	tb.Helper()
	h, err := e.ParseHead(body)
	if err != nil {
		tb.Fatalf("%v in %s", err, body)
	}
	return h
}

// BenchmarkRead reads bodies of chats, beside what reading their heads costs anyway: the
// ratio of the two is what it shows.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{4 << 10, 400 << 10} {
		body := chatBody(size)
		h := headOf(b, openai.Chat, body)
		b.Run(fmt.Sprintf("bytes=%d/key", size), func(b *testing.B) {
			r := new(Reader)
			var blocks []kvindex.Block
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				k, ok := r.Read(blocks[:0], 1, Chat, h)
				if !ok {
					b.Fatal("no key")
				}
				blocks = k.Blocks
			}
		})
		b.Run(fmt.Sprintf("bytes=%d/head", size), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				headOf(b, openai.Chat, body)
			}
		})
	}
}
