package responses

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/wire/sse"
)

func event(data string) string {
	return "event: x\ndata: " + data + "\n\n"
}

const (
	created = `{"type":"response.created","sequence_number":0,"response":{"usage":null}}`
	delta1  = `{"type":"response.output_text.delta","sequence_number":1,"delta":"a \"error\" b"}`
	done2   = `{"type":"response.completed","sequence_number":2,"response":{"output":[],"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":2},"output_tokens":4,"total_tokens":7}}}`
)

// judged is what an Inspector makes of a stream that comes in chunks of some
// size, as the gateway shows it.
func judged(stream string, size int) (passed string, in Inspector, fault *infer.Error) {
	return judgedHolding(512, stream, size)
}

// judgedHolding is judged with so many bytes of an event held back at most.
func judgedHolding(most int, stream string, size int) (passed string, in Inspector, fault *infer.Error) {
	splitter := sse.Splitter{Max: most}
	var buf []byte
	for stream != "" {
		n := min(size, len(stream))
		held := len(buf)
		buf = append(buf, stream[:n]...)
		stream = stream[n:]
		r := splitter.Feed(buf[held:])
		good, err := in.Events(buf[:r.Len])
		passed += string(buf[:good])
		if err != nil {
			return passed, in, infer.AsError(err)
		}
		buf = buf[r.Len:]
	}
	return passed, in, nil
}

func TestInspector(t *testing.T) {
	long := strings.Repeat("x", 3000)
	for _, test := range []struct {
		name   string
		good   string
		rest   string
		flaw   infer.Flaw
		done   bool
		failed bool
	}{
		{name: "complete", good: event(created) + event(delta1) + event(done2), done: true},
		{name: "with [DONE] and comments", good: ": hi\n\n" + event(created) + event(delta1) + event(done2) + "data: [DONE]\n\n: bye\n\n", done: true},
		{name: "cut", good: event(created) + event(delta1)},
		{name: "incomplete", good: event(`{"type":"response.incomplete","response":{}}`), done: true},
		{name: "failed", good: event(`{"type":"response.failed","response":{"usage":null}}`), done: true, failed: true},
		{name: "an error, then failed", good: event(created) + event(`{"type":"error","message":"x"}`) + event(`{"type":"response.failed","response":{}}`), done: true, failed: true},
		{name: "an error of another shape", good: event(created) + event(`{"error":{"message":"x"}}`), done: true, failed: true},
		{name: "without numbers", good: event(`{"type":"response.created"}`) + event(`{"type":"response.completed","response":{}}`), done: true},
		{name: "some numbers are none", good: event(`{"type":"a","sequence_number":-1}`) + event(`{"type":"a","sequence_number":5}`) + event(`{"type":"a","sequence_number":-1}`) + event(`{"type":"a","sequence_number":6}`)},
		{name: "the end is large", good: event(created) + event(`{"type":"response.completed","sequence_number":1,"response":{"x":"`+long+`"}}`) + "data: [DONE]\n\n", done: true},
		{name: "the end is large, and cut", good: event(created) + `data: {"type":"response.completed","sequence_number":1,"response":{"x":"` + long},
		{name: "a large event", good: event(created) + event(`{"type":"a","sequence_number":1,"x":"`+long+`"}`) + event(done2), done: true},

		{name: "a gap", good: event(created), rest: event(done2), flaw: flawSequence},
		{name: "a gap at a large event", good: event(created), rest: "data: " + `{"type":"response.completed","sequence_number":2,"response":{"x":"` + long, flaw: flawSequence},
		{name: "an event twice", good: event(created) + event(delta1), rest: event(delta1), flaw: flawSequence},
		{name: "after the end", good: event(created) + event(delta1) + event(done2), rest: event(`{"type":"a"}`), flaw: flawAfterEnd},
		{name: "after [DONE]", good: event(created) + event(delta1) + event(done2) + "data: [DONE]\n\n", rest: event(`{"type":"a"}`), flaw: flawAfterEnd},
		{name: "[DONE] only", good: event(created), rest: "data: [DONE]\n\n", flaw: dialect.FlawShape},
		{name: "no JSON", good: event(created), rest: event(`{"type":`), flaw: dialect.FlawJSON},
		{name: "no object", good: event(created), rest: event(`[]`), flaw: dialect.FlawShape},
		{name: "no type", good: event(created), rest: event(`{"x":1}`), flaw: dialect.FlawShape},
		{name: "a type that is none", good: event(created), rest: event(`{"type":1}`), flaw: dialect.FlawShape},
		{name: "an end without the answer", rest: event(`{"type":"response.completed"}`), flaw: dialect.FlawShape},
		{name: "usage that does not add up", rest: event(`{"type":"response.completed","response":{"usage":{"input_tokens":1,"output_tokens":1,"total_tokens":3}}}`), flaw: dialect.FlawUsage},
		{name: "usage that is none", rest: event(`{"type":"response.completed","response":{"usage":{"input_tokens":-1}}}`), flaw: dialect.FlawUsage},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			passed, in, fault := judged(test.good+test.rest, size)
			if test.flaw == "" {
				large := strings.HasSuffix(test.name, "cut")
				if fault != nil || !large && passed != test.good || in.Done() != test.done || in.Failed() != test.failed {
					t.Errorf("%s, in chunks of %d: passed %q, done %v, failed %v, %v", test.name, size, passed, in.Done(), in.Failed(), fault)
				}
				continue
			}
			var flaw infer.Flaw
			if fault == nil || fault.Code != infer.CodeIntegrity || !errors.As(fault, &flaw) || flaw != test.flaw || passed != test.good {
				t.Errorf("%s, in chunks of %d: passed %q, %v, want %s", test.name, size, passed, fault, test.flaw)
			}
		}
	}
	_, in, _ := judged(event(created)+event(delta1)+event(done2), 9)
	if u, ok := in.Usage(); !ok || u != (infer.Usage{PromptTokens: 3, CompletionTokens: 4, CachedTokens: 2}) {
		t.Errorf("usage %v %v", u, ok)
	}
}

