package report

import (
	"bytes"
	"strings"
	"testing"

	"weir/internal/load"
	"weir/internal/load/experiment"
)

func chose(engine string, prompt, cached, regret int64) Row {
	c := &Choice{Engines: 4, Prompt: prompt, Regret: regret}
	if cached >= 0 {
		c.Cached = &cached
	}
	row := Row{Engine: engine, Gateway: &Record{Attempts: []Attempt{{}, {Choice: c}}}}
	row.Outcome = load.Complete
	return row
}

// The figures are of the last attempts' choices, over all engines that there were, and of
// cached tokens over those of which the engine told.
func TestChoices(t *testing.T) {
	rows := []Row{chose("a", 1000, 500, 3e6), chose("a", 3000, 2500, 0), chose("a", 9000, -1, 6e6), chose("b", 1000, 2000, 3e6), {Engine: "b"}}
	c := choices(rows, engines(rows))
	if c == nil || c.Requests != 4 || c.Engines != 4 || c.Told != 3 || c.CachedShare != 0.8 || c.Regret != 3 || c.Imbalance != 2.4 {
		t.Fatalf("%+v", c)
	}
	if said := c.String(); said != "the engine with most requests had 2.40 times the mean of 4; 80.0 % of the prompt tokens were cached (told of 3 requests); mean regret 3.0 ms" {
		t.Error(said)
	}
	// Two runs together are as all of their requests in one.
	first, second := choices(rows[:2], nil), choices(rows[2:], nil)
	var both Choices
	both.add(first)
	both.add(second)
	if both.Regret != c.Regret || both.CachedShare != c.CachedShare || both.Requests != c.Requests || both.Told != c.Told {
		t.Errorf("%+v, in one %+v", both, c)
	}
	if none := choices(rows[4:], engines(rows[4:])); none != nil {
		t.Errorf("without records: %+v", none)
	}
	if untold := choices(rows[2:3], nil); untold.Told != 0 || !strings.Contains(untold.String(), "no engine told") || untold.cells()[1] != "-" {
		t.Errorf("%+v", untold)
	}
}

// The page of an experiment has a column for each factor, columns and curves of what came of the
// choices, and says it of each run, too. Where no record tells it, it has none of them.
func TestChoicesInThePage(t *testing.T) {
	for _, told := range []bool{true, false} {
		s := &Sweep{Name: "try", Factors: []experiment.Factor{{Name: "policy", Values: []string{"cost", "random"}}, {Name: "queue", Values: []string{"on"}}, {Name: "rate", Values: []string{"1", "2"}}}}
		var order []SweepPoint
		for i, policy := range []string{"cost", "random"} {
			for _, at := range []float64{1, 2} {
				p := SweepPoint{Series: "policy=" + policy + " queue=on", At: at}
				r := figures(10)
				if told {
					r.Choices = &Choices{Requests: 10, Engines: 2, Told: 10 * i, PromptTokens: int64(100 * i), CachedShare: 0.25, Regret: 7 * float64(i)}
				}
				if err := s.Add(SweepRun{Series: p.Series, At: p.At, Repeat: 1, Report: r}, nil); err != nil {
					t.Fatal(err)
				}
				order = append(order, p)
			}
		}
		s.Settle(order)
		var page bytes.Buffer
		if err := s.WriteHTML(&page); err != nil {
			t.Fatal(err)
		}
		_, text := elements(t, page.String())
		titles := 0
		for _, part := range []string{"max/mean", "cached %", "regret ms", "requests of the engine with most, over the mean", "prompt tokens found in caches, %", "predicted regret, mean, ms", "the engine with most requests had"} {
			if strings.Contains(text, part) {
				titles++
			}
		}
		if want := map[bool]int{true: 7}[told]; titles != want {
			t.Errorf("told %v: %d of 7 parts are in the page", told, titles)
		}
		for _, cell := range []string{">policy<", ">queue<", ">cost<", ">random<"} {
			if !strings.Contains(page.String(), cell) {
				t.Errorf("no cell %q in the page", cell)
			}
		}
		if strings.Contains(text, "fleet and load") {
			t.Error("the factors are one column")
		}
	}
}
