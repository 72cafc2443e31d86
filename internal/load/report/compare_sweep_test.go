package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/load/experiment"
	"weir/internal/load/slo"
)

// noisySweep is two series at three rates, run so often, whose latencies are ten
// times the rate, times a factor, with noise of 5 %.
func noisySweep(t *testing.T, rng *rand.Rand, repeats int, times float64) *Sweep {
	return sweepOf(t, repeats, func(_ string, at float64, _ int) float64 { return 10 * at * times * (1 + 0.05*rng.NormFloat64()) })
}

// Sweeps of the same server are called different, cell by cell and over all cells,
// about as often as a 95 % interval says; those of a slower one are told apart.
func TestCompareSweeps(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	pairs := 100
	if testing.Short() {
		pairs = 20
	}
	var called, cells, foundCells, wrong, found int
	for range pairs {
		a := noisySweep(t, rng, 4, 1)
		for _, times := range []float64{1, 1.2} {
			c, err := CompareSweeps(a, noisySweep(t, rng, 4, times), "a", "b")
			if err != nil || len(c.Cells) != 6 || len(c.OnlyA)+len(c.OnlyB)+len(c.Apart) != 0 {
				t.Fatalf("%v: %+v", err, c)
			}
			for _, x := range c.Cells {
				d := x.Differences[2]
				if d.Metric != "ttft_ms" || d.Figure != "p50" {
					t.Fatalf("%+v", d)
				}
				switch {
				case times > 1 && d.Finding == isHigher:
					foundCells++
				case times == 1 && (d.Finding == isHigher || d.Finding == isLower):
					called++
				}
				if times == 1 {
					cells++
				}
			}
			for _, r := range c.Overall {
				if r.Metric != "ttft_ms" || r.Figure != "p50" {
					continue
				}
				switch {
				case times > 1 && r.Finding == isHigher && r.Ratio > 1.1 && r.Ratio < 1.3:
					found++
				case times == 1 && (r.Finding == isHigher || r.Finding == isLower):
					wrong++
				}
			}
		}
	}
	if called > cells*8/100 || foundCells < cells*80/100 {
		t.Errorf("of %d cells %d were called different where they are not, %d where they are", cells, called, foundCells)
	}
	if wrong > pairs*12/100 || found < pairs*98/100 {
		t.Errorf("of %d sweeps %d were called different where they are not, %d where they are", pairs, wrong, found)
	}
}

// Cells are matched by their parameters, in whatever order their factors are, and
// a load that one of them did not vary is the same load all the same.
func TestSweepCellsMatch(t *testing.T) {
	a := sweepOf(t, 2, func(_ string, at float64, _ int) float64 { return 10 * at })
	b := &Sweep{Name: "other", Seed: 9, Factors: []experiment.Factor{{Name: "flush", Values: []string{"0s"}}, {Name: "policy", Values: []string{"y"}}, {Name: "rate", Values: []string{"2", "8"}}}}
	for i, at := range []float64{2, 8, 2, 8} {
		r := figures(5)
		r.OutputTokens = 7
		if err := b.Add(SweepRun{Series: "flush=0s policy=y", At: at, Repeat: 1 + i/2, Report: r}, nil); err != nil {
			t.Fatal(err)
		}
	}
	b.Settle(nil)
	if _, err := CompareSweeps(a, b, "a.json", "b.json"); !errors.Is(err, errNothingShared) || !strings.Contains(err.Error(), "a.json has policy=x rate 1, policy=x rate 2, policy=x rate 4, policy=y rate 1 and 2 more") {
		t.Errorf("a further factor was passed over: %v", err)
	}
	a.Fixed, b.Fixed = []string{"load.requests=5", "engine.decode-cost=1ms"}, []string{"engine.decode-cost=2ms", "load.requests=5"}
	a.Factors = append([]experiment.Factor{{Name: "zone", Values: []string{"1"}}}, a.Factors...)
	b.Factors = append(b.Factors[1:], experiment.Factor{Name: "zone", Values: []string{"1"}})
	for _, s := range []*Sweep{a, b} {
		for i := range s.Runs {
			policy := s.Runs[i].Series[strings.Index(s.Runs[i].Series, "policy="):]
			if s.Runs[i].Series = "zone=1 " + policy; s == b {
				s.Runs[i].Series = policy + " zone=1"
			}
		}
		s.Settle(nil)
	}
	c, err := CompareSweeps(a, b, "a.json", "b.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Cells) != 1 || c.Cells[0].Name != "policy=y zone=1 rate 2" || len(c.OnlyA) != 5 || len(c.OnlyB) != 1 || c.OnlyB[0] != "policy=y zone=1 rate 8" {
		t.Errorf("%+v", c)
	}
	for _, want := range []string{"seed: 0 and 9", "output_tokens: 0 and 7", "fixed: engine.decode-cost=1ms and engine.decode-cost=2ms"} {
		if !strings.Contains(strings.Join(c.Apart, "; "), want) {
			t.Errorf("no %q in %q", want, c.Apart)
		}
	}
	if r := c.Overall[2]; r.Cells != 1 || r.Finding != notKnown || r.Ratio != 0.25 {
		t.Errorf("one cell alone: %+v", r)
	}
	for name, write := range map[string]func(*bytes.Buffer) error{
		"text": func(b *bytes.Buffer) error { return c.Text(b) }, "page": func(b *bytes.Buffer) error { return c.WriteHTML(b) },
	} {
		var out bytes.Buffer
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"only in B: policy=y zone=1 rate 8", "tpot_ms p50", "lower", "chance alone"} {
			if !strings.Contains(out.String(), part) {
				t.Errorf("%s: no %q in\n%s", name, part, &out)
			}
		}
	}

	// A rate that was not varied stands in the runs only.
	fixed, swept := &Sweep{}, &Sweep{Factors: []experiment.Factor{{Name: "rate", Values: []string{"7", "9"}}}}
	for _, s := range []*Sweep{fixed, swept} {
		r := figures(5)
		r.Rate = 7
		at := 7.0
		if s == fixed {
			at = 0
		}
		if err := s.Add(SweepRun{At: at, Repeat: 1, Report: r}, nil); err != nil {
			t.Fatal(err)
		}
		s.Settle(nil)
	}
	if c, err := CompareSweeps(fixed, swept, "a", "b"); err != nil || len(c.Cells) != 1 || c.Cells[0].Name != "rate 7" {
		t.Errorf("%v: %+v", err, c)
	}
}

