package report

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"

	"weir/internal/load/plot"
)

// WriteHTML writes the comparison as one page that needs nothing else to open.
func (c *Comparison) WriteHTML(w io.Writer) error {
	p := &page{plot.New(w)}
	p.compared(c.A, c.B)
	for i, name := range []string{c.A, c.B} {
		p.Put("<p class=\"verdict %s\"><b>%s %s</b></p>\n", string(c.Verdicts[i]), name, string(c.Verdicts[i]))
	}
	p.notes("asked for otherwise: ", c.Apart)
	rows := [][]string{{"", "A", "B", "B - A", "95 % interval", "B is"}}
	for _, d := range c.Differences {
		if !d.A.Refused() || !d.B.Refused() {
			rows = append(rows, []string{d.Metric + " " + d.Figure, figure(d.A), figure(d.B), figure(d.By), within(d.CI95), d.Finding})
		}
	}
	p.Table(rows, -1)
	return p.End()
}

// WriteHTML writes the comparison as one page that needs nothing else to open:
// what holds over all cells, and of each figure the curves of both and a table.
func (c *SweepComparison) WriteHTML(w io.Writer) error {
	p := &page{plot.New(w)}
	p.compared(c.A, c.B)
	p.notes("asked for otherwise: ", c.Apart)
	p.notes("", c.missing())
	for i := range c.Searches {
		p.Put("<p class=\"verdict\"><b>%s</b></p>\n", c.Searches[i].sentence())
	}
	if len(c.Cells) > 1 {
		p.Put("<h2>Over the cells</h2>\n<p class=\"note\">The geometric mean of B by A, with its 95 %% interval, as far as the cells are alike.</p>\n")
		p.Table(c.overallTable(), -1)
	}
	if len(c.Cells) > 0 {
		p.Note("%s.", upper(c.caution()))
		p.curveGrid(c)
		for n, d := range c.Cells[0].Differences {
			rows := c.figureTable(n)
			if len(rows) == 1 {
				continue
			}
			p.Put("<h2>%s %s</h2>\n", d.Metric, d.Figure)
			p.Table(rows, -1)
		}
	}
	return p.End()
}

// curveGrid plots each figure of both against the load.
func (p *page) curveGrid(c *SweepComparison) {
	var names []plot.Name
	for n := range c.Cells[0].Differences {
		for _, l := range c.curves(n) {
			if !slices.ContainsFunc(names, func(x plot.Name) bool { return x.Name == l.Name }) {
				names = append(names, plot.Name{Name: l.Name, Colour: plot.Palette[len(names)%len(plot.Palette)]})
			}
		}
	}
	if len(names) == 0 {
		return
	}
	p.Open("Against the load", names)
	p.Grid(func() {
		for n, d := range c.Cells[0].Differences {
			lines := c.curves(n)
			for i := range lines { // the same colour in each plot
				lines[i].Colour = names[slices.IndexFunc(names, func(x plot.Name) bool { return x.Name == lines[i].Name })].Colour
			}
			p.Scatter(d.Metric+" "+d.Figure, "load", lines)
		}
	})
	p.Close()
}

// compared begins the page of a comparison.
func (p *page) compared(a, b string) {
	p.Begin(fmt.Sprintf("weir bench: %s and %s", filepath.Base(a), filepath.Base(b)))
	p.Put("<h1>weir report: A and B</h1>\n")
	p.Facts([][2]string{{"A", a}, {"B", b}})
}

// notes writes lines below one another.
func (p *page) notes(prefix string, lines []string) {
	for _, line := range lines {
		p.Put("<p class=\"note\">%s%s</p>\n", prefix, line)
	}
}

// curves returns one figure against the load, each series once of A and once of B,
// where a series has several loads.
func (c *SweepComparison) curves(n int) (all []plot.Scatter) {
	loads := map[string]int{}
	for i := range c.Cells {
		loads[c.Cells[i].Series]++
	}
	at := map[string]int{}
	for i := range c.Cells {
		x := &c.Cells[i]
		if loads[x.Series] < 2 || x.At <= 0 {
			continue
		}
		for k, side := range []string{"A", "B"} {
			d := &x.Differences[n]
			v := d.A
			if k == 1 {
				v = d.B
			}
			if v.Refused() || v <= 0 {
				continue
			}
			name := side
			if x.Series != "" {
				name += " " + x.Series
			}
			if _, ok := at[name]; !ok {
				at[name] = len(all)
				all = append(all, plot.Scatter{Name: name})
			}
			l := &all[at[name]]
			l.Points = append(l.Points, plot.Spot{X: x.At, Y: float64(v), Low: math.NaN(), High: math.NaN(), Title: fmt.Sprintf("%s, %s: %s", side, x.Name, short(v, true))})
		}
	}
	return all
}

// WriteHTML writes the report as a page; without the rows of its run it has no
// distributions.
func (r *Report) WriteHTML(w io.Writer) error { return WriteHTML(w, r, nil) }
