package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tick is a label as it stands in a picture: where, from the left or from below, and the
// value that it states.
type tick struct{ at, value float64 }

// picture is a plot as it was drawn.
type picture struct {
	across, up []tick
	rules      [2][]float64 // where the lines of the axes are
	lines      [][][2]float64
	circles    [][2]float64
	intervals  [][3]float64 // from the left, and both ends from below
	bars       [][][2]float64
	notes      string
}

// share reads a percentage.
func share(t *testing.T, s string) float64 {
	t.Helper()
	number, ok := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		t.Fatalf("%q is no number", s)
	}
	if !ok {
		return v
	}
	return v / 100
}

// states reads the number that a label begins with.
func states(t *testing.T, label string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(strings.TrimPrefix(strings.Fields(label)[0], "p"), 64)
	if err != nil {
		t.Fatalf("label %q states no number", label)
	}
	return v
}

// draw draws and reads what was drawn.
func draw(t *testing.T, how func(p *Page)) (all []picture) {
	t.Helper()
	var out bytes.Buffer
	p := New(&out)
	how(p)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(&out)
	var class, axis, at string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.CharData:
			if class == "note" {
				all[len(all)-1].notes += string(x)
			}
			if axis == "" {
				continue
			}
			pic := &all[len(all)-1]
			if axis == "up" {
				pic.up = append(pic.up, tick{1 - share(t, at), states(t, string(x))})
			} else {
				pic.across = append(pic.across, tick{share(t, at), states(t, string(x))})
			}
			axis = ""
		case xml.EndElement:
			class, axis = "", ""
		case xml.StartElement:
			a := map[string]string{}
			for _, attr := range x.Attr {
				a[attr.Name.Local] = attr.Value
			}
			class, axis = a["class"], ""
			if x.Name.Local == "figure" {
				all = append(all, picture{})
			}
			if len(all) == 0 {
				continue
			}
			pic := &all[len(all)-1]
			switch x.Name.Local {
			case "svg":
				if class == "bar" {
					pic.bars = append(pic.bars, nil)
				}
			case "text":
				if class == "across" {
					axis, at = class, a["x"]
				} else if class == "up" {
					axis, at = class, a["y"]
				}
			case "line":
				switch {
				case class == "interval":
					pic.intervals = append(pic.intervals, [3]float64{share(t, a["x1"]), 1 - share(t, a["y1"]), 1 - share(t, a["y2"])})
				case a["x1"] == a["x2"]:
					pic.rules[0] = append(pic.rules[0], share(t, a["x1"]))
				default:
					pic.rules[1] = append(pic.rules[1], 1-share(t, a["y1"]))
				}
			case "polyline":
				var line [][2]float64
				for _, point := range strings.Fields(a["points"]) {
					left, down, _ := strings.Cut(point, ",")
					line = append(line, [2]float64{share(t, left) / fine, 1 - share(t, down)/fine})
				}
				pic.lines = append(pic.lines, line)
			case "circle":
				pic.circles = append(pic.circles, [2]float64{share(t, a["cx"]), 1 - share(t, a["cy"])})
			case "rect":
				last := &pic.bars[len(pic.bars)-1]
				*last = append(*last, [2]float64{share(t, a["x"]), share(t, a["width"])})
			}
		}
	}
}

// near is how far a place may be off: what rounding takes.
const near = 3e-5

// trueAxis checks that labels are few enough to be read, are within the plot, stand at the
// lines that they label, and that their places are those of the values that they state: on
// one scale, which is linear or logarithmic. The scale is given.
func trueAxis(t *testing.T, ticks []tick, rules []float64) (value func(at float64) []float64) {
	t.Helper()
	if len(ticks) < 2 || len(ticks) > mostTicks+1 {
		t.Fatalf("%d labels: %v", len(ticks), ticks)
	}
	for i, k := range ticks {
		if k.at < -near || k.at > 1+near || i > 0 && (k.at <= ticks[i-1].at || k.value <= ticks[i-1].value) {
			t.Fatalf("label %v of %v", k, ticks)
		}
		if !slices.ContainsFunc(rules, func(at float64) bool { return math.Abs(at-k.at) < near }) {
			t.Fatalf("label %v at none of the lines %v", k, rules)
		}
	}
	first, last := ticks[0], ticks[len(ticks)-1]
	linear := func(at float64) float64 {
		return first.value + (at-first.at)/(last.at-first.at)*(last.value-first.value)
	}
	log := func(at float64) float64 {
		return first.value * math.Pow(last.value/first.value, (at-first.at)/(last.at-first.at))
	}
	fits := func(scale func(float64) float64) bool {
		for _, k := range ticks {
			if math.Abs(scale(k.at)-k.value) > 1e-3*math.Abs(k.value)+1e-3*math.Abs(last.value-first.value)/100 {
				return false
			}
		}
		return true
	}
	isLinear, isLog := fits(linear), first.value > 0 && fits(log)
	if !isLinear && !isLog {
		t.Fatalf("the labels are on no scale: %v", ticks)
	}
	return func(at float64) (all []float64) {
		if isLinear {
			all = append(all, linear(at))
		}
		if isLog {
			all = append(all, log(at))
		}
		return all
	}
}

