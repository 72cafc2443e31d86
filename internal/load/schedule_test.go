package load

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/internal/trace"
)

func TestScheduleConstant(t *testing.T) {
	s, err := NewSchedule(Constant, 3, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3_000_001 {
		if got, want := s.Next(), time.Duration(float64(i)/3*1e9); (got - want).Abs() > 1 {
			t.Fatalf("arrival %d at %v, want %v", i, got, want)
		}
	}
}

// TestSchedulePoisson tests the realised process against what a Poisson
// process must show, at five standard errors.
func TestSchedulePoisson(t *testing.T) {
	const rate, n = 500, 200_000
	s, err := NewSchedule(Poisson, rate, 42)
	if err != nil {
		t.Fatal(err)
	}
	var r realised
	gaps := make([]float64, 0, n)
	last := 0.0
	perSecond := map[int]int{}
	for range n {
		at := s.Next().Seconds()
		r.add(at)
		gaps = append(gaps, at-last)
		last = at
		perSecond[int(at)]++
	}
	p := r.process()
	se := 5 / math.Sqrt(n)
	if math.Abs(p.Rate/rate-1) > se || math.Abs(p.CV-1) > 2*se || math.Abs(p.Lag1) > se {
		t.Errorf("process %+v", p)
	}
	// Kolmogorov-Smirnov against the exponential distribution, at 0.1 %.
	below := 0
	for _, q := range []float64{0.1, 0.25, 0.5, 0.75, 0.9, 0.99} {
		edge := -math.Log(1-q) / rate
		below = 0
		for _, g := range gaps {
			if g <= edge {
				below++
			}
		}
		if d := math.Abs(float64(below)/n - q); d > 1.95/math.Sqrt(n) {
			t.Errorf("%v of the gaps are below the %v quantile", float64(below)/n, q)
		}
	}
	// Counts of a second: variance equals mean.
	var sum, sq float64
	seconds := int(last)
	for i := range seconds {
		c := float64(perSecond[i])
		sum += c
		sq += c * c
	}
	mean := sum / float64(seconds)
	if d := (sq/float64(seconds) - mean*mean) / mean; math.Abs(d-1) > 5*math.Sqrt(2/float64(seconds)) {
		t.Errorf("index of dispersion %v", d)
	}
}

func TestScheduleLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		arrival := rapid.SampledFrom([]Arrival{Poisson, Constant, ""}).Draw(t, "arrival")
		rate := rapid.Float64Range(1e-9, 1e7).Draw(t, "rate")
		seed := rapid.Uint64().Draw(t, "seed")
		a, err := NewSchedule(arrival, rate, seed)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := NewSchedule(arrival, rate, seed)
		last := time.Duration(0)
		for range 200 {
			at := a.Next()
			if at < last {
				t.Fatalf("%v after %v", at, last)
			}
			if other := b.Next(); other != at {
				t.Fatalf("the same seed gives %v and %v", at, other)
			}
			last = at
		}
	})
	for _, rate := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := NewSchedule(Poisson, rate, 1); err == nil {
			t.Errorf("rate %v was accepted", rate)
		}
	}
}

// TestWaitUntil holds that the pacer is never early, and stops with its
// context.
func TestWaitUntil(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, 0, 100 * time.Microsecond, 4 * time.Millisecond} {
		at := trace.Now() + int64(d)
		if !waitUntil(t.Context(), at) || trace.Now() < at {
			t.Errorf("woken %v early", time.Duration(at-trace.Now()))
		}
	}
}

func TestRequestRendering(t *testing.T) {
	for _, p := range []Plan{
		{InputTokens: 50, Seed: 1},
		{InputTokens: 50, Seed: 1, API: Completions},
		{Prompt: "say \"\u00e9\"\n\\ <b>", OutputTokens: 7, Body: map[string]any{"seed": 3}},
	} {
		p.URL, p.Requests, p.Header = "http://[::1]:80/base", 1, map[string]string{"host": "h.example", "User-Agent": "u"}
		target, err := p.normalize()
		if err != nil {
			t.Fatal(err)
		}
		m, err := newMessage(&p, target, `mo"del`)
		if err != nil {
			t.Fatal(err)
		}
		wire, storage := m.render(nil, 0)
		first := string(wire)
		wire, _ = m.render(storage, 0)
		if string(wire) != first {
			t.Error("the same request is rendered in two ways")
		}
		req, body := parseRequest(t, first)
		if req.Host != "h.example" || req.UserAgent() != "u" || !strings.HasPrefix(req.URL.Path, "/base/v1/") {
			t.Errorf("request %v", req)
		}
		var got struct {
			Model    string
			Prompt   string
			Messages []struct{ Content string }
			Max      int `json:"max_tokens"`
			Seed     int
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		prompt := got.Prompt
		if p.API == Chat {
			prompt = got.Messages[0].Content
		}
		if got.Model != `mo"del` || got.Max != p.OutputTokens {
			t.Errorf("body %s", body)
		}
		if p.Prompt != "" && (prompt != p.Prompt || got.Seed != 3) || p.Prompt == "" && len(strings.Fields(prompt)) != 50 {
			t.Errorf("prompt %q of body %s", prompt, body)
		}
		if other, _ := m.render(nil, 1); p.Prompt == "" && string(other) == first {
			t.Error("two requests have the same prompt")
		}
	}
}
