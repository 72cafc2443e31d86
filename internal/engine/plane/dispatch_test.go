package plane

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/engine/remote"
	"weir/internal/infer"
)

// core is the pure part of a session.
type core struct {
	t     table
	out   *outbox
	m     meters
	d     dispatcher
	frame frame
}

func newCore() *core {
	c := &core{out: newOutbox()}
	c.d = dispatcher{
		Dispatcher: mux.Dispatcher{Engine: "e1"}, vocab: 1000, table: &c.t, meters: &c.m,
		offset: func() remote.Offset { return remote.Offset{NS: 100, Uncertain: 7, Known: true} },
	}
	c.frame = frame{received: 1}
	if f := c.d.open(&c.frame); f != nil {
		panic(f)
	}
	return c
}

func (c *core) generation(id string, limit int, sink engine.Sink) *generation {
	g := &generation{aborts: c.out}
	g.Init(&infer.Request{ID: id, MaxTokens: limit}, 1, sink)
	return g
}

// seat puts a generation in a slot.
func (c *core) seat(id string, limit int) (*generation, *enginetest.Recorder) {
	r := enginetest.NewRecorder(1)
	g := c.generation(id, limit, r)
	if got := c.t.seat(g); got != seated {
		panic(got)
	}
	return g, r
}

// step sends a step the way the wire would.
func (c *core) step(s *planepb.Step) *mux.Fault {
	b, err := proto.Marshal(s)
	if err != nil {
		panic(err)
	}
	c.frame.err = c.frame.decode(b)
	c.frame.size, c.frame.received = len(b), c.frame.received+1
	return c.d.step(&c.frame)
}

func finishOf(r *enginetest.Recorder) *infer.Finish {
	f, err := r.WaitFinish(done())
	if err != nil {
		return nil
	}
	return f
}

func faultOf(err error) mux.FaultReason {
	var f *mux.Fault
	if !errors.As(err, &f) {
		return ""
	}
	return f.Reason
}

