package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// fine is the size of the square in which lines are drawn; it is stretched to the plot's
// size. Everything else is placed by shares of the plot, so that texts keep their size at
// each width.
const fine = 1000.0

// Series is a line over equal slices of time.
type Series struct {
	Name, Colour string
	Values       []float64
}

// percent writes a share of the plot's width or height.
func percent(share float64) string { return fmt.Sprintf("%.3f%%", 100*share) }

// spot writes a point of a line by its shares of the width and, from below, of the height.
func spot(x, y float64) string { return fmt.Sprintf("%.2f,%.2f", fine*x, fine*(1-y)) }

// open begins a plot.
func (p *Page) open(title string) {
	p.Put("<figure><figcaption>%s</figcaption><div class=\"plot\"><svg class=\"area\" role=\"img\" aria-label=\"%s\">\n", title, title)
}

// close ends a plot, with what its picture does not show.
func (p *Page) close(note string) {
	p.Put("</svg></div>")
	if note != "" {
		p.Put("<p class=\"note\">%s</p>", note)
	}
	p.Put("</figure>\n")
}

// up writes the axis of a plot's height. Labels are label's of ticks.
func (p *Page) up(a axis, label func(float64) string) {
	for _, t := range a.ticks {
		y := percent(1 - a.at(t))
		p.Put("<line class=\"axis\" x1=\"0\" x2=\"100%%\" y1=\"%s\" y2=\"%s\"></line><text class=\"up\" x=\"-6\" y=\"%s\" dy=\"4\" text-anchor=\"end\">%s</text>\n", y, y, y, label(t))
	}
}

// across writes the horizontal axis and its unit.
func (p *Page) across(a axis, unit string) {
	for _, t := range a.ticks {
		p.down(a.at(t), number(t))
	}
	p.unit(unit)
}

// down writes a line down the plot, with its label.
func (p *Page) down(at float64, label string) {
	x := percent(at)
	p.Put("<line class=\"axis\" x1=\"%s\" x2=\"%s\" y1=\"0\" y2=\"100%%\"></line><text class=\"across\" x=\"%s\" y=\"100%%\" dy=\"16\" text-anchor=\"middle\">%s</text>\n", x, x, x, label)
}

// unit writes the unit of the horizontal axis.
func (p *Page) unit(name string) {
	p.Put("<text class=\"unit\" x=\"100%%\" y=\"100%%\" dy=\"32\" text-anchor=\"end\">%s</text>\n", name)
}

// polyline writes a line through points.
func (p *Page) polyline(name, colour string, points []string) {
	p.Put("<svg viewBox=\"0 0 %.0f %.0f\" preserveAspectRatio=\"none\" width=\"100%%\" height=\"100%%\"><polyline fill=\"none\" stroke=\"%s\" points=\"%s\"><title>%s</title></polyline></svg>\n",
		fine, fine, colour, strings.Join(points, " "), name)
}

// Lines plots values over a time in seconds.
func (p *Page) Lines(title string, length float64, all []Series) {
	top := 0.0
	for _, s := range all {
		for _, v := range s.Values {
			top = max(top, v)
		}
	}
	if length <= 0 {
		return
	}
	height, width := linear(top), upTo(length)
	p.open(title)
	p.up(height, number)
	p.across(width, "s")
	for _, s := range all {
		points := make([]string, len(s.Values))
		for i, v := range s.Values {
			points[i] = spot((float64(i)+0.5)/float64(len(s.Values)), height.at(v))
		}
		p.polyline(s.Name, s.Colour, points)
	}
	p.close("")
}

// Curve is the distribution of a latency.
type Curve struct {
	Name, Colour string
	Values       []float64 // ms; Distributions puts them into their order
}

// widest is the range of latencies that a plot shows: a few of next to nothing
// would take its room from the others.
const widest = 3000

