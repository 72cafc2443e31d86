package slo

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func objectives(t interface{ Fatal(...any) }, text string) []Objective {
	all, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// system is a synthetic server: the share of its requests that are late rises
// with the rate and crosses what is allowed at the limit.
type system struct {
	limit    float64 // where late is exactly what is allowed
	allowed  float64
	steep    float64 // how fast late rises about the limit
	lumps    int     // requests that are late or not together
	requests int
	// drift multiplies the limit with each trial.
	drift float64
	rng   *rand.Rand
}

// late is the share at a rate.
func (s *system) late(rate float64) float64 {
	odds := s.allowed / (1 - s.allowed) * math.Pow(rate/s.limit, s.steep)
	return odds / (1 + odds)
}

func (s *system) trial(o []Objective, rate float64) Trial {
	p := s.late(rate)
	requests := make([]Request, s.requests)
	for i := 0; i < len(requests); i += s.lumps {
		d := time.Millisecond
		if s.rng.Float64() < p {
			d = time.Second
		}
		for k := i; k < min(len(requests), i+s.lumps); k++ {
			requests[k] = Request{Complete: true, TTFT: d, TPOT: time.Millisecond, E2E: d}
		}
	}
	s.limit *= s.drift
	t := Trial{Rate: rate}
	for i := range o {
		t.Tallies = append(t.Tallies, o[i].Take(requests))
	}
	return t
}

// run searches to the end and gives how many trials it took.
func (s *system) run(o []Objective, options Options) (Result, int) {
	search := NewSearch(o, options)
	n := 0
	for {
		rate, ok := search.Next()
		if !ok {
			return search.Result(), n
		}
		search.Add(s.trial(o, rate))
		n++
	}
}

// For any system, a search ends within its trials, its ends are in order, its path is what it did,
// and rates stay within their bounds.
func TestSearchIsBounded(t *testing.T) {
	o := objectives(t, "ttft_p90=100ms")
	rapid.Check(t, func(t *rapid.T) {
		options := Options{
			Start: rapid.Float64Range(0.01, 1000).Draw(t, "start"), Low: rapid.Float64Range(0, 10).Draw(t, "low"),
			High: rapid.Float64Range(10, 1000).Draw(t, "high"), Tolerance: rapid.Float64Range(0.001, 0.5).Draw(t, "tolerance"),
			Repeats: rapid.IntRange(1, 6).Draw(t, "repeats"), Trials: rapid.IntRange(1, 40).Draw(t, "trials"),
		}
		search := NewSearch(o, options)
		n := 0
		for rate, ok := search.Next(); ok; rate, ok = search.Next() {
			if n++; n > options.Trials {
				t.Fatalf("more than %d trials", options.Trials)
			}
			if rate < options.Low*(1-1e-9) || rate > options.High*(1+1e-9) || rate <= 0 {
				t.Fatalf("rate %v outside of %v to %v", rate, options.Low, options.High)
			}
			trial := Trial{Rate: rate, Tallies: []Tally{{{N: 100, Bad: rapid.IntRange(0, 100).Draw(t, "bad")}}}}
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				trial.Void = "too fast"
			case 1:
				trial.Unstable = "growing"
			}
			search.Add(trial)
		}
		r := search.Result()
		if len(r.Path) != n || r.Why == "" || r.High > 0 && r.Low >= r.High {
			t.Fatalf("%d trials: %+v", n, r)
		}
		for _, u := range r.Undecided {
			if u <= r.Low || r.High > 0 && u >= r.High {
				t.Fatalf("undecided %v in %+v", u, r)
			}
		}
	})
}

