package load

import (
	"slices"
	"sync"
	"syscall"
	"time"

	"weir/internal/latency"
	"weir/internal/workload"
)

// account gathers the samples of a run. Requests report to it once each, at
// their end.
type account struct {
	mu        sync.Mutex
	r         Report
	first     int64 // earliest intended time, ns
	last      int64 // latest byte, ns
	intended  []int64
	ttft      latency.Recorder
	tpot      latency.Recorder
	itl       latency.Recorder
	e2e       latency.Recorder
	ttftSent  latency.Recorder
	e2eSent   latency.Recorder
	slip      latency.Recorder
	connect   latency.Recorder
	cpuBefore time.Duration
}

// longestLatency is that which percentiles tell apart.
const longestLatency = 2 * time.Hour

func newAccount() *account {
	a := &account{cpuBefore: cpuTime()}
	a.r.Errors = map[Kind]int{}
	a.r.Examples = map[Kind]string{}
	for _, rec := range []*latency.Recorder{
		&a.ttft, &a.tpot, &a.itl, &a.e2e, &a.ttftSent, &a.e2eSent, &a.slip, &a.connect,
	} {
		*rec = latency.New(longestLatency)
	}
	return a
}

// add books a finished request.
func (a *account) add(s *Sample) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.r
	r.Requests++
	switch s.Outcome {
	case Complete:
		r.Complete++
		a.latencies(s)
	case Corrupt:
		r.Corrupt++
	case Errored:
		r.Errored++
	case Abandoned:
		r.Abandoned++
	case Unfinished:
		r.Unfinished++
	}
	if s.Kind != "" {
		r.Errors[s.Kind]++
		if _, ok := r.Examples[s.Kind]; !ok {
			r.Examples[s.Kind] = s.Detail
		}
	}
	r.Lost += s.Lost
	r.Tokens += int64(s.Tokens)
	r.PromptTokens += int64(s.PromptTokens)
	r.Events += int64(s.Events)
	r.TextEvents += int64(s.TextEvents)
	r.Frames += int64(s.Frames)
	r.Reads += int64(s.Reads)
	r.Bytes += s.Bytes

	if a.first == 0 || s.Intended < a.first {
		a.first = s.Intended
	}
	a.last = max(a.last, s.LastByte)
	a.intended = append(a.intended, s.Intended)
	a.slip.Add(s.Started - s.Intended)
	if s.Sent > 0 {
		a.connect.Add(s.Sent - s.Started)
	}
}

// latencies books what only a complete request has.
func (a *account) latencies(s *Sample) {
	a.e2e.Add(s.LastByte - s.Intended)
	a.e2eSent.Add(s.LastByte - s.Sent)
	if s.FirstToken == 0 || s.whole {
		return
	}
	a.ttft.Add(s.FirstToken - s.Intended)
	a.ttftSent.Add(s.FirstToken - s.Sent)
	if s.Tokens > 1 {
		a.tpot.Add((s.LastToken - s.FirstToken) / int64(s.Tokens-1))
	}
	for _, gap := range s.gaps {
		a.itl.Add(gap)
	}
}

// report gives the report so far.
func (a *account) report() *Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.r
	if a.last > a.first {
		r.Elapsed = float64(a.last-a.first) / 1e9
		r.TokensPerSecond = float64(r.Tokens) / r.Elapsed
		r.RequestsPerSecond = float64(r.Complete) / r.Elapsed
	}
	if judged := r.Requests - r.Abandoned - r.Unfinished; judged > 0 {
		r.ErroredShare = float64(r.Errored) / float64(judged)
	}
	if r.Tokens > 0 {
		r.EventsPerToken = float64(r.TextEvents) / float64(r.Tokens)
		r.FramesPerToken = float64(r.Frames) / float64(r.Tokens)
	}
	r.CPUSeconds = (cpuTime() - a.cpuBefore).Seconds()
	if r.Events > 0 {
		r.CPUPerEvent = r.CPUSeconds * 1e6 / float64(r.Events)
	}
	r.TTFT, r.TPOT, r.ITL, r.E2E = a.ttft.Summary(), a.tpot.Summary(), a.itl.Summary(), a.e2e.Summary()
	r.TTFTSent, r.E2ESent = a.ttftSent.Summary(), a.e2eSent.Summary()
	r.Slip, r.Connect = a.slip.Summary(), a.connect.Summary()
	// Requests end out of order; the arrival process is that of their beginning.
	slices.Sort(a.intended)
	r.Realised = workload.Describe(func(yield func(float64) bool) {
		for _, at := range a.intended {
			if !yield(float64(at-a.first) / 1e9) {
				return
			}
		}
	})
	return &r
}

// cpuTime gives the CPU time this process used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
