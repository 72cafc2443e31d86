package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// The size of a plot and its margins, in pixels.
const (
	plotWidth, plotHeight = 1040.0, 260.0
	plotLeft, plotRight   = 56.0, 30.0
	plotTop, plotBottom   = 10.0, 30.0
	innerWidth            = plotWidth - plotLeft - plotRight
	innerHeight           = plotHeight - plotTop - plotBottom
)

// Series is a line over equal slices of time.
type Series struct {
	Name, Colour string
	Values       []float64
}

// open begins a plot with a title and a key of its lines.
func (p *Page) open(height float64, title string, names, strokes []string) {
	p.Put("<figure><figcaption>%s</figcaption>", title)
	if len(names) > 0 {
		p.Put("<p class=\"key\">")
		for i, name := range names {
			p.Put("<span><i style=\"background:%s\"></i>%s</span>", strokes[i], name)
		}
		p.Put("</p>")
	}
	p.Put("<div class=\"plot\"><svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\">\n", plotWidth, height, title)
}

// close ends a plot.
func (p *Page) close() { p.Put("</svg></div></figure>\n") }

// across writes a line across the plot at a height, with its label.
func (p *Page) across(y float64, label string) {
	p.Put("<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"></line><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
		plotLeft, plotWidth-plotRight, y, y, plotLeft-6, y+4, label)
}

// down writes a line down the plot, with its label.
func (p *Page) down(x float64, label string) {
	p.Put("<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"></line><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
		x, x, plotTop, plotHeight-plotBottom, x, plotHeight-plotBottom+16, label)
}

// polyline writes a line through points.
func (p *Page) polyline(colour string, points []string) {
	p.Put("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" points=\"%s\"></polyline>\n", colour, strings.Join(points, " "))
}

// Lines plots values over a time in seconds.
func (p *Page) Lines(title string, length float64, all []Series) {
	top := 0.0
	var names, strokes []string
	for _, s := range all {
		for _, v := range s.Values {
			top = max(top, v)
		}
		names, strokes = append(names, s.Name), append(strokes, s.Colour)
	}
	top = round(max(top, 1e-9))
	p.open(plotHeight, title, names, strokes)
	for i := range 5 {
		share := float64(i) / 4
		p.across(plotTop+innerHeight*(1-share), number(top*share))
	}
	for _, t := range ticksTo(length) {
		p.down(plotLeft+innerWidth*t/length, number(t)+" s")
	}
	for _, s := range all {
		points := make([]string, len(s.Values))
		for i, v := range s.Values {
			points[i] = fmt.Sprintf("%.1f,%.1f", plotLeft+innerWidth*(float64(i)+0.5)/float64(len(s.Values)), plotTop+innerHeight*(1-v/top))
		}
		p.polyline(s.Colour, points)
	}
	p.close()
}

// Curve is the distribution of a latency.
type Curve struct {
	Name, Colour string
	Values       []float64 // ms; Distributions puts them into their order
}

// Distributions plots the share of values below each latency, on a logarithmic
// axis of latencies.
func (p *Page) Distributions(title string, all []Curve) {
	low, high := math.Inf(1), 0.0
	var names, strokes []string
	for i := range all {
		slices.Sort(all[i].Values)
		if n := len(all[i].Values); n > 0 {
			low, high = min(low, max(all[i].Values[0], 1e-3)), max(high, all[i].Values[n-1])
		}
		names, strokes = append(names, all[i].Name), append(strokes, all[i].Colour)
	}
	if high <= 0 {
		return
	}
	low = max(low, high/widest)
	axis := logarithmic(low, high)
	x := func(ms float64) float64 { return plotLeft + innerWidth*axis.at(max(ms, low)) }
	p.open(plotHeight, title, names, strokes)
	for i := range 5 {
		share := float64(i) / 4
		p.across(plotTop+innerHeight*(1-share), fmt.Sprintf("%.0f %%", 100*share))
	}
	for _, t := range axis.ticks {
		p.down(plotLeft+innerWidth*axis.at(t), number(t)+" ms")
	}
	for _, c := range all {
		if len(c.Values) == 0 {
			continue
		}
		// No more points than can be seen.
		steps := min(len(c.Values), 400)
		points := make([]string, 0, steps+1)
		points = append(points, fmt.Sprintf("%.1f,%.1f", x(c.Values[0]), plotTop+innerHeight))
		for i := 1; i <= steps; i++ {
			k := i*len(c.Values)/steps - 1
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(c.Values[k]), plotTop+innerHeight*(1-float64(k+1)/float64(len(c.Values)))))
		}
		p.polyline(c.Colour, points)
	}
	p.close()
}

