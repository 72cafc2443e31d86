package fleetsim

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"weir/internal/load/plot"
)

// Study is the command's output: the answers, and the cells that they come from.
type Study struct {
	Workload string    `json:"workload"`
	Settings []Setting `json:"settings"`
	Answers  []*Answer `json:"answers"`
	Cells    []*Cell   `json:"cells"`
}

// Setting is a setting that all cells share.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Text writes the study as a table, with the answers above it.
func (s *Study) Text(w io.Writer) error {
	for _, x := range append([]Setting{{"workload", s.Workload}}, s.Settings...) {
		if _, err := fmt.Fprintf(w, "%-9s %s\n", x.Name, x.Value); err != nil {
			return err
		}
	}
	for _, a := range s.Answers {
		for i, sentence := range a.Sentences {
			if i == 0 {
				sentence = "\n" + a.heading() + sentence
			} else {
				sentence = "  " + sentence
			}
			if _, err := fmt.Fprintln(w, sentence); err != nil {
				return err
			}
		}
	}
	if _, err := fmt.Fprint(w, "\nTTFT and TPOT in ms\n\n"); err != nil {
		return err
	}
	return Text(w, s.Cells)
}

func (a *Answer) heading() string {
	if a.Setting == "" {
		return ""
	}
	return a.Setting + ": "
}

// WriteHTML writes the study as one page that needs nothing else to open.
func (s *Study) WriteHTML(w io.Writer) error {
	p := plot.New(w)
	p.Begin("weir fleet: " + s.Workload)
	p.Put("<h1>weir fleet %s</h1>\n", s.Workload)
	for _, a := range s.Answers {
		if len(a.Sentences) == 0 {
			continue
		}
		trust := "VALID"
		if len(a.Policies) > 0 && !slices.ContainsFunc(a.Policies, func(x Sized) bool { return x.Engines > 0 }) {
			trust = "INVALID"
		}
		p.Put("<p class=\"verdict %s\"><b>%s%s</b>", trust, a.heading(), a.Sentences[0])
		for _, sentence := range a.Sentences[1:] {
			p.Put("<br/>%s", sentence)
		}
		p.Put("</p>\n")
	}
	p.Tiles(s.headline())
	colours := s.colours()
	s.curves(p, colours)
	if len(s.Cells) > 1 {
		p.Put("<h2>Cells</h2>\n")
	}
	for i, c := range s.Cells {
		if i == 0 {
			p.Put("<details class=\"run\" open=\"open\">")
		} else {
			p.Put("<details class=\"run\">")
		}
		p.Put("<summary>%s</summary>\n", c.Name)
		c.page(p, colours)
		p.Put("</details>\n")
	}
	var facts [][2]string
	for _, x := range s.Settings {
		facts = append(facts, [2]string{x.Name, x.Value})
	}
	p.Put("<h2>How it was simulated</h2>\n")
	p.Facts(facts)
	return p.End()
}

// headline are the figures of the policies where there is one cell; of several the answers
// and the curves say more.
func (s *Study) headline() (all []plot.Tile) {
	const policies = 4
	if len(s.Cells) != 1 {
		return nil
	}
	for _, r := range s.Cells[0].Runs[:min(policies, len(s.Cells[0].Runs))] {
		all = append(all, plot.Tile{Value: fmt.Sprintf("%.4g", r.TTFT.P99), Name: "ttft p99, ms, " + r.Policy},
			plot.Tile{Value: fmt.Sprintf("%.4g", r.Goodput), Name: "goodput/s, " + r.Policy})
	}
	return all
}

// colours returns each policy its own.
func (s *Study) colours() map[string]string {
	all := map[string]string{Oracle: "#98a0ab"}
	palette := slices.DeleteFunc(slices.Clone(plot.Palette), func(c string) bool { return c == all[Oracle] })
	for _, c := range s.Cells {
		for _, r := range c.Runs {
			if all[r.Policy] == "" {
				all[r.Policy] = palette[(len(all)-1)%len(palette)]
			}
		}
	}
	return all
}

