package load

import (
	"fmt"
	"math"
	"runtime/metrics"
	"slices"
	"strings"

	"weir/internal/workload/latency"
)

// Trust states whether a run's figures can be trusted.
type Trust string

// The verdicts.
const (
	Valid    Trust = "VALID"    // nothing speaks against the figures
	Degraded Trust = "DEGRADED" // they hold with the reservations that the reasons name
	Invalid  Trust = "INVALID"  // they say more about the generator or the run than about the server
)

// Verdict states how far a run can be trusted, and why.
type Verdict struct {
	Trust   Trust    `json:"trust"`
	Reasons []string `json:"reasons"`
}

// Bounds of the verdict. Slip refers to requests that were not sent on time: then the load
// was not the one that was asked for.
const (
	slipDegraded, slipInvalid   = 1, 10    // ms, p99
	schedDegraded, schedInvalid = 1, 10    // ms, p99
	lateDegraded                = 10       // ms, p99, of reads that the kernel stamped
	unstampedDegraded           = 0.01     // of the reads
	pauseDegraded               = 5        // ms, the longest
	cpuDegraded, cpuInvalid     = 0.7, 0.9 // of the cores
	stretchInvalid              = 1.05     // of the time in which requests were to be begun
	failedInvalid               = 0.5      // of the requests
	boundDegraded               = 1        // ms, from a percentile to what else it may be, or
	boundShareDegraded          = 0.01     // of the percentile, where that is more
	boundInvalid                = 2        // the same, of p50 and p90
	boundShareInvalid           = 0.2
	leastForSlip                = 20  // requests
	longEnough                  = 0.2 // s: CPU and scheduling of shorter runs are those of starting up
)

// judge gives the verdict, and refuses latencies that have no meaning.
func (r *Report) judge() {
	v := Verdict{Trust: Valid, Reasons: []string{}}
	say := func(t Trust, format string, args ...any) {
		if t == Invalid || v.Trust == Valid {
			v.Trust = t
		}
		v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...))
	}
	open := r.open()
	if r.Problem != "" {
		say(Invalid, "the workload could not be read to its end: %s", r.Problem)
	}
	if r.Complete == 0 && r.Abandoned == 0 {
		say(Invalid, "no request was complete")
	}
	if why := r.Steady.Unstable; why != "" && open {
		say(Invalid, "the rate is unstable: %s; latencies grow as long as the run does, and are not given", why)
		for _, l := range []interface{ Refuse(string) }{&r.TTFT, &r.TTFTAnswer, &r.E2E, &r.TTFTSent, &r.TTFTAnswerSent, &r.E2ESent} {
			l.Refuse("unstable: " + why)
		}
	}
	if open && r.Requests >= leastForSlip {
		slip := r.Slip.P99
		if slip.Refused() {
			slip = r.Slip.Max
		}
		switch {
		case slip > slipInvalid:
			say(Invalid, "requests were sent up to %.1f ms late (p99): this machine cannot send at this rate", slip)
		case slip > slipDegraded:
			say(Degraded, "requests were sent up to %.1f ms late (p99)", slip)
		}
		if r.Realised.Stretch > stretchInvalid {
			say(Invalid, "requests were begun over %.2f times the time of their schedule", r.Realised.Stretch)
		}
	}
	g := &r.Generator
	if r.Elapsed > longEnough {
		switch {
		case g.CPUShare > cpuInvalid:
			say(Invalid, "the generator used %.0f %% of its %d cores", 100*g.CPUShare, g.Cores)
		case g.CPUShare > cpuDegraded:
			say(Degraded, "the generator used %.0f %% of its %d cores", 100*g.CPUShare, g.Cores)
		}
		r.punctual(say)
	}
	if t, why := r.uncertain("TTFT", "TTFT of the answer", "TPOT", "ITL"); t != Valid {
		say(t, "%s", why)
	}
	if c := &r.Receive; c.Stamps == ReaderStamps {
		say(Degraded, "times are those of reading, and how late that was is not known (%s)", c.Why)
	}
	if g.PauseMax > pauseDegraded {
		say(Degraded, "the generator's garbage collector stopped it for %.1f ms", g.PauseMax)
	}
	if failed := r.Errored + r.Corrupt; failed > 0 && r.Complete > 0 {
		t := Degraded
		if float64(failed) > failedInvalid*float64(r.Requests) {
			t = Invalid
		}
		say(t, "%d of %d requests failed; latencies are those of the others", failed, r.Requests)
	}
	if s := &r.Steady; r.Complete == 0 {
		// Said already: nothing can be steady.
	} else if s.Why != "" {
		say(Degraded, "the run has no steady part: %s", s.Why)
	} else if s.Unstable == "" && math.Abs(s.Little-s.InFlight) > s.tolerance() {
		say(Degraded, "Little's law does not hold in the steady part: %.1f in flight, %.1f by rate and time", s.InFlight, s.Little)
	}
	if r.InputTokensOff > 0 {
		say(Degraded, "of %d answers the server counts another prompt length than the tokenizer given", r.InputTokensOff)
	}
	if c := r.Calibration; c != nil {
		c.reasons(say)
	}
	if r.Interrupted {
		say(Degraded, "the run was interrupted")
	}
	r.Verdict = v
}