// widest is the range of latencies that a plot shows: a few of next to nothing
// would take its room from the others.
const widest = 3000

// Tails plots the latency of each percentile, on an axis on which each nine has
// as much room as the one before it: there the slow ones can be seen. Values are in
// their order.
func (p *Page) Tails(title string, all []Curve) {
	low, high, most := math.Inf(1), 0.0, 0
	var names, strokes []string
	for _, c := range all {
		if n := len(c.Values); n > 0 {
			low, high, most = min(low, max(c.Values[0], 1e-3)), max(high, c.Values[n-1]), max(most, n)
		}
		names, strokes = append(names, c.Name), append(strokes, c.Colour)
	}
	if most < 2 {
		return
	}
	nines := math.Log10(float64(most))
	x := func(above float64) float64 { return plotLeft + innerWidth*min(1, -math.Log10(above)/nines) }
	low = max(low, high/widest)
	axis := logarithmic(low, high)
	y := func(ms float64) float64 { return plotTop + innerHeight*(1-axis.at(max(ms, low))) }
	p.open(plotHeight, title, names, strokes)
	for _, t := range axis.ticks {
		p.across(plotTop+innerHeight*(1-axis.at(t)), number(t))
	}
	for _, t := range []struct {
		above float64
		name  string
	}{{1, "0"}, {0.5, "p50"}, {0.1, "p90"}, {0.01, "p99"}, {0.001, "p99.9"}, {0.0001, "p99.99"}} {
		if -math.Log10(t.above) <= nines {
			p.down(x(t.above), t.name)
		}
	}
	for _, c := range all {
		n := len(c.Values)
		if n == 0 {
			continue
		}
		steps := min(n, 300)
		points := make([]string, 0, steps)
		last := -1
		for i := range steps {
			// Evenly over the axis.
			k := min(n-1, int(float64(n)*(1-math.Pow(10, -float64(i)/float64(max(1, steps-1))*math.Log10(float64(n))))))
			if k == last {
				continue
			}
			last = k
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(float64(n-k)/float64(n)), y(c.Values[k])))
		}
		p.polyline(c.Colour, points)
	}
	p.close()
}

// scale is an axis.
type scale struct {
	at    func(float64) float64 // where a value lies, from 0 to 1
	ticks []float64
}

// logarithmic gives an axis from below low to above high, with ticks that are
// few enough to be read.
func logarithmic(low, high float64) scale {
	steps := []float64{1, 2, 5, 10}
	round := func(v float64, up bool) float64 {
		unit := math.Pow(10, math.Floor(math.Log10(v)))
		best := unit
		for _, k := range steps {
			switch {
			case up && k*unit >= v*(1-1e-9):
				return k * unit
			case !up && k*unit <= v*(1+1e-9):
				best = k * unit
			}
		}
		return best
	}
	from, to := round(low, false), round(high, true)
	if to <= from {
		to = from * 10
	}
	s := scale{at: func(v float64) float64 { return math.Log(v/from) / math.Log(to/from) }}
	if math.Log10(to/from) > 2.5 {
		steps = []float64{1}
	}
	for unit := math.Pow(10, math.Floor(math.Log10(from))); unit <= to; unit *= 10 {
		for _, k := range steps {
			if v := k * unit; k < 10 && v >= from*(1-1e-9) && v <= to*(1+1e-9) {
				s.ticks = append(s.ticks, v)
			}
		}
	}
	return s
}

// ticksTo gives round numbers from 0 to a length, some five of them.
func ticksTo(length float64) (ticks []float64) {
	step := math.Pow(10, math.Floor(math.Log10(length/4)))
	for _, k := range []float64{5, 2} {
		if length/(k*step) >= 4 {
			step *= k
			break
		}
	}
	for i := 0; float64(i)*step <= length*(1+1e-9); i++ {
		ticks = append(ticks, float64(i)*step)
	}
	return ticks
}