// trueDatum checks that a value that was drawn at a place lies between the labels between
// which it belongs, and at the place of that value on their scale.
func trueDatum(t *testing.T, ticks []tick, scale func(float64) []float64, v, at float64) {
	t.Helper()
	if at < -near || at > 1+near {
		t.Fatalf("%v is drawn at %v, outside of the plot", v, at)
	}
	for _, k := range ticks {
		// A value so close to a label as rounding is is on either side.
		if v < k.value*(1-1e-3) && at > k.at+near || v > k.value*(1+1e-3) && at < k.at-near {
			t.Fatalf("%v is drawn at %v, and the label %v at %v", v, at, k.value, k.at)
		}
	}
	span := ticks[len(ticks)-1].value - ticks[0].value
	for _, got := range scale(at) {
		if math.Abs(got-v) <= 2e-3*math.Abs(v)+1e-4*span {
			return
		}
	}
	t.Fatalf("%v is drawn at %v, where the labels have it %v", v, at, scale(at))
}

// random returns values from a random magnitude over a random range, some of them the same,
// in their order.
func random(r *rand.Rand, n int) []float64 {
	from, decades := math.Pow(10, -3+9*r.Float64()), 4*r.Float64()*r.Float64()
	values := make([]float64, n)
	for i := range values {
		values[i] = from * math.Pow(10, decades*r.Float64())
		switch r.IntN(8) {
		case 0:
			values[i] = values[r.IntN(i+1)]
		case 1: // round, as labels are
			values[i] = times(1, int(math.Round(math.Log10(values[i]))))
		}
	}
	slices.Sort(values)
	return values
}

// drawn are the values that a logarithmic axis of some has room for.
func drawn(values []float64) int {
	n, _ := slices.BinarySearch(values, values[len(values)-1]/widest)
	return n
}

// The labels of each axis of a plot of latencies state where they stand, and each value is
// drawn where the labels have it.
func TestLatenciesStandWhereTheirAxesSay(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		values := random(r, 1+r.IntN(250))
		curves := func() []Curve { return []Curve{{Name: "a", Colour: "red", Values: slices.Clone(values)}} }
		n := len(values)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			pic := draw(t, func(p *Page) { p.Distributions("d", curves()) })[0]
			x, y := trueAxis(t, pic.across, pic.rules[0]), trueAxis(t, pic.up, pic.rules[1])
			line := pic.lines[0]
			from := n - (len(line) - 1)
			if from > drawn(values) {
				t.Fatalf("%d of %d values are not drawn", from, n)
			}
			if (from > 0) != (pic.notes != "") {
				t.Errorf("%d values are not drawn, and the note is %q", from, pic.notes)
			}
			for i, at := range line[1:] {
				trueDatum(t, pic.across, x, values[from+i], at[0])
				trueDatum(t, pic.up, y, 100*float64(from+i+1)/float64(n), at[1])
			}
			if n < 2 {
				return
			}
			pic = draw(t, func(p *Page) { p.Tails("t", curves()) })[0]
			y = trueAxis(t, pic.up, pic.rules[1])
			if last := pic.lines[0][len(pic.lines[0])-1]; math.Abs(last[0]-1) > near {
				t.Fatalf("the slowest is at %v", last)
			}
			for _, at := range pic.lines[0] {
				k := n - int(math.Round(float64(n)*math.Pow(10, -at[0]*math.Log10(float64(n)))))
				trueDatum(t, pic.up, y, values[k], at[1])
			}
			for _, k := range pic.across { // p99: a hundredth is above it
				if got := 1 - math.Pow(10, -k.at*math.Log10(float64(n))); math.Abs(got-k.value/100) > 1e-4 {
					t.Errorf("p%v is drawn at %v, where it is p%v", k.value, k.at, 100*got)
				}
			}
		})
	}
}

