package report

import (
	"strings"
	"testing"

	"weir/internal/load"
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
