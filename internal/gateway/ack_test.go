package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/fleet/health"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/trace"
)

// The record has the parts of an engine's acknowledgement time. The log reports a late
// acknowledgement and its request.
func TestLateAcknowledgement(t *testing.T) {
	var log bytes.Buffer
	a := &tokenEngine{name: "a", accept: func(context.Context, *call) error {
		time.Sleep(3 * time.Second)
		return nil
	}}
	opts := Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Attempt: attempt.Options{AckWarning: time.Second}}
	inBubble(t, opts, []any{a}, func(t *testing.T, b *bench) {
		log.Reset()
		for range 2 { // of which the second one adds nothing to the log
			c := b.post(chatPath, askStream(``))
			time.Sleep(3 * time.Second)
			a.call(t, len(b.sent)).end(infer.ReasonStop, words()[0])
			if leg := b.wantRecord(c, "finished", "").Attempts[0].Legs[0]; leg.AckEngine != int64(3*time.Second) || leg.AckSend != 0 {
				t.Errorf("%+v", leg)
			}
		}
		if got := log.String(); strings.Count(got, "an acknowledgement was late") != 1 || !strings.Contains(got, "test-1: 3s of it were the engine's: engine") {
			t.Errorf("log %s", got)
		}
	})
}

// Time that passes before a request is handed over is the gateway's own, and no engine is avoided
// for it.
func TestOwnDelayBeforeTheHandOver(t *testing.T) {
	a := &tokenEngine{name: "a"}
	inBubble(t, Options{Record: record.Options{StageDelay: map[trace.Stage]time.Duration{trace.Dispatch: 6 * time.Second}}}, []any{a}, func(t *testing.T, b *bench) {
		j := b.judged()
		ctx, stop := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { j.Run(ctx) })
		c := b.post(chatPath, askStream(``))
		h := b.snapshot.Load().Engines[0].Ranks[0].Health
		time.Sleep(6 * time.Second)
		if synctest.Wait(); h.View().State != health.Up {
			t.Errorf("after 6 s in which it was handed nothing: %+v", h.View())
		}
		time.Sleep(2 * time.Second)
		if synctest.Wait(); h.View().State != health.Soft {
			t.Errorf("2 s after it was handed a request: %+v", h.View())
		}
		a.call(t, 1).end(infer.ReasonStop, words()[0])
		b.wantRecord(c, "finished", "")
		stop()
		run.Wait()
	})
}
