package experiment

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseValues(t *testing.T) {
	for text, want := range map[string]Values{
		"8":           {List: []float64{8}},
		"1, 2,4.5":    {List: []float64{1, 2, 4.5}},
		"10..40+10":   {List: []float64{10, 20, 30, 40}, Low: 10, High: 40},
		"0.1..0.5+.1": {List: []float64{0.1, 0.2, 0.3, 0.4, 0.5}, Low: 0.1, High: 0.5},
		"1..20x2":     {List: []float64{1, 2, 4, 8, 16}, Low: 1, High: 20},
		"1..64":       {Low: 1, High: 64},
	} {
		got, err := ParseValues(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v %s", text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"": "positive number", "0": "positive number", "-1": "positive number", "1,x": "positive number", "1..": "positive number", "4..2": "higher one",
		"1..64x1": "factor above 1", "1..64+0": "FROM..TO+STEP", "1..1e9+1": "more than 1000 values", "inf": "positive number",
	} {
		if _, err := ParseValues(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A parsed value is positive, a range rises, and no range is endless.
func FuzzParseValues(f *testing.F) {
	for _, seed := range []string{"1,2", "1..64x2", "1..1e300+1e-300", "10..100+10"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseValues(text)
		if err != nil {
			return
		}
		if len(v.List) > maxValues && v.High > 0 || v.High > 0 && !slices.IsSorted(v.List) {
			t.Fatalf("%q: %+v", text, v)
		}
		for _, n := range v.List {
			if !(n > 0) {
				t.Fatalf("%q: %v", text, n)
			}
		}
	})
}

// The grid is every combination once; the order is every cell once in each
// repeat, the same for the same seed.
func TestGridAndOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var factors []Factor
		size := 1
		for i := range rapid.IntRange(0, 3).Draw(t, "factors") {
			f := Factor{Name: string(rune('a' + i))}
			for k := range rapid.IntRange(1, 4).Draw(t, "values") {
				f.Values = append(f.Values, string(rune('0'+k)))
			}
			size *= len(f.Values)
			factors = append(factors, f)
		}
		cells := Grid(factors)
		labels := map[string]bool{}
		for _, c := range cells {
			labels[c.Label(factors)] = true
		}
		if len(cells) != size || len(labels) != size {
			t.Fatalf("%d cells, %d apart, of %d", len(cells), len(labels), size)
		}
		repeats, seed := rapid.IntRange(1, 4).Draw(t, "repeats"), rapid.Uint64().Draw(t, "seed")
		order := Order(size, repeats, seed)
		if diff := cmp.Diff(order, Order(size, repeats, seed)); diff != "" {
			t.Fatal(diff)
		}
		for r := range repeats {
			seen := map[int]bool{}
			for _, run := range order[r*size : (r+1)*size] {
				seen[run.Cell] = run.Repeat == r+1
			}
			if len(seen) != size {
				t.Fatalf("repeat %d: %v", r, order)
			}
		}
	})
}

var known = Known{
	Load:    []string{"rate", "concurrency", "requests", "duration", "field", "input-tokens"},
	Engine:  []string{"max-running-requests", "cost", "decode-cost"},
	Gateway: []string{"tokenize-workers", "flush-interval"},
}

func read(t *testing.T, text string) (*Experiment, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "try.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Read(path, known)
}

