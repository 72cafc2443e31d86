package gateway

import (
	"time"

	"weir/internal/trace"
)

// stages is a request's clock: it enters into the record in which stage the request
// is, and injects the delays configured for stages, each once.
type stages struct {
	rec     *trace.Record
	delays  map[trace.Stage]time.Duration
	delayed [trace.NumStages]bool
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
	if s.delays != nil {
		s.delay(stage)
	}
}

// delay injects the delay of a stage.
func (s *stages) delay(stage trace.Stage) {
	if d := s.delays[stage]; s.due(stage) {
		time.Sleep(d)
	}
}

// due says whether the delay of a stage is to be injected now, and notes that it was.
func (s *stages) due(stage trace.Stage) bool {
	due := s.delays[stage] > 0 && !s.delayed[stage]
	if due {
		s.delayed[stage] = true
	}
	return due
}