func TestFaultsOfOneGeneration(t *testing.T) {
	fin := func(reason planepb.Finish_Reason, n uint32) []*planepb.Notice {
		return []*planepb.Notice{{Slot: 0, Finish: &planepb.Finish{Reason: reason, CompletionTokens: n}}}
	}
	for _, c := range []struct {
		want mux.FaultReason
		step *planepb.Step
	}{
		{FaultBackwards, &planepb.Step{Slot: []uint32{0}, Total: []uint32{1}, Id: []uint32{5}}},
		{FaultTotal, &planepb.Step{Slot: []uint32{0}, Total: []uint32{2}, Id: []uint32{5}}},
		{FaultTotal, &planepb.Step{Slot: []uint32{0}, Total: []uint32{4}, Id: []uint32{5}}},
		{FaultTotal, &planepb.Step{Slot: []uint32{0}, Count: []uint32{0}, Total: []uint32{3}}},
		{mux.FaultLimit, &planepb.Step{Slot: []uint32{0}, Count: []uint32{3}, Total: []uint32{5}, Id: []uint32{5, 6, 7}}},
		{FaultVocabulary, &planepb.Step{Slot: []uint32{0}, Total: []uint32{3}, Id: []uint32{1000}}},
		{FaultCompletion, &planepb.Step{Notice: fin(planepb.Finish_REASON_STOP, 3)}},
		{FaultCompletion, &planepb.Step{Slot: []uint32{0}, Total: []uint32{3}, Id: []uint32{5}, Notice: fin(planepb.Finish_REASON_STOP, 2)}},
		{mux.FaultReasonWord, &planepb.Step{Notice: fin(planepb.Finish_REASON_UNSPECIFIED, 2)}},
		{mux.FaultReasonWord, &planepb.Step{Notice: fin(99, 2)}},
		{mux.FaultReasonWord, &planepb.Step{Notice: fin(planepb.Finish_REASON_ABORT, 2)}},
	} {
		t.Run(fmt.Sprint(c.want, " ", c.step), func(t *testing.T) {
			core := newCore()
			g, r := core.seat("a", 4)
			other, ro := core.seat("b", 4)
			g.Accept()
			other.Accept()
			if f := core.step(&planepb.Step{Sequence: 1, Slot: []uint32{0}, Count: []uint32{2}, Total: []uint32{2}, Id: []uint32{1, 2}}); f != nil {
				t.Fatal(f)
			}
			c.step.Sequence = 2
			if f := core.step(c.step); f != nil {
				t.Fatalf("the session fell with one generation: %v", f)
			}
			end := finishOf(r)
			if end == nil || end.Err == nil || end.Err.Code != infer.CodeIntegrity || !end.Err.Retryable || faultOf(end.Err) != c.want {
				t.Fatalf("finish %v", end)
			}
			var fault *mux.Fault
			errors.As(end.Err, &fault)
			if n := len(fault.Frames); n != 3 || fault.Frames[n-1].Sequence != 2 || fault.RequestID != "a" {
				t.Fatalf("evidence %+v", fault)
			}
			if p := fault.Part; p == nil || p.Before != 2 || p.Count != len(c.step.GetId()) || !slices.Equal(p.IDs, c.step.GetId()) || (p.Finish != "") != (len(c.step.GetNotice()) > 0) {
				t.Fatalf("part %+v", p)
			}
			if !slices.Equal(r.IDs(), []uint32{1, 2}) {
				t.Fatalf("ids %v: the wrong ones were delivered", r.IDs())
			}
			finished := len(c.step.GetNotice()) > 0
			aborts, _ := core.out.take()
			if (len(aborts) == 1) == finished {
				t.Fatalf("finished %v, aborts %v", finished, aborts)
			}
			if (core.t.get(0) == nil) != finished {
				t.Fatal("a slot is free exactly when the engine said Finish")
			}
			// Later output of the generation is dropped, with any count; its Finish frees the slot;
			// and the other generation goes on.
			step := &planepb.Step{Sequence: 3, Slot: []uint32{1}, Total: []uint32{1}, Id: []uint32{9}}
			if !finished {
				step.Slot, step.Total, step.Id = append(step.Slot, 0), append(step.Total, 77), append(step.Id, 8)
				step.Notice = fin(planepb.Finish_REASON_ABORT, 1)
			}
			if f := core.step(step); f != nil {
				t.Fatal(f)
			}
			if core.t.get(0) != nil || !slices.Equal(ro.IDs(), []uint32{9}) {
				t.Fatal("the slot is not free, or the other stream suffered")
			}
			if f := append(r.Faults(), ro.Faults()...); len(f) > 0 {
				t.Fatal(f)
			}
		})
	}
}