// linear gives an axis from 0 to above high.
func linear(high float64) scale {
	top := round(max(high, 1e-9))
	s := scale{at: func(v float64) float64 { return v / top }}
	for i := range 5 {
		s.ticks = append(s.ticks, top*float64(i)/4)
	}
	return s
}

// spread gives an axis for values: logarithmic where they lie far apart.
func spread(low, high, far float64) scale {
	if low > 0 && high/low >= far {
		return logarithmic(low, high)
	}
	return linear(high)
}

// Scatter is a line through points.
type Scatter struct {
	Name, Colour string
	Points       []Spot
}

// Spot is a point and its interval, whose ends are NaN where it has none.
type Spot struct {
	X, Y      float64
	Low, High float64
	Title     string
}

// Spots plots points that no line joins.
func (p *Page) Spots(title, axis string, all []Scatter) { p.scatter(title, axis, all, false) }

// Scatter plots lines through points, each with its interval.
func (p *Page) Scatter(title, axis string, all []Scatter) { p.scatter(title, axis, all, true) }

func (p *Page) scatter(title, axis string, all []Scatter, joined bool) {
	lowX, highX, lowY, highY := math.Inf(1), 0.0, math.Inf(1), 0.0
	var names, strokes []string
	for _, l := range all {
		for _, s := range l.Points {
			lowX, highX, lowY, highY = min(lowX, s.X), max(highX, s.X), min(lowY, s.Y), max(highY, s.Y)
			if !math.IsNaN(s.High) {
				highY = max(highY, s.High)
			}
		}
		names, strokes = append(names, l.Name), append(strokes, l.Colour)
	}
	if highX == 0 {
		return
	}
	across, up := spread(lowX, highX, 8), spread(lowY, highY, 20)
	x := func(v float64) float64 { return plotLeft + innerWidth*across.at(v) }
	y := func(v float64) float64 { return plotTop + innerHeight*(1-min(1, max(0, up.at(max(v, 1e-12))))) }
	p.open(plotHeight, title, names, strokes)
	for _, t := range up.ticks {
		p.across(y(t), number(t))
	}
	for _, t := range across.ticks {
		p.down(x(t), number(t))
	}
	p.Put("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%s</text>\n", plotWidth-plotRight, plotHeight-2, axis)
	for _, l := range all {
		points := make([]string, len(l.Points))
		for i, s := range l.Points {
			points[i] = fmt.Sprintf("%.1f,%.1f", x(s.X), y(s.Y))
			if !math.IsNaN(s.Low) && !math.IsNaN(s.High) {
				p.Put("<line class=\"interval\" stroke=\"%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"></line>\n", l.Colour, x(s.X), x(s.X), y(s.Low), y(s.High))
			}
		}
		if joined {
			p.polyline(l.Colour, points)
		}
		for _, s := range l.Points {
			p.Put("<circle r=\"3.5\" fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\"><title>%s</title></circle>\n", l.Colour, x(s.X), y(s.Y), s.Title)
		}
	}
	p.close()
}

// Part is a stretch of a bar, in milliseconds.
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

// Bars plots bars under one another, on one scale.
func (p *Page) Bars(title string, all []Bar) {
	const each = 40.0
	most := 1e-9
	for _, b := range all {
		sum := 0.0
		for _, x := range b.Parts {
			sum += x.Length
		}
		most = max(most, sum)
	}
	height := each*float64(len(all)) + 12
	p.open(height, title, nil, nil)
	for i, b := range all {
		y, x := each*float64(i), 12.0
		p.Put("<text x=\"12\" y=\"%.0f\">%s</text>\n", y+16, b.Label)
		for _, s := range b.Parts {
			width := (plotWidth - 24) * s.Length / most
			p.Put("<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"16\" fill=\"%s\"><title>%s</title></rect>\n", x, y+22, width, s.Colour, s.Title)
			x += width
		}
	}
	p.close()
}

// round gives the next round number.
func round(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, k := range []float64{1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10} {
		if k*unit >= v {
			return k * unit
		}
	}
	return v
}

// number writes a number with as many digits as an axis needs.
func number(v float64) string { return fmt.Sprintf("%.4g", v) }
