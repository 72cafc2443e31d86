// Package offline replays a workload through the simulated engine on virtual time. It jumps
// from event to event, so an hour of requests takes seconds, and it uses no clock,
// goroutine or socket. The same workload, options and seed give the same report, to the
// last digit.
//
// It answers what-if questions about an engine: how long requests wait, what the batches
// look like, when the KV cache is too small. It does not model gateways, networks and
// clients.
package offline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/workload"
)

// Options define a replay: the workload and the engine.
type Options struct {
	Engine   sim.Options
	Workload *workload.Workload
	// OnRequest, if not nil, is called for each request when it ends or is refused. The
	// record is reused after the call; an error ends the replay.
	OnRequest func(*Record) error
	// OnProgress, if not nil, is called from time to time with the progress of the replay.
	OnProgress func(Progress)
}

// Progress is how far a replay has come.
type Progress struct {
	Virtual          time.Duration // since the first arrival
	Taken, Ended     int           // requests taken from the workload, and those of them that ended
	Running, Waiting int
	Generated        uint64 // tokens
}

// Record is the history of one request. Times are nanoseconds since the first arrival; a
// time is zero if it was never reached.
type Record struct {
	Index   int // in the workload, from 0
	Line    int // in its trace, from 1; 0 where there is none
	Arrival int64
	Input   int
	Output  int // generated
	Cached  int // of the prompt, found in the KV cache
	// Stamps are the engine's, as far as they came.
	Stamps      infer.Stamps
	Finish      int64
	Reason      infer.Reason // empty where it was refused
	Retractions int
	Refused     error // why the engine did not take it
}

// TTFT is from arrival to the first token.
func (r *Record) TTFT() time.Duration { return time.Duration(r.Stamps.FirstToken - r.Arrival) }

// TPOT is the mean time of a token after the first; 0 where there is only one.
func (r *Record) TPOT() time.Duration {
	if r.Output < 2 {
		return 0
	}
	return time.Duration((r.Finish - r.Stamps.FirstToken) / int64(r.Output-1))
}

// Bounds of the runner.
const (
	// eventsPerCheck is how many events pass between looks at the context and
	// calls of OnProgress.
	eventsPerCheck = 512
	// refusedPause keeps a user of a closed loop who was refused from asking
	// again for ever at one instant.
	refusedPause = 50 * time.Millisecond
)

// Run replays a workload to its end, or until ctx ends. In that case the report covers the
// part until then and is marked as interrupted. An error concerns the workload or the
// engine's options.
func Run(ctx context.Context, o Options) (*Report, error) {
	core, err := sim.New(o.Engine)
	if err != nil {
		return nil, err
	}
	r := &runner{o: &o, core: core, opts: core.Options(), figures: newFigures()}
	if c := o.Workload.Closed; c != nil {
		r.ready = make([]int64, c.Users) // all at once
	}
	if err := r.run(ctx); err != nil {
		return nil, err
	}
	return r.report(), nil
}

// runner is the state of a replay.
type runner struct {
	o    *Options
	core *sim.Core
	opts *sim.Options
	now  int64

	next    workload.Request // taken from the source and not yet sent, when pended
	pended  bool
	drained bool
	// interrupted reports whether the context ended before the workload did.
	interrupted bool
	ready       []int64 // when users of a closed loop send next, in order
	taken       int
	ended       int
	prompt      []uint32
	loads       []sim.Load
	live        []live // by sim.Ref
	record      Record
	figures
}

// live is the state of a request in the engine.
type live struct {
	index, line int
	input       int
	arrival     int64
	stamps      infer.Stamps
	last        int64 // when it had output last
}

func (r *runner) run(ctx context.Context) error {
	for n := 0; ; n++ {
		if n%eventsPerCheck == 0 {
			if r.o.OnProgress != nil {
				r.o.OnProgress(r.progress())
			}
			if ctx.Err() != nil {
				r.interrupted = true
				return nil
			}
		}
		arrival, more, err := r.arrival()
		if err != nil {
			return err
		}
		due, busy := r.core.Due()
		switch {
		case more && (!busy || arrival <= due):
			// A request that arrives when a step ends is present when the next one begins.
			r.pass(arrival)
			if err := r.send(); err != nil {
				return err
			}
		case busy:
			r.pass(due)
			for step := r.core.Advance(due); step != nil; step = r.core.Advance(due) {
				if err := r.take(step); err != nil {
					return err
				}
			}
		default:
			return nil
		}
	}
}