// curves plots figures against the number of engines, or against the speed where that
// does not differ.
func (s *Study) curves(p *plot.Page, colours map[string]string) {
	type point struct {
		engines     int
		utilisation float64
		captured    float64 // NaN where the oracle was not run
		fleet       string
		r           *Report
	}
	var points []point
	engines, speeds, rest, fleets := map[int]bool{}, map[float64]bool{}, map[[2]float64]bool{}, map[string]bool{}
	shown := map[*Report]bool{}
	for _, c := range s.Cells {
		for _, r := range c.all() {
			points = append(points, point{c.Engines, c.Utilisation, c.Captured(r), c.Fleet, r})
			shown[r] = true
		}
		for _, r := range c.Runs {
			rest[[2]float64{float64(r.Gateways), r.AgeMS}] = true
		}
	}
	for _, a := range s.Answers {
		for _, t := range a.Trials {
			if !shown[t.Run] {
				points = append(points, point{t.Engines, 0, math.NaN(), "", t.Run})
			}
		}
	}
	for _, x := range points {
		engines[x.engines], speeds[x.r.Speed], fleets[x.fleet] = true, true, true
	}
	name := func(x point) string { return x.r.Policy }
	if len(fleets) > 1 { // each has its own lines
		name = func(x point) string {
			return x.r.Policy + ", " + cmp.Or(x.fleet, Count(x.engines))
		}
		clear(engines)
	}
	axis, at := "number of engines", func(x point) float64 { return float64(x.engines) }
	switch {
	case len(rest) > 1 || (len(engines) > 1) == (len(speeds) > 1):
		return // no one line
	case len(speeds) > 1 && s.Cells[0].Utilisation > 0:
		axis, at = "utilisation", func(x point) float64 { return x.utilisation }
	case len(speeds) > 1:
		axis, at = "speed", func(x point) float64 { return x.r.Speed }
	}
	slices.SortStableFunc(points, func(x, y point) int { return cmp.Compare(at(x), at(y)) })
	var names []plot.Name
	for _, x := range points {
		if slices.ContainsFunc(names, func(n plot.Name) bool { return n.Name == name(x) }) {
			continue
		}
		colour := colours[x.r.Policy]
		if len(fleets) > 1 {
			colour = plot.Palette[len(names)%len(plot.Palette)]
		}
		names = append(names, plot.Name{Name: name(x), Colour: colour})
	}
	p.Open("Against the "+axis, names)
	p.Grid(func() {
		for _, f := range []struct {
			title string
			of    func(x point) float64
		}{
			{"ttft p50, ms", func(x point) float64 { return x.r.TTFT.P50 }},
			{"ttft p99, ms", func(x point) float64 { return x.r.TTFT.P99 }},
			{"tpot p99, ms", func(x point) float64 { return x.r.TPOT.P99 }},
			{"goodput, requests/s", func(x point) float64 { return x.r.Goodput }},
			{"captured reuse", func(x point) float64 { return x.captured }},
		} {
			var lines []plot.Scatter
			for _, x := range points {
				y := f.of(x)
				if math.IsNaN(y) {
					continue
				}
				i := slices.IndexFunc(lines, func(l plot.Scatter) bool { return l.Name == name(x) })
				if i < 0 {
					i = len(lines)
					lines = append(lines, plot.Scatter{Name: name(x), Colour: names[slices.IndexFunc(names, func(n plot.Name) bool { return n.Name == name(x) })].Colour})
				}
				lines[i].Points = append(lines[i].Points, plot.Spot{X: at(x), Y: y, Low: math.NaN(), High: math.NaN(),
					Title: fmt.Sprintf("%s, %s %.3g: %.4g", name(x), axis, at(x), y)})
			}
			p.Scatter(f.title, axis, lines)
		}
	})
	p.Close()
}

// all are the oracle's run and the policies'.
func (c *Cell) all() []*Report {
	if c.Oracle == nil {
		return c.Runs
	}
	return append([]*Report{c.Oracle}, c.Runs...)
}

// page writes a cell: its table, its distributions, its reuse, its loads.
func (c *Cell) page(p *plot.Page, colours map[string]string) {
	p.Table(c.table(), -1)
	var names []plot.Name
	for _, r := range c.all() {
		names = append(names, plot.Name{Name: r.Policy, Colour: colours[r.Policy]})
	}
	p.Open("Latencies", names)
	p.Grid(func() {
		for _, l := range []struct {
			name  string
			tails bool
			of    func(s *Samples) []float64
		}{
			{"ttft", true, func(s *Samples) []float64 { return s.TTFT }},
			{"tpot", false, func(s *Samples) []float64 { return s.TPOT }},
			{"e2e", false, func(s *Samples) []float64 { return s.E2E }},
		} {
			var curves []plot.Curve
			for i, r := range c.all() {
				curves = append(curves, plot.Curve{Name: r.Policy, Colour: names[i].Colour, Values: l.of(&r.Samples)})
			}
			p.Distributions("share of requests by "+l.name, curves)
			if l.tails {
				p.Tails(l.name+" by percentile, ms", curves)
			}
		}
	})
	p.Close()
	c.handovers(p)
	c.reuse(p)
	lines := c.all()[0].loads()
	names = nil
	for _, l := range lines {
		names = append(names, plot.Name{Name: l.Name, Colour: l.Colour})
	}
	p.Open("Load of each engine", names)
	p.Note("The share of time that its steps fill, in the whole run.")
	p.Grid(func() {
		for _, r := range c.all() {
			p.Lines("load under "+r.Policy, r.VirtualSeconds, r.loads())
		}
	})
	p.Close()
}

// handovers draws how long it took from the end of a prompt at one engine to the first token
// of another, where requests were divided.
func (c *Cell) handovers(p *plot.Page) {
	var curves []plot.Curve
	for _, r := range c.all() {
		if r.Divided > 0 {
			curves = append(curves, plot.Curve{Name: fmt.Sprintf("%s, %.0f %% divided", r.Policy, 100*r.divided()), Values: r.Samples.Handover})
		}
	}
	var names []plot.Name
	for i := range curves {
		curves[i].Colour = plot.Palette[i%len(plot.Palette)]
		names = append(names, plot.Name{Name: curves[i].Name, Colour: curves[i].Colour})
	}
	if curves != nil {
		p.Open("Handover", names)
		p.Note("From the prefill engine's answer to the decode engine's first token.")
		p.Distributions("share of divided requests by handover", curves)
		p.Close()
	}
}