// latencies returns the axis for the values of some curves, which are sorted, and a note on
// values below it.
func latencies(all []Curve) (a axis, note string, ok bool) {
	high := 0.0
	for _, c := range all {
		if n := len(c.Values); n > 0 {
			high = max(high, c.Values[n-1])
		}
	}
	if high <= 0 {
		return axis{}, "", false
	}
	low, total := high, 0
	for _, c := range all {
		total += len(c.Values)
		for _, v := range c.Values {
			if v > 0 && v >= high/widest {
				low = min(low, v)
				break
			}
		}
	}
	a = logarithmic(low, high)
	under := 0
	for _, c := range all {
		under += hidden(a, c.Values)
	}
	if under > 0 {
		note = fmt.Sprintf("%s %% of the values are below %s ms, where the axis begins, and are not drawn.", number(100*float64(under)/float64(total)), number(a.from))
	}
	return a, note, true
}

// hidden is how many values lie below an axis.
func hidden(a axis, values []float64) int {
	at, _ := slices.BinarySearch(values, a.from*(1-slack))
	return at
}

// Distributions plots the share of values within each latency, on a logarithmic
// axis of latencies.
func (p *Page) Distributions(title string, all []Curve) {
	for i := range all {
		slices.Sort(all[i].Values)
	}
	a, note, ok := latencies(all)
	if !ok {
		return
	}
	p.open(title)
	p.up(axis{to: 1, ticks: []float64{0, 0.25, 0.5, 0.75, 1}}, func(v float64) string { return number(100*v) + " %" })
	p.across(a, "ms")
	for _, c := range all {
		n, from := len(c.Values), hidden(a, c.Values)
		if n == from {
			continue
		}
		// No more points than are visible. The line begins at the share of the values that
		// are not drawn.
		count := min(n-from, 400)
		points := make([]string, 0, count+1)
		points = append(points, spot(a.at(c.Values[from]), float64(from)/float64(n)))
		for i := 1; i <= count; i++ {
			k := from + i*(n-from)/count - 1
			points = append(points, spot(a.at(c.Values[k]), float64(k+1)/float64(n)))
		}
		p.polyline(c.Name, c.Colour, points)
	}
	p.close(note)
}

// Tails plots the latency of each percentile. On the axis each further nine has the same
// width, so that the slow ones are visible. Values are sorted.
func (p *Page) Tails(title string, all []Curve) {
	most := 0
	for _, c := range all {
		most = max(most, len(c.Values))
	}
	a, note, ok := latencies(all)
	if most < 2 || !ok {
		return
	}
	nines := math.Log10(float64(most))
	x := func(above float64) float64 { return -math.Log10(above) / nines }
	p.open(title)
	p.up(a, number)
	for _, t := range []struct {
		above float64
		name  string
	}{{1, "p0"}, {0.5, "p50"}, {0.1, "p90"}, {0.01, "p99"}, {0.001, "p99.9"}, {0.0001, "p99.99"}, {0.00001, "p99.999"}} {
		if x(t.above) <= 1+slack {
			p.down(x(t.above), t.name)
		}
	}
	p.unit("percentile")
	for _, c := range all {
		n, from := len(c.Values), hidden(a, c.Values)
		if n == from {
			continue
		}
		count := min(n, 300)
		points := make([]string, 0, count)
		last := -1
		for i := range count {
			// Evenly over the axis, to the slowest.
			k := min(n-1, int(float64(n)*(1-math.Pow(10, -float64(i)/float64(max(1, count-1))*math.Log10(float64(n))))+slack*float64(n)))
			if k == last || k < from {
				continue
			}
			last = k
			points = append(points, spot(x(float64(n-k)/float64(n)), a.at(c.Values[k])))
		}
		p.polyline(c.Name, c.Colour, points)
	}
	p.close(note)
}

// Scatter is a line through points.
type Scatter struct {
	Name, Colour string
	Points       []Spot
}

// Spot is a point and its interval; the ends are NaN if it has none.
type Spot struct {
	X, Y      float64
	Low, High float64
	Title     string
}

// interval reports whether it has one.
func (s *Spot) interval() bool { return !math.IsNaN(s.Low) && !math.IsNaN(s.High) }

