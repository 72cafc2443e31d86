package load

import (
	"slices"
	"sync"
	"syscall"
	"time"

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
	ttft      recorder
	tpot      recorder
	itl       recorder
	e2e       recorder
	ttftSent  recorder
	e2eSent   recorder
	slip      recorder
	connect   recorder
	cpuBefore time.Duration
}

func newAccount() *account {
	a := &account{cpuBefore: cpuTime()}
	a.r.Errors = map[Kind]int{}
	a.r.Examples = map[Kind]string{}
	for _, rec := range []*recorder{
		&a.ttft, &a.tpot, &a.itl, &a.e2e, &a.ttftSent, &a.e2eSent, &a.slip, &a.connect,
	} {
		*rec = newRecorder()
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
	a.slip.add(s.Started - s.Intended)
	if s.Sent > 0 {
		a.connect.add(s.Sent - s.Started)
	}
}

// latencies books what only a complete request has.
func (a *account) latencies(s *Sample) {
	a.e2e.add(s.LastByte - s.Intended)
	a.e2eSent.add(s.LastByte - s.Sent)
	if s.FirstToken == 0 || s.whole {
		return
	}
	a.ttft.add(s.FirstToken - s.Intended)
	a.ttftSent.add(s.FirstToken - s.Sent)
	if s.Tokens > 1 {
		a.tpot.add((s.LastToken - s.FirstToken) / int64(s.Tokens-1))
	}
	for _, gap := range s.gaps {
		a.itl.add(gap)
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
	r.TTFT, r.TPOT, r.ITL, r.E2E = a.ttft.summary(), a.tpot.summary(), a.itl.summary(), a.e2e.summary()
	r.TTFTSent, r.E2ESent = a.ttftSent.summary(), a.e2eSent.summary()
	r.Slip, r.Connect = a.slip.summary(), a.connect.summary()
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
