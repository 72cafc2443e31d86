package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/dialect/sglang"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/observe/busy"
	"weir/internal/observe/watch"
	"weir/internal/trace"
)

// An operation for a request is known by name while it runs, and counted when it is over: a
// template that takes a second is seen to run for its request.
func TestOperations(t *testing.T) {
	a := &tokenEngine{name: "a"}
	w := watch.New(watch.Options{Registry: prometheus.NewRegistry(), StallThreshold: time.Second})
	delay := map[trace.Stage]time.Duration{trace.Render: time.Second, trace.Tokenize: time.Second}
	inBubble(t, Options{Watch: w, Record: record.Options{StageDelay: delay}}, []any{a}, func(t *testing.T, b *bench) {
		_, before := w.Meter().Totals()
		c := b.post(chatPath, askStream(``))
		for _, want := range []busy.Op{busy.Template, busy.Tokenize} {
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			running := w.Meter().Running()
			if len(running) != 1 || running[0].Op != want || running[0].RequestID != c.id {
				t.Errorf("%+v runs, want %v", running, want)
			}
			time.Sleep(500 * time.Millisecond)
		}
		a.call(t, 1).end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
		b.record(c) // it has ended
		spent, after := w.Meter().Totals()
		for _, op := range []busy.Op{busy.Parse, busy.Template, busy.Tokenize, busy.Hash, busy.Pick, busy.Encode} {
			if after[op] == before[op] {
				t.Errorf("%v was not counted", op)
			}
		}
		if running := w.Meter().Running(); len(running) != 0 || spent[busy.Template] < int64(time.Second) || spent[busy.Tokenize] < int64(time.Second) {
			t.Errorf("%+v runs, spent %v", running, spent)
		}
	})
}

// The body of POST /generate may name the request while the watch reads the name that it has
// had so far (with -race).
func TestOperationsOfTheNamed(t *testing.T) {
	a := &tokenEngine{name: "a"}
	w := watch.New(watch.Options{Registry: prometheus.NewRegistry(), StallThreshold: time.Second})
	inBubble(t, Options{Watch: w, Record: record.Options{StageDelay: map[trace.Stage]time.Duration{trace.Parse: time.Second, trace.Render: time.Second, trace.Tokenize: time.Second}}}, []any{a}, func(t *testing.T, b *bench) {
		c, body := b.dial(0), `{"model":"weir-sim","text":"x","rid":"mine","sampling_params":{"max_new_tokens":1}}`
		c.id, c.method = "mine", "POST"
		b.sent[c.id]++
		c.write(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", sglang.Path, len(body), body))
		var seen []string
		for range 40 {
			time.Sleep(100 * time.Millisecond)
			for _, s := range w.Meter().Running() {
				if !slices.Contains(seen, s.RequestID) {
					seen = append(seen, s.RequestID)
				}
			}
		}
		a.call(t, 1).end(infer.ReasonStop, words()[0])
		if len(seen) != 2 || seen[0] == "mine" || seen[0] == "" || seen[1] != "mine" {
			t.Errorf("the watch saw %q, want an id of weir's own and then the caller's", seen)
		}
	})
}

// A request's line says what became of it and which bound ended it, and holds nothing of
// what was asked.
func TestAccessLog(t *testing.T) {
	var out bytes.Buffer
	a := &tokenEngine{name: "a"}
	opts := Options{Record: record.Options{Access: record.AccessLog{Log: slog.New(slog.NewJSONHandler(&out, nil)), Share: 1}}, Attempt: attempt.Options{IdleTimeout: time.Minute}}
	inOneWay(t, opts, []any{a}, func(t *testing.T, b *bench) {
		out.Reset()
		c := b.post(chatPath, askStream(``))
		a.call(t, 1).end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
		d := b.post(chatPath, askStream(``))
		a.call(t, 2).send(words()[0])
		time.Sleep(2 * time.Minute)
		b.record(d)
		type line struct {
			Msg, Outcome, Engine, Code, Bound string
			RequestID                         string  `json:"request_id"`
			MS                                float64 `json:"ms"`
		}
		var lines []line
		for text := range strings.Lines(out.String()) {
			var l line
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, l)
		}
		if len(lines) != 2 || lines[0].Outcome != "finished" || lines[0].Engine != "a" || lines[0].Code+lines[0].Bound != "" ||
			lines[1].Code != "deadline" || lines[1].Bound != "--idle-timeout" || lines[1].MS < 6e4 || lines[0].RequestID == lines[1].RequestID {
			t.Errorf("%+v\n%s", lines, out.String())
		}
	})
}