// Spots plots points that no line joins, of things that were counted: from 0 on.
func (p *Page) Spots(title, unit string, all []Scatter) { p.scatter(title, unit, all, false) }

// Scatter plots lines through points, each with its interval.
func (p *Page) Scatter(title, unit string, all []Scatter) { p.scatter(title, unit, all, true) }

func (p *Page) scatter(title, unit string, all []Scatter, joined bool) {
	lowX, highX, lowY, highY := math.Inf(1), math.Inf(-1), math.Inf(1), 0.0
	whole := true
	for _, l := range all {
		for _, s := range l.Points {
			lowX, highX, lowY, highY = min(lowX, s.X), max(highX, s.X), min(lowY, s.Y), max(highY, s.Y)
			whole = whole && s.X == math.Trunc(s.X)
			if s.interval() {
				lowY, highY = min(lowY, s.Low), max(highY, s.High)
			}
		}
	}
	if highX < lowX {
		return
	}
	width, height := around(lowX, highX, whole), upwards(lowY, highY)
	if !joined {
		width = linear(highX)
	}
	p.open(title)
	p.up(height, number)
	p.across(width, unit)
	// No figure is below 0, and so no interval is either, though its estimate may be.
	down := func(v float64) string { return percent(1 - height.at(max(v, height.from))) }
	for _, l := range all {
		points := make([]string, len(l.Points))
		for i, s := range l.Points {
			points[i] = spot(width.at(s.X), height.at(s.Y))
			if x := percent(width.at(s.X)); s.interval() {
				p.Put("<line class=\"interval\" stroke=\"%s\" x1=\"%s\" x2=\"%s\" y1=\"%s\" y2=\"%s\"></line>\n", l.Colour, x, x, down(s.Low), down(s.High))
			}
		}
		if joined {
			p.polyline(l.Name, l.Colour, points)
		}
		for _, s := range l.Points {
			p.Put("<circle r=\"3.5\" fill=\"%s\" cx=\"%s\" cy=\"%s\"><title>%s</title></circle>\n", l.Colour, percent(width.at(s.X)), down(s.Y), s.Title)
		}
	}
	p.close("")
}

// Part is a stretch of a bar.
type Part struct {
	Colour string
	Length float64
	Title  string
}

// Bar is a labelled bar of parts.
type Bar struct {
	Label string
	Parts []Part
}

// Bars plots bars under one another, on one axis in a unit.
func (p *Page) Bars(title, unit string, all []Bar) {
	most := 0.0
	for _, b := range all {
		sum := 0.0
		for _, x := range b.Parts {
			sum += x.Length
		}
		most = max(most, sum)
	}
	if len(all) == 0 {
		return
	}
	a := linear(most)
	p.Put("<figure><figcaption>%s</figcaption><div class=\"bars\">\n", title)
	for _, b := range all {
		p.Put("<p>%s</p><svg class=\"bar\" role=\"img\" aria-label=\"%s\">", b.Label, b.Label)
		for _, t := range a.ticks {
			x := percent(a.at(t))
			p.Put("<line class=\"axis\" x1=\"%s\" x2=\"%s\" y1=\"0\" y2=\"100%%\"></line>", x, x)
		}
		x := 0.0
		for _, s := range b.Parts {
			p.Put("<rect x=\"%s\" y=\"3\" width=\"%s\" height=\"16\" fill=\"%s\"><title>%s</title></rect>\n", percent(a.at(x)), percent(a.at(s.Length)), s.Colour, s.Title)
			x += s.Length
		}
		p.Put("</svg>\n")
	}
	p.Put("<svg class=\"foot\" aria-hidden=\"true\">")
	for i, t := range a.ticks {
		label, anchor := number(t), "middle"
		switch i {
		case 0:
			anchor = "start"
		case len(a.ticks) - 1:
			label, anchor = label+" "+unit, "end"
		}
		p.Put("<text class=\"across\" x=\"%s\" y=\"13\" text-anchor=\"%s\">%s</text>", percent(a.at(t)), anchor, label)
	}
	p.Put("</svg></div></figure>\n")
}
