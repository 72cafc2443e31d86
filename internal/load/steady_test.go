package load

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/workload"
	"weir/internal/workload/latency"
)

// served is what a server of c places makes of a Poisson process, in virtual
// time: each request takes a place for an exponential time.
func served(t *testing.T, rate float64, places, requests int, mean time.Duration, seed uint64) []moment {
	t.Helper()
	s, err := workload.NewSchedule(workload.Loop{Rate: workload.ConstantRate(rate)}, seed)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	free := make([]int64, places)
	out := make([]moment, requests)
	for i := range out {
		at := int64(s.Next()) + 1
		slices.Sort(free)
		start := max(at, free[0])
		free[0] = start + int64(rng.ExpFloat64()*float64(mean))
		out[i] = moment{at, at, free[0], Complete}
	}
	slices.SortFunc(out, func(a, b moment) int { return cmp.Compare(a.started, b.started) })
	return out
}

// A server that keeps up is in balance, and one that does not is unstable: told
// rightly for 100 seeds of each.
func TestSteady(t *testing.T) {
	wrong, found := 0, 0
	for seed := range uint64(100) {
		s := findSteady(served(t, 50, 20, 2000, 200*time.Millisecond, seed)) // half its capacity
		if s.Why != "" || s.Unstable != "" {
			t.Errorf("seed %d, half the capacity: %+v", seed, s)
		}
		if math.Abs(s.Little-s.InFlight) > s.tolerance() || math.Abs(s.Arriving-50) > 8 {
			wrong++
		}
		if s := findSteady(served(t, 150, 20, 2000, 200*time.Millisecond, seed)); s.Unstable != "" { // 1.5 times
			found++
		}
	}
	if wrong > 0 || found != 100 {
		t.Errorf("out of balance at half the capacity in %d of 100, unstable at 1.5 times it in %d of 100", wrong, found)
	}
}

// A ramp that the server keeps up with is not unstable, though ever more is in
// flight.
func TestSteadyRamp(t *testing.T) {
	for seed := range uint64(20) {
		s, err := workload.NewSchedule(workload.Loop{Rate: workload.RampRate(5, 60, 20*time.Second)}, seed)
		if err != nil {
			t.Fatal(err)
		}
		var all []moment
		for at := s.Next(); at < 20*time.Second; at = s.Next() {
			all = append(all, moment{int64(at), int64(at), int64(at + 500*time.Millisecond), Complete})
		}
		if s := findSteady(all); s.Why != "" || s.Unstable != "" {
			t.Errorf("seed %d: %+v", seed, s)
		}
	}
}

func TestNotSteady(t *testing.T) {
	few := served(t, 50, 20, 10, time.Second, 1)
	if s := findSteady(few); !strings.Contains(s.Why, "fewer") {
		t.Errorf("%+v", s)
	}
	short := served(t, 500, 1000, 100, time.Second, 1)
	if s := findSteady(short); !strings.Contains(s.Why, "too short") {
		t.Errorf("%+v", s)
	}
	if s := findSteady(nil); s.Why == "" {
		t.Errorf("%+v", s)
	}
}

// The arrivals described are those carried out, and a generator that fell
// behind shows.
func TestDescribeArrivals(t *testing.T) {
	all := served(t, 100, 100, 4000, time.Millisecond, 5)
	a := describeArrivals(all)
	if math.Abs(a.Rate-100) > 6 || math.Abs(a.CV-1) > 0.06 || math.Abs(a.Lag1) > 0.06 || math.Abs(a.Dispersion-1) > 0.25 || a.Stretch != 1 {
		t.Errorf("%+v", a)
	}
	for i := range all {
		all[i].started += all[i].started / 5
	}
	if a := describeArrivals(all); math.Abs(a.Stretch-1.2) > 0.001 || math.Abs(a.Rate-100/1.2) > 6 {
		t.Errorf("a fifth slower: %+v", a)
	}
	if a := describeArrivals(nil); a != (Arrivals{}) {
		t.Errorf("%+v", a)
	}
}

