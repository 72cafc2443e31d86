package openai

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/dialect"
)

// A caller that asks for no usage gets the stream without the usage's event, however the stream
// is cut into regions, and every other byte as it came.
func TestCountedStream(t *testing.T) {
	events := []string{
		": a comment\n\n",
		`data: {"id":"x","choices":[{"index":0,"delta":{"content":"say \"usage\":{}"}}],"usage":null}` + "\n\n",
		`data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}` + "\n\n",
		`data: {"id":"x","choices":[],"usage":null}` + "\n\n",
		`data: {"error":{"message":"usage"}}` + "\n\n",
		`data: not JSON "usage"` + "\n\n",
		"data: {\"usage\":\ndata: {}}\n\n",
		"data: [DONE]\n\n",
	}
	const usage = `data: {"id":"x","choices": [ ],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}` + "\n\n"
	rapid.Check(t, func(t *rapid.T) {
		c := new(counter)
		var want, out []byte
		for range rapid.IntRange(0, 6).Draw(t, "regions") {
			var region []byte
			for range rapid.IntRange(1, 4).Draw(t, "events") {
				if rapid.IntRange(0, 3).Draw(t, "usage") == 0 {
					region = append(region, usage...)
					continue
				}
				e := rapid.SampledFrom(events).Draw(t, "event")
				region, want = append(region, e...), append(want, e...)
			}
			var good int
			var err error
			if out, good, err = c.Events(out, region); good != len(region) || err != nil {
				t.Fatalf("%d of %d bytes, %v", good, len(region), err)
			}
		}
		if out = c.Rest(out); string(out) != string(want) {
			t.Fatalf("got %q,\nwant %q", out, want)
		}
	})
}

// The usage is asked for where the caller has not done so, beside what it asks for.
func TestCountedRequest(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","stream":true}`:                                               `"stream_options":{"include_usage":true}`,
		`{"model":"m","stream":true,"stream_options":null}`:                         `"stream_options":{"include_usage":true}`,
		`{"model":"m","stream":true,"stream_options":{"include_usage":false}}`:      `"stream_options":{"include_usage":true}`,
		`{"model":"m","stream":true,"stream_options":{"include_obfuscation":true}}`: `"stream_options":{"include_usage":true,"include_obfuscation":true}`,
		`{"model":"m","stream":true,"stream_options":{"include_usage":true}}`:       "",
	} {
		h, err := Chat.ParseHead([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		asked, v := dialect.Counted(Chat).Count(h)
		if (v == nil) != (want == "") || (asked == nil) != (v == nil) {
			t.Errorf("%s: %v, %v", body, asked, v)
			continue
		}
		if v != nil && strings.Count(string(asked.Splice("m")), want) != 1 {
			t.Errorf("%s: the engine is asked %s, want %s", body, asked.Splice("m"), want)
		}
	}
}

// A stream without usage costs the counter nothing but a look at each event.
func BenchmarkCounted(b *testing.B) {
	region := []byte(strings.Repeat(`data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}`+"\n\n", 8))
	c, out := new(counter), make([]byte, 0, len(region))
	b.ReportAllocs()
	b.SetBytes(int64(len(region)))
	for b.Loop() {
		out, _, _ = c.Events(out[:0], region)
	}
}