func TestFaultsOfTheSession(t *testing.T) {
	good := func(seq uint64) *planepb.Step {
		return &planepb.Step{Sequence: seq, Slot: []uint32{0}, Total: []uint32{1}, Id: []uint32{5}}
	}
	stop := &planepb.Finish{Reason: planepb.Finish_REASON_STOP}
	for _, c := range []struct {
		name string
		want mux.FaultReason
		step *planepb.Step
	}{
		{"gap", FaultSequence, good(2)},
		{"repeated", FaultSequence, good(0)},
		{"columns", FaultColumns, &planepb.Step{Sequence: 1, Slot: []uint32{0}, Id: []uint32{5}}},
		{"slot never used", FaultSlot, &planepb.Step{Sequence: 1, Slot: []uint32{3}, Total: []uint32{1}, Id: []uint32{5}}},
		{"slot beyond all", FaultSlot, &planepb.Step{Sequence: 1, Slot: []uint32{1<<32 - 1}, Total: []uint32{1}, Id: []uint32{5}}},
		{"notice of no slot", FaultSlot, &planepb.Step{Sequence: 1, Notice: []*planepb.Notice{{Slot: 9}}}},
		{"finished twice", FaultTwice, &planepb.Step{Sequence: 1, Notice: []*planepb.Notice{{Finish: stop}, {Finish: stop}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			core := newCore()
			g, r := core.seat("a", 4)
			g.Accept()
			fault := core.step(c.step)
			if fault == nil || fault.Reason != c.want {
				t.Fatalf("fault %v", fault)
			}
			core.d.close((&mux.End{Why: mux.LossIntegrity, Cause: fault}).Terminal("e1"), 99)
			end := finishOf(r)
			if end == nil || end.Err.Code != infer.CodeIntegrity || faultOf(end.Err) != c.want {
				t.Fatalf("finish %v", end)
			}
			if core.t.seat(&generation{}) != tableClosed || core.t.live() != 0 {
				t.Fatal("the table of a session that ended is open")
			}
		})
	}
	t.Run("malformed", func(t *testing.T) {
		core := newCore()
		core.frame.err = errors.New("scripted")
		if f := core.d.step(&core.frame); f == nil || f.Reason != mux.FaultMalformed {
			t.Fatal(f)
		}
	})
}

// Ids and notices of a slot travel in one delta, also when a step lists the
// slot more than once.
func TestNoticesTravelWithIDs(t *testing.T) {
	core := newCore()
	g, r := core.seat("a", 4)
	g.Accept()
	step := &planepb.Step{
		Sequence: 1, SendTime: 1100, Slot: []uint32{0, 0}, Total: []uint32{1, 2}, Id: []uint32{5, 6},
		Notice: []*planepb.Notice{
			{Stamps: &planepb.Stamps{ServerCreated: 1050}},
			{Finish: &planepb.Finish{Reason: planepb.Finish_REASON_STOP, CompletionTokens: 2, PromptTokens: 4, CachedTokens: 3}},
		},
	}
	if f := core.step(step); f != nil {
		t.Fatal(f)
	}
	if r.Deltas() != 2 || !slices.Equal(r.IDs(), []uint32{5, 6}) {
		t.Fatalf("%d deltas, ids %v", r.Deltas(), r.IDs())
	}
	if f := finishOf(r); f == nil || f.Reason != infer.ReasonStop || f.PromptTokens != 4 || f.CachedTokens != 3 {
		t.Fatalf("finish %+v", f)
	}
	if want := (infer.Stamps{ServerCreated: 950, FirstOutput: 1000, ClockUncertain: 7}); *r.Stamps() != want {
		t.Fatalf("stamps %+v", r.Stamps())
	}
	// Alone, notices are deltas of their own.
	g, r = core.seat("b", 4)
	g.Accept()
	step = &planepb.Step{Sequence: 2, Notice: []*planepb.Notice{{Stamps: &planepb.Stamps{QueueStart: 101}}}}
	if f := core.step(step); f != nil || r.Stamps() == nil || r.Stamps().QueueStart != 1 || r.Deltas() != 1 {
		t.Fatalf("%v, stamps %+v, %d deltas", f, r.Stamps(), r.Deltas())
	}
}

// How often a request was sent back to the queue is told with its end, beside the stamps that
// came before, and where none did.
func TestRetracted(t *testing.T) {
	stamps := &planepb.Stamps{ServerCreated: 1050}
	finish := &planepb.Finish{Reason: planepb.Finish_REASON_STOP, CompletionTokens: 2, Retracted: 3}
	begun := infer.Stamps{ServerCreated: 950, FirstOutput: 1000, ClockUncertain: 7}
	told := begun
	told.Retracted = 3
	for name, c := range map[string]struct {
		first, last *planepb.Notice
		known       bool
		want        [2]*infer.Stamps
	}{
		"stamps before":   {&planepb.Notice{Stamps: stamps}, &planepb.Notice{Finish: finish}, true, [2]*infer.Stamps{&begun, &told}},
		"stamps with it":  {nil, &planepb.Notice{Stamps: stamps, Finish: finish}, true, [2]*infer.Stamps{nil, &told}},
		"no clock":        {&planepb.Notice{Stamps: stamps}, &planepb.Notice{Finish: finish}, false, [2]*infer.Stamps{nil, {Retracted: 3}}},
		"not sent back":   {&planepb.Notice{Stamps: stamps}, &planepb.Notice{Finish: &planepb.Finish{Reason: planepb.Finish_REASON_STOP, CompletionTokens: 2}}, true, [2]*infer.Stamps{&begun, &begun}},
		"nothing is told": {nil, &planepb.Notice{Finish: &planepb.Finish{Reason: planepb.Finish_REASON_STOP, CompletionTokens: 2}}, true, [2]*infer.Stamps{}},
	} {
		t.Run(name, func(t *testing.T) {
			core := newCore()
			if !c.known {
				core.d.offset = func() remote.Offset { return remote.Offset{} }
			}
			g, r := core.seat("a", 4)
			g.Accept()
			for i, n := range []*planepb.Notice{c.first, c.last} {
				step := &planepb.Step{Sequence: uint64(i + 1), SendTime: 1100, Slot: []uint32{0}, Total: []uint32{uint32(i + 1)}, Id: []uint32{5}}
				if n != nil {
					step.Notice = []*planepb.Notice{n}
				}
				if f := core.step(step); f != nil {
					t.Fatal(f)
				}
				if got := r.Stamps(); (got == nil) != (c.want[i] == nil) || got != nil && *got != *c.want[i] {
					t.Errorf("step %d: %+v, want %+v", i, got, c.want[i])
				}
			}
		})
	}
}

// An engine's clock that is not known yet gives no stamps rather than wrong
// ones.
func TestNoStampsWithoutClock(t *testing.T) {
	core := newCore()
	core.d.offset = func() remote.Offset { return remote.Offset{} }
	g, r := core.seat("a", 4)
	g.Accept()
	step := &planepb.Step{
		Sequence: 1, Slot: []uint32{0}, Total: []uint32{1}, Id: []uint32{5},
		Notice: []*planepb.Notice{{Stamps: &planepb.Stamps{ServerCreated: 1050}}},
	}
	if f := core.step(step); f != nil || r.Stamps() != nil || len(r.IDs()) != 1 {
		t.Fatalf("%v, stamps %+v, ids %v", f, r.Stamps(), r.IDs())
	}
}

// A request given up before the engine confirmed it: silence at the sink, the
// slot held until Finish, and the abort repeated once the engine is known to
// have the request.
func TestAbandonedRequest(t *testing.T) {
	core := newCore()
	g, r := core.seat("a", 4)
	if _, kept := g.GiveUp(false); kept {
		t.Fatal("kept without a sign of life")
	}
	r.Seal()
	g.Abort()
	g.Abort()
	if a, _ := core.out.take(); len(a) != 1 || a[0].GetRequestId() != "a" {
		t.Fatalf("aborts %v", a)
	}
	for seq := uint64(1); seq <= 2; seq++ {
		if f := core.step(&planepb.Step{Sequence: seq, Slot: []uint32{0}, Total: []uint32{uint32(seq)}, Id: []uint32{5}}); f != nil {
			t.Fatal(f)
		}
	}
	if a, _ := core.out.take(); len(a) != 1 {
		t.Fatalf("%d aborts after ids arrived, want 1", len(a))
	}
	if next, _ := core.seat("b", 4); next.slot == g.slot {
		t.Fatal("the slot was reused before its Finish")
	}
	step := &planepb.Step{Sequence: 3, Notice: []*planepb.Notice{{Finish: &planepb.Finish{Reason: planepb.Finish_REASON_ABORT, CompletionTokens: 2}}}}
	if f := core.step(step); f != nil {
		t.Fatal(f)
	}
	if next, _ := core.seat("c", 4); next.slot != g.slot {
		t.Fatal("the slot is not free after its Finish")
	}
	if f := r.Faults(); len(f) > 0 {
		t.Fatal(f)
	}
	if n := core.m.Late.Load(); n != 3 {
		t.Fatalf("%d late deltas, want 3", n)
	}
}

// model is what a correct engine would have sent to one generation.
type model struct {
	g        *generation
	r        *enginetest.Recorder
	sent     []uint32 // by the engine, so far
	before   int      // ids sent when the hand-over failed; -1: it did not
	settled  bool
	finished bool
}

// For any order of hand-overs, ids, aborts and the end of the session: each sink gets exactly its
// engine's sequence and one end, or nothing from the moment at which its hand-over failed; and a
// slot belongs to one generation at a time.
func TestAnyInterleaving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		core := newCore()
		var all, live []*model
		seq := uint64(1)
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				m := &model{before: -1}
				m.g, m.r = core.seat(fmt.Sprint(len(all)), 1000)
				for _, o := range live {
					if o.g.slot == m.g.slot {
						t.Fatal("a slot was given to two")
					}
				}
				all, live = append(all, m), append(live, m)
			},
			"settle": func(t *rapid.T) {
				for _, m := range live {
					if m.settled || !rapid.Bool().Draw(t, "now") {
						continue
					}
					m.settled = true
					if rapid.Bool().Draw(t, "good") {
						m.g.Accept()
					} else if _, kept := m.g.GiveUp(false); !kept {
						m.before = len(m.sent)
						m.r.Seal()
						m.g.Abort()
					} else if len(m.sent) == 0 && !m.finished {
						t.Fatal("kept without a sign of life")
					}
				}
			},
			"abort": func(t *rapid.T) {
				for _, m := range live {
					if m.settled && rapid.Bool().Draw(t, "this") {
						m.g.Abort()
					}
				}
			},
			"step": func(t *rapid.T) {
				step := &planepb.Step{Sequence: seq}
				seq++
				var still []*model
				for _, m := range live {
					n := rapid.IntRange(0, 3).Draw(t, "ids")
					for range n {
						m.sent = append(m.sent, uint32(rapid.IntRange(0, 999).Draw(t, "id")))
					}
					if n > 0 {
						step.Slot = append(step.Slot, m.g.slot)
						step.Count = append(step.Count, uint32(n))
						step.Total = append(step.Total, uint32(len(m.sent)))
						step.Id = append(step.Id, m.sent[len(m.sent)-n:]...)
					}
					if m.finished = rapid.IntRange(0, 4).Draw(t, "finish") == 0; !m.finished {
						still = append(still, m)
						continue
					}
					reason := planepb.Finish_REASON_STOP
					if m.g.Aborting() {
						reason = planepb.Finish_REASON_ABORT
					}
					step.Notice = append(step.Notice, &planepb.Notice{Slot: m.g.slot, Finish: &planepb.Finish{
						Reason: reason, CompletionTokens: uint32(len(m.sent)),
					}})
				}
				if f := core.step(step); f != nil {
					t.Fatal(f)
				}
				live = still
			},
		})
		core.d.close((&mux.End{Why: mux.LossEngine}).Terminal("e1"), 99)
		for i, m := range all {
			if f := m.r.Faults(); len(f) > 0 {
				t.Fatalf("sink %d: %v", i, f)
			}
			end := finishOf(m.r)
			switch {
			case m.before >= 0:
				if got := m.r.IDs(); end != nil || !slices.Equal(got, m.sent[:m.before]) {
					t.Fatalf("sink %d of a failed hand-over got %v and %v", i, got, end)
				}
			case !m.finished && !m.settled && len(m.sent) == 0:
				if end != nil || m.g.Accept() {
					t.Fatalf("sink %d was told %v, its Generate nothing", i, end)
				}
			default:
				if got := m.r.IDs(); !slices.Equal(got, m.sent) || end == nil || (end.Err == nil) != m.finished {
					t.Fatalf("sink %d got %v and %v, the engine sent %v, finished %v", i, got, end, m.sent, m.finished)
				}
			}
		}
	})
}