// A system without noise is found to within the tolerance, wherever it is and
// wherever the search begins.
func TestSearchFindsTheLimit(t *testing.T) {
	o := objectives(t, "ttft_p99=100ms,success=99%")
	rapid.Check(t, func(t *rapid.T) {
		limit := math.Exp(rapid.Float64Range(math.Log(0.1), math.Log(1e4)).Draw(t, "limit"))
		start := math.Exp(rapid.Float64Range(math.Log(0.1), math.Log(1e4)).Draw(t, "start"))
		tolerance := rapid.Float64Range(0.01, 0.3).Draw(t, "tolerance")
		search := NewSearch(o, Options{Start: start, Tolerance: tolerance, Trials: 60})
		for rate, ok := search.Next(); ok; rate, ok = search.Next() {
			bad := 0
			if rate > limit {
				bad = 200
			}
			search.Add(Trial{Rate: rate, Tallies: []Tally{{{N: 1000, Bad: bad}}, {{N: 1000}}}})
		}
		r := search.Result()
		if !r.Within || r.Low > limit || r.High < limit || r.High/r.Low > 1+tolerance+1e-9 || len(r.Contradictions) > 0 {
			t.Fatalf("limit %v: %+v", limit, r)
		}
	})
}

// For noisy systems, also those in which requests are late together, the true limit lies in the
// answer's interval at least as often as promised.
func TestSearchInterval(t *testing.T) {
	o := objectives(t, "ttft_p95=100ms")
	for _, c := range []struct {
		name          string
		lumps, number int
		steep         float64
	}{{"independent", 1, 600, 6}, {"together", 8, 1600, 6}, {"shallow", 1, 600, 2}} {
		t.Run(c.name, func(t *testing.T) {
			runs := 300
			if testing.Short() {
				runs = 60
			}
			outside, contradicted, width := 0, 0, 0.0
			for seed := range uint64(runs) {
				s := system{limit: 20, allowed: 0.05, steep: c.steep, lumps: c.lumps, requests: c.number, drift: 1, rng: rand.New(rand.NewPCG(seed, 1))}
				r, _ := s.run(o, Options{Start: 3})
				if r.Low > 20 || r.High > 0 && r.High < 20 {
					outside++
				}
				if len(r.Contradictions) > 0 {
					contradicted++
				}
				width += r.High / max(r.Low, 1e-9) / float64(runs)
			}
			t.Logf("outside in %d of %d, contradictions in %d, mean of high over low %.3f", outside, runs, contradicted, width)
			if outside > runs*5/100 {
				t.Errorf("the limit was outside of the interval in %d of %d searches", outside, runs)
			}
			if contradicted > runs*5/100 {
				t.Errorf("%d of %d searches of a monotonic system were called contradictory", contradicted, runs)
			}
		})
	}
}

// A server that gets worse while it is measured is seen: the rates that were
// measured early look better than lower ones measured late.
func TestSearchSeesDrift(t *testing.T) {
	o := objectives(t, "ttft_p95=100ms")
	seen, moved, searches := 0, 0, 100
	if testing.Short() {
		searches = 20
	}
	for seed := range uint64(searches) {
		s := system{limit: 20, allowed: 0.05, steep: 8, lumps: 1, requests: 2000, drift: 0.93, rng: rand.New(rand.NewPCG(seed, 2))}
		r, _ := s.run(o, Options{Start: 12, Trials: 40})
		if len(r.Contradictions) > 0 || !r.Within {
			seen++
		}
		if r.Low < 20 {
			moved++
		}
	}
	if least := searches * 9 / 10; seen < least || moved < least {
		t.Errorf("drift was seen in %d of %d searches, and the answer followed in %d", seen, searches, moved)
	}
}

// A rate that cannot be offered ends the search below it, and is no miss.
func TestSearchCeiling(t *testing.T) {
	o := objectives(t, "ttft_p99=100ms")
	search := NewSearch(o, Options{Start: 1})
	for rate, ok := search.Next(); ok; rate, ok = search.Next() {
		trial := Trial{Rate: rate, Tallies: []Tally{{{N: 1000}}}}
		if rate > 50 {
			trial = Trial{Rate: rate, Void: "requests were sent late"}
		}
		search.Add(trial)
	}
	if r := search.Result(); r.High != 0 || r.Low < 40 || r.Ceiling < 50 || !strings.Contains(r.Why, "could not be offered") {
		t.Errorf("%+v", r)
	}
}

