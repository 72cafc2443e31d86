package mux

import (
	"runtime"
	"sync"
	"testing"

	"weir/internal/engine/enginetest"
	"weir/internal/infer"
)

func begun(r *enginetest.Recorder) *Generation {
	g := new(Generation)
	g.Init(&infer.Request{ID: "r", MaxTokens: 1 << 30}, 1, r)
	return g
}

// Once a hand-over is given up, nothing is delivered any more, not even by a
// reader that was about to.
func TestGivingUpExcludesDelivery(t *testing.T) {
	for range 2000 {
		r := enginetest.NewRecorder(1)
		g := begun(r)
		var wg sync.WaitGroup
		var delivered int
		wg.Go(func() {
			for n := 1; n <= 20; n++ {
				if !g.Offer(&infer.Delta{Attempt: 1, IDs: []uint32{1}, Total: n, Received: 5}) {
					return
				}
				delivered = n
			}
		})
		_, kept := g.GiveUp(true)
		r.Seal()
		wg.Wait()
		if kept || g.Offer(&infer.Delta{Attempt: 1}) || len(r.Faults()) > 0 || len(r.IDs()) != delivered {
			t.Fatalf("kept %v, %d delivered, %d received, faults %v", kept, delivered, len(r.IDs()), r.Faults())
		}
	}
}

// A reader that waits for the lock while the hand-over is given up finds out
// when it has it.
func TestGivingUpWhileTheReaderWaits(t *testing.T) {
	for range 100 {
		r := enginetest.NewRecorder(1)
		g := begun(r)
		var wg sync.WaitGroup
		g.mu.Lock()
		wg.Go(func() { g.Offer(&infer.Delta{Attempt: 1, IDs: []uint32{1}, Total: 1, Received: 5}) })
		for range 100 {
			runtime.Gosched() // let it get there; if it does not, nothing is shown
		}
		g.phase.Store(uint32(abandoned))
		r.Seal()
		g.mu.Unlock()
		wg.Wait()
		if r.Deltas() != 0 {
			t.Fatal("delivered after giving up")
		}
	}
}

// How a hand-over ends, after what was heard of the request.
func TestHandOver(t *testing.T) {
	why := &infer.Error{Code: infer.CodeEngine}
	word := func(g *Generation) { g.Offer(&infer.Delta{Attempt: 1, IDs: []uint32{1}, Total: 1, Received: 5}) }
	last := func(g *Generation) { g.Offer(&infer.Delta{Attempt: 1, Total: 1, Received: 6, Finish: &infer.Finish{}}) }
	for _, test := range []struct {
		name     string
		does     func(g *Generation)
		accepted bool
		heard    int64
	}{
		{"accepted", func(g *Generation) { g.Accept() }, true, 0},
		{"given up", func(g *Generation) { g.GiveUp(false) }, false, 0},
		{"lost", func(g *Generation) { g.Abandon(why) }, false, 0},
		{"lost, then accepted", func(g *Generation) { g.Abandon(why); g.Accept() }, false, 0},
		{"accepted, then lost", func(g *Generation) { g.Accept(); g.Abandon(why) }, true, 0},
		{"heard, then given up", func(g *Generation) { word(g); g.GiveUp(false) }, true, 5},
		{"heard, then lost", func(g *Generation) { word(g); g.Abandon(why); g.Accept() }, true, 5},
		{"heard, then refused", func(g *Generation) { word(g); g.GiveUp(true) }, false, 5},
		{"ended, then refused", func(g *Generation) { word(g); last(g); g.GiveUp(true) }, true, 5},
		{"confirmed, then given up", func(g *Generation) { g.Hear(7); g.GiveUp(false) }, true, 7},
	} {
		r := enginetest.NewRecorder(1)
		g := begun(r)
		if test.does(g); g.Abandoned() == test.accepted || g.Handing() {
			t.Errorf("%s: abandoned %v", test.name, g.Abandoned())
		}
		if at, _ := g.Outcome(); at != test.heard {
			t.Errorf("%s: heard at %d", test.name, at)
		}
		r.Seal()
		if !test.accepted {
			word(g)
		}
		if faults := r.Faults(); len(faults) > 0 {
			t.Errorf("%s: %v", test.name, faults)
		}
	}
}

// Where the engine's first word accepts a request, it settles the hand-over.
func TestSettled(t *testing.T) {
	for name, word := range map[string]func(g *Generation){
		"confirmation": func(g *Generation) { g.Hear(5) },
		"output":       func(g *Generation) { g.Offer(&infer.Delta{Attempt: 1, IDs: []uint32{1}, Total: 1, Received: 5}) },
		"loss":         func(g *Generation) { g.Abandon(&infer.Error{Code: infer.CodeEngine}) },
	} {
		g := new(Generation)
		g.InitSettled(&infer.Request{ID: "r", MaxTokens: 4}, 1, enginetest.NewRecorder(1))
		select {
		case <-g.Settled():
			t.Fatalf("%s: settled before", name)
		default:
		}
		for range 2 { // whatever comes again
			word(g)
		}
		<-g.Settled()
		if at, why := g.Outcome(); (why != nil) != (name == "loss") || why == nil && at != 5 {
			t.Errorf("%s: %v, %v", name, at, why)
		}
		if lost := g.Abandon(nil); lost != (name == "loss") {
			t.Errorf("%s: lost afterwards: %v", name, lost)
		}
	}
}

// The last frames are kept as evidence, however many there were.
func TestEvidence(t *testing.T) {
	var d Dispatcher
	for i := range uint64(20) {
		d.Keep(Frame{Sequence: i})
	}
	kept := d.Fault(FaultMalformed, "cut").Frames
	if len(kept) != evidenceFrames || kept[0].Sequence != 20-evidenceFrames || kept[evidenceFrames-1].Sequence != 19 {
		t.Errorf("%v", kept)
	}
}
