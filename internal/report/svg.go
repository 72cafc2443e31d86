package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// The size of a plot and its margins, in pixels.
const (
	plotWidth, plotHeight = 1040.0, 260.0
	plotLeft, plotRight   = 56.0, 16.0
	plotTop, plotBottom   = 28.0, 30.0
	innerWidth            = plotWidth - plotLeft - plotRight
	innerHeight           = plotHeight - plotTop - plotBottom
)

// series is a line over equal slices of time.
type series struct {
	name, colour string
	values       []float64
}

// open begins a plot with a title and a key of its lines.
func (p *page) open(height float64, title string, names, strokes []string) {
	p.put("<svg viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" aria-label=\"%s\">\n", plotWidth, height, plotWidth, height, title)
	p.put("<text x=\"%.0f\" y=\"18\">%s</text>\n", plotLeft, title)
	x := plotLeft + 200
	for i, name := range names {
		p.put("<rect x=\"%.0f\" y=\"9\" width=\"10\" height=\"10\" fill=\"%s\"></rect><text x=\"%.0f\" y=\"18\">%s</text>\n", x, strokes[i], x+15, name)
		x += 40 + 7*float64(len(name))
	}
}

// across writes a line across the plot at a height, with its label.
func (p *page) across(y float64, label string) {
	p.put("<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"></line><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
		plotLeft, plotWidth-plotRight, y, y, plotLeft-6, y+4, label)
}

// down writes a line down the plot, with its label.
func (p *page) down(x float64, label string) {
	p.put("<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"></line><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
		x, x, plotTop, plotHeight-plotBottom, x, plotHeight-plotBottom+16, label)
}

// polyline writes a line through points.
func (p *page) polyline(colour string, points []string) {
	p.put("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" points=\"%s\"></polyline>\n", colour, strings.Join(points, " "))
}

// lines plots values over a time in seconds.
func (p *page) lines(title string, length float64, all []series) {
	top := 0.0
	var names, strokes []string
	for _, s := range all {
		top = max(top, slices.Max(s.values))
		names, strokes = append(names, s.name), append(strokes, s.colour)
	}
	top = round(max(top, 1e-9))
	p.open(plotHeight, title, names, strokes)
	for i := range 5 {
		share := float64(i) / 4
		p.across(plotTop+innerHeight*(1-share), number(top*share))
		p.down(plotLeft+innerWidth*share, number(length*share)+" s")
	}
	for _, s := range all {
		points := make([]string, len(s.values))
		for i, v := range s.values {
			points[i] = fmt.Sprintf("%.1f,%.1f", plotLeft+innerWidth*(float64(i)+0.5)/float64(len(s.values)), plotTop+innerHeight*(1-v/top))
		}
		p.polyline(s.colour, points)
	}
	p.put("</svg>\n")
}

// distributions plots the share of values below each latency, on a logarithmic
// axis of latencies.
func (p *page) distributions(all []curve) {
	low, high := math.Inf(1), 0.0
	var names, strokes []string
	for i := range all {
		slices.Sort(all[i].values)
		if n := len(all[i].values); n > 0 {
			low, high = min(low, max(all[i].values[0], 1e-3)), max(high, all[i].values[n-1])
		}
		names, strokes = append(names, all[i].name), append(strokes, all[i].colour)
	}
	if high <= 0 {
		return
	}
	from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if to <= from {
		to = from + 1
	}
	x := func(ms float64) float64 { return plotLeft + innerWidth*(math.Log10(max(ms, low))-from)/(to-from) }
	p.open(plotHeight, "share of requests within", names, strokes)
	for i := range 5 {
		share := float64(i) / 4
		p.across(plotTop+innerHeight*(1-share), fmt.Sprintf("%.0f %%", 100*share))
	}
	for e := from; e <= to; e++ {
		p.down(x(math.Pow(10, e)), number(math.Pow(10, e))+" ms")
	}
	for _, c := range all {
		if len(c.values) == 0 {
			continue
		}
		// No more points than can be seen.
		steps := min(len(c.values), 400)
		points := make([]string, 0, steps+1)
		points = append(points, fmt.Sprintf("%.1f,%.1f", x(c.values[0]), plotTop+innerHeight))
		for i := 1; i <= steps; i++ {
			k := i*len(c.values)/steps - 1
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(c.values[k]), plotTop+innerHeight*(1-float64(k+1)/float64(len(c.values)))))
		}
		p.polyline(c.colour, points)
	}
	p.put("</svg>\n")
}

// part is a stretch of a bar, in milliseconds.
type part struct {
	colour string
	length float64
	title  string
}

// bar is a labelled bar of parts.
type bar struct {
	label string
	parts []part
}

// bars plots bars under one another, on one scale.
func (p *page) bars(all []bar) {
	const each = 40.0
	most := 1e-9
	for _, b := range all {
		sum := 0.0
		for _, x := range b.parts {
			sum += x.length
		}
		most = max(most, sum)
	}
	height := each*float64(len(all)) + 12
	p.put("<svg viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" aria-label=\"stages\">\n", plotWidth, height, plotWidth, height)
	for i, b := range all {
		y, x := each*float64(i), 12.0
		p.put("<text x=\"12\" y=\"%.0f\">%s</text>\n", y+16, b.label)
		for _, s := range b.parts {
			width := (plotWidth - 24) * s.length / most
			p.put("<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"16\" fill=\"%s\"><title>%s</title></rect>\n", x, y+22, width, s.colour, s.title)
			x += width
		}
	}
	p.put("</svg>\n")
}

// round gives the next round number.
func round(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, k := range []float64{1, 2, 4, 8, 10} {
		if k*unit >= v {
			return k * unit
		}
	}
	return v
}

// number writes a number with as many digits as an axis needs.
func number(v float64) string { return fmt.Sprintf("%.4g", v) }
