package nightly

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestRoundTrip: what is written is read again.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecord(t)
		var out bytes.Buffer
		if err := r.Write(&out); err != nil {
			t.Fatal(err)
		}
		back, err := Read(out.Bytes())
		if err != nil {
			t.Fatalf("%v in\n%s", err, out.Bytes())
		}
		if diff := cmp.Diff(r, back); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestReadErrors: files that no run wrote.
func TestReadErrors(t *testing.T) {
	figure := func(f string) string {
		return `{"steps": [{"name": "a", "outcome": "passed", "figures": [` + f + `]}]}`
	}
	for _, c := range []struct{ text, err string }{
		{"", "ends too early"},
		{`{"steps": [`, "ends too early"},
		{"{\n\"steps\": [}\n", "line 2: invalid character"},
		{"<<<<<<< HEAD\n{}", "line 1: invalid character '<'"},
		{`{"steps": []} {}`, "there is more after the record"},
		{`{"stages": []}`, `unknown field "stages"`},
		{`{"steps": 7}`, "cannot unmarshal number"},
		{`{"steps": [{"outcome": "passed"}]}`, `step "": a step needs a name`},
		{`{"steps": [{"name": "a", "outcome": "passed"}, {"name": "a", "outcome": "passed"}]}`, `step "a": a step needs a name of its own`},
		{`{"steps": [{"name": "a", "outcome": "fine"}]}`, `step a: no outcome "fine"`},
		{figure(`{"kind": "time", "value": 1}`), `step a: figure "": a figure needs a name`},
		{figure(`{"name": "f", "kind": "tmie", "value": 1}`), `figure f: no kind "tmie"`},
		{figure(`{"name": "f", "kind": "time", "value": 1}, {"name": "f", "kind": "time", "value": 1}`), `figure "f": a figure needs a name of its own`},
		{figure(`{"name": "f", "kind": "time", "value": 1e999}`), "1e999"},
		{figure(`{"name": "f", "kind": "time", "value": NaN}`), "invalid character 'N'"},
	} {
		if _, err := Read([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.text, err, c.err)
		}
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if err := check([]Figure{Of("f", Time, "s", v)}); err == nil {
			t.Errorf("%v is a measurement", v)
		}
	}
}

// FuzzRead: any text is read or refused, and what is read can be compared.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"steps": [{"name": "a", "command": "c", "outcome": "passed", "seconds": 1, "figures": [{"name": "f", "kind": "time", "value": 1, "samples": [1, 2]}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Read(text)
		if err != nil {
			return
		}
		var names []string
		for _, s := range r.Steps {
			names = append(names, s.Name)
		}
		var out bytes.Buffer
		if _, err := Report(&out, r, Compare(r, r, names), false); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAccept: the steps of a run that passed take the place of the baseline's, as far
// as they were not disturbed.
func TestAccept(t *testing.T) {
	result := func(name, commit string, o Outcome) Result {
		return Result{Name: name, Outcome: o, About: About{Commit: commit}}
	}
	base := &Record{Steps: []Result{result("a", "old", Passed), result("b", "old", Passed), result("c", "old", Passed)}}
	run := &Record{Steps: []Result{result("a", "new", Passed), result("b", "new", Failed), result("d", "new", Passed), result("e", "new", NotRun)}}
	accepted, refused := base.Accept(run)
	want := &Record{Steps: []Result{result("a", "new", Passed), result("b", "old", Passed), result("c", "old", Passed), result("d", "new", Passed)}}
	if diff := cmp.Diff(want, base); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([][]string{{"a", "d"}, {"b: failed", "e: not run"}}, [][]string{accepted, refused}); diff != "" {
		t.Error(diff)
	}

	exact, timed := Of("exact", Allocs, "", 1), Of("timed", Ratio, "", 1)
	with := func(commit string, others float64, figures ...Figure) *Record {
		r := result("a", commit, Passed)
		r.Others, r.Figures = others, figures
		return &Record{Steps: []Result{r}}
	}
	const why = "a: other processes took 1.5 CPUs; measure it on a quiet machine"
	for name, c := range map[string]struct {
		base, run, want *Record
		refused         []string
	}{
		"nothing yet":              {&Record{}, with("new", 1.5, exact, timed), with("new", 1.5, exact), nil},
		"nothing that bears it":    {&Record{}, with("new", 1.5, timed), &Record{}, []string{why}},
		"after a disturbed one":    {with("old", 1, exact), with("new", 1.5, exact, timed), with("new", 1.5, exact), nil},
		"one that bears all":       {with("old", 0.1, exact), with("new", 1.5, exact), with("new", 1.5, exact), nil},
		"after a quiet one":        {with("old", 0.1, exact, timed), with("new", 1.5, exact, timed), with("old", 0.1, exact, timed), []string{why}},
		"a quiet one after either": {with("old", 1.5, exact), with("new", 0.1, exact, timed), with("new", 0.1, exact, timed), nil},
	} {
		_, refused := c.base.Accept(c.run)
		if diff := cmp.Diff(c.want, c.base) + cmp.Diff(c.refused, refused); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		want    float64
		samples []float64
	}{{3, []float64{3}}, {2.5, []float64{4, 2, 3, 1}}, {3, []float64{9, 3, 1}}} {
		if f := Of("f", Time, "s", c.samples...); f.Value != c.want {
			t.Errorf("the median of %v is %v, want %v", c.samples, f.Value, c.want)
		}
	}
}
