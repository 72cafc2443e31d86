package simserver

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/flags"
)

// A request that a higher priority ends in a full queue is a 503, and, once a
// stream was asked for, an abort in a stream that ends well.
func TestDisplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sglangBench(t, flags.SGLang{}, sim.Options{MaxRunning: 1, MaxQueued: 1, PriorityScheduling: true})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.post(ctx, b.sglang+"/generate", `{"text":"a","stream":true,"sampling_params":{"max_new_tokens":100000,"ignore_eos":true}}`)
		}()
		b.settle("a request that runs", func(s engine.State) bool { return s.Running == 1 })

		// Each takes the place of the one before.
		answers := make(chan generatedAnswer, 1)
		var got []generatedAnswer
		for i, body := range []string{
			`{"text":"a"}`,
			`{"text":"a","priority":1,"stream":true}`,
			`{"text":"a","priority":2,"stream":true}`,
		} {
			go func() { answers <- b.generate(body) }()
			if i > 0 {
				got = append(got, <-answers)
			}
			b.settle("a request that waits", func(s engine.State) bool { return s.Waiting == 1 && s.Received == uint64(i+2) })
		}
		whole, stream := got[0], got[1]
		const words = "aborted by a higher priority request"
		if whole.status != 503 || !strings.Contains(whole.raw, words) {
			t.Errorf("not streamed: %d %s", whole.status, whole.raw)
		}
		if len(stream.all) != 1 || stream.status != 200 || !stream.done {
			t.Fatalf("streamed: %d %s", stream.status, stream.raw)
		}
		if r := stream.last().Meta.FinishReason; r.Type != "abort" || *r.StatusCode != 503 || !strings.Contains(r.Message, words) {
			t.Errorf("streamed: %s", stream.raw)
		}
		if s := b.state(); s.Rejected != 2 || s.Aborted != 0 {
			t.Errorf("state %+v", s)
		}
		cancel()
		<-ended
		<-answers
	})
}