// Values that would take the room of all others are counted, and drawn nowhere.
func TestNextToNothing(t *testing.T) {
	values := []float64{0, 0.0001, 40, 50, 60, 70, 80, 1000}
	for _, pic := range draw(t, func(p *Page) {
		p.Distributions("d", []Curve{{Values: slices.Clone(values)}})
		p.Tails("t", []Curve{{Values: values}})
	}) {
		if len(pic.lines[0]) > 7 || !strings.HasPrefix(pic.notes, "25 % of the values are below 40 ms") {
			t.Errorf("%d points, note %q", len(pic.lines[0]), pic.notes)
		}
	}
}

// Points, their intervals and lines over time are drawn where the labels have them.
func TestFiguresStandWhereTheirAxesSay(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 2))
		n := 1 + r.IntN(8)
		xs, ys := random(r, n), random(r, n)
		if r.IntN(3) == 0 {
			for i := range xs {
				xs[i] = float64(1 + i*(1+r.IntN(3)))
			}
			slices.Sort(xs)
		}
		r.Shuffle(n, func(i, k int) { ys[i], ys[k] = ys[k], ys[i] })
		if r.IntN(10) == 0 {
			clear(ys)
		}
		spots := make([]Spot, n)
		for i := range spots {
			spots[i] = Spot{X: xs[i], Y: ys[i], Low: math.NaN(), High: math.NaN()}
			if r.IntN(2) == 0 {
				spots[i].Low, spots[i].High = ys[i]*r.Float64(), ys[i]*(1+r.Float64())
			}
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			pics := draw(t, func(p *Page) {
				p.Scatter("s", "load", []Scatter{{Name: "a", Points: spots}})
				p.Spots("s", "load", []Scatter{{Name: "a", Points: spots}})
				p.Lines("l", xs[n-1], []Series{{Name: "a", Values: ys}})
			})
			for k, pic := range pics {
				x, y := trueAxis(t, pic.across, pic.rules[0]), trueAxis(t, pic.up, pic.rules[1])
				if k == 2 {
					for i, at := range pic.lines[0] {
						trueDatum(t, pic.across, x, xs[n-1]*(float64(i)+0.5)/float64(n), at[0])
						trueDatum(t, pic.up, y, ys[i], at[1])
					}
					continue
				}
				intervals := pic.intervals
				for i, at := range pic.circles {
					trueDatum(t, pic.across, x, xs[i], at[0])
					trueDatum(t, pic.up, y, ys[i], at[1])
					if spots[i].interval() {
						trueDatum(t, pic.across, x, xs[i], intervals[0][0])
						trueDatum(t, pic.up, y, spots[i].Low, intervals[0][1])
						trueDatum(t, pic.up, y, spots[i].High, intervals[0][2])
						intervals = intervals[1:]
					}
				}
				if len(pic.circles) != n || len(intervals) != 0 {
					t.Fatalf("%d points of %d, %d intervals too many", len(pic.circles), n, len(intervals))
				}
			}
		})
	}
}

// The parts of bars follow one another, and are as long as their axis has it.
func TestBarsStandWhereTheirAxisSays(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		var bars []Bar
		for range 1 + r.IntN(5) {
			var b Bar
			for _, v := range random(r, 1+r.IntN(9)) {
				b.Parts = append(b.Parts, Part{Length: v})
			}
			bars = append(bars, b)
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			pic := draw(t, func(p *Page) { p.Bars("b", "ms", bars) })[0]
			// The lines are in each bar, the labels below all.
			x := trueAxis(t, pic.across, pic.rules[0])
			for i, b := range bars {
				sum := 0.0
				for k, part := range b.Parts {
					trueDatum(t, pic.across, x, sum, pic.bars[i][k][0])
					sum += part.Length
					trueDatum(t, pic.across, x, sum, pic.bars[i][k][0]+pic.bars[i][k][1])
				}
			}
		})
	}
}
