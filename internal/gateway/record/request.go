package record

import (
	"time"

	"weir/internal/trace"
)

// Request is the account of one request while it is in flight: its record, the stage that it
// is in, and what others may read of it. It also injects the delays configured for stages, each
// once. All but its view belong to the request's goroutine.
type Request struct {
	*trace.Record
	// Timed is set while the caller is still to get a comment with the request's times.
	Timed bool

	tells   bool         // a stage that begins is published: the one thing that each token asks
	flows   bool         // the answer does
	injects *stageDelays // nil: nothing is
	view    view
	// ID is weir's own, whatever the caller calls the request.
	ID string
}

// recordOfOne is a record with room for what nearly all requests have: one attempt at one engine.
type recordOfOne struct {
	trace.Record
	attempts [1]trace.Attempt
	legs     [1]trace.Leg
}

func newRecord() *trace.Record {
	r := new(recordOfOne)
	r.attempts[0].Legs = r.legs[:0]
	r.Attempts = r.attempts[:0]
	return &r.Record
}

// Legs returns room for the legs of the next attempt.
func (q *Request) Legs() []trace.Leg {
	if had := q.Attempts; len(had) < cap(had) {
		return had[:len(had)+1][len(had)].Legs[:0] // newRecord's, or none
	}
	return nil
}

// stageDelays is the delays that a request has in its stages.
type stageDelays struct {
	delays  map[trace.Stage]time.Duration
	holds   bool // they hold a core
	delayed [trace.NumStages]bool
}

// inject returns the delays of one request; nil where there are none.
func (o *Options) inject() *stageDelays {
	if len(o.StageDelay) == 0 {
		return nil
	}
	return &stageDelays{delays: o.StageDelay, holds: o.HoldCore}
}

// Enter moves the request to the next stage, and returns the time. It implements answer.Stages.
func (q *Request) Enter(stage trace.Stage) (now int64) {
	now = trace.Now()
	q.EnterAt(stage, now)
	return now
}

// EnterAt moves the request to a stage that began at now.
func (q *Request) EnterAt(stage trace.Stage, now int64) {
	q.Ledger.Enter(stage, now)
	if q.tells {
		q.begins(stage, now)
	}
}

// begins publishes a stage, until the answer flows, and injects its delay.
func (q *Request) begins(stage trace.Stage, now int64) {
	if !q.flows {
		q.Publish(stage, now)
	}
	if q.injects != nil {
		q.Delay(stage)
	}
}

// Publishing makes each stage that begins be published from now on, for an attempt that has
// no engine yet.
func (q *Request) Publishing() {
	q.tells, q.flows = true, false
	q.view.wait.Store(nil)
}

// Flowing ends that, except where delays are injected: the engine's output flows from now on.
func (q *Request) Flowing(now int64) {
	q.tells, q.flows = q.injects != nil, true
	q.Publish(trace.Engine, now)
}

// Injects reports whether stages are delayed.
func (q *Request) Injects() bool { return q.injects != nil }

// Delay injects the delay of a stage.
func (q *Request) Delay(stage trace.Stage) {
	if d := q.Due(stage); d > 0 {
		if q.injects.holds {
			hold(d)
			return
		}
		time.Sleep(d)
	}
}

// Due returns the delay of a stage that is to be injected now, and notes that it was.
func (q *Request) Due(stage trace.Stage) time.Duration {
	i := q.injects
	if i == nil || i.delayed[stage] || i.delays[stage] <= 0 {
		return 0
	}
	i.delayed[stage] = true
	return i.delays[stage]
}
