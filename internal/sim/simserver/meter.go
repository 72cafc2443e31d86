package simserver

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
	ways                           [2]traffic      // of requests whose answers come whole, and of streamed ones
	queued, prefill, decode, whole tally.Histogram // a request's stages; whole is from its admission
	betweenTokens                  tally.Histogram

	// Figures of requests that ended: tokens of their prompts, how many of them were computed,
	// tokens generated, and retractions.
	prompt, computed, generated, retractions tally.Histogram
	perStep                                  tally.Histogram // tokens
	maxTokens, choices                       tally.Histogram // that were asked for

	byReason map[infer.Reason]uint64
}

// traffic holds what is measured separately for streamed and other requests.
type traffic struct {
	firstToken, latency tally.Histogram // from a request's arrival
	perToken            tally.Histogram // from its first token to its last, by those after the first
	requests            uint64          // that ended, as the next two
	prompt, generated   uint64
}

// way returns the traffic that a request belongs to.
func (f *figures) way(j *job) *traffic {
	if j.atOnce {
		return &f.ways[0]
	}
	return &f.ways[1]
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
func (m *meter) step(s *sim.Step, jobs []*job) {
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
		m.figures.betweenTokens.Add(took, n)
	}
	if n := s.Batch.Prefill + len(s.ID); n > 0 {
		m.figures.perStep.Amount(n)
	}
	for i := range s.First {
		f := &s.First[i].Stamps
		j := jobs[s.First[i].Ref]
		j.stamps, j.rank = *f, s.First[i].DPRank
		m.figures.way(j).firstToken.Add(f.FirstToken-f.ServerCreated, 1)
		m.figures.queued.Add(f.QueueEnd-f.QueueStart, 1)
		m.figures.prefill.Add(f.FirstToken-f.PrefillStart, 1)
	}
	for i := range s.Done {
		d := &s.Done[i]
		if m.figures.byReason == nil {
			m.figures.byReason = map[infer.Reason]uint64{}
		}
		m.figures.byReason[d.Reason]++
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
func (f *figures) ended(d *sim.Done, j *job, at int64) {
	f.prompt.Amount(d.PromptTokens)
	f.computed.Amount(d.PromptTokens - d.Cached)
	f.generated.Amount(d.Completion)
	f.retractions.Amount(d.Retractions)
	w := f.way(j)
	w.requests++
	w.prompt += uint64(d.PromptTokens)
	w.generated += uint64(d.Completion)
	stamps := &j.stamps
	if stamps.FirstToken == 0 {
		return
	}
	f.decode.Add(at-stamps.FirstToken, 1)
	f.whole.Add(at-stamps.QueueEnd, 1)
	w.latency.Add(at-stamps.ServerCreated, 1)
	if n := int64(d.Completion - 1); n > 0 {
		w.perToken.Add((at-stamps.FirstToken)/n, 1)
	}
}

// measured returns the figures of now.
func (e *Engine) measured() figures {
	e.meter.mu.Lock()
	defer e.meter.mu.Unlock()
	f := e.meter.figures
	f.byReason = maps.Clone(f.byReason)
	return f
}

// asked records a request for a number of choices with at most maxTokens tokens each; 0
// means no limit of its own.
func (e *Engine) asked(choices, maxTokens int) {
	e.meter.mu.Lock()
	defer e.meter.mu.Unlock()
	e.meter.figures.choices.Amount(choices)
	if maxTokens > 0 {
		e.meter.figures.maxTokens.Amount(maxTokens)
	}
}

// lastOutput is when a step last had a result, ns.
func (e *Engine) lastOutput() int64 {
	e.meter.mu.Lock()
	defer e.meter.mu.Unlock()
	return e.meter.lastOutput
}