// punctual reports what the generator's late reads mean for the figures.
func (r *Report) punctual(say func(t Trust, format string, args ...any)) {
	g, c := &r.Generator, &r.Receive
	if c.Stamps != KernelStamps {
		switch {
		case g.SchedP99 > schedInvalid:
			say(Invalid, "the generator's goroutines waited %.1f ms for a core (p99): it read answers that late", g.SchedP99)
		case g.SchedP99 > schedDegraded:
			say(Degraded, "the generator's goroutines waited %.1f ms for a core (p99)", g.SchedP99)
		}
		return
	}
	// Late reads do not affect stamps, except those of events that waited together.
	late := c.Late.P99
	if late.Refused() {
		late = c.Late.Max
	}
	if late > lateDegraded && r.TextEvents > 0 {
		say(Degraded, "answers were read up to %.1f ms after they arrived (p99): the kernel's stamps keep that out of their times, but for the %.1f %% of events that have none of their own",
			late, 100*float64(c.Unknown)/float64(r.TextEvents))
	}
	if g.SchedP99 > schedInvalid {
		say(Degraded, "the generator's goroutines waited %.1f ms for a core (p99): connections and a closed loop's next requests were that late", g.SchedP99)
	}
	if reads := c.Late.Count + c.Unstamped; float64(c.Unstamped) > unstampedDegraded*float64(reads) {
		say(Degraded, "%d of %d reads had no stamp of the kernel's, and have the time of their reading", c.Unstamped, reads)
	}
}

// uncertain returns which percentiles of some latencies are not known well enough,
// because they are made of events that have no time of their own.
func (r *Report) uncertain(of ...string) (t Trust, why string) {
	t = Valid
	var which []string
	answer := r.answerApart()
	for _, x := range []struct {
		name string
		j    *latency.Judged
	}{{"TTFT", &r.TTFT}, {"TTFT of the answer", &answer}, {"TPOT", &r.TPOT}, {"ITL", &r.ITL}} {
		if !slices.Contains(of, x.name) {
			continue
		}
		figures := []struct {
			name string
			f    latency.Figure
			much bool // it makes the run invalid
		}{{"p50", x.j.P50, true}, {"p90", x.j.P90, true}, {"p99", x.j.P99, false}, {"p999", x.j.P999, false}}
		if x.j.P50.Refused() {
			figures[0].name, figures[0].f = "max", x.j.Max // of a single value
		}
		for _, f := range figures {
			in, ok := x.j.Bounds[f.name]
			if !ok {
				continue
			}
			off := max(f.f-in[0], in[1]-f.f)
			if off <= max(boundDegraded, boundShareDegraded*f.f) {
				continue
			}
			which = append(which, fmt.Sprintf("%s %s is between %.1f and %.1f ms", x.name, f.name, in[0], in[1]))
			if f.much && off > max(boundInvalid, boundShareInvalid*f.f) {
				t = Invalid
			} else if t == Valid {
				t = Degraded
			}
		}
	}
	if t == Valid {
		return t, ""
	}
	c := &r.Receive
	return t, fmt.Sprintf("%.1f %% of events (the first ones of %.1f %% of the requests) have no time of their own, because others arrived before they were read: all that is known is that %s",
		100*float64(c.Unknown)/float64(max(1, r.TextEvents)), 100*float64(c.UnknownFirst)/float64(max(1, r.Requests)), strings.Join(which, ", "))
}

// Unstable returns why the rate was more than the server answers, empty where it
// was not.
func (r *Report) Unstable() string {
	if !r.open() {
		return ""
	}
	return r.Steady.Unstable
}

// Overdriven returns why the offered load was not the one that was asked for, or why the
// quantities of objectives were not measured; empty if neither is the case. The fault is
// the generator's, and nothing is known about the server.
func (r *Report) Overdriven() string {
	slip := r.Slip.P99
	if slip.Refused() {
		slip = r.Slip.Max
	}
	switch g := &r.Generator; {
	case r.open() && r.Requests >= leastForSlip && slip > slipInvalid:
		return fmt.Sprintf("requests were sent up to %.1f ms late (p99)", slip)
	case r.open() && r.Requests >= leastForSlip && r.Realised.Stretch > stretchInvalid:
		return fmt.Sprintf("requests were begun over %.2f times the time of their schedule", r.Realised.Stretch)
	case r.Elapsed > longEnough && g.CPUShare > cpuInvalid:
		return fmt.Sprintf("the generator used %.0f %% of its %d cores", 100*g.CPUShare, g.Cores)
	case r.Elapsed > longEnough && g.SchedP99 > schedInvalid && r.Receive.Stamps != KernelStamps:
		return fmt.Sprintf("the generator's goroutines waited %.1f ms for a core (p99)", g.SchedP99)
	}
	if t, why := r.uncertain("TTFT", "TTFT of the answer", "TPOT"); t == Invalid {
		return why
	}
	return ""
}