func TestCompareSearches(t *testing.T) {
	search := func(series string, low, high float64) SweepSearch {
		return SweepSearch{Series: series, Result: slo.Result{Low: low, High: high}}
	}
	a := &Sweep{Searches: []SweepSearch{search("engines=1", 4, 5), search("engines=2", 8, 9), search("engines=3", 9, 10), search("engines=4", 1, 2)}}
	b := &Sweep{Searches: []SweepSearch{search("engines=1", 5, 6), search("engines=2", 6, 7), search("engines=3", 9.5, 0), search("engines=5", 1, 2)}}
	c, err := CompareSweeps(a, b, "a", "b")
	if err != nil || len(c.Searches) != 3 || c.Searches[0].Finding != isHigher || c.Searches[1].Finding != isLower || c.Searches[2].Finding != noneSeen {
		t.Errorf("%v: %+v", err, c)
	}
	var text bytes.Buffer
	if err := c.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"limit engines=1: A 4 to 5, B 5 to 6 requests/s: higher", "B 9.5 or more", "only in A: search engines=4", "only in B: search engines=5"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("no %q in\n%s", part, &text)
		}
	}
}

// A sweep comes back from its file as it was, and a damaged one is refused.
func TestReadSweep(t *testing.T) {
	dir := t.TempDir()
	save := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var b bytes.Buffer
	a := noisySweep(t, rand.New(rand.NewPCG(1, 1)), 3, 1)
	if err := a.JSON(&b); err != nil {
		t.Fatal(err)
	}
	back, err := ReadSweep(save("good.json", b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	c, err := CompareSweeps(a, back, "a", "b")
	if err != nil || len(c.Cells) != 6 {
		t.Fatal(err)
	}
	for _, x := range c.Cells {
		for _, d := range x.Differences {
			if d.By != 0 && !d.By.Refused() {
				t.Errorf("%s: %+v", x.Name, d)
			}
		}
	}
	var page bytes.Buffer
	if err := back.WriteHTML(&page); err != nil || strings.Count(page.String(), "<details") != 18 {
		t.Errorf("%v: %d runs in the page", err, strings.Count(page.String(), "<details"))
	}
	var object map[string]any
	if err := json.Unmarshal(b.Bytes(), &object); err != nil {
		t.Fatal(err)
	}
	object["runs"] = object["runs"].([]any)[:2]
	short, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"short.json": short, "empty.json": []byte(`{"points":[{"runs":[0]}],"runs":[{"series":""}]}`)} {
		if _, err := ReadSweep(save(name, data)); err == nil || !strings.Contains(err.Error(), name+": damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
