package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"weir/internal/load"
	"weir/internal/load/experiment"
	"weir/internal/load/slo"
	"weir/internal/workload/latency"
)

// SweepComparison compares two sweeps or experiments, cell by cell. Its JSON form
// is one object.
type SweepComparison struct {
	A string `json:"a"`
	B string `json:"b"`
	// Apart lists the settings that differ, which may explain any difference.
	Apart []string `json:"apart"`
	// Overall compares each figure of B with A's, over all cells.
	Overall []Ratio `json:"overall"`
	// Cells are those that both have, in A's order.
	Cells []ComparedCell `json:"cells"`
	// Searches are the answers of searches on fleets that both have.
	Searches []ComparedSearch `json:"searches,omitempty"`
	// OnlyA and OnlyB name the cells that the other has no run of.
	OnlyA []string `json:"only_a"`
	OnlyB []string `json:"only_b"`
}

// ComparedCell is a cell that both have run.
type ComparedCell struct {
	Name string `json:"name"`
	// Series are the values of the factors, At the rate or the concurrency, 0
	// where the cell has neither.
	Series      string        `json:"series"`
	At          float64       `json:"at"`
	Runs        [2]int        `json:"runs"`
	Verdicts    [2]load.Trust `json:"verdicts"`
	Unstable    [2]bool       `json:"unstable"`
	Differences []Difference  `json:"differences"`
}

// Ratio is B's figure divided by A's: the geometric mean over the cells that have both,
// with its 95 % confidence interval by Student's distribution of the cells' logarithms,
// which assumes that the cells are alike. The ends are null if there is only one cell.
type Ratio struct {
	Metric string         `json:"metric"`
	Figure string         `json:"figure"`
	Cells  int            `json:"cells"`
	Ratio  latency.Figure `json:"ratio"`
	CI95   latency.Range  `json:"ci95"`
	// Higher and Lower count the cells that were called so one by one.
	Higher  int    `json:"higher"`
	Lower   int    `json:"lower"`
	Finding string `json:"finding"`
}

// ComparedSearch is the results of two searches. The limit lies between the ends; 0 is an
// unknown end.
type ComparedSearch struct {
	Series  string     `json:"series"`
	A       [2]float64 `json:"a"`
	B       [2]float64 `json:"b"`
	Finding string     `json:"finding"`
}

// errNothingShared is why there is no comparison.
var errNothingShared = errors.New("they have no cell in common")

// CompareSweeps compares two reports of several runs; the names are for people. Cells are
// the same if their factors have the same values, in any order, and their rate or
// concurrency is the same, whether it was varied or not.
func CompareSweeps(a, b *Sweep, nameA, nameB string) (*SweepComparison, error) {
	c := &SweepComparison{A: nameA, B: nameB, Overall: []Ratio{}, Cells: []ComparedCell{}}
	inA, inB := a.places(), b.places()
	settings := []setting{{"server", a.URL, b.URL}, {"fleet", a.Fleet, b.Fleet}, {"slo", a.SLO, b.SLO}, {"repeats", a.Repeats, b.Repeats}, {"seed", a.Seed, b.Seed}}
	for i := range a.Points {
		k := slices.Index(inB, inA[i])
		if k < 0 || len(a.Points[i].Runs) == 0 || len(b.Points[k].Runs) == 0 {
			continue
		}
		if len(c.Cells) == 0 {
			settings = append(settings, asked(a.first(i), b.first(k))...)
		}
		c.Cells = append(c.Cells, comparedCell(a, b, i, k, inA[i]))
	}
	c.Apart = unlike(append(settings, setting{"fixed", without(a.Fixed, b.Fixed), without(b.Fixed, a.Fixed)}))
	c.OnlyA, c.OnlyB = only(a, inA, c.Cells), only(b, inB, c.Cells)
	c.searches(a, b)
	if len(c.Cells) == 0 && len(c.Searches) == 0 {
		return nil, fmt.Errorf("%w: %s has %s, %s has %s", errNothingShared, nameA, few(c.OnlyA), nameB, few(c.OnlyB))
	}
	c.overall()
	return c, nil
}

// without returns the elements that are only in the first list.
func without(all, but []string) string {
	var left []string
	for _, x := range all {
		if !slices.Contains(but, x) {
			left = append(left, x)
		}
	}
	return cmp.Or(strings.Join(left, " "), "nothing else")
}

// place is where a point lies: the values of its factors in the order of their
// names, and its load.
type place struct {
	factors, axis string
	at            float64
}

// String names a place for a person.
func (p place) String() string {
	load := ""
	if p.axis != "" {
		load = p.axis + " " + slo.Round(p.at)
	}
	return cmp.Or(strings.TrimSpace(p.factors+" "+load), "the only cell")
}

