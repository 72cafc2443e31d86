package gateway

import (
	"time"

	"weir/internal/trace"
)

// stages is a request's clock: it enters into the record in which stage the request
// is, and injects the delays configured for stages, each once.
type stages struct {
	rec     *trace.Record
	tells   bool         // a stage that begins is told of: the one thing that each token asks
	flows   bool         // the answer does
	timed   bool         // the caller wants to know where the time went, and was not told yet
	injects *stageDelays // nil: nothing is
	flight  flight
}

// stageDelays is the delays that a request has in its stages.
type stageDelays struct {
	delays  map[trace.Stage]time.Duration
	holds   bool // they hold a core
	delayed [trace.NumStages]bool
}

// inject returns the delays of one request; nil where there are none.
func (o *RecordOptions) inject() *stageDelays {
	if len(o.StageDelay) == 0 {
		return nil
	}
	return &stageDelays{delays: o.StageDelay, holds: o.HoldCore}
}

// Enter implements answer.Stages.
func (s *stages) Enter(stage trace.Stage) { s.enter(stage) }

// enter moves the request to the next stage, and gives the time.
func (s *stages) enter(stage trace.Stage) (now int64) {
	now = trace.Now()
	s.enterAt(stage, now)
	return now
}

func (s *stages) enterAt(stage trace.Stage, now int64) {
	s.rec.Ledger.Enter(stage, now)
	if s.tells {
		tell(s, stage, now)
	}
}

// tell publishes a stage, until the answer flows, and injects its delay.
func tell(s *stages, stage trace.Stage, now int64) {
	if !s.flows {
		s.flight.tell(stage, now)
	}
	if s.injects != nil {
		s.delay(stage)
	}
}

// begins makes stages be published from now on. flowing ends that, except where delays
// are injected.
func begins(s *stages) {
	s.tells, s.flows = true, false
	s.flight.silence.Store(nil)
}

func flowing(s *stages, now int64) {
	s.tells, s.flows = s.injects != nil, true
	s.flight.tell(trace.Engine, now)
}

// delay injects the delay of a stage.
func (s *stages) delay(stage trace.Stage) {
	if s.due(stage) {
		d := s.injects.delays[stage]
		if s.injects.holds {
			hold(d)
			return
		}
		time.Sleep(d)
	}
}

// due reports whether the delay of a stage is to be injected now, and notes that it
// was.
func (s *stages) due(stage trace.Stage) bool {
	i := s.injects
	due := i != nil && i.delays[stage] > 0 && !i.delayed[stage]
	if due {
		i.delayed[stage] = true
	}
	return due
}