// Each thing that speaks against a run's figures is said, and only that.
func TestJudge(t *testing.T) {
	good := func() *Report {
		rec := latency.New(time.Hour)
		rec.AddN(1e5, 2000)
		r := &Report{Rate: 10, Requests: 2000, TextEvents: 20000, Complete: 2000, Elapsed: 200, Slip: rec.Judge(false), TTFT: rec.Judge(true), E2E: rec.Judge(true),
			Realised: Arrivals{Stretch: 1}, Steady: Steady{Requests: 1900, InFlight: 10, Little: 10.2}}
		r.Generator = Generator{Cores: 2, CPUShare: 0.1, SchedP99: 0.1}
		return r
	}
	late := func(ms float64) latency.Judged {
		rec := latency.New(time.Hour)
		rec.AddN(int64(ms*1e6), 2000)
		return rec.Judge(false)
	}
	stamped := func(l latency.Judged, without int64) Receive {
		return Receive{Stamps: KernelStamps, Late: l, Unstamped: without}
	}
	calibrated := func(ttft, itl float64, complete int) *Calibration {
		return &Calibration{Requests: 10, Complete: complete, TTFTError: ErrorOf{P99: ttft}, ITLError: ErrorOf{Sigma: itl}}
	}
	for _, c := range []struct {
		name   string
		damage func(*Report)
		trust  Trust
		reason string
	}{
		{"good", func(*Report) {}, Valid, ""},
		{"nothing complete", func(r *Report) { r.Complete, r.Errored = 0, 2000 }, Invalid, "no request"},
		{"some late", func(r *Report) { r.Slip = late(2) }, Degraded, "2.0 ms late"},
		{"late", func(r *Report) { r.Slip = late(20) }, Invalid, "20.0 ms late"},
		{"slower", func(r *Report) { r.Realised.Stretch = 1.3 }, Invalid, "1.30 times"},
		{"busy", func(r *Report) { r.Generator.CPUShare = 0.8 }, Degraded, "80 %"},
		{"full", func(r *Report) { r.Generator.CPUShare = 0.95 }, Invalid, "95 %"},
		{"scheduling", func(r *Report) { r.Generator.SchedP99 = 4 }, Degraded, "4.0 ms for a core"},
		{"starved", func(r *Report) { r.Generator.SchedP99 = 40 }, Invalid, "40.0 ms for a core"},
		{"stamped", func(r *Report) { r.Generator.SchedP99, r.Receive = 4, stamped(late(5), 10) }, Valid, ""},
		{"read late", func(r *Report) { r.Receive = stamped(late(30), 10) }, Degraded, "30.0 ms after they arrived (p99)"},
		{"stamped and starved", func(r *Report) { r.Generator.SchedP99, r.Receive = 40, stamped(late(1), 10) }, Degraded, "40.0 ms for a core"},
		{"without stamps", func(r *Report) { r.Receive = stamped(late(1), 1000) }, Degraded, "1000 of 3000 reads"},
		{"calibrated", func(r *Report) { r.Calibration = calibrated(0.9, 0.4, 10) }, Valid, ""},
		{"TTFT is measured wrong", func(r *Report) { r.Calibration = calibrated(1.5, 0.4, 10) }, Degraded, "TTFT wrong by 1.5 ms"},
		{"and very", func(r *Report) { r.Calibration = calibrated(15, 0.4, 10) }, Invalid, "TTFT wrong by 15.0 ms"},
		{"ITL is measured wrong", func(r *Report) { r.Calibration = calibrated(0.1, 0.6, 10) }, Degraded, "ITL wrong by 0.60 ms"},
		{"and very", func(r *Report) { r.Calibration = calibrated(0.1, 6, 10) }, Invalid, "ITL wrong by 6.00 ms"},
		{"its calibration failed", func(r *Report) { r.Calibration = calibrated(0.1, 0.1, 9) }, Degraded, "1 of 10"},
		{"collector", func(r *Report) { r.Generator.PauseMax = 6 }, Degraded, "6.0 ms"},
		{"failures", func(r *Report) { r.Complete, r.Errored = 1990, 10 }, Degraded, "10 of 2000"},
		{"most failed", func(r *Report) { r.Complete, r.Corrupt = 900, 1100 }, Invalid, "1100 of 2000"},
		{"out of balance", func(r *Report) { r.Steady.Little = 15 }, Degraded, "Little"},
		{"no steady part", func(r *Report) { r.Steady = Steady{Why: "too short"} }, Degraded, "too short"},
		{"other lengths", func(r *Report) { r.InputTokensOff = 3 }, Degraded, "prompt length"},
		{"interrupted", func(r *Report) { r.Interrupted = true }, Degraded, "interrupted"},
		{"unstable", func(r *Report) { r.Steady.Unstable = "more came" }, Invalid, "more came"},
	} {
		r := good()
		c.damage(r)
		r.judge()
		reasons := strings.Join(r.Verdict.Reasons, "; ")
		if r.Verdict.Trust != c.trust || !strings.Contains(reasons, c.reason) || (c.reason == "") != (len(r.Verdict.Reasons) == 0) || len(r.Verdict.Reasons) > 1 {
			t.Errorf("%s: %s %q", c.name, r.Verdict.Trust, r.Verdict.Reasons)
		}
		if refused := r.TTFT.P50.Refused(); refused != (c.name == "unstable") {
			t.Errorf("%s: percentiles refused: %v", c.name, refused)
		}
	}
	// A closed loop has no rate to be unstable at, and sends when it can.
	r := good()
	r.Rate, r.Steady.Unstable, r.Slip = 0, "more came", late(50)
	if r.judge(); r.Verdict.Trust != Valid {
		t.Errorf("closed loop: %+v", r.Verdict)
	}
}
