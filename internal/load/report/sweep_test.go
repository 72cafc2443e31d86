package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"weir/internal/load"
	"weir/internal/load/experiment"
	"weir/internal/load/slo"
	"weir/internal/workload/latency"
)

// figures makes a run's report with the given latency everywhere.
func figures(ms float64) *Report {
	j := latency.Judged{Count: 100, Mean: latency.Figure(ms), P50: latency.Figure(ms), P90: latency.Figure(ms), P99: latency.Figure(ms), P999: nan, Max: latency.Figure(ms),
		CI95: map[string]latency.Range{"p50": {latency.Figure(ms - 1), latency.Figure(ms + 1)}}}
	r := &load.Report{URL: "http://x", API: load.Chat, Requests: 100, Complete: 99, Errored: 1, TTFT: j, TPOT: j, E2E: j, RequestsPerSecond: 10}
	r.Verdict.Trust = load.Valid
	rate := 0.98
	return &Report{Report: r, Engines: []Engine{{Name: "b", Requests: 48, Complete: 48, Judged: 48}, {Name: "a", Requests: 52, Complete: 51, Judged: 52, SuccessRate: &rate}}}
}

// sweepOf carries out a grid of two series and three loads with a latency of
// each run.
func sweepOf(t *testing.T, repeats int, ms func(series string, at float64, order int) float64) *Sweep {
	t.Helper()
	s := &Sweep{Name: "try", Factors: []experiment.Factor{{Name: "policy", Values: []string{"x", "y"}}, {Name: "rate", Values: []string{"1", "2", "4"}}}}
	var order []SweepPoint
	cells := experiment.Grid(s.Factors)
	loads := []float64{1, 2, 4}
	series := []string{"policy=x", "policy=y"}
	for _, c := range cells {
		order = append(order, SweepPoint{Series: series[c[0]], At: loads[c[1]]})
	}
	for i, run := range experiment.Order(len(cells), repeats, 3) {
		p := order[run.Cell]
		r := figures(ms(p.Series, p.At, i))
		if err := s.Add(SweepRun{Series: p.Series, At: p.At, Repeat: run.Repeat, Report: r}, nil); err != nil {
			t.Fatal(err)
		}
	}
	s.Settle(order)
	return s
}

func TestSweepPoints(t *testing.T) {
	s := sweepOf(t, 4, func(series string, at float64, order int) float64 { return 10*at + float64(order%2) })
	if len(s.Points) != 6 || len(s.Runs) != 24 {
		t.Fatalf("%d points, %d runs", len(s.Points), len(s.Runs))
	}
	for _, p := range s.Points {
		f := p.Figures["ttft_p50_ms"]
		if len(p.Runs) != 4 || math.Abs(float64(f.Mean)-10*p.At) > 1 || f.CI95[0] > f.Mean || f.CI95[1] < f.Mean {
			t.Errorf("%+v", p)
		}
		if len(p.Engines) != 2 || p.Engines[0].Name != "a" || p.Engines[0].Requests != 208 || math.Abs(p.Engines[0].Share-0.52) > 1e-9 || *p.SuccessRate != 0.99 {
			t.Errorf("%+v", p.Engines)
		}
	}
	var text, table, page, object bytes.Buffer
	if err := s.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"policy=x", "a 52 % (98.08 % ok), b 48 %", "99.00"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("no %q in\n%s", part, text.String())
		}
	}
	if err := s.CSV(&table); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&table).ReadAll()
	if err != nil || len(rows) != 25 {
		t.Fatal(len(rows), err)
	}
	if err := s.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	// Six points on each of eight plots, two lines.
	if n := strings.Count(page.String(), "<circle"); n != 6*8 {
		t.Errorf("%d points in the plots", n)
	}
	if err := s.JSON(&object); err != nil {
		t.Fatal(err)
	}
	var back Sweep
	if err := json.Unmarshal(object.Bytes(), &back); err != nil || len(back.Points) != 6 || len(back.Runs) != 24 {
		t.Errorf("%v %+v", err, back)
	}
}

// A figure that one of the runs refuses is no mean of the others; an unstable
// run makes its point unstable.
func TestSweepRefusals(t *testing.T) {
	s := &Sweep{}
	for i := range 2 {
		r := figures(5)
		if i == 1 {
			r.Rate = 7
			r.Steady.Unstable = "growing"
			r.TTFT.Refuse("unstable: growing")
			r.Verdict = load.Verdict{Trust: load.Invalid, Reasons: []string{"the rate is unstable: 3"}}
		}
		if err := s.Add(SweepRun{At: 7, Repeat: i + 1, Report: r}, nil); err != nil {
			t.Fatal(err)
		}
	}
	s.Settle(nil)
	p := s.Points[0]
	if !p.Unstable || p.Trust != load.Invalid || !p.Figures["ttft_p50_ms"].Mean.Refused() || p.Figures["tpot_p50_ms"].Mean.Refused() || p.judgement() != "unstable" {
		t.Errorf("%+v", p)
	}
}

// A change over time is reported, and noise is not taken for one.
func TestSweepDrift(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	noisy := func(at float64) float64 { return 10 * at * math.Exp(0.05*rng.NormFloat64()) }
	if s := sweepOf(t, 4, func(_ string, at float64, order int) float64 { return noisy(at) * (1 + 0.02*float64(order)) }); len(s.Drift) == 0 || !strings.Contains(s.Drift[0], "ttft_p50_ms changed by +") {
		t.Errorf("a drift of 2 %% a run: %q", s.Drift)
	}
	called := 0
	for range 100 {
		if s := sweepOf(t, 4, func(_ string, at float64, _ int) float64 { return noisy(at) }); len(s.Drift) > 0 {
			called++
		}
	}
	if called > 2 {
		t.Errorf("of 100 sweeps without drift %d were said to have one", called)
	}
}

func TestSweepSearches(t *testing.T) {
	s := &Sweep{Name: "search", SLO: "ttft_p99=1s"}
	for _, rate := range []float64{8, 2, 4} {
		if err := s.Add(SweepRun{At: rate, Repeat: 1, Decision: "meets", Report: figures(5)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	result := slo.Result{Low: 4, High: 8, Why: "the trials are spent", Path: []slo.Step{{Rate: 8, Repeat: 1, Decision: slo.Misses, Why: "late"}}, Contradictions: []string{"4/s is worse than 8/s"}}
	s.Searches = []SweepSearch{{Result: result, Sentence: result.Sentence()}}
	s.Settle(nil)
	if s.Points[0].At != 2 || s.Points[2].At != 8 || s.Failed() {
		t.Errorf("%+v", s.Points)
	}
	var text, page bytes.Buffer
	if err := s.Text(&text); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"the limit lies between 4 and 8", "not monotonic", "misses", "late"} {
		if !strings.Contains(strings.ToLower(page.String()), part) || !strings.Contains(text.String(), part) {
			t.Errorf("no %q in\n%s", part, text.String())
		}
	}
}