// An answer that is not streamed is written when its engine is done: it has no first token of its
// own, and its generation is no delay of the gateway's.
func TestUnstreamedHasNoFirstToken(t *testing.T) {
	a := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		answered := func(ask string, n int) *timed {
			c := b.post(chatPath, ask)
			call := a.call(t, n)
			time.Sleep(2 * time.Second)
			call.send(words()[0])
			time.Sleep(20 * time.Second)
			call.end(infer.ReasonStop, words()[1])
			c.answer()
			return b.wantRecord(c, "finished", "")
		}
		for n := range 12 {
			r := answered(askChat(``), n+1)
			if r.TTFT != 0 || r.OwnDelay == nil || *r.OwnDelay != 0 || r.Hop != nil {
				t.Errorf("ttft %v, output delay %v, hop %v", time.Duration(r.TTFT), r.OwnDelay, r.Hop)
			}
			if g := r.Gap; time.Duration(g.For) != 20*time.Second || g.Token != 2 || g.Engine != "a" || g.Before != g.For || g.Weir != 0 || g.Client != 0 {
				t.Errorf("longest gap %+v", g)
			}
		}
		if sum := b.sum("weir_ttft_seconds") + b.sum("weir_output_path_delay_seconds") + b.sum("weir_output_delay_seconds"); sum != 0 {
			t.Errorf("%v s are counted", sum)
		}
		if r := answered(askStream(``), 13); time.Duration(r.TTFT) != 2*time.Second || b.sum("weir_ttft_seconds") != 2 {
			t.Errorf("of a stream: ttft %v, counted %v s", time.Duration(r.TTFT), b.sum("weir_ttft_seconds"))
		}
	})
}

// A record tells the hop from the engine and weir's own part of the output path apart, and where the
// longest gap was, for token engines and for relays.
func TestPlaceOfDelays(t *testing.T) {
	a := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		call := a.call(t, 1)
		sent := trace.Now()
		time.Sleep(2 * time.Second) // on the hop
		out := words()
		call.sink.Offer(&infer.Delta{Attempt: call.attempt, IDs: out[:1], Total: 1, Received: trace.Now(), Stamps: &infer.Stamps{QueueStart: sent - 4, QueueEnd: sent - 3, FirstToken: sent - 1, FirstOutput: sent}})
		call.total++
		time.Sleep(time.Second)
		call.end(infer.ReasonStop, out[1])
		c.answer()
		r := b.wantRecord(c, "finished", "")
		if r.Hop == nil || time.Duration(*r.Hop) != 2*time.Second || r.OwnDelay == nil || *r.OwnDelay != 0 {
			t.Errorf("hop %v, own %v", r.Hop, r.OwnDelay)
		}
		if time.Duration(r.Gap.For) != time.Second || r.Gap.Before != r.Gap.For || r.Gap.Token != 2 {
			t.Errorf("gap %+v", r.Gap)
		}
		if hop, own := b.sum("weir_output_hop_seconds"), b.sum("weir_output_delay_seconds"); hop != 2 || own != 0 {
			t.Errorf("hop %v s, own %v s are counted", hop, own)
		}
	})
	e := &relayEngine{name: "e"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, relayBody)
		f := e.forward(t, 1)
		f.send(relayToken)
		time.Sleep(10 * time.Millisecond)
		f.send(relayToken)
		time.Sleep(2 * time.Second)
		f.send(relayToken)
		f.send(relayEnd)
		f.end()
		c.answer()
		r := b.wantRecord(c, "finished", "")
		if r.Hop != nil || r.OwnDelay == nil || *r.OwnDelay != 0 {
			t.Errorf("hop %v is known without a stamp; own %v", r.Hop, r.OwnDelay)
		}
		if time.Duration(r.Gap.For) != 2*time.Second || r.Gap.Before != r.Gap.For || r.Gap.Token != 3 || r.Gap.Engine != "e" {
			t.Errorf("gap %+v", r.Gap)
		}
	})
}
