package workload

import (
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func newWorkload(t testing.TB, settings string, o Options) *Workload {
	t.Helper()
	w, err := NewSynthetic(settings, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// moments returns mean and standard deviation.
func moments(xs []float64) (mean, sd float64) {
	for _, x := range xs {
		mean += x
	}
	mean /= float64(len(xs))
	for _, x := range xs {
		sd += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(sd / float64(len(xs)))
}

// TestLengths holds each distribution against its mean and deviation.
func TestLengths(t *testing.T) {
	for _, c := range []struct {
		text     string
		mean, sd float64
	}{
		{"700", 700, 0},
		{"uniform(100,301)", 200.5, math.Sqrt((202*202 - 1) / 12.0)},
		{"lognormal(2000,1500)", 2000, 1500},
		{"lognormal(300, 0)", 300, 0},
		{"exponential(400)", 400, 400},
	} {
		w := newWorkload(t, "rate=1,requests=100000,output=1,input="+c.text, Options{Seed: 3})
		var xs []float64
		for _, r := range all(t, w) {
			xs = append(xs, float64(r.Input()))
		}
		mean, sd := moments(xs)
		near(t, c.text+" mean", mean, c.mean, c.sd/math.Sqrt(100_000)+0.02)
		if math.Abs(sd-c.sd) > 0.03*c.sd {
			t.Errorf("%s: deviation %v, want %v", c.text, sd, c.sd)
		}
	}
}

// TestSyntheticStreams holds that the same seed asks for the same requests
// whatever the rate, and another seed for others.
func TestSyntheticStreams(t *testing.T) {
	const settings = ",requests=1000,input=lognormal(500,500),output=exponential(90),prefix=uniform(10,900),groups=20,zipf=1.2"
	slow := all(t, newWorkload(t, "rate=1"+settings, Options{Seed: 1}))
	fast := all(t, newWorkload(t, "rate=ramp(5,50,1m),arrival=gamma(2)"+settings, Options{Seed: 1}))
	closed := all(t, newWorkload(t, "concurrency=5"+settings, Options{Seed: 1}))
	other := all(t, newWorkload(t, "rate=1"+settings, Options{Seed: 2}))
	same := func(a, b Request) bool { return slices.Equal(a.Parts, b.Parts) && a.Output == b.Output }
	if !slices.EqualFunc(slow, fast, same) || !slices.EqualFunc(slow, closed, same) {
		t.Error("the rate changes the requests")
	}
	if slices.EqualFunc(slow, other, same) {
		t.Error("the seed changes nothing")
	}
	if slow[999].At <= fast[999].At || closed[999].At != 0 {
		t.Errorf("the last arrives at %v, %v and %v", slow[999].At, fast[999].At, closed[999].At)
	}
}

// TestGroups holds that groups have Zipf's shares and one beginning each.
func TestGroups(t *testing.T) {
	const n = 100_000
	rs := all(t, newWorkload(t, "rate=1,requests=100000,input=10,output=1,prefix=uniform(1,1000),groups=10,zipf=1", Options{Seed: 1}))
	counts, own := map[Part]float64{}, map[uint64]bool{}
	for _, r := range rs {
		if len(r.Parts) != 2 || own[r.Parts[1].Key] {
			t.Fatalf("request %+v", r)
		}
		own[r.Parts[1].Key] = true
		counts[r.Parts[0]]++
	}
	if len(counts) != 10 {
		t.Fatalf("%d beginnings", len(counts))
	}
	var got []float64
	lengths := map[int]bool{}
	for part, c := range counts {
		got = append(got, c/n)
		lengths[part.Tokens] = true
	}
	if len(lengths) < 8 {
		t.Errorf("ten groups have beginnings of %v tokens", lengths)
	}
	slices.Sort(got)
	slices.Reverse(got)
	const harmonic = 7381.0 / 2520
	for k, share := range got {
		want := 1 / float64(k+1) / harmonic
		near(t, "share", share, want, math.Sqrt(want/n))
	}
}

func TestSyntheticBounds(t *testing.T) {
	const lengths = ",input=5,output=5"
	for _, c := range []struct {
		settings string
		o        Options
		n        int
		last     time.Duration
	}{
		{"rate=10,arrival=constant,duration=1m" + lengths, Options{}, 600, 59900 * time.Millisecond},
		{"rate=10,arrival=constant,duration=1m,requests=7" + lengths, Options{}, 7, 600 * time.Millisecond},
		{"rate=steps(10:10s,0:10s,20:10s),arrival=constant" + lengths, Options{}, 300, 29950 * time.Millisecond},
		{"rate=ramp(0,20,10s),arrival=constant" + lengths, Options{}, 100, 9949874371},
		{"rate=10,arrival=constant,duration=1m" + lengths, Options{Requests: 3}, 3, 200 * time.Millisecond},
		{"rate=10,arrival=constant,duration=1m" + lengths, Options{For: 10 * time.Second}, 100, 9900 * time.Millisecond},
	} {
		rs := all(t, newWorkload(t, c.settings, c.o))
		if len(rs) != c.n || rs[len(rs)-1].At != c.last {
			t.Errorf("%s: %d requests, the last at %v, want %d and %v", c.settings, len(rs), rs[len(rs)-1].At, c.n, c.last)
		}
	}
	w := newWorkload(t, "concurrency=8,think=2s,duration=10m"+lengths, Options{})
	if *w.Closed != (Closed{Users: 8, Think: 2 * time.Second}) || w.For != 10*time.Minute {
		t.Errorf("closed loop %+v for %v", w.Closed, w.For)
	}
}

func TestSyntheticErrors(t *testing.T) {
	for settings, want := range map[string]string{
		"":                                    `synthetic: no setting ""`,
		"rate":                                "synthetic: rate has no value",
		"rate=":                               "synthetic: rate has no value",
		"rat=1":                               `synthetic: no setting "rat"; the settings are arrival, branch, concurrency`,
		"rate=1":                              "synthetic: input is missing",
		"input=1":                             "synthetic: output is missing",
		"rate=1,rate=2,input=1,output=1":      "synthetic: rate is set twice",
		"input=1,output=1":                    "synthetic: rate=R or concurrency=N is missing",
		"rate=1,input=1,output=1":             "synthetic: duration=TIME or requests=N is missing",
		"rate=0,input=1,output=1,requests=1":  "synthetic: rate 0: must be a positive",
		"rate=-1,input=1,output=1,requests=1": `synthetic: rate: "-1" is not a number`,
		"rate=x,input=1,output=1,requests=1":  `synthetic: rate: "x" is not a number of requests`,
		"rate=ramp(1,2),input=1,output=1":     `synthetic: rate: "ramp(1,2)" is not R, ramp(FROM,TO,TIME)`,
		"rate=ramp(1,2,3),input=1,output=1":   `synthetic: rate: "3" is not a time such as`,
		"rate=steps(1:1m,2),input=1,output=1": `synthetic: rate: 2: "" is not a time`,
		"rate=1,arrival=uniform,input=1,output=1,requests=1":            `synthetic: arrival: "uniform" is not poisson`,
		"rate=1,arrival=gamma,input=1,output=1,requests=1":              `synthetic: arrival: "gamma" is not`,
		"rate=1,arrival=gamma(0),input=1,output=1,requests=1":           `synthetic: arrival: "0" is not a positive`,
		"rate=1,concurrency=1,input=1,output=1,requests=1":              "synthetic: rate and arrival are an open loop",
		"concurrency=1,branch=2,input=1,output=1,requests=1":            "synthetic: branch belongs to weir fleet",
		"rate=1,think=1s,input=1,output=1,requests=1":                   "synthetic: think and turns need concurrency=N",
		"concurrency=0,input=1,output=1,requests=1":                     `synthetic: concurrency: "0" is not a positive number`,
		"rate=1,input=uniform(5),output=1,requests=1":                   `synthetic: input: "uniform(5)" is not N, uniform`,
		"rate=1,input=uniform(5,1),output=1,requests=1":                 "synthetic: input: uniform(5,1): the second number",
		"rate=1,input=lognormal(0,1),output=1,requests=1":               "synthetic: input: lognormal(0,1): the mean",
		"rate=1,input=-1,output=1,requests=1":                           "synthetic: input: -1 is negative",
		"rate=1,input=1e3,output=1,requests=1":                          `synthetic: input: "1e3" is not N`,
		"rate=1,input=exponential(1e99),output=1,requests=1":            `synthetic: input: "1e99" is not a number of tokens`,
		"rate=1,input=1,output=1,requests=1,groups=3":                   "synthetic: groups and zipf are about shared",
		"rate=1,input=1,output=1,requests=1,prefix=1,zipf=-1":           `synthetic: zipf: "-1" is not a number`,
		"rate=1,input=1,output=1,requests=1,prefix=1,groups=2000000000": "synthetic: groups: 2000000000 is more than",
		"rate=1,input=1,output=1,duration=-1s":                          `synthetic: duration: "-1s" is not a time`,
	} {
		_, err := NewSynthetic(settings, Options{})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q:\n got %v\nwant %s", settings, err, want)
		}
	}
	for _, o := range []Options{{Block: -1}, {Requests: -1}, {For: -1}, {Speed: -1}, {Speed: math.Inf(1)}, {Speed: math.NaN()}} {
		if _, err := NewSynthetic("rate=1,input=1,output=1,requests=1", o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func FuzzSynthetic(f *testing.F) {
	f.Add("rate=7,duration=1h,input=lognormal(800,600),output=exponential(200)")
	f.Add("rate=steps(1:1m,0:5s,20:2m),arrival=gamma(2.5),requests=10,input=uniform(5,900),output=1,prefix=100,groups=7,zipf=0.9")
	f.Add("concurrency=3,think=100ms,requests=10,input=1,output=1")
	f.Fuzz(func(t *testing.T, settings string) {
		w, err := NewSynthetic(settings, Options{Requests: 100})
		if err != nil {
			return
		}
		var last time.Duration
		for range 101 {
			var r Request
			err := w.Next(&r)
			if err == io.EOF {
				return
			}
			if err != nil || r.At < last || r.Input() < 1 || r.Output < 1 {
				t.Fatalf("%q: %+v, %v", settings, r, err)
			}
			last = r.At
		}
		t.Fatalf("%q: more than 100 requests", settings)
	})
}

func TestSplitSpec(t *testing.T) {
	for spec, want := range map[string][2]string{
		"a.jsonl":           {"", "a.jsonl"},
		"azure:a.csv":       {"azure", "a.csv"},
		"synthetic:rate=1":  {"synthetic", "rate=1"},
		"C:mooncake:x":      {"", "C:mooncake:x"},
		"mooncake:mooncake": {"mooncake", "mooncake"},
	} {
		if kind, rest := SplitSpec(spec); string(kind) != want[0] || rest != want[1] {
			t.Errorf("%s: %q, %q", spec, kind, rest)
		}
	}
}