// arrival returns when the next request is sent. It returns false if there is none at
// present or none at all.
func (r *runner) arrival() (int64, bool, error) {
	closed := r.o.Workload.Closed
	if closed != nil && len(r.ready) == 0 {
		return 0, false, nil
	}
	if !r.pended && !r.drained {
		err := r.o.Workload.Next(&r.next)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, false, err
		}
		r.pended, r.drained = err == nil, err != nil
	}
	if !r.pended {
		return 0, false, nil
	}
	if closed == nil {
		return int64(r.next.At), true, nil
	}
	if w := r.o.Workload.For; w > 0 && r.ready[0] >= int64(w) {
		r.pended, r.drained = false, true
		return 0, false, nil
	}
	return r.ready[0], true, nil
}

// pass lets virtual time go on to at, with nothing happening before.
func (r *runner) pass(at int64) {
	if at > r.now {
		r.loads = r.core.Loads(r.loads[:0])
		r.figures.hold(r.loads, at-r.now)
		r.now = at
	}
}

// send returns the pending request to the engine.
func (r *runner) send() error {
	q := &r.next
	r.pended = false
	if r.o.Workload.Closed != nil {
		r.ready = r.ready[1:]
	}
	l := live{index: r.taken, line: q.Line, input: q.Input(), arrival: r.now}
	r.taken++
	r.figures.arrive(r.now)
	if q.Output == 0 {
		// A trace's failed request never reached its engine's output either.
		return r.refuse(&l, errNoOutput)
	}
	if l.input+q.Output > r.opts.ContextLength {
		// Refused before the prompt is made, which may be far too large.
		return r.refuse(&l, &infer.Error{Code: infer.CodeContext, Param: "prompt",
			Message: fmt.Sprintf("%d tokens of prompt and %d of output; the engine's context is %d", l.input, q.Output, r.opts.ContextLength)})
	}
	r.prompt = q.AppendPrompt(r.prompt[:0], r.vocabulary())
	prepared, err := r.opts.Prepare(sim.Params{Prompt: r.prompt, MaxTokens: q.Output, IgnoreEOS: true})
	if err != nil {
		return r.refuse(&l, err)
	}
	ref, err := r.core.Submit(r.now, r.now, prepared)
	if err != nil {
		return r.refuse(&l, err)
	}
	for len(r.live) <= int(ref) {
		r.live = append(r.live, live{})
	}
	r.live[ref] = l
	return nil
}

var errNoOutput = errors.New("the trace gives it no output")

// vocabulary is the number of ids that prompts are made of.
func (r *runner) vocabulary() int {
	if r.opts.VocabSize > 0 {
		return r.opts.VocabSize
	}
	return math.MaxInt32
}

// refuse books a request that the engine did not take.
func (r *runner) refuse(l *live, err error) error {
	r.ended++
	r.figures.refuse(l, err)
	r.again(max(r.think(), refusedPause))
	if r.o.OnRequest == nil {
		return nil
	}
	r.record = Record{Index: l.index, Line: l.line, Arrival: l.arrival, Input: l.input, Refused: err}
	return r.o.OnRequest(&r.record)
}

func (r *runner) think() time.Duration {
	if r.o.Workload.Closed == nil {
		return 0
	}
	return r.o.Workload.Closed.Think
}

// again has a user of a closed loop send after a pause. Users who were refused
// may pause for longer than others, so the place is searched, from the end.
func (r *runner) again(pause time.Duration) {
	if r.o.Workload.Closed == nil {
		return
	}
	at := r.now + int64(pause)
	i := len(r.ready)
	r.ready = append(r.ready, at)
	for ; i > 0 && r.ready[i-1] > at; i-- {
		r.ready[i] = r.ready[i-1]
	}
	r.ready[i] = at
}

// take books the results of a step.
func (r *runner) take(s *sim.Step) error {
	r.figures.step(s)
	for i := range s.First {
		l := &r.live[s.First[i].Ref]
		l.stamps, l.last = s.First[i].Stamps, s.End
	}
	for _, ref := range s.Ref {
		if l := &r.live[ref]; l.last != s.End {
			r.figures.gap(s.End - l.last)
			l.last = s.End
		}
	}
	r.figures.flush()
	for i := range s.Done {
		if err := r.done(&s.Done[i], s.End); err != nil {
			return err
		}
	}
	return nil
}

// done books the end of a request.
func (r *runner) done(d *sim.Done, at int64) error {
	l := &r.live[d.Ref]
	r.ended++
	r.record = Record{
		Index: l.index, Line: l.line, Arrival: l.arrival, Input: l.input, Output: d.Completion,
		Cached: d.Cached, Stamps: l.stamps, Finish: at, Reason: d.Reason, Retractions: d.Retractions,
	}
	r.figures.finish(&r.record)
	r.again(r.think())
	if r.o.OnRequest == nil {
		return nil
	}
	return r.o.OnRequest(&r.record)
}

func (r *runner) progress() Progress {
	n := r.core.Counts()
	return Progress{
		Virtual: time.Duration(r.now), Taken: r.taken, Ended: r.ended,
		Running: n.Running, Waiting: n.Waiting, Generated: n.Generated,
	}
}