// The output of weir's own encoder is in order, and is not once an event is missing.
func TestInspectorOfOwnStreams(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var spans []span
		for n := rapid.IntRange(0, 4).Draw(t, "spans"); len(spans) < n; {
			spans = append(spans, span{kind: rapid.SampledFrom([]dialect.Delta{dialect.DeltaContent, dialect.DeltaReasoning, dialect.DeltaArguments}).Draw(t, "kind"),
				text: rapid.StringN(1, 30, -1).Draw(t, "text"), name: "f"})
		}
		e := newEncoder(answerTo, encoderOptions{stream: true, echo: []byte(`,"x":1`)})
		stream := string(play(e, spans, infer.ReasonStop, all))
		size := rapid.IntRange(1, 600).Draw(t, "size")
		if passed, in, fault := judged(stream, size); fault != nil || passed != stream || !in.Done() || in.Failed() {
			t.Fatalf("passed %d of %d, done %v, failed %v: %v", len(passed), len(stream), in.Done(), in.Failed(), fault)
		}
		blocks := strings.SplitAfter(strings.TrimSuffix(stream, "\n\n"), "\n\n")
		i := rapid.IntRange(1, len(blocks)-1).Draw(t, "lost")
		lost := strings.Join(append(append([]string(nil), blocks[:i]...), blocks[i+1:]...), "") + "\n\n"
		if _, in, fault := judged(lost, size); fault == nil && in.Done() {
			t.Fatalf("event %d is lost and the stream passes for whole", i)
		}
	})
}

func FuzzInspector(f *testing.F) {
	f.Add(event(created)+event(delta1)+event(done2), 3)
	f.Add("data: [DONE]\r\n\r\n: x\r\rdata: {}\n\n", 1)
	f.Add("data: {\"type\":\"response.completed\",\"sequence_number\":3,\"response\":\""+strings.Repeat("x", 600)+"\n\n", 100)
	f.Fuzz(func(t *testing.T, stream string, size int) {
		size = 1 + max(0, size%1000)
		if passed, _, _ := judged(stream, size); !strings.HasPrefix(stream, passed) {
			t.Fatalf("passed %q of %q", passed, stream)
		}
		// An event that can be held is judged whole, wherever the stream was cut. Of a
		// larger one more is seen the larger the chunks are.
		held := len(stream) + 1
		passed, in, fault := judgedHolding(held, stream, size)
		whole, again, otherwise := judgedHolding(held, stream, 1)
		if (fault == nil) != (otherwise == nil) || fault == nil && (in.Done() != again.Done() || in.Failed() != again.Failed()) {
			t.Fatalf("in chunks of %d: %v, %q; byte for byte: %v, %q", size, fault, passed, otherwise, whole)
		}
	})
}

// An error that ends a relayed stream has the number that follows, and says why both flat and under
// error: some clients read the one, some the other.
func TestErrorEventOfRelayedStream(t *testing.T) {
	e := &infer.Error{Code: infer.CodeEngine, Message: "lost"}
	stream := event(created) + event(delta1)
	_, in, _ := judged(stream, 600)
	out := string(in.AppendErrorEvent(nil, e))
	if _, in, fault := judged(stream+out, 600); fault != nil || !in.Failed() {
		t.Errorf("%q: failed %v, %v", out, in.Failed(), fault)
	}
	for _, text := range []string{out, string(Endpoint{}.AppendErrorEvent(nil, e))} {
		var got struct {
			Type, Message, Code string
			Error               struct{ Type, Message, Code string }
			Number              *int `json:"sequence_number"`
		}
		data := strings.TrimPrefix(text, "event: error\ndata: ")
		if err := json.Unmarshal([]byte(data), &got); err != nil || got.Type != "error" || got.Message != "lost" || got.Error.Message != "lost" || got.Code != got.Error.Code {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if (got.Number != nil) != (text == out) {
			t.Errorf("%q: number %v", text, got.Number)
		}
	}
}
