package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/gateway/place"
	"weir/internal/infer"
	"weir/internal/load/report"
	"weir/internal/trace"
)

// delays are how long a request waits in each place besides what it needs anyway.
type delays struct{ room, queue, prefill, lag, hop, freeze, client time.Duration }

// TestBlame injects one fault at a time into requests by ids, whose engine stamps its stages, and over
// a relay, whose engine does not, streamed and whole: the record's reason names the fault's stage, and
// does not without the fault. (A gateway that is stopped itself has no place here, where time is no
// process's; weir scenario blame stops one.)
func TestBlame(t *testing.T) {
	const long = 6 * time.Second
	for _, f := range []struct {
		name           string
		delays         delays
		stamped, plain string // the stage by an engine that stamps its stages, and over a relay
	}{
		{"client slow", delays{client: long}, report.StageFlush, report.StageFlush},
		{"weir's queue", delays{room: long}, report.StageQueue, report.StageQueue},
		{"hop held", delays{hop: long}, report.StageHop, report.StageEngine},
		{"engine's queue", delays{queue: long}, report.StageWaiting, report.StageEngine},
		{"prefill", delays{prefill: long}, report.StagePrefill, report.StageEngine},
		{"decode frozen", delays{freeze: long}, report.StageGap, report.StageGap},
		{"engine's output lagging", delays{lag: long}, report.StageOutput, report.StageEngine},
	} {
		for _, streamed := range []bool{true, false} {
			for _, relayed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/streamed=%t/relayed=%t", f.name, streamed, relayed), func(t *testing.T) {
					want := f.stamped
					if relayed {
						want = f.plain
					}
					if relayed && !streamed && f.delays.freeze > 0 {
						want = report.StageEngine // whose answer comes whole
					}
					if r := reasonOf(t, f.delays, streamed, relayed); r.Stage != want {
						t.Errorf("with the fault %s is named, want %s: %s", r.Stage, want, r.Sentence)
					}
					if r := reasonOf(t, delays{}, streamed, relayed); r.Stage == want && want != report.StageEngine {
						t.Errorf("without the fault %s is named: %s", r.Stage, r.Sentence)
					}
				})
			}
		}
	}
}

// reasonOf serves a request with delays, and returns the reason for its record.
func reasonOf(t *testing.T, d delays, streamed, relayed bool) (r report.Reason) {
	ids, relay := &tokenEngine{name: "a", most: 1}, &relayEngine{name: "e", most: 1}
	if !streamed {
		relay.reply = func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
			return f.response(http.StatusOK, "Content-Type", "application/json"), nil
		}
	}
	of, body := any(ids), askStream("")
	switch {
	case relayed && streamed:
		of, body = relay, relayBody
	case relayed:
		of, body = relay, strings.Replace(relayBody, `"stream":true`, `"stream":false`, 1)
	case !streamed:
		body = askChat("")
	}
	inBubble(t, Options{Place: PlaceOptions{Queue: place.Queueing{Requests: 4}}}, []any{of}, func(t *testing.T, b *bench) {
		begun := 1
		var before *caller
		if d.room > 0 { // the engine has a request already
			before, begun = b.post(chatPath, body), 2
		}
		window := 0
		if d.client > 0 { // its first output fits into a stream's
			window = map[bool]int{true: 1 << 10, false: 1 << 8}[streamed]
		}
		c := b.dial(window)
		c.send(http.MethodPost, chatPath, body)
		if time.Sleep(d.room); before != nil {
			played(t, ids, relay, 1, delays{}, streamed, relayed)
			before.answer()
		}
		played(t, ids, relay, begun, d, streamed, relayed)
		time.Sleep(d.client)
		for range 400 {
			if a := c.answer(); a.whole {
				break
			}
		}
		r = readReason(t, b, c)
	})
	return r
}

// played has an engine serve its request of a number.
func played(t *testing.T, ids *tokenEngine, relay *relayEngine, n int, d delays, streamed, relayed bool) {
	const tokens, step = 60, 10 * time.Millisecond
	if relayed {
		f := relay.forward(t, n)
		time.Sleep(d.queue + 20*time.Millisecond + d.prefill + d.lag + d.hop)
		for i := range tokens {
			if time.Sleep(step); i == tokens/2 {
				time.Sleep(d.freeze)
			}
			if streamed {
				f.send(relayToken)
			}
		}
		if streamed {
			f.send(relayEnd)
		} else {
			f.send(`{"choices":[{"message":{"content":"`) // a large answer comes in parts, and a slow client is slow between them
			f.send(strings.Repeat("word ", tokens))
			f.send(`"},"finish_reason":"stop"}]}`)
		}
		f.end()
		return
	}
	call := ids.call(t, n)
	s := &infer.Stamps{QueueStart: trace.Now()}
	time.Sleep(d.queue)
	s.QueueEnd, s.PrefillStart = trace.Now(), trace.Now()
	time.Sleep(d.prefill + 20*time.Millisecond)
	s.PrefillEnd, s.FirstToken = trace.Now(), trace.Now()
	time.Sleep(d.lag)
	s.FirstOutput = trace.Now()
	time.Sleep(d.hop)
	word := words()[:1]
	call.sink.Offer(&infer.Delta{Attempt: call.attempt, IDs: word, Total: 1, Received: trace.Now(), Stamps: s})
	call.total++
	for i := range tokens {
		if time.Sleep(step); i == tokens/2 {
			time.Sleep(d.freeze)
		}
		call.send(word[0])
	}
	call.end(infer.ReasonStop, word[0])
}

// readReason reads the reason for a client's request from the timeline.
func readReason(t *testing.T, b *bench, c *caller) report.Reason {
	b.wantRecord(c, "finished", "")
	for _, r := range recordsAs[report.Record](b) {
		if r.RequestID == c.id {
			return report.ReasonOf(r)
		}
	}
	t.Fatalf("request %s has no record", c.id)
	return report.Reason{}
}