// Arbitrary bytes as steps never panic and never break a sink's contract.
func FuzzDispatch(f *testing.F) {
	b, err := proto.Marshal(&planepb.Step{
		Sequence: 1, Slot: []uint32{0, 1, 2}, Total: []uint32{1, 1, 1}, Id: []uint32{5, 6, 7},
		Notice: []*planepb.Notice{{Slot: 1, Finish: &planepb.Finish{Reason: 1, CompletionTokens: 1}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, b)
	f.Fuzz(func(t *testing.T, first, second []byte) {
		core := newCore()
		var rs []*enginetest.Recorder
		for i := range 4 {
			g, r := core.seat(fmt.Sprint(i), 8)
			switch i {
			case 0, 1:
				g.Accept()
			case 2:
				g.GiveUp(false)
				r.Seal()
			}
			rs = append(rs, r)
		}
		for i, b := range [][]byte{first, second} {
			core.frame.err = core.frame.decode(b)
			core.frame.sequence = uint64(i + 1)
			if core.d.step(&core.frame) != nil {
				break
			}
		}
		core.d.close((&mux.End{Why: mux.LossEngine}).Terminal("e1"), 99)
		for i, r := range rs {
			if f := r.Faults(); len(f) > 0 {
				t.Fatalf("sink %d: %v", i, f)
			}
			if i < 2 && finishOf(r) == nil {
				t.Fatalf("sink %d has no end", i)
			}
		}
	})
}