// divided is the share of requests that two engines served.
func (r *Report) divided() float64 { return share(int64(r.Divided), int64(r.Finished)) }

// The parts of a prompt.
var parts = []plot.Name{{Name: "cached", Colour: "#2f9e5b"}, {Name: "computed, though resident at another engine", Colour: "#d04437"}, {Name: "computed, resident nowhere", Colour: "#98a0ab"}}

// reuse draws what became of the prompts' tokens.
func (c *Cell) reuse(p *plot.Page) {
	var bars []plot.Bar
	for _, r := range c.all() {
		computed := 1 - r.HitRate
		lost := r.Regret * computed
		bar := plot.Bar{Label: fmt.Sprintf("%s: cached %.1f %%, captured %.3f, busiest engine %.2f times the mean", r.Policy, 100*r.HitRate, c.Captured(r), r.MaxMean)}
		for i, share := range []float64{r.HitRate, lost, computed - lost} {
			bar.Parts = append(bar.Parts, plot.Part{Colour: parts[i].Colour, Length: max(100*share, 0), Title: fmt.Sprintf("%s: %.1f %%", parts[i].Name, 100*share)})
		}
		bars = append(bars, bar)
	}
	p.Open("Reuse", parts)
	p.Bars("what became of the tokens of prompts", "%", bars)
	p.Close()
}

// most is the number of engines that have a line each.
const most = 4

// loads are a line for each engine; of many engines the least, the mean and the most.
func (r *Report) loads() (lines []plot.Series) {
	n := 0
	for i, e := range r.Engines {
		n = max(n, len(e.Loads))
		lines = append(lines, plot.Series{Name: strings.TrimSpace(fmt.Sprintf("engine %d %s", i+1, e.Role)), Colour: plot.Palette[i%len(plot.Palette)], Values: e.Loads})
	}
	if len(lines) <= most {
		return lines
	}
	least, mean, top := make([]float64, n), make([]float64, n), make([]float64, n)
	for at := range n {
		least[at] = math.Inf(1)
		for _, l := range lines {
			v := l.Values[at]
			least[at], top[at] = min(least[at], v), max(top[at], v)
			mean[at] += v / float64(len(lines))
		}
	}
	return []plot.Series{
		{Name: "the least of all engines", Colour: plot.Palette[2], Values: least}, {Name: "their mean", Colour: plot.Palette[0], Values: mean},
		{Name: "the most", Colour: plot.Palette[3], Values: top},
	}
}

// columns are those of a cell's table.
var columns = strings.Split("policy,ended,ttft p50,p90,p99,tpot p50,p99,goodput/s,cached,captured,regret,load,max/mean,meets", ",")

// table is the cell's figures as text, the first row the heads.
func (c *Cell) table() [][]string {
	heads := slices.Clone(columns[:len(columns)-1])
	judged := len(c.Runs) > 0 && len(c.Runs[0].Objectives) > 0
	var sides []Side
	if c.Fleet != "" {
		sides = c.all()[0].Sides
		heads = append(heads, "divided", "handover p50", "p99")
		for _, s := range sides {
			heads = append(heads, "load "+s.Role)
		}
	}
	if judged {
		heads = append(heads, columns[len(columns)-1])
	}
	rows := [][]string{heads}
	for _, r := range c.all() {
		row := []string{
			r.Policy, fmt.Sprintf("%d/%d", r.Finished, r.Requests), fmt.Sprintf("%.0f", r.TTFT.P50), fmt.Sprintf("%.0f", r.TTFT.P90), fmt.Sprintf("%.0f", r.TTFT.P99),
			fmt.Sprintf("%.1f", r.TPOT.P50), fmt.Sprintf("%.1f", r.TPOT.P99), fmt.Sprintf("%.2f", r.Goodput), fmt.Sprintf("%.1f %%", 100*r.HitRate),
			fmt.Sprintf("%.2f", c.Captured(r)), fmt.Sprintf("%.1f %%", 100*r.Regret), fmt.Sprintf("%.2f", r.Load), fmt.Sprintf("%.2f", r.MaxMean),
		}
		if c.Fleet != "" {
			row = append(row, fmt.Sprintf("%.0f %%", 100*r.divided()))
			if h := r.Handover; h != nil {
				row = append(row, fmt.Sprintf("%.0f", h.P50), fmt.Sprintf("%.0f", h.P99))
			} else {
				row = append(row, "-", "-")
			}
			for i := range sides {
				row = append(row, fmt.Sprintf("%.2f", r.Sides[i].Load))
			}
		}
		if judged {
			row = append(row, map[bool]string{true: "yes", false: "no"}[r.Meets()])
		}
		rows = append(rows, row)
	}
	return rows
}
