package fleetsim_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"weir/internal/lab/fleetsim"
	"weir/internal/load/slo"
	"weir/internal/sim"
)

// asked are the options of a search for the fewest engines.
func asked(t *testing.T, settings, objectives string) fleetsim.Options {
	t.Helper()
	all, err := slo.Parse(objectives)
	if err != nil {
		t.Fatal(err)
	}
	return fleetsim.Options{Plan: plan(t, settings), Engine: sim.Options{Words: words, KVTokens: 400_000}, Stamps: true, Seed: 1, Objectives: all}
}

func anyNumber(n int) ([]fleetsim.Engine, error) { return make([]fleetsim.Engine, n), nil }

// TestSize holds the search against a run of each number of engines.
func TestSize(t *testing.T) {
	t.Parallel()
	const most = 7
	policies := []string{"cost", "random", "round-robin"}
	o := asked(t, "rate=50,duration=8s,input=lognormal(1500,1500),output=60", "ttft_p95=250ms")
	want := map[string]int{}
	for n := most; n >= 1; n-- {
		o.Engines = make([]fleetsim.Engine, n)
		c, err := fleetsim.Compare(t.Context(), o, policies)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range c.Runs {
			if r.Meets() {
				want[r.Policy] = n
			}
		}
	}
	t.Logf("%v", want)
	for _, limit := range shorter(most, want["cost"], want["cost"]-1) {
		for _, least := range shorter(1, min(2, limit)) {
			runs := 0
			a, cells, err := fleetsim.Size(t.Context(), o, policies, fleetsim.Fleets{
				Least: least, Most: limit, Engines: anyNumber,
				Tell: func(string, int, *fleetsim.Report) { runs++ },
			})
			if err != nil {
				t.Fatal(err)
			}
			got, expect := map[string]int{}, map[string]int{}
			for _, s := range a.Policies {
				if got[s.Policy] = s.Engines; s.Engines > 0 && s.Engines > least && s.Fewer != s.Engines-1 {
					t.Errorf("%+v", s)
				}
				if n := max(want[s.Policy], least); n <= limit {
					expect[s.Policy] = n
				} else {
					expect[s.Policy] = 0
				}
			}
			if !maps.Equal(got, expect) {
				t.Errorf("of %d to %d engines %v, want %v", least, limit, got, expect)
			}
			for _, c := range cells {
				if len(c.Runs) != 3 || c.Oracle == nil || len(c.Oracle.Engines) != c.Engines {
					t.Errorf("%+v", c)
				}
			}
			if met := expect["cost"] > 0; met != strings.Contains(a.Sentences[0], " under ") || met == strings.HasPrefix(a.Sentences[0], "No policy") {
				t.Errorf("%q", a.Sentences)
			}
			if len(a.Trials) != runs {
				t.Errorf("%d trials of %d runs", len(a.Trials), runs)
			}
			if runs > 4*len(policies)+3*(len(policies)+1) {
				t.Errorf("%d runs", runs)
			}
		}
	}
}

// TestRefusedKeepNoObjective has a trace of which a part can be served by no engine: it
// meets nothing, and the answer says why.
func TestRefusedKeepNoObjective(t *testing.T) {
	o := asked(t, "rate=10,duration=20s,input=2000,output=10", "ttft_p90=10s")
	o.Engine.ContextLength = 2005
	a, _, err := fleetsim.Size(t.Context(), o, []string{"cost"}, fleetsim.Fleets{Least: 1, Most: 2, Engines: anyNumber})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(a.Sentences, " "); a.Policies[0].Engines != 0 || !strings.Contains(got, "were refused") || !strings.Contains(got, "the engine's context is 2005") {
		t.Errorf("%q", got)
	}
}

// TestPage reads a page strictly: it is whole, has the plots of every policy, needs
// nothing from elsewhere, and takes no text for markup.
func TestPage(t *testing.T) {
	o := asked(t, "rate=4,turns=3,think=1s,duration=30s,input=400,output=40,prefix=2000,groups=4", "ttft_p99=500ms")
	policies := []string{"cost", "round-robin"}
	study := &fleetsim.Study{Workload: `<script>alert("1")</script>&'`, Settings: []fleetsim.Setting{{Name: "<b>", Value: "&"}}}
	for _, n := range []int{2, 3, 20} {
		o.Engines = make([]fleetsim.Engine, n)
		c, err := fleetsim.Compare(t.Context(), o, policies)
		if err != nil {
			t.Fatal(err)
		}
		c.Name = fleetsim.Count(n)
		study.Cells = append(study.Cells, c)
	}
	study.Answers = []*fleetsim.Answer{fleetsim.Judge(study.Cells)}
	var out bytes.Buffer
	if err := study.WriteHTML(&out); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(strings.TrimPrefix(out.String(), "<!DOCTYPE html>")))
	elements := map[string]int{}
	var text strings.Builder
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			elements[x.Name.Local]++
			for _, a := range x.Attr {
				if slices.Contains([]string{"src", "href"}, a.Name.Local) || strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("<%s %s=%q>", x.Name.Local, a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			text.Write(x)
		}
	}
	// Five against the number of engines; for each cell three distributions, the tails,
	// the reuse, and the loads of three runs.
	if elements["figure"] != 5+3*(5+3) || elements["script"]+elements["link"]+elements["img"] != 0 || elements["details"] != 3 {
		t.Errorf("%v", elements)
	}
	for _, part := range append(study.Answers[0].Sentences, study.Workload, "captured", "load under round-robin", "engine 3", "the least of all engines", "share of requests by tpot") {
		if !strings.Contains(text.String(), part) {
			t.Errorf("no %q in the page", part)
		}
	}
	for _, outside := range []string{"http://", "https://", "@import", "url("} {
		if strings.Contains(out.String(), outside) {
			t.Errorf("the page has %q in it", outside)
		}
	}
	if strings.Contains(out.String(), "class=\"tiles\"") {
		t.Error("headline figures of several cells at once")
	}
	// One cell has its figures first.
	study.Cells, study.Answers = study.Cells[:1], nil
	out.Reset()
	if err := study.WriteHTML(&out); err != nil {
		t.Fatal(err)
	}
	for _, r := range study.Cells[0].Runs {
		tile := fmt.Sprintf("<b>%.4g</b><span>ttft p99, ms, %s</span>", r.TTFT.P99, r.Policy)
		if at := strings.Index(out.String(), tile); at < 0 || at > strings.Index(out.String(), "<figure>") {
			t.Errorf("%s at %d", tile, at)
		}
	}
}
