//go:build linux

package client

import (
	"github.com/HdrHistogram/hdrhistogram-go"

	"weir/internal/lab/cell"
	"weir/internal/lab/proc"
)

// Result is one cell's outcome. Times are milliseconds.
type Result struct {
	Load, Gateway string
	Failed        string `json:",omitempty"` // why the cell could not be measured
	Peer          bool   `json:",omitempty"` // the gateway is not weir's, nor made for the benchmark

	Again int // times it was measured anew because others disturbed it

	Offered       float64 // tokens/s due by the schedule; 0: without bound
	Sent          float64 // tokens/s the engine sent
	Delivered     float64 // tokens/s received in the window
	Share         float64 // of what was offered, or sent when that has no bound
	CPU           float64 // of the gateway, seconds in the window
	CPUPerMega    float64 // seconds per million tokens delivered
	Requests      float64 `json:",omitempty"` // a second, of a load whose requests follow each other
	CPUPerRequest float64 `json:",omitempty"` // of the gateway, microseconds
	Flooded       float64 `json:",omitempty"` // requests of the flood that were over, a second
	EngineCPU     float64 // seconds in the window
	ClientCPU     float64
	OtherCPU      float64 // of everything else on the machine
	PerWrite      float64 // tokens per HTTP chunk
	PerSyscall    float64 // tokens per writing system call of the gateway
	PerEvent      float64 // tokens per event
	P50, P99      float64 // delay of tokens received in the window
	Max           float64
	Resident      float64 // MB at the window's end
	KBPerStream   float64 // resident more than before the first stream

	ProbeFirst ProbeTimes  // from the engine's stamp to the client's kernel
	ProbeAdded ProbeTimes  // that, and from the request's writing to its arrival in the engine's kernel
	ProbeOwn   *ProbeTimes `json:",omitempty"` // output_path_delay of weir's timeline

	Received                                   int // tokens of all streams, before and after the window too
	Streams, Complete, Errors, Cut, Unfinished int // requests
	Lost                                       int // tokens missing from complete streams
	LostStreams                                int
	Wrong                                      int    // tokens repeated, out of order or unreadable
	FirstError                                 string `json:",omitempty"`
	Negative                                   int    // delays below zero, of a clock that was set
	Unstamped                                  int    // reads that the kernel did not stamp
}

// count adds a request that has ended, or that has not ended in time.
func (r *Result) count(s *clientStream) {
	r.Streams++
	r.Received += s.account.received
	r.Wrong += s.account.wrong
	switch s.verdict {
	case complete:
		r.Complete++
		if n := s.account.lost(); n > 0 {
			r.Lost += n
			r.LostStreams++
		}
		return
	case errored:
		r.Errors++
	case cut:
		r.Cut++
	case open:
		r.Unfinished++
		s.why = "did not end in time"
	}
	if r.FirstError == "" {
		r.FirstError = s.why
	}
}

// Broken is the number of streams that did not end as complete.
func (r *Result) Broken() int { return r.Errors + r.Cut + r.Unfinished }

// ErrorShare is their share of all streams.
func (r *Result) ErrorShare() float64 { return ratio(float64(r.Broken()), float64(r.Streams)) }

// ProbeTimes are the delays of new requests' first tokens, in milliseconds.
type ProbeTimes struct {
	Count         int
	P50, P99, Max float64
}

// result adds up the streams.
func (k *client) result(idle proc.Usage, w *window) *Result {
	c := k.cell
	seconds := c.Times.Measure.Seconds()
	r := &k.total
	r.Load, r.Sent, r.Delivered = c.Load.Name, float64(w.sent)/seconds, float64(k.received)/seconds
	r.Flooded = float64(w.flooded) / seconds
	r.CPU, r.EngineCPU, r.ClientCPU, r.OtherCPU = w.gateway.CPU, w.engine, w.client, w.other
	r.P50, r.P99, r.Max = ms(k.delays, 50), ms(k.delays, 99), float64(k.delays.Max())/1000
	r.Resident, r.Negative, r.Unstamped = float64(w.gateway.Resident)/1e6, k.negative, k.unstamped
	r.ProbeFirst, r.ProbeAdded = probeTimes(k.first), probeTimes(k.added)
	for i := range k.streams[:k.opened] {
		if s := &k.streams[i]; s.verdict == open {
			r.count(s)
		}
	}
	r.KBPerStream = float64(w.gateway.Resident-idle.Resident) / 1000 / float64(c.Load.Streams)
	if c.Load.Rate > 0 {
		from := int64(c.Times.Warm)
		streams := cell.NewSchedule(c.Load, c.Times).Between(from, from+int64(c.Times.Measure))
		r.Offered = float64(streams+c.Load.Probes*cell.ProbeTokens) / seconds
	}
	offered := r.Offered
	if offered == 0 {
		offered = r.Sent
	}
	r.Share = ratio(r.Delivered, offered)
	tokens := float64(k.received)
	r.CPUPerMega = ratio(r.CPU*1e6, tokens)
	if c.Load.Length > 0 {
		r.Requests, r.CPUPerRequest = float64(k.requests)/seconds, ratio(r.CPU*1e6, float64(k.requests))
	}
	r.PerWrite, r.PerEvent = ratio(tokens, float64(k.chunks)), ratio(tokens, float64(k.events))
	r.PerSyscall = ratio(tokens, float64(w.gateway.Writes))
	return r
}

func probeTimes(h *hdrhistogram.Histogram) ProbeTimes {
	return ProbeTimes{Count: int(h.TotalCount()), P50: ms(h, 50), P99: ms(h, 99), Max: float64(h.Max()) / 1000}
}

func ms(h *hdrhistogram.Histogram, percentile float64) float64 {
	return float64(h.ValueAtPercentile(percentile)) / 1000
}

// ratio is a/b, 0 where there is nothing to divide by.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