// Where the lowest or the highest rate decides, the search says so.
func TestSearchAtItsBounds(t *testing.T) {
	o := objectives(t, "ttft_p99=100ms")
	for _, c := range []struct {
		bad  int
		want string
	}{{0, "the highest rate, meets"}, {500, "the lowest rate, misses"}, {10, "no rate from"}} {
		search := NewSearch(o, Options{Start: 8, Low: 2, High: 32})
		for rate, ok := search.Next(); ok; rate, ok = search.Next() {
			search.Add(Trial{Rate: rate, Tallies: []Tally{{{N: 1000, Bad: c.bad}}}})
		}
		if r := search.Result(); !strings.Contains(r.Why, c.want) {
			t.Errorf("%d bad: %+v", c.bad, r)
		}
	}
}

// A failed request keeps no bound; what a request does not have is not judged;
// too few requests decide nothing and say how many it takes.
func TestTally(t *testing.T) {
	o := objectives(t, "ttft_p99=100ms,tpot_p50=10ms,success=90%,e2e_p99.9=1s")
	ok := Request{Complete: true, TTFT: 50 * time.Millisecond, E2E: time.Second}
	requests := []Request{ok, ok, {}, ok}
	for i, want := range []Count{{4, 1}, {1, 1}, {4, 1}, {4, 1}} {
		e := o[i].Take(requests).Estimate()
		if (Count{e.N, e.Bad}) != want {
			t.Errorf("%s: %+v, want %+v", &o[i], e, want)
		}
	}
	few := o[0].Take([]Request{ok, ok}).Estimate()
	if o[0].Decide(few) != Undecided || !strings.Contains(few.say(&o[0]), "657 in a row") {
		t.Errorf("%+v: %s", few, few.say(&o[0]))
	}
	many := Tally{{N: o[0].Needed() + 1}}.Estimate()
	if o[0].Decide(many) != Meets {
		t.Errorf("%d requests without a late one: %+v", o[0].Needed()+1, many)
	}
	if e := (Tally{}).Estimate(); e.Low != 0 || e.High != 1 {
		t.Errorf("nothing known: %+v", e)
	}
}

func TestParse(t *testing.T) {
	good := objectives(t, "ttft_p99=500ms, tpot_p999=50ms,ttft_answer_p50=1s,e2e_p90=2m,success=99.5%")
	if len(good) != 5 || math.Abs(good[1].Share-0.999) > 1e-12 || math.Abs(good[4].Share-0.995) > 1e-12 || good[2].Metric != TTFTAnswer || good[0].Bound != 500*time.Millisecond {
		t.Errorf("%+v", good)
	}
	for _, test := range [][2]string{{"ttft_p99<500ms", "ttft_p99=500ms"}, {"ttft_p99 <= 500ms", "ttft_p99=500ms"}, {"success>99%", "success=99%"}, {"success>=99%", "success=99%"}} {
		if got := objectives(t, test[0]); len(got) != 1 || got[0].String() != test[1] {
			t.Errorf("%q: %+v", test[0], got)
		}
	}
	for text, want := range map[string]string{
		"ttft_p99>500ms":          "METRIC_pNN=TIME",
		"ttft_p99=<500ms":         "METRIC_pNN=TIME",
		"success<99%":             "METRIC_pNN=TIME",
		"":                        "METRIC_pNN=TIME",
		"ttft_p99":                "METRIC_pNN=TIME",
		"ttfb_p99=1s":             "no metric",
		"itl_p99=1s":              "no metric",
		"ttft_mean=1s":            "not a percentile",
		"ttft_p100=1s":            "at most 99.99",
		"ttft_p0=1s":              "not a percentage",
		"ttft_p99=-1s":            "not a time",
		"ttft_p99=5":              "not a time",
		"success=100%":            "at most 99.99",
		"success=x":               "not a percentage",
		"ttft_p99=1s,ttft_p99=2s": "bounds the same",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("ttft_p99=500ms,success=99%")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := Parse(text)
		if err != nil {
			return
		}
		for _, o := range all {
			if !(o.Share > 0 && o.Share < 1) || o.Needed() < 1 {
				t.Errorf("%q: %+v", text, o)
			}
		}
	})
}
