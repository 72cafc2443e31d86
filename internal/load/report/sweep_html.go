package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"weir/internal/load"
	"weir/internal/load/plot"
	"weir/internal/load/slo"
	"weir/internal/workload/latency"
)

// WriteHTML writes the report as one page that needs nothing else to open.
func (s *Sweep) WriteHTML(w io.Writer) error {
	p := &page{plot.New(w)}
	p.Begin("weir bench: " + s.Name)
	p.Put("<h1>%s</h1>\n", s.Name)
	for _, d := range s.Drift {
		p.Put("<p class=\"verdict DEGRADED\">%s</p>\n", d)
	}
	p.Tiles(s.headline())
	p.searches(s)
	p.sweepCurves(s)
	p.sweepTable(s)
	facts := [][2]string{{"started", s.Started.UTC().Format("2006-01-02 15:04:05 MST")}}
	add := func(name, format string, args ...any) {
		facts = append(facts, [2]string{name, fmt.Sprintf(format, args...)})
	}
	if s.URL != "" {
		add("server", "%s", s.URL)
	} else {
		add("fleet", "%s", s.Fleet)
	}
	for _, f := range s.Factors {
		add(f.Name, "%s", strings.Join(f.Values, ", "))
	}
	if len(s.Fixed) > 0 {
		add("fixed", "%s", strings.Join(s.Fixed, " "))
	}
	add("runs", "%d in %.1f s, seed %d", len(s.Runs), s.Elapsed, s.Seed)
	if s.SLO != "" {
		add("objectives", "%s", s.SLO)
	}
	p.Put("<h2>How it was measured</h2>\n")
	p.Facts(facts)
	p.Put("<h2>Runs</h2>\n<p class=\"note\">In the order in which they were carried out.</p>\n")
	for i := range s.Runs {
		r := &s.Runs[i]
		name := strings.TrimSpace(r.Series + " " + s.axis() + " " + slo.Round(r.At))
		p.Put("<details class=\"run\"><summary>%d. %s, repeat %d: %s</summary>\n", i+1, name, r.Repeat, string(r.Report.Verdict.Trust))
		if r.page == nil { // read from a file, where rows are not
			p.run(r.Report, nil)
		} else {
			p.Raw(r.page)
		}
		p.Put("</details>\n")
	}
	return p.End()
}

// headline returns how much of the sweep can be trusted, and what its best points came to.
func (s *Sweep) headline() (all []plot.Tile) {
	valid := 0
	for i := range s.Runs {
		if s.Runs[i].Report.Verdict.Trust == load.Valid {
			valid++
		}
	}
	all = append(all, plot.Tile{Value: strconv.Itoa(valid), Name: fmt.Sprintf("VALID of %d runs", len(s.Runs))})
	for _, f := range []struct {
		figure, name string
		least        bool
	}{{"requests_per_second", "most requests/s", false}, {"tokens_per_second", "most tokens/s", false}, {"ttft_p50_ms", "lowest ttft p50, ms", true}, {"tpot_p50_ms", "lowest tpot p50, ms", true}} {
		var best *SweepPoint
		of := func(pt *SweepPoint) latency.Figure {
			if v, ok := pt.Figures[f.figure]; ok {
				return v.Mean
			}
			return unknown.Mean
		}
		for i := range s.Points {
			if v := of(&s.Points[i]); !v.Refused() && (best == nil || f.least == (v < of(best))) {
				best = &s.Points[i]
			}
		}
		if best != nil {
			all = append(all, plot.Tile{Value: fmt.Sprintf("%.4g", float64(of(best))), Name: f.name + ", at " + s.called(best)})
		}
	}
	return all
}

// called names a point.
func (s *Sweep) called(pt *SweepPoint) string {
	return strings.TrimSpace(pt.Series + " " + s.axis() + " " + slo.Round(pt.At))
}

// named are the series and their colours, the same in each plot.
func (s *Sweep) named() (all []plot.Name) {
	for i := range s.Points {
		name := cmp.Or(s.Points[i].Series, s.axis())
		if !slices.ContainsFunc(all, func(n plot.Name) bool { return n.Name == name }) {
			all = append(all, plot.Name{Name: name, Colour: plot.Palette[len(all)%len(plot.Palette)]})
		}
	}
	return all
}

// runPage holds what a page needs about one run.
func runPage(r *Report, rows []Row) ([]byte, error) {
	var b bytes.Buffer
	p := &page{plot.New(&b)}
	p.run(r, rows)
	err := p.Flush()
	return b.Bytes(), err
}

// searches writes the answers and paths of searches.
func (p *page) searches(s *Sweep) {
	for i := range s.Searches {
		x := &s.Searches[i]
		trust := "VALID"
		if !x.Within || len(x.Contradictions) > 0 {
			trust = "DEGRADED"
		}
		if x.Low == 0 {
			trust = "INVALID"
		}
		p.Put("<h2>Search %s</h2>\n<p class=\"verdict %s\"><b>%s</b><br/>%s</p>\n", x.Series, trust, upper(x.Sentence), x.Why)
		for _, c := range x.Contradictions {
			p.Put("<p>Not monotonic: %s; something else than the rate was at work.</p>\n", c)
		}
		rows := [][]string{{"trial", "rate/s", "run", "decision", "why"}}
		for k, step := range x.Path {
			rows = append(rows, []string{strconv.Itoa(k + 1), slo.Round(step.Rate), strconv.Itoa(step.Repeat), step.Decision.String(), step.Why})
		}
		p.Table(rows, 4)
	}
}