// places returns each point's.
func (s *Sweep) places() []place {
	ordered := s.orderedFactors()
	all := make([]place, len(s.Points))
	for i := range s.Points {
		p := &s.Points[i]
		at := place{factors: cmp.Or(ordered[p.Series], p.Series), axis: s.axis(), at: p.At}
		if p.At == 0 && len(p.Runs) > 0 {
			// A load that was not varied is known of the runs only.
			switch r := s.first(i); {
			case r.Rate > 0:
				at.axis, at.at = experiment.Rate, r.Rate
			case r.Concurrency > 0:
				at.axis, at.at = experiment.Concurrency, float64(r.Concurrency)
			default:
				at.axis = ""
			}
		}
		all[i] = at
	}
	return all
}

// orderedFactors returns for each series its values in the order of the factors'
// names.
func (s *Sweep) orderedFactors() map[string]string {
	named := map[string]string{}
	for _, cell := range experiment.Grid(s.Factors) {
		var values []string
		for i, f := range s.Factors {
			if f.Name != experiment.Rate && f.Name != experiment.Concurrency {
				values = append(values, f.Name+"="+f.Values[cell[i]])
			}
		}
		series := strings.Join(values, " ")
		slices.Sort(values)
		named[series] = strings.Join(values, " ")
	}
	return named
}

// first returns the report of a point's first run.
func (s *Sweep) first(point int) *Report { return s.Runs[s.Points[point].Runs[0]].Report }

// only names the points that were run and are not compared. The rates that a
// search chose are its own.
func only(s *Sweep, places []place, compared []ComparedCell) []string {
	names := []string{}
	for i := range s.Points {
		name := places[i].String()
		if len(s.Searches) == 0 && len(s.Points[i].Runs) > 0 && !slices.ContainsFunc(compared, func(c ComparedCell) bool { return c.Name == name }) {
			names = append(names, name)
		}
	}
	return names
}

// few writes some of many names.
func few(names []string) string {
	const most = 4
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// comparedCell compares a point of each.
func comparedCell(a, b *Sweep, i, k int, at place) ComparedCell {
	x, y := &a.Points[i], &b.Points[k]
	c := ComparedCell{Name: at.String(), Series: at.factors, At: at.at, Runs: [2]int{len(x.Runs), len(y.Runs)},
		Verdicts: [2]load.Trust{x.Trust, y.Trust}, Unstable: [2]bool{x.Unstable, y.Unstable}}
	for _, f := range sweepFigures {
		of, with := x.Figures[f.name()], y.Figures[f.name()]
		c.Differences = append(c.Differences, difference(f.metric, f.figure, of.Mean, with.Mean, of.CI95, with.CI95))
	}
	shareA, rangeA := a.success(x)
	shareB, rangeB := b.success(y)
	c.Differences = append(c.Differences, difference("success_rate", "mean", shareA, shareB, rangeA, rangeB))
	return c
}

// success returns the share of a point's requests that were complete, and its
// interval, the runs being batches of requests that may fail together.
func (s *Sweep) success(p *SweepPoint) (latency.Figure, latency.Range) {
	var t slo.Tally
	for _, i := range p.Runs {
		r := s.Runs[i].Report
		judged := r.Requests - r.Abandoned - r.Unfinished
		t = append(t, slo.Count{N: judged, Bad: judged - r.Complete})
	}
	e := t.Within(normal)
	if e.N == 0 {
		return nan, latency.Range{nan, nan}
	}
	return latency.Figure(1 - e.Share), latency.Range{latency.Figure(1 - e.High), latency.Figure(1 - e.Low)}
}

// searches compares the answers of searches.
func (c *SweepComparison) searches(a, b *Sweep) {
	orderedA, orderedB := a.orderedFactors(), b.orderedFactors()
	name := func(ordered map[string]string, x *SweepSearch) string { return cmp.Or(ordered[x.Series], x.Series) }
	found := map[string]bool{}
	for i := range a.Searches {
		x := &a.Searches[i]
		series := name(orderedA, x)
		k := slices.IndexFunc(b.Searches, func(y SweepSearch) bool { return name(orderedB, &y) == series })
		if k < 0 {
			c.OnlyA = append(c.OnlyA, strings.TrimSpace("search "+series))
			continue
		}
		found[series] = true
		y := &b.Searches[k]
		one := ComparedSearch{Series: series, A: [2]float64{x.Low, x.High}, B: [2]float64{y.Low, y.High}, Finding: noneSeen}
		switch {
		case x.High > 0 && y.Low >= x.High:
			one.Finding = isHigher
		case y.High > 0 && x.Low >= y.High:
			one.Finding = isLower
		}
		c.Searches = append(c.Searches, one)
	}
	for i := range b.Searches {
		if series := name(orderedB, &b.Searches[i]); !found[series] {
			c.OnlyB = append(c.OnlyB, strings.TrimSpace("search "+series))
		}
	}
}

// overall works out the figures over all cells.
func (c *SweepComparison) overall() {
	for n := range sweepFigures {
		f := &sweepFigures[n]
		r := Ratio{Metric: f.metric, Figure: f.figure, Ratio: nan, CI95: latency.Range{nan, nan}, Finding: notKnown}
		var logs []float64
		for i := range c.Cells {
			d := &c.Cells[i].Differences[n]
			if d.A > 0 && d.B > 0 {
				logs = append(logs, math.Log(float64(d.B/d.A)))
			}
			switch d.Finding {
			case isHigher:
				r.Higher++
			case isLower:
				r.Lower++
			}
		}
		if r.Cells = len(logs); r.Cells == 0 {
			continue
		}
		r.Ratio = latency.Figure(math.Exp(averageOf(logs)))
		if r.Cells > 1 {
			mean, half := StudentOf(logs)
			r.CI95 = latency.Range{latency.Figure(math.Exp(mean - half)), latency.Figure(math.Exp(mean + half))}
			r.Finding = finding(r.CI95, 1)
		}
		c.Overall = append(c.Overall, r)
	}
}

// chance is how many of the differences a 95 % interval would call so though
// there were none.
func (c *SweepComparison) chance() (called, of int) {
	for i := range c.Cells {
		for _, d := range c.Cells[i].Differences {
			if d.Finding != notKnown {
				of++
			}
			if d.Finding == isHigher || d.Finding == isLower {
				called++
			}
		}
	}
	return called, of
}

// caution returns how to read many findings at once.
func (c *SweepComparison) caution() string {
	called, of := c.chance()
	return fmt.Sprintf("%d of %d differences with an interval are called higher or lower; chance alone would call about %.0f", called, of, 0.05*float64(of))
}

// JSON writes the comparison as one object.
func (c *SweepComparison) JSON(w io.Writer) error { return load.WriteJSON(w, c) }

// Text writes the comparison for a person: what holds over all cells, and then a
// table of each figure.
func (c *SweepComparison) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "A  %s\nB  %s\n", c.A, c.B)
	for _, x := range c.Apart {
		fmt.Fprintf(&b, "asked for otherwise: %s\n", x)
	}
	for _, x := range c.missing() {
		fmt.Fprintln(&b, x)
	}
	for i := range c.Searches {
		fmt.Fprintln(&b, c.Searches[i].sentence())
	}
	if len(c.Cells) == 0 {
		_, err := io.WriteString(w, b.String())
		return err
	}
	if len(c.Cells) > 1 {
		b.WriteByte('\n')
		align(&b, c.overallTable(), true)
	}
	for n, d := range c.Cells[0].Differences {
		rows := c.figureTable(n)
		if len(rows) == 1 {
			continue
		}
		fmt.Fprintf(&b, "\n%s %s\n", d.Metric, d.Figure)
		align(&b, rows, true)
	}
	fmt.Fprintf(&b, "\n%s\n", c.caution())
	_, err := io.WriteString(w, b.String())
	return err
}

