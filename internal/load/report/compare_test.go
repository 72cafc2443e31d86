package report

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/internal/load"
	"weir/internal/workload/latency"
)

// run is the report of a run whose latencies are exponential with a mean.
func run(seed uint64, n int, mean float64) *Report {
	rng := rand.New(rand.NewPCG(seed, 11))
	rec := latency.New(time.Hour)
	for range n {
		rec.Add(int64((20 + rng.ExpFloat64()*mean) * 1e6))
	}
	return &Report{Report: &load.Report{API: load.Chat, Rate: 5, TTFT: rec.Judge(true), ITL: rec.Judge(false), Verdict: load.Verdict{Trust: load.Valid}}}
}

// Two runs of the same server are called different about as often as a 95 %
// interval says, and those of a slower one are told apart.
func TestCompare(t *testing.T) {
	const pairs = 300
	wrong, found := map[string]int{}, map[string]int{}
	for seed := range uint64(pairs) {
		a := run(2*seed, 1000, 10)
		for _, d := range Compare(a, run(2*seed+1, 1000, 10), "a", "b").Differences {
			if d.Metric == "ttft_ms" && (d.Finding == "higher" || d.Finding == "lower") {
				wrong[d.Figure]++
			}
			if d.Metric == "itl_ms" && d.Finding != "not known" {
				t.Fatalf("gaps of one stream were taken as independent: %+v", d)
			}
		}
		for _, d := range Compare(a, run(2*seed+1, 1000, 13), "a", "b").Differences {
			if d.Metric == "ttft_ms" && d.Finding == "higher" {
				found[d.Figure]++
			}
		}
	}
	for _, name := range []string{"mean", "p50", "p90"} {
		if wrong[name] > pairs*9/100 || found[name] < pairs*85/100 {
			t.Errorf("%s: different where it is not in %d of %d, found where it is in %d", name, wrong[name], pairs, found[name])
		}
	}
}

// A value that is known only to lie in a range widens the interval of a difference by as much as it
// may be wrong.
func TestCompareBounded(t *testing.T) {
	of := func(loose int64) *Report {
		rec := latency.New(time.Hour)
		for i := range int64(1000) {
			ns := (20 + i%10) * 1e6
			rec.AddWithin(ns, ns-loose*1e6, ns)
		}
		return &Report{Report: &load.Report{API: load.Chat, Rate: 5, TTFT: rec.Judge(true)}}
	}
	find := func(a, b *Report) Difference {
		for _, d := range Compare(a, b, "a", "b").Differences {
			if d.Metric == "ttft_ms" && d.Figure == "p50" {
				return d
			}
		}
		t.Fatal("there is none")
		return Difference{}
	}
	exact, wide := find(of(0), of(0)), find(of(0), of(7))
	if by := exact.CI95[0] - wide.CI95[0]; by < 6.99 || by > 7.01 || wide.CI95[1] != exact.CI95[1] {
		t.Errorf("%v, and %v where B may be 7 ms less", exact.CI95, wide.CI95)
	}
}

// Reports come back from their files, and what is none is refused by name.
func TestReadAndCompare(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, r *Report) string {
		t.Helper()
		var b bytes.Buffer
		if err := r.JSON(&b); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	b := run(2, 50, 100)
	b.Rate, b.Model = 6, "other"
	nameA, nameB := write("a.json", run(1, 2000, 10)), write("b.json", b)
	a, err := Read(nameA)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = Read(nameB); err != nil {
		t.Fatal(err)
	}
	c := Compare(a, b, nameA, nameB)
	var text, object bytes.Buffer
	if err := c.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"a.json (VALID)", "asked for otherwise: rate: 5 and 6", "model:  and other", "higher"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("no %q in\n%s", part, &text)
		}
	}
	if err := c.JSON(&object); err != nil {
		t.Fatal(err)
	}
	var back struct{ Differences []Difference }
	if err := json.Unmarshal(object.Bytes(), &back); err != nil || len(back.Differences) != len(c.Differences) {
		t.Fatal(err, len(back.Differences))
	}
	for _, d := range back.Differences {
		// Fifty values have no 99th percentile.
		if d.Figure == "p99" && (!d.B.Refused() || d.Finding != "not known") {
			t.Errorf("%+v", d)
		}
	}
	for name, content := range map[string]string{"empty.json": "", "other.json": `{"a":1}`, "list.json": `[]`} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Read(filepath.Join(dir, "none")); err == nil {
		t.Error("a file that is not there was read")
	}
}