// sweepCurves plots figures against the load, a line for each series.
func (p *page) sweepCurves(s *Sweep) {
	loads := map[float64]bool{}
	for i := range s.Points {
		if s.Points[i].At > 0 && len(s.Points[i].Runs) > 0 {
			loads[s.Points[i].At] = true
		}
	}
	if len(loads) < 2 {
		return
	}
	names := s.named()
	p.Open("Against the "+s.axis(), names)
	p.Note("A point that was unstable has no latencies. Bars are 95 %% intervals, where they are known.")
	p.Grid(func() { p.sweepGrid(s, names) })
	p.Close()
}

// sweepGrid plots each figure that is known of any point.
func (p *page) sweepGrid(s *Sweep, names []plot.Name) {
	for _, f := range []struct{ name, title string }{
		{"ttft_p50_ms", "ttft p50, ms"}, {"ttft_p99_ms", "ttft p99, ms"},
		{"tpot_p50_ms", "tpot p50, ms"}, {"tpot_p99_ms", "tpot p99, ms"},
		{"e2e_p50_ms", "e2e p50, ms"}, {"e2e_p99_ms", "e2e p99, ms"}, {"tokens_per_second", "tokens/s"}, {"requests_per_second", "complete requests/s"},
	} {
		p.sweepCurve(s, names, f.title, func(pt *SweepPoint) SweepFigure {
			if v, ok := pt.Figures[f.name]; ok {
				return v
			}
			return unknown
		})
	}
	for _, f := range []struct {
		title string
		of    func(c *Choices) (v float64, known bool)
	}{
		{"requests of the engine with most, over the mean", func(c *Choices) (float64, bool) { return c.Imbalance, c.Imbalance > 0 }},
		{"prompt tokens found in caches, %", func(c *Choices) (float64, bool) { return 100 * c.CachedShare, c.Told > 0 }},
		{"predicted regret, mean, ms", func(c *Choices) (float64, bool) { return c.Regret, true }},
	} {
		p.sweepCurve(s, names, f.title, func(pt *SweepPoint) SweepFigure {
			if pt.Choices == nil {
				return unknown
			}
			v, known := f.of(pt.Choices)
			if !known {
				return unknown
			}
			return SweepFigure{latency.Figure(v), unknown.CI95}
		})
	}
}

// unknown is a figure that is not known.
var unknown = SweepFigure{nan, latency.Range{nan, nan}}

// sweepCurve plots a figure of the points against the load, if it is known of any.
func (p *page) sweepCurve(s *Sweep, names []plot.Name, title string, figure func(pt *SweepPoint) SweepFigure) {
	lines := make([]plot.Scatter, len(names))
	for i, n := range names {
		lines[i] = plot.Scatter{Name: n.Name, Colour: n.Colour}
	}
	for i := range s.Points {
		pt := &s.Points[i]
		v := figure(pt)
		if v.Mean.Refused() || pt.At <= 0 {
			continue
		}
		l := &lines[slices.IndexFunc(names, func(n plot.Name) bool { return n.Name == cmp.Or(pt.Series, s.axis()) })]
		l.Points = append(l.Points, plot.Spot{X: pt.At, Y: float64(v.Mean), Low: bound(v.CI95[0]), High: bound(v.CI95[1]),
			Title: fmt.Sprintf("%s: %s%s", s.called(pt), short(v.Mean, true), known(v.CI95))})
	}
	lines = slices.DeleteFunc(lines, func(l plot.Scatter) bool { return len(l.Points) == 0 })
	p.Scatter(title, s.axis(), lines)
}

// known writes an interval that is known.
func known(of latency.Range) string {
	if of[0].Refused() || of[1].Refused() {
		return ""
	}
	return fmt.Sprintf(", between %s and %s", short(of[0], true), short(of[1], true))
}

// sweepTable writes the points, and how their requests fell on the engines.
func (p *page) sweepTable(s *Sweep) {
	p.Put("<h2>Points</h2>\n<p class=\"note\">Latencies in ms, means over the runs of a point; - is refused or not known.</p>\n")
	table := s.table(s.factors())
	p.Table(table, len(table[0])-1)
	if slices.ContainsFunc(s.Points, func(pt SweepPoint) bool { return pt.Choices != nil }) {
		p.Put("<p class=\"note\">max/mean: how many requests the engine had that had most, as a multiple of the mean of all. cached: the share of prompt tokens that engines found in their caches, of those that told it. regret: by how much more a request was predicted to cost where it went than where it would have cost least, the mean.</p>\n")
	}
	for i := range s.Points {
		pt := &s.Points[i]
		if len(pt.Reasons) > 0 {
			p.Put("<p class=\"note\">%s at %s: %s.</p>\n", pt.judgement(), s.called(pt), strings.Join(pt.Reasons, "; "))
		}
	}
	var bars []plot.Bar
	var names []plot.Name
	for i := range s.Points {
		pt := &s.Points[i]
		one := plot.Bar{Label: s.called(pt)}
		for _, e := range pt.Engines {
			k := slices.IndexFunc(names, func(n plot.Name) bool { return n.Name == e.Name })
			if k < 0 {
				k = len(names)
				names = append(names, plot.Name{Name: e.Name, Colour: plot.Palette[k%len(plot.Palette)]})
			}
			one.Parts = append(one.Parts, plot.Part{Colour: names[k].Colour, Length: 100 * e.Share, Title: fmt.Sprintf("%s: %s requests, %.1f %%", e.Name, strconv.Itoa(e.Requests), 100*e.Share)})
		}
		if len(pt.Engines) > 1 {
			bars = append(bars, one)
		}
	}
	if len(bars) > 0 {
		p.Open("Shares of the engines", names)
		p.Bars("requests of each engine", "%", bars)
		p.Close()
	}
}

// bound returns an end of an interval; NaN for a refused figure.
func bound(f latency.Figure) float64 {
	if f.Refused() {
		return math.NaN()
	}
	return float64(f)
}
