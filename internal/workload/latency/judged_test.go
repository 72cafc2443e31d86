package latency

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A figure that too few values cannot support is null, with the reason; the others are those of the
// summary. Both come back from JSON.
func TestJudge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{0, 1, 2, 9, 10, 99, 100, 999, 1000, 1001}).Draw(t, "n")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		r := New(time.Hour)
		for range n {
			r.Add(int64(rng.ExpFloat64() * 1e7))
		}
		s, j := r.Summary(), r.Judge(true)
		for _, f := range []struct {
			name  string
			least int
			got   Figure
			want  float64
		}{
			{"mean", 1, j.Mean, s.Mean}, {"p50", 2, j.P50, s.P50}, {"p90", 10, j.P90, s.P90},
			{"p99", 100, j.P99, s.P99}, {"p999", 1000, j.P999, s.P999}, {"max", 1, j.Max, s.Max},
		} {
			given := n >= f.least
			if given && float64(f.got) != f.want || !given && !f.got.Refused() || given == (j.Refused[f.name] != "") {
				t.Fatalf("%d values: %s is %v, the summary has %v, refused %q", n, f.name, f.got, f.want, j.Refused[f.name])
			}
			ci, has := j.CI95[f.name]
			if f.name != "max" && has != (given && n > 1) {
				t.Fatalf("%d values: interval of %s: %v, %v", n, f.name, ci, has)
			}
			if has && (ci[0] > f.got || ci[1] < f.got) {
				t.Fatalf("%d values: %s %v is not in %v", n, f.name, f.got, ci)
			}
		}
		b, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		var back Judged
		if err := json.Unmarshal(b, &back); err != nil || back.Count != j.Count || back.P99.Refused() != j.P99.Refused() || !j.P90.Refused() && back.P90 != j.P90 {
			t.Fatalf("%s comes back as %+v, %v", b, back, err)
		}
	})
}

// In 400 samples of a known distribution, 95 % have the true percentile in their interval.
func TestIntervalsCover(t *testing.T) {
	const runs, n = 400, 500
	true50, true90, mean := math.Log(2)*10, math.Log(10)*10, 10.0
	var in [3]int
	for seed := range uint64(runs) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := New(time.Hour)
		for range n {
			r.Add(int64(rng.ExpFloat64() * 10e6))
		}
		j := r.Judge(true)
		for i, c := range []struct {
			name string
			want float64
		}{{"p50", true50}, {"p90", true90}, {"mean", mean}} {
			if ci := j.CI95[c.name]; float64(ci[0]) <= c.want && c.want <= float64(ci[1]) {
				in[i]++
			}
		}
	}
	for i, k := range in {
		// Three standard errors of a share of 95 % over 400 runs.
		if share := float64(k) / runs; share < 0.95-0.033 || share > 0.95+0.045 {
			t.Errorf("interval %d covers the truth in %.3f of the runs", i, share)
		}
	}
}

func TestRefuse(t *testing.T) {
	r := New(time.Second)
	r.AddN(5e6, 200)
	j := r.Judge(false)
	if len(j.CI95) != 0 {
		t.Errorf("intervals of values that are not independent: %v", j.CI95)
	}
	j.Refuse("unstable")
	b, err := json.Marshal(j)
	if err != nil || strings.Count(string(b), "null") != 6 || !strings.Contains(string(b), `"all":"unstable"`) || j.Count != 200 {
		t.Errorf("%s, %v", b, err)
	}
	if got := slices.Sorted(func(yield func(string) bool) {
		for k := range j.Refused {
			if !yield(k) {
				return
			}
		}
	}); len(got) != 1 {
		t.Errorf("reasons %v", got)
	}
	var f Figure
	if err := json.Unmarshal([]byte(`"x"`), &f); err == nil {
		t.Error("a string is a figure")
	}
}
