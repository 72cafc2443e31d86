package engine

import (
	"maps"
	"sync"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/tally"
)

// meter measures the engine's steps, for requests of all wires. Run adds to it, and the
// servers read it, both under the same lock.
type meter struct {
	mu      sync.Mutex
	figures figures

	prefillBusy time.Duration // of steps with a prompt in them
	lastOutput  int64         // when a step last had a result, ns

	// Generated ids per second over the latest second or so.
	throughput  float64
	windowStart int64
	windowIDs   int
}

// figures are what the engine has measured of requests.
type figures struct {
	Ways                           [2]traffic      // of requests whose answers come whole, and of streamed ones
	Queued, Prefill, Decode, Whole tally.Histogram // a request's stages; whole is from its admission
	BetweenTokens                  tally.Histogram

	// Figures of requests that ended: tokens of their prompts, how many of them were computed,
	// tokens generated, and retractions.
	Prompt, Computed, Generated, Retractions tally.Histogram
	PerStep                                  tally.Histogram // tokens
	MaxTokens, Choices                       tally.Histogram // that were asked for

	ByReason map[infer.Reason]uint64
}

// traffic holds what is measured separately for streamed and other requests.
type traffic struct {
	FirstToken, Latency tally.Histogram // from a request's arrival
	PerToken            tally.Histogram // from its first token to its last, by those after the first
	Requests            uint64          // that ended, as the next two
	Prompt, Generated   uint64
}

// way returns the traffic that a request belongs to.
func (f *figures) way(j *Job) *traffic {
	if j.AtOnce {
		return &f.Ways[0]
	}
	return &f.Ways[1]
}

// rateWindow is how long the throughput is measured at a time.
const rateWindow = time.Second

// rate is the throughput now: none after a window without a result.
func (m *meter) rate(now int64) float64 {
	if now-m.lastOutput > int64(rateWindow) {
		return 0
	}
	return m.throughput
}

// step adds a step's results. jobs are by ref, and still include those that ended.
func (m *meter) step(s *sim.Step, jobs []*Job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Start-m.lastOutput > int64(rateWindow) {
		// It was idle.
		m.throughput, m.windowStart, m.windowIDs = 0, s.Start, 0
	}
	if len(s.ID)+len(s.Done) > 0 {
		m.lastOutput = s.End
	}
	took := s.End - s.Start
	if s.Batch.Prefill > 0 {
		m.prefillBusy += time.Duration(took)
	}
	if n := len(s.ID) - len(s.First); n > 0 {
		m.figures.BetweenTokens.Add(took, n)
	}
	if n := s.Batch.Prefill + len(s.ID); n > 0 {
		m.figures.PerStep.Amount(n)
	}
	for i := range s.First {
		f := &s.First[i].Stamps
		j := jobs[s.First[i].Ref]
		j.stamps, j.rank = *f, s.First[i].DPRank
		m.figures.way(j).FirstToken.Add(f.FirstToken-f.ServerCreated, 1)
		m.figures.Queued.Add(f.QueueEnd-f.QueueStart, 1)
		m.figures.Prefill.Add(f.FirstToken-f.PrefillStart, 1)
	}
	for i := range s.Done {
		d := &s.Done[i]
		if m.figures.ByReason == nil {
			m.figures.ByReason = map[infer.Reason]uint64{}
		}
		m.figures.ByReason[d.Reason]++
		if d.Reason != infer.ReasonAbort {
			m.figures.ended(d, jobs[d.Ref], s.End)
		}
	}
	m.windowIDs += len(s.ID)
	if since := s.End - m.windowStart; since >= int64(rateWindow) {
		m.throughput = float64(m.windowIDs) / (float64(since) / 1e9)
		m.windowStart, m.windowIDs = s.End, 0
	}
}

// ended notes a request that came to its end at a time.
func (f *figures) ended(d *sim.Done, j *Job, at int64) {
	f.Prompt.Amount(d.PromptTokens)
	f.Computed.Amount(d.PromptTokens - d.Cached)
	f.Generated.Amount(d.Completion)
	f.Retractions.Amount(d.Retractions)
	w := f.way(j)
	w.Requests++
	w.Prompt += uint64(d.PromptTokens)
	w.Generated += uint64(d.Completion)
	stamps := &j.stamps
	if stamps.FirstToken == 0 {
		return
	}
	f.Decode.Add(at-stamps.FirstToken, 1)
	f.Whole.Add(at-stamps.QueueEnd, 1)
	w.Latency.Add(at-stamps.ServerCreated, 1)
	if n := int64(d.Completion - 1); n > 0 {
		w.PerToken.Add((at-stamps.FirstToken)/n, 1)
	}
}

// Measured returns the figures of now.
func (e *Engine) Measured() figures {
	e.meter.mu.Lock()
	defer e.meter.mu.Unlock()
	f := e.meter.figures
	f.ByReason = maps.Clone(f.ByReason)
	return f
}

// Asked records a request for a number of choices with at most maxTokens tokens each; 0
// means no limit of its own.
func (e *Engine) Asked(choices, maxTokens int) {
	e.meter.mu.Lock()
	defer e.meter.mu.Unlock()
	e.meter.figures.Choices.Amount(choices)
	if maxTokens > 0 {
		e.meter.figures.MaxTokens.Amount(maxTokens)
	}
}

// LastOutput is when a step last had a result, ns.
func (e *Engine) LastOutput() int64 {
	e.meter.mu.Lock()
	defer e.meter.mu.Unlock()
	return e.meter.lastOutput
}