// missing returns what only one of the two has.
func (c *SweepComparison) missing() (lines []string) {
	for _, x := range []struct {
		name string
		only []string
	}{{"A", c.OnlyA}, {"B", c.OnlyB}} {
		if len(x.only) > 0 {
			lines = append(lines, fmt.Sprintf("only in %s: %s", x.name, strings.Join(x.only, ", ")))
		}
	}
	return lines
}

// overallTable returns the figures over all cells as rows of text.
func (c *SweepComparison) overallTable() [][]string {
	rows := [][]string{{"over the cells", "cells", "B / A", "95 % interval", "cells higher", "lower", "B is"}}
	for _, r := range c.Overall {
		rows = append(rows, []string{r.Metric + " " + r.Figure, fmt.Sprint(r.Cells), figure(r.Ratio), within(r.CI95), fmt.Sprint(r.Higher), fmt.Sprint(r.Lower), r.Finding})
	}
	return rows
}

// figureTable returns one figure of all cells as rows of text.
func (c *SweepComparison) figureTable(n int) [][]string {
	rows := [][]string{{"cell", "runs", "A", "B", "B - A", "95 % interval", "B is"}}
	for i := range c.Cells {
		x := &c.Cells[i]
		d := &x.Differences[n]
		if d.A.Refused() && d.B.Refused() {
			continue
		}
		name := x.Name
		for k, side := range []string{"A", "B"} {
			switch {
			case x.Unstable[k]:
				name += fmt.Sprintf(" (%s unstable)", side)
			case x.Verdicts[k] != load.Valid:
				name += fmt.Sprintf(" (%s %s)", side, x.Verdicts[k])
			}
		}
		rows = append(rows, []string{name, fmt.Sprintf("%d, %d", x.Runs[0], x.Runs[1]), figure(d.A), figure(d.B), figure(d.By), within(d.CI95), d.Finding})
	}
	return rows
}

// sentence returns what two searches found.
func (x *ComparedSearch) sentence() string {
	ends := func(e [2]float64) string {
		switch {
		case e[0] == 0 && e[1] == 0:
			return "no rate was decided"
		case e[0] == 0:
			return "below " + slo.Round(e[1])
		case e[1] == 0:
			return slo.Round(e[0]) + " or more"
		}
		return slo.Round(e[0]) + " to " + slo.Round(e[1])
	}
	return fmt.Sprintf("%s: A %s, B %s requests/s: %s", strings.TrimSpace("limit "+x.Series), ends(x.A), ends(x.B), x.Finding)
}
