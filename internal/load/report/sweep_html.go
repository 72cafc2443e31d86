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

	"weir/internal/load/plot"
	"weir/internal/load/slo"
	"weir/internal/workload/latency"
)

// WriteHTML writes the report as one page that needs nothing else to open.
func (s *Sweep) WriteHTML(w io.Writer) error {
	p := &page{plot.New(w)}
	p.Begin("weir bench: " + s.Name)
	p.Put("<h1>%s</h1>\n<table class=\"facts\"><tbody>", s.Name)
	row := func(name, format string, args ...any) {
		p.Put("<tr><td>%s</td><td>%s</td></tr>\n", name, fmt.Sprintf(format, args...))
	}
	row("started", "%s", s.Started.UTC().Format("2006-01-02 15:04:05 MST"))
	if s.URL != "" {
		row("server", "%s", s.URL)
	} else {
		row("fleet", "%s", s.Fleet)
	}
	for _, f := range s.Factors {
		row(f.Name, "%s", strings.Join(f.Values, ", "))
	}
	if len(s.Fixed) > 0 {
		row("fixed", "%s", strings.Join(s.Fixed, " "))
	}
	row("runs", "%d in %.1f s, seed %d", len(s.Runs), s.Elapsed, s.Seed)
	if s.SLO != "" {
		row("objectives", "%s", s.SLO)
	}
	p.Put("</tbody></table>\n")
	for _, d := range s.Drift {
		p.Put("<p class=\"verdict DEGRADED\">%s</p>\n", d)
	}
	p.searches(s)
	p.sweepCurves(s)
	p.sweepTable(s)
	p.Put("<h2>Runs</h2>\n<p class=\"note\">In the order in which they were carried out.</p>\n")
	for i := range s.Runs {
		r := &s.Runs[i]
		name := strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Series, s.axis(), slo.Round(r.At)))
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

// runPage is what a page says of one run.
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
		p.Put("<div class=\"wide\"><table><thead><tr><th>trial</th><th>rate/s</th><th>run</th><th>decision</th><th class=\"text\">why</th></tr></thead><tbody>")
		for k, step := range x.Path {
			p.Put("<tr><td>%d</td><td>%s</td><td>%d</td><td>%s</td><td class=\"text\">%s</td></tr>\n", k+1, slo.Round(step.Rate), step.Repeat, step.Decision.String(), step.Why)
		}
		p.Put("</tbody></table></div>\n")
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
	p.Put("<h2>Against the %s</h2>\n<p class=\"note\">A point that was unstable has no latencies. Bars are 95 %% intervals, where they are known.</p>\n", s.axis())
	for _, f := range []struct{ name, title string }{
		{"ttft_p50_ms", "time to first content, p50, ms"}, {"ttft_p99_ms", "time to first content, p99, ms"},
		{"tpot_p50_ms", "per token after the first, p50, ms"}, {"tpot_p99_ms", "per token after the first, p99, ms"},
		{"e2e_p99_ms", "to the last byte, p99, ms"}, {"tokens_per_second", "tokens a second"}, {"requests_per_second", "complete requests a second"},
	} {
		p.sweepCurve(s, f.title, func(pt *SweepPoint) SweepFigure {
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
		p.sweepCurve(s, f.title, func(pt *SweepPoint) SweepFigure {
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
func (p *page) sweepCurve(s *Sweep, title string, figure func(pt *SweepPoint) SweepFigure) {
	var lines []plot.Scatter
	for i := range s.Points {
		pt := &s.Points[i]
		v := figure(pt)
		if v.Mean.Refused() || pt.At <= 0 {
			continue
		}
		if len(lines) == 0 || lines[len(lines)-1].Name != cmp.Or(pt.Series, s.axis()) {
			lines = append(lines, plot.Scatter{Name: cmp.Or(pt.Series, s.axis()), Colour: plot.Palette[len(lines)%len(plot.Palette)]})
		}
		l := &lines[len(lines)-1]
		l.Points = append(l.Points, plot.Spot{X: pt.At, Y: float64(v.Mean), Low: bound(v.CI95[0]), High: bound(v.CI95[1]),
			Title: fmt.Sprintf("%s %s: %s", s.axis(), slo.Round(pt.At), short(v.Mean, true))})
	}
	p.Scatter(title, s.axis(), lines)
}

// sweepTable writes the points, and how their requests fell on the engines.
func (p *page) sweepTable(s *Sweep) {
	p.Put("<h2>Points</h2>\n<p class=\"note\">Latencies in ms, means over the runs of a point; - is refused or not known.</p>\n")
	p.Table(s.table(s.factors()))
	if slices.ContainsFunc(s.Points, func(pt SweepPoint) bool { return pt.Choices != nil }) {
		p.Put("<p class=\"note\">max/mean: how many requests the engine had that had most, as a multiple of the mean of all. cached: the share of prompt tokens that engines found in their caches, of those that told it. regret: by how much more a request was predicted to cost where it went than where it would have cost least, the mean.</p>\n")
	}
	for i := range s.Points {
		pt := &s.Points[i]
		if len(pt.Reasons) > 0 {
			p.Put("<p class=\"note\">%s at %s: %s.</p>\n", pt.judgement(), strings.TrimSpace(pt.Series+" "+s.axis()+" "+slo.Round(pt.At)), strings.Join(pt.Reasons, "; "))
		}
	}
	var bars []plot.Bar
	colour := map[string]string{}
	for i := range s.Points {
		pt := &s.Points[i]
		one := plot.Bar{Label: strings.TrimSpace(pt.Series + " " + s.axis() + " " + slo.Round(pt.At))}
		for _, e := range pt.Engines {
			if colour[e.Name] == "" {
				colour[e.Name] = plot.Palette[len(colour)%len(plot.Palette)]
			}
			one.Parts = append(one.Parts, plot.Part{Colour: colour[e.Name], Length: e.Share, Title: fmt.Sprintf("%s: %s requests, %.1f %%", e.Name, strconv.Itoa(e.Requests), 100*e.Share)})
		}
		if len(pt.Engines) > 1 {
			bars = append(bars, one)
		}
	}
	if len(bars) > 0 {
		p.Put("<h2>Shares of the engines</h2>\n")
		p.Bars("shares of the engines", bars)
		p.Key(colour)
	}
}

// bound is an end of an interval; NaN is what is refused.
func bound(f latency.Figure) float64 {
	if f.Refused() {
		return math.NaN()
	}
	return float64(f)
}