// Generator is what the load generator itself used during the run. It covers the whole
// process, with everything else that runs in it.
type Generator struct {
	Cores int `json:"cores"`
	// CPUShare is the CPU time used, of all cores.
	CPUShare float64 `json:"cpu_share"`
	// SchedP50 to SchedMax are how long goroutines that could run waited for a
	// core, in milliseconds, by Go's own histogram.
	SchedP50 float64 `json:"sched_p50_ms"`
	SchedP99 float64 `json:"sched_p99_ms"`
	SchedMax float64 `json:"sched_max_ms"`
	// PauseMax is the longest time for which the garbage collector stopped it, of
	// GCs collections, in milliseconds.
	PauseMax float64 `json:"gc_pause_max_ms"`
	GCs      uint64  `json:"gc_cycles"`
}

// runtimeFigures are the counts of Go's runtime at one moment.
type runtimeFigures struct {
	sched, pauses *metrics.Float64Histogram
	gcs           uint64
}

func readRuntime() runtimeFigures {
	s := []metrics.Sample{{Name: "/sched/latencies:seconds"}, {Name: "/sched/pauses/total/gc:seconds"}, {Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	// The storage of the histograms belongs to the sample and is replaced at the next
	// reading.
	return runtimeFigures{s[0].Value.Float64Histogram(), s[1].Value.Float64Histogram(), s[2].Value.Uint64()}
}

// generator returns what the generator used since the account was opened.
func (a *account) generator(cpu, elapsed float64) Generator {
	now := readRuntime()
	g := Generator{Cores: a.cores, GCs: now.gcs - a.started.gcs}
	if elapsed > 0 {
		g.CPUShare = cpu / elapsed / float64(g.Cores)
	}
	g.SchedP50 = quantile(a.started.sched, now.sched, 0.5)
	g.SchedP99 = quantile(a.started.sched, now.sched, 0.99)
	g.SchedMax = quantile(a.started.sched, now.sched, 1)
	g.PauseMax = quantile(a.started.pauses, now.pauses, 1)
	return g
}

// quantile returns the upper edge, in milliseconds, of the bucket in which a share of the
// values between two readings lies; 0 if there are none.
func quantile(before, after *metrics.Float64Histogram, share float64) float64 {
	counts := make([]uint64, len(after.Counts))
	for i, c := range after.Counts {
		counts[i] = c - before.Counts[i]
	}
	i, ok := latency.Bucket(counts, share)
	if !ok {
		return 0
	}
	edge := after.Buckets[i+1]
	if math.IsInf(edge, 1) {
		edge = after.Buckets[i]
	}
	return edge * 1e3
}

// trust returns the lines that state what the figures are worth.
func (r *Report) trust() (all []Fact) {
	add := func(name, format string, args ...any) { all = append(all, Fact{name, fmt.Sprintf(format, args...)}) }
	if p := r.Realised; r.open() && p.Rate > 0 {
		add("arrivals", "%.3f/s realised, gap CV %.3f, lag-1 %.3f, dispersion %.2f", p.Rate, p.CV, p.Lag1, p.Dispersion)
	}
	if s := r.Steady; s.Why == "" {
		add("steady", "%s to %s: %.2f/s arriving, %.2f/s ending, %.1f in flight (%.1f by Little's law)",
			latency.Seconds(s.From), latency.Seconds(s.To), s.Arriving, s.Ending, s.InFlight, s.Little)
	}
	if r.Stream {
		add("receiving", "%s", r.Receive.describe(r.TextEvents))
	}
	g := r.Generator
	add("generator", "%.2f s CPU, %.0f %% of %d cores, %.2f us per event; runnable p99 %.3f ms; %d GCs, longest stop %.3f ms",
		r.CPUSeconds, 100*g.CPUShare, g.Cores, r.CPUPerEvent, g.SchedP99, g.GCs, g.PauseMax)
	if c := r.Calibration; c != nil {
		add("calibrated", "%s", c.describe())
	}
	why := ""
	if len(r.Verdict.Reasons) > 0 {
		why = ": " + strings.Join(r.Verdict.Reasons, "; ")
	}
	add("verdict", "%s%s", r.Verdict.Trust, why)
	return all
}
