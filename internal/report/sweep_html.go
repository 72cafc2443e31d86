package report

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"weir/internal/latency"
	"weir/internal/slo"
)

// WriteHTML writes the report as one page that needs nothing else to open.
func (s *Sweep) WriteHTML(w io.Writer) error {
	p := &page{w: bufio.NewWriter(w)}
	p.begin(s.Name)
	p.put("<h1>%s</h1>\n<table class=\"facts\"><tbody>", s.Name)
	row := func(name, format string, args ...any) {
		p.put("<tr><td>%s</td><td>%s</td></tr>\n", name, fmt.Sprintf(format, args...))
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
	p.put("</tbody></table>\n")
	for _, d := range s.Drift {
		p.put("<p class=\"verdict DEGRADED\">%s</p>\n", d)
	}
	p.searches(s)
	p.sweepCurves(s)
	p.sweepTable(s)
	p.put("<h2>Runs</h2>\n<p class=\"note\">In the order in which they were carried out.</p>\n")
	for i := range s.Runs {
		r := &s.Runs[i]
		name := strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Series, s.axis(), slo.Round(r.At)))
		p.put("<details class=\"run\"><summary>%d. %s, repeat %d: %s</summary>\n", i+1, name, r.Repeat, string(r.Report.Verdict.Trust))
		switch {
		case p.err != nil:
		case r.page == nil: // read from a file, where rows are not
			p.run(r.Report, nil)
		default:
			_, p.err = p.w.Write(r.page)
		}
		p.put("</details>\n")
	}
	return p.end()
}

// runPage is what a page says of one run.
func runPage(r *Report, rows []Row) ([]byte, error) {
	var b bytes.Buffer
	p := &page{w: bufio.NewWriter(&b)}
	p.run(r, rows)
	if p.err != nil {
		return nil, p.err
	}
	err := p.w.Flush()
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
		p.put("<h2>Search %s</h2>\n<p class=\"verdict %s\"><b>%s</b><br/>%s</p>\n", x.Series, trust, upper(x.Sentence), x.Why)
		for _, c := range x.Contradictions {
			p.put("<p>Not monotonic: %s; something else than the rate was at work.</p>\n", c)
		}
		p.put("<div class=\"wide\"><table><thead><tr><th>trial</th><th>rate/s</th><th>run</th><th>decision</th><th class=\"text\">why</th></tr></thead><tbody>")
		for k, step := range x.Path {
			p.put("<tr><td>%d</td><td>%s</td><td>%d</td><td>%s</td><td class=\"text\">%s</td></tr>\n", k+1, slo.Round(step.Rate), step.Repeat, step.Decision.String(), step.Why)
		}
		p.put("</tbody></table></div>\n")
	}
}

// palette are the colours of series, in their order.
var palette = []string{"#3b7dd8", "#d9920a", "#2f9e5b", "#d04437", "#8a63c9", "#1f8f86", "#e0709a", "#98a0ab", "#a8b820", "#5a6fb0"}

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
	p.put("<h2>Against the %s</h2>\n<p class=\"note\">A point that was unstable has no latencies. Bars are 95 %% intervals, where they are known.</p>\n", s.axis())
	for _, f := range []struct{ name, title string }{
		{"ttft_p50_ms", "time to first content, p50, ms"}, {"ttft_p99_ms", "time to first content, p99, ms"},
		{"tpot_p50_ms", "per token after the first, p50, ms"}, {"tpot_p99_ms", "per token after the first, p99, ms"},
		{"e2e_p99_ms", "to the last byte, p99, ms"}, {"tokens_per_second", "tokens a second"}, {"requests_per_second", "complete requests a second"},
	} {
		var lines []scatter
		for i := range s.Points {
			pt := &s.Points[i]
			v, ok := pt.Figures[f.name]
			if !ok || v.Mean.Refused() || pt.At <= 0 {
				continue
			}
			if len(lines) == 0 || lines[len(lines)-1].name != cmp.Or(pt.Series, s.axis()) {
				lines = append(lines, scatter{name: cmp.Or(pt.Series, s.axis()), colour: palette[len(lines)%len(palette)]})
			}
			l := &lines[len(lines)-1]
			l.points = append(l.points, spot{x: pt.At, y: float64(v.Mean), low: v.CI95[0], high: v.CI95[1],
				title: fmt.Sprintf("%s %s: %s", s.axis(), slo.Round(pt.At), short(v.Mean, true))})
		}
		p.scatter(f.title, s.axis(), lines)
	}
}

// sweepTable writes the points, and how their requests fell on the engines.
func (p *page) sweepTable(s *Sweep) {
	p.put("<h2>Points</h2>\n<p class=\"note\">Latencies in ms, means over the runs of a point; - is refused or not known.</p>\n")
	p.table(s.table())
	for i := range s.Points {
		pt := &s.Points[i]
		if len(pt.Reasons) > 0 {
			p.put("<p class=\"note\">%s at %s: %s.</p>\n", pt.judgement(), strings.TrimSpace(pt.Series+" "+s.axis()+" "+slo.Round(pt.At)), strings.Join(pt.Reasons, "; "))
		}
	}
	var bars []bar
	colour := map[string]string{}
	for i := range s.Points {
		pt := &s.Points[i]
		one := bar{label: strings.TrimSpace(pt.Series + " " + s.axis() + " " + slo.Round(pt.At))}
		for _, e := range pt.Engines {
			if colour[e.Name] == "" {
				colour[e.Name] = palette[len(colour)%len(palette)]
			}
			one.parts = append(one.parts, part{colour[e.Name], e.Share, fmt.Sprintf("%s: %s requests, %.1f %%", e.Name, strconv.Itoa(e.Requests), 100*e.Share)})
		}
		if len(pt.Engines) > 1 {
			bars = append(bars, one)
		}
	}
	if len(bars) > 0 {
		p.put("<h2>Shares of the engines</h2>\n")
		p.bars("shares of the engines", bars)
		p.colourKey(colour)
	}
}

// table writes rows of text, the first one the heads.
func (p *page) table(rows [][]string) {
	p.put("<div class=\"wide\"><table class=\"points\"><thead><tr>")
	for _, head := range rows[0] {
		p.put("<th>%s</th>", head)
	}
	p.put("</tr></thead><tbody>")
	for _, row := range rows[1:] {
		p.put("<tr>")
		for _, cell := range row {
			p.put("<td>%s</td>", cell)
		}
		p.put("</tr>\n")
	}
	p.put("</tbody></table></div>\n")
}

// scatter is a line through points.
type scatter struct {
	name, colour string
	points       []spot
}

// spot is a point and its interval.
type spot struct {
	x, y      float64
	low, high latency.Figure
	title     string
}
