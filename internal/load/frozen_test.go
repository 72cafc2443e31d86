package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"weir/internal/wire/sock"
	"weir/internal/workload/latency"
)

// segment is a piece of a response as it arrives.
type segment struct {
	at   int64
	data string
}

// script is a source whose segments arrive at given times and are read when its
// clock says. It joins what waits, as kernels do: a read has the stamp of the last
// segment that waits, also where there was no room for it.
type script struct {
	cn       *conn
	now      int64
	segments []segment // in order, the first one as far as it is not read yet
	seen     int       // segments that were read whole
	bytes    uint64    // read
	history  arrivals
}

// lag is how long after a read the kernel's counters are read.
const lag = 5000

func (s *script) receive(p []byte) (n int, at int64, err error) {
	for n < len(p) && len(s.segments) > 0 && s.segments[0].at <= s.now {
		first := &s.segments[0]
		at = first.at
		k := copy(p[n:], first.data)
		n += k
		if first.data = first.data[k:]; first.data == "" {
			s.segments = s.segments[1:]
			s.seen++
		}
	}
	if n == 0 {
		return 0, 0, errAgain
	}
	if n == len(p) {
		for _, x := range s.segments {
			if x.at <= s.now {
				at = x.at
			}
		}
	}
	s.bytes += uint64(n)
	s.history.read(n, len(p), at, true)
	s.cn.late = append(s.cn.late, s.now-at)
	return n, at, nil
}

func (s *script) since(at int64, last bool) int64 {
	if last && s.history.exact() {
		return at
	}
	if s.history.asked {
		return s.history.first
	}
	known := sock.Arrivals{Segments: uint32(s.seen), Bytes: s.bytes}
	for _, x := range s.segments {
		if x.at <= s.now+lag {
			known.Segments++
			known.Bytes += uint64(len(x.data))
		}
	}
	return s.history.oldest(at, known, true)
}

// shapes are ways in which servers write an answer: each gives the segments of one
// whose tokens are sent at these times, and when the last byte of each arrives.
var shapes = []struct {
	name  string
	write func(tokens []int64) (segments []segment, truth []int64)
}{
	{"a segment a token", func(tokens []int64) (out []segment, truth []int64) {
		return inSegments(tokens, 1, 1, false), tokens
	}},
	{"every event apart", func(tokens []int64) (out []segment, truth []int64) {
		return inSegments(tokens, 1, 1, true), tokens
	}},
	{"three tokens a segment", func(tokens []int64) (out []segment, truth []int64) {
		for i := range tokens {
			truth = append(truth, tokens[min(i/3*3+2, len(tokens)-1)])
		}
		return inSegments(tokens, 3, 1, false), truth
	}},
	{"two segments a token", func(tokens []int64) (out []segment, truth []int64) {
		for _, at := range tokens {
			truth = append(truth, at+apart)
		}
		return inSegments(tokens, 1, 2, false), truth
	}},
}

// apart is the time between what is sent in a row.
const apart = int64(20 * time.Microsecond)

// inSegments writes this many tokens at once, in this many segments, and what is not a
// token with the first and the last one, or each apart.
func inSegments(tokens []int64, together, pieces int, each bool) (out []segment) {
	r := whole(make([]string, len(tokens)))
	for i := range r.words {
		r.words[i] = " word"
	}
	all := r.frames(r.events())
	const before, after = 1, 3 // the role; the end, the usage and [DONE]
	out = append(out, segment{tokens[0] - 2*apart, streamHead})
	add := func(at int64, text string) {
		if each || at != out[len(out)-1].at {
			out = append(out, segment{at, text})
			return
		}
		out[len(out)-1].data += text
	}
	add(tokens[0]-2*apart, chunked(all[:before]))
	at := int64(0)
	for i := 0; i < len(tokens); i += together {
		end := min(i+together, len(tokens))
		at = tokens[end-1]
		text := chunked(all[before+i : before+end])
		if pieces == 1 {
			out = append(out, segment{at, text})
			continue
		}
		cut := len(text) / 3
		out = append(out, segment{at, text[:cut]}, segment{at + apart, text[cut:]})
		at += apart
	}
	for i, frame := range all[len(all)-after:] {
		if each {
			at += apart
		}
		if text := chunked([]string{frame}); i == after-1 {
			add(at, text+lastChunk)
		} else {
			add(at, text)
		}
	}
	return out
}

// stops is when a generator is kept from running: for a share of each period.
type stops struct {
	period, phase int64
	share         float64
}

// runs returns the first time from at on at which the generator runs.
func (f stops) runs(at int64) int64 {
	if f.share == 0 {
		return at
	}
	since := (at - f.phase) % f.period
	return at + max(0, int64(f.share*float64(f.period))-since)
}

