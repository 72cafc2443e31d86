package gateway

import (
	"strings"
	"testing"
	"testing/synctest"

	"weir/internal/infer"
)

// What a very large delta needed is let go of with its turn: the worker, which lives as
// long as the process, keeps little, and so does the stream, which may wait for long.
func TestLargeDeltaIsNotKept(t *testing.T) {
	words()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		defer r.close()
		r.ask(chatPath, askStream(`,"max_tokens":100000,"logprobs":true,"top_logprobs":4`), 64<<20)
		ids := make([]uint32, 50_000)
		for i := range ids {
			ids[i] = words()[0]
		}
		scored := func(ids []uint32) *infer.Logprobs {
			n := len(ids)
			return &infer.Logprobs{Own: make([]float32, n), TopIDs: make([]uint32, 4*n), Top: make([]float32, 4*n)}
		}
		c := r.call(0)
		c.sink.Offer(&infer.Delta{Attempt: c.attempt, IDs: ids[:1], Total: 1, Logprobs: scored(ids[:1])})
		r.settle() // and the stream has left net/http
		c.sink.Offer(&infer.Delta{Attempt: c.attempt, IDs: ids[1:], Total: len(ids), Logprobs: scored(ids[1:])})
		r.settle()
		got, _ := r.read(64 << 20)
		if !r.left.Load() || len(got) < 4<<20 || !strings.Contains(string(got), text(words()[0])) {
			t.Fatalf("the client has %d bytes", len(got))
		}
		if n := cap(r.w.frame); n > keepFrame {
			t.Errorf("the worker keeps a frame of %d bytes", n)
		}
		if r.w.in.Cells != nil {
			t.Error("the worker refers to a stream's cells")
		}
		for i := range r.x.leg.(*tokenLeg).cells {
			if cell := &r.x.leg.(*tokenLeg).cells[i]; cap(cell.IDs) > 8<<10 || cell.Logprobs != nil && cap(cell.Logprobs.Top) > 64<<10 {
				t.Errorf("the stream keeps room for %d ids", cap(cell.IDs))
			}
		}
	})
}
