package gateway

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"weir/internal/infer"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
)

// timedStream is what a comment says.
type timedStream struct {
	RequestID string             `json:"request_id"`
	Attempts  int                `json:"attempts"`
	Stages    map[string]float64 `json:"stages_ms"`
	Stamps    map[string]float64 `json:"since_arrival_ms"`
	Total     float64            `json:"total_ms"`
}

// timingOf takes the comment out of a stream, and gives the stream without it.
func timingOf(t *testing.T, body string) (said timedStream, rest string) {
	t.Helper()
	begin, after, found := strings.Cut(body, ": weir ")
	object, end, ended := strings.Cut(after, "\n\n")
	if !found || !ended || strings.Contains(end, ": weir ") || begin != "" && !strings.HasSuffix(begin, "\n\n") {
		t.Fatalf("no comment of its own, once: %q", body)
	}
	if err := json.Unmarshal([]byte(object), &said); err != nil {
		t.Fatalf("%v: %s", err, object)
	}
	return said, begin + end
}

// serverTiming is the form of the header (W3C Server Timing).
var serverTiming = regexp.MustCompile(`^([a-z_]+;dur=[0-9.]+, )*total;dur=[0-9.]+$`)

// A caller that asks is told where the time went, by a header as far as it is known, and
// by a comment in front of the stream's end; whoever does not ask gets the stream as ever.
func TestTiming(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		n := 0
		serve := func(path, body string, headers ...string) *received {
			c := b.post(path, body, headers...)
			n++
			call := e.call(t, n)
			time.Sleep(2 * time.Second)
			ids := idsOf(t, " one two", tokenizer.EncodeOptions{})
			call.sink.Offer(&infer.Delta{Attempt: call.attempt, IDs: ids, Total: len(ids), Received: trace.Now(), Stamps: &infer.Stamps{QueueStart: trace.Now() - 1e9, FirstOutput: trace.Now()}})
			call.total = len(ids)
			time.Sleep(time.Second)
			call.end(infer.ReasonStop)
			return c.answer()
		}
		for _, test := range []struct{ path, body, last string }{
			{chatPath, askStream(""), "data: [DONE]\n\n"},
			{completionsPath, askText(`,"stream":true`), "data: [DONE]\n\n"},
			{messagesPath, askMessage(`,"stream":true`), `data: {"type":"message_stop"}` + "\n\n"},
		} {
			plain := serve(test.path, test.body)
			if plain.header.Get("Server-Timing") != "" || strings.Contains(string(plain.body), ": weir") {
				t.Errorf("%s: it was not asked for: %v %q", test.path, plain.header, plain.body)
			}
			timed := serve(test.path, test.body, "X-Weir-Timing", "1")
			if v := timed.header.Get("Server-Timing"); !serverTiming.MatchString(v) || !strings.Contains(v, "engine;dur=2000") {
				t.Errorf("%s: %q", test.path, v)
			}
			said, rest := timingOf(t, string(timed.body))
			if !strings.HasSuffix(rest, test.last) || strings.Count(rest, "\n\n") != strings.Count(string(plain.body), "\n\n") {
				t.Errorf("%s: without the comment %q, and unasked %q", test.path, rest, plain.body)
			}
			if said.Attempts != 1 || said.Stages["engine"] != 3000 || said.Total != 3000 || said.Stamps["first_output_time"] != 2000 || said.Stamps["queue_time_start"] != 1000 || said.Stamps["first_flushed_time"] != 2000 || said.RequestID != timed.header.Get("X-Request-Id") {
				t.Errorf("%s: %+v", test.path, said)
			}
		}
		whole := serve(chatPath, askChat(""), "X-Weir-Timing", "1")
		if v := whole.header.Get("Server-Timing"); !strings.Contains(v, "engine;dur=3000") || !whole.whole || !json.Valid(whole.body) {
			t.Errorf("whole: %q %q", v, whole.body)
		}
		if off := serve(chatPath, askChat(""), "X-Weir-Timing", "off"); off.header.Get("Server-Timing") != "" {
			t.Errorf("off: %v", off.header)
		}
		refused := b.post(chatPath, `{"model":"none"}`, "X-Weir-Timing", "1").answer()
		if v := refused.header.Get("Server-Timing"); refused.status != 404 || !serverTiming.MatchString(v) {
			t.Errorf("refused: %d %q", refused.status, v)
		}
	})
}

// A relayed stream has the comment where its end is, however it is cut, and else passes as
// it is; the engine hears nothing of the header.
func TestTimingRelayed(t *testing.T) {
	r := &relayEngine{name: "r"}
	inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
		stream := relayToken + relayEnd
		for i, cut := range []int{0, len(relayToken), len(stream) - len("data: [DONE]\n\n"), len(stream) - 4} {
			c := b.post(chatPath, relayBody, "X-Weir-Timing", "1")
			f := r.forward(t, i+1)
			if f.req.Header.Get("X-Weir-Timing") != "" {
				t.Errorf("the engine was told: %v", f.req.Header)
			}
			if cut > 0 {
				f.send(stream[:cut])
			}
			f.send(stream[cut:])
			f.end()
			a := c.answer()
			said, rest := timingOf(t, string(a.body))
			if rest != stream || said.Attempts != 1 || !strings.Contains(string(a.body), "}\n\ndata: [DONE]") {
				t.Errorf("cut at %d: %q", cut, a.body)
			}
		}
	})
}
