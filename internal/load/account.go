package load

import (
	"sync"
	"syscall"
	"time"

	"weir/internal/workload/latency"
)

// account gathers the samples of a run. Requests report to it once each, at
// their end.
type account struct {
	mu        sync.Mutex
	r         Report
	first     int64 // earliest intended time, ns
	last      int64 // latest byte, ns
	moments   []moment
	exact     bool // the length asked for is the server's
	cores     int
	started   runtimeFigures
	ttft      latency.Recorder
	answer    latency.Recorder
	tpot      latency.Recorder
	itl       latency.Recorder
	e2e       latency.Recorder
	ttftSent  latency.Recorder
	ansSent   latency.Recorder
	e2eSent   latency.Recorder
	slip      latency.Recorder
	connect   latency.Recorder
	late      latency.Recorder
	cpuBefore time.Duration
}

// longestLatency is the largest latency that percentiles resolve.
const longestLatency = 2 * time.Hour

// newAccount opens the account of a run on this many cores; exact reports whether the
// lengths of prompts are in the server's tokens.
func newAccount(exact bool, cores int) *account {
	a := &account{cpuBefore: cpuTime(), started: readRuntime(), exact: exact, cores: cores}
	a.r.Errors = map[Kind]int{}
	a.r.Examples = map[Kind]string{}
	for _, rec := range []*latency.Recorder{
		&a.ttft, &a.answer, &a.tpot, &a.itl, &a.e2e, &a.ttftSent, &a.ansSent, &a.e2eSent, &a.slip, &a.connect, &a.late,
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
	if a.exact && s.HasUsage && s.PromptTokens != s.AskedInput {
		r.InputTokensOff++
	}
	r.Lost += s.Lost
	r.Tokens += int64(s.Tokens)
	r.PromptTokens += int64(s.PromptTokens)
	r.Events += int64(s.Events)
	r.TextEvents += int64(s.TextEvents)
	r.Frames += int64(s.Frames)
	r.Reads += int64(s.Reads)
	r.Bytes += s.Bytes

	r.Receive.Together += int64(s.Together)
	r.Receive.Unknown += int64(s.Unknown)
	if s.FirstContentSince < s.FirstContent && !s.whole {
		r.Receive.UnknownFirst++
	}
	for _, late := range s.late {
		if late == unstamped {
			r.Receive.Unstamped++
		} else {
			a.late.Add(late)
		}
	}

	if a.first == 0 || s.Intended < a.first {
		a.first = s.Intended
	}
	a.last = max(a.last, s.LastByte)
	a.moments = append(a.moments, moment{s.Intended, s.Started, s.LastByte, s.Outcome})
	a.slip.Add(s.Started - s.Intended)
	if s.Sent > 0 {
		a.connect.Add(s.Sent - s.Started)
	}
}

// latencies books what only a complete request has.
func (a *account) latencies(s *Sample) {
	a.e2e.Add(s.LastByte - s.Intended)
	a.e2eSent.Add(s.LastByte - s.Sent)
	if s.FirstContent == 0 || s.whole {
		return
	}
	until(&a.ttft, s.Intended, s.FirstContentSince, s.FirstContent)
	until(&a.ttftSent, s.Sent, s.FirstContentSince, s.FirstContent)
	if s.FirstToken != 0 {
		until(&a.answer, s.Intended, s.FirstTokenSince, s.FirstToken)
		until(&a.ansSent, s.Sent, s.FirstTokenSince, s.FirstToken)
	}
	if tpot, ok := s.TPOT(); ok {
		n := int64(s.Tokens - 1)
		within(&a.tpot, tpot, (s.LastTokenSince-s.FirstContent)/n, (s.LastToken-s.FirstContentSince)/n)
	}
	rest := s.loose
	for i, gap := range s.gaps {
		if len(rest) > 0 && rest[0].Gap == i {
			a.itl.AddWithin(gap, rest[0].Low, rest[0].High)
			rest = rest[1:]
			continue
		}
		a.itl.Add(gap)
	}
}

// until records the time from a moment to one that is known to lie in a range.
func until(r *latency.Recorder, from, since, at int64) { within(r, at-from, since-from, at-from) }

// within records a time that is known to lie in a range.
func within(r *latency.Recorder, ns, low, high int64) {
	if low == high {
		r.Add(ns)
		return
	}
	r.AddWithin(ns, low, high)
}

// report returns the report so far.
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
	r.TTFT, r.TTFTAnswer, r.TPOT, r.E2E = a.ttft.Judge(true), a.answer.Judge(true), a.tpot.Judge(true), a.e2e.Judge(true)
	r.TTFTSent, r.TTFTAnswerSent, r.E2ESent = a.ttftSent.Judge(true), a.ansSent.Judge(true), a.e2eSent.Judge(true)
	// The gaps of one stream are not independent of each other.
	r.Receive.Late = a.late.Judge(false)
	r.ITL, r.Slip, r.Connect = a.itl.Judge(false), a.slip.Judge(false), a.connect.Judge(false)
	a.describe(&r)
	r.Generator = a.generator(r.CPUSeconds, r.Elapsed)
	return &r
}

// cpuTime returns the CPU time this process used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