// scripted has a generator that is stopped now and then measure this many answers of a
// shape by each of its workers, and gives its report with the truth. In a closed loop
// a worker sends when it runs, and in an open one the time at which it should have sent
// counts.
func scripted(t *testing.T, shape, each int, open bool, f stops, seed uint64) (r *Report, ttft, itl latency.Judged) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 3))
	f.phase = rng.Int64N(f.period)
	const workers, tokens = 4, 24
	a := newAccount(false, 2)
	a.r.Stream, a.r.Concurrency, a.r.Receive.Stamps = true, workers, KernelStamps
	if open {
		a.r.Concurrency, a.r.Rate = 0, 10
	}
	trueTTFT, trueITL := latency.New(longestLatency), latency.New(longestLatency)
	step := []float64{2e6, 5e6, 10e6, 25e6}[rng.IntN(4)]
	for worker := range workers {
		src := &script{}
		cn := &conn{}
		src.cn = cn
		cn.buf = buffer{src: src, data: make([]byte, readBuffer)}
		x := newExchange(&Plan{OutputTokens: tokens}, &client{}, nil)
		src.now = f.runs(1e15 + rng.Int64N(1e7))
		for n := range each {
			sent, intended := src.now, src.now
			if open {
				intended += int64(20e6 * rng.ExpFloat64())
				src.now = f.runs(intended)
				sent = src.now
			}
			x.take(t.Context(), worker*each+n, intended)
			x.begin(t.Context(), cn)
			x.sample.Started, x.sample.Sent = sent, sent
			src.history.begin(sent)
			at := sent + int64(5e6+20e6*rng.Float64())
			times := make([]int64, tokens)
			for i := range times {
				times[i] = at
				at += int64(step * (0.8 + 0.4*rng.Float64()))
			}
			var truth []int64
			src.segments, truth = shapes[shape].write(times)
			trueTTFT.Add(truth[0] - sent)
			for i := range truth[1:] {
				trueITL.Add(truth[i+1] - truth[i])
			}
			for over := false; !over; {
				if len(src.segments) == 0 {
					t.Fatalf("the answer is not over: %+v", x.sample)
				}
				// Waking up takes a while, and others are read before it.
				src.now = f.runs(max(src.now, src.segments[0].at) + int64(30e3*rng.ExpFloat64()))
				over = x.turn(cn)
			}
			s := &x.sample
			s.Reads = cn.buf.reads
			s.late, cn.late = cn.late, s.late[:0]
			s.lateness()
			cn.buf.reads = 0
			if s.Outcome != Complete || s.TextEvents != tokens {
				t.Fatalf("%v %s %s, %d tokens", s.Outcome, s.Kind, s.Detail, s.TextEvents)
			}
			a.add(s)
		}
	}
	r = a.report()
	r.Generator = Generator{Cores: 2} // the test's own is not that of the script
	r.judge()
	return r, trueTTFT.Judge(false), trueITL.Judge(false)
}

// However a generator is stopped, a percentile is what its report says that it may
// be, and within a millisecond or 1 % of the truth where the report is valid. One
// that is not stopped is believed.
func TestStoppedGenerator(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: it runs without the race detector")
	}
	figures := func(j *latency.Judged) map[string]float64 {
		return map[string]float64{"p50": float64(j.P50), "p90": float64(j.P90), "p99": float64(j.P99), "p999": float64(j.P999), "max": float64(j.Max)}
	}
	// Percentiles are of microseconds at three digits, and what follows the last
	// content is taken to have come with it.
	const us, digits = float64(5*apart) / 1e6, 2e-3
	verdicts := map[float64]map[Trust]int{}
	periods := []time.Duration{10, 20, 40, 75, 150, 300, 500}
	seed := uint64(0)
	for _, share := range []float64{0, 0.2, 0.5, 0.8} {
		verdicts[share] = map[Trust]int{}
		for _, period := range periods {
			for run := range len(shapes) + 3 {
				seed++
				// Closed loops, two open ones, and one of too few requests for most rules.
				shape, open, each := (run+int(seed)/7)%len(shapes), run >= len(shapes), 25
				if run == len(shapes)+2 {
					each = 4
				}
				r, ttft, itl := scripted(t, shape, each, open, stops{period: int64(period * time.Millisecond), share: share}, seed)
				name := fmt.Sprintf("%s, %d requests, open %t, stopped for %g of every %d ms, seed %d", shapes[shape].name, 4*each, open, share, period, seed)
				verdicts[share][r.Verdict.Trust]++
				far := 0.0 // how many times what a valid report allows
				for _, m := range []struct {
					name       string
					got, truth *latency.Judged
				}{{"TTFT", &r.TTFT, &ttft}, {"ITL", &r.ITL, &itl}} {
					truth := figures(m.truth)
					for f, got := range figures(m.got) {
						if math.IsNaN(got) {
							continue
						}
						in, ok := m.got.Bounds[f]
						if !ok {
							in = latency.Range{latency.Figure(got), latency.Figure(got)}
						}
						// In an open loop the bounds do not have the slip, which is reported
						// separately.
						late := 0.0
						if open && m.name == "TTFT" {
							late = float64(r.Slip.Max)
						}
						if off := max(float64(in[0])-late-truth[f], truth[f]-float64(in[1])); off > us+digits*truth[f] {
							t.Errorf("%s: %s %s is %.3f, said to be %.3f, between %.3f and %.3f", name, m.name, f, truth[f], got, in[0], in[1])
						}
						if f != "max" {
							far = max(far, math.Abs(got-truth[f])/(us+max(boundDegraded, boundShareDegraded*got)))
						}
					}
				}
				// Nothing but this reason may be what keeps the report of a closed loop from
				// being valid. In an open one there is the slip.
				if trust, _ := r.uncertain("TTFT", "ITL"); far > 1 && (r.Verdict.Trust == Valid || !open && trust == Valid) {
					t.Errorf("%s: off by %.1f times what is allowed, and nothing is said of it", name, far)
				}
				if share == 0 && each == 25 && r.Verdict.Trust != Valid { // few requests have no steady part
					t.Errorf("%s: %v", name, r.Verdict.Reasons)
				}
			}
		}
	}
	t.Logf("verdicts by share of the time stopped: %v", verdicts)
	// If tokens are further apart than the process is stopped for, the kernel's stamps show
	// everything.
	if runs := len(periods) * (len(shapes) + 3); verdicts[0.8][Invalid] < runs*7/10 {
		t.Errorf("of %d runs of a generator stopped for 80 %% of the time: %v", runs, verdicts[0.8])
	}
}