func TestRead(t *testing.T) {
	e, err := read(t, `
repeats: 3
seed: 7
load:
  rate: 1..4x2
  requests: 100
  field: {ignore_eos: true, top_k: 5}
fleet:
  engines: [1, 2]
  wire: sglang
  engine: {cost: constant, max-running-requests: [8, 16]}
  engine-2: {cost: per-batch}
  gateway: {flush-interval: [0s, 5ms]}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []Factor{{"engines", []string{"1", "2"}}, {"max-running-requests", []string{"8", "16"}}, {"flush-interval", []string{"0s", "5ms"}}, {"rate", []string{"1", "2", "4"}}}
	if diff := cmp.Diff(want, e.Factors); diff != "" {
		t.Error(diff)
	}
	c := Cell{1, 0, 1, 2}
	for _, x := range []struct {
		got  []string
		want string
	}{
		{e.LoadArgs(c), "--requests=100 --field=ignore_eos=true --field=top_k=5 --rate=4"},
		{e.EngineArgs(c, 1), "--cost=constant --max-running-requests=8"},
		{e.EngineArgs(c, 2), "--max-running-requests=8 --cost=per-batch"},
		{e.GatewayArgs(c), "--flush-interval=5ms"},
		{e.Fixed(), "load.requests=100 load.field=ignore_eos=true,top_k=5 engine.cost=constant engine-2.cost=per-batch"},
	} {
		if got := strings.Join(x.got, " "); got != x.want {
			t.Errorf("%q, want %q", got, x.want)
		}
	}
	series, at := e.Series(c)
	if e.Name != "try" || e.Repeats != 3 || e.Seed != 7 || e.Wire != "sglang" || e.Fleet(c).Engines() != 2 || at != "4" || series != "engines=2 max-running-requests=8 flush-interval=5ms" {
		t.Errorf("%+v %q %q", e, series, at)
	}
	search, err := read(t, "slo: ttft_p99=1s\ntolerance: 10%\ntrials: 9\nload: {rate: 2..32, requests: 5}")
	if err != nil {
		t.Fatal(err)
	}
	if o := search.Search; o.Low != 2 || o.High != 32 || o.Trials != 9 || o.Tolerance != 0.1 || len(search.Factors) != 0 || strings.Contains(strings.Join(search.LoadArgs(Cell{}), " "), "rate") {
		t.Errorf("%+v", search)
	}
}

// An error has its line, its key, and the nearest known one.
func TestReadErrors(t *testing.T) {
	for text, want := range map[string]string{
		"": "the section load is missing",
		"load: {rate: 1, requests: 5}\nrepets: 3":                     `line 2: unknown key "repets" (did you mean "repeats"?)`,
		"load:\n  rate: 1\n  request: 5":                              `line 3: unknown key "request" (did you mean "requests"?)`,
		"load: 5":                                                     "line 1: load is a section",
		"load: {rate: 1}\nrepeats: 0":                                 `line 2: repeats: "0" is not a positive number`,
		"load: {rate: 1}\nrepeats: [1, 2]":                            "line 2: repeats takes one value",
		"load: {rate: 1}\nseed: -1":                                   `line 2: seed: "-1"`,
		"load: {rate: 1}\nslo: ttft=5":                                "line 2: slo:",
		"load: {rate: 1}\ntolerance: 5":                               "a share such as 5%",
		"load: {rate: 1..4}":                                          "needs steps",
		"load: {rate: [1, 2], concurrency: 2}":                        "give one of them",
		"load: {concurrency: 1.5}":                                    "whole numbers",
		"load: {rate: x}":                                             "line 1: rate:",
		"load: {concurrency: 2}\nslo: success=99%":                    "an slo searches for the rate",
		"load: {requests: []}":                                        "the list is empty",
		"load: {requests: {a: {b: 1}}}":                               "a takes one value",
		"load: {requests: [{a: 1}]}":                                  "takes plain values",
		"load: {rate: 1}\nload: {rate: 2}":                            `key "load" is set twice, first in line 1`,
		"load: {rate: 1}\nfleet:\n  engine: {max-runing-requests: 5}": `line 3: unknown key "max-runing-requests" (did you mean "max-running-requests"?)`,
		"load: {rate: 1}\nfleet:\n  engins: 2":                        `line 3: unknown key "engins" (did you mean`,
		"load: {rate: 1}\nfleet:\n  engines: 65":                      "neither a number of engines from 1 to 64",
		"load: {rate: 1}\nfleet: {wire: grpc}":                        "the wires are",
		"load: {rate: 1}\nfleet:\n  engines: 1+2+3+4":                 "nor numbers of prefill and decode engines",
		"load: {rate: 1}\nfleet:\n  engines: 0+4":                     "neither a number",
		"load: {rate: 1}\nfleet:\n  engines: 33+32":                   "neither a number",
		"load: {rate: 1}\nfleet:\n  engines: [2, 1+3]":                "halves of requests go over sglang and vllm",
		"load: {rate: 1}\nfleet: {gateway: off}":                      "set engines to 1",
		"load: {rate: 1}\nfleet: {engine-3: {cost: x}}":               "no cell has that many engines",
		"load: {rate: 1}\nfleet: {engine-1: 5}":                       "flags of one engine",
		"load: {rate: 1}\nfleet: {engine: 5}":                         "has flags below it",
		"load: {rate: 1..1000+1}\nrepeats: 100":                       "more than 10000 runs",
		"- a":                                                         "want keys",
		"load: {rate: 1":                                              "that begins in line 1",
	} {
		if _, err := read(t, text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "try.yaml") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("load: {rate: [1, 2], requests: 5}\nfleet: {engines: 2, engine: {cost: [a, b]}}")
	f.Add("slo: ttft_p99=1s\nload: {rate: 1..8}")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := read(t, text)
		if err != nil {
			return
		}
		for _, c := range Grid(e.Factors) {
			for n := 1; n <= e.Fleet(c).Engines(); n++ {
				_ = e.EngineArgs(c, n)
			}
			_, _ = e.LoadArgs(c), e.GatewayArgs(c)
		}
	})
}

// TestFleet reads which engines there are, and which roles they have.
func TestFleet(t *testing.T) {
	for text, want := range map[string]Fleet{"4": {Whole: 4}, "1+3": {Prefill: 1, Decode: 3}, "1+2+1": {1, 2, 1}} {
		f, err := ParseFleet(text, 4)
		if err != nil || f != want || f.Engines() != 4 || f.Apart() != (want.Prefill > 0) {
			t.Errorf("%s: %+v, %v", text, f, err)
		}
	}
	var roles []string
	f := Fleet{Prefill: 1, Decode: 2, Whole: 1}
	for n := range f.Engines() {
		roles = append(roles, f.Role(n+1).String())
	}
	if got := strings.Join(roles, " "); got != "prefill decode decode both" {
		t.Error(got)
	}
}
