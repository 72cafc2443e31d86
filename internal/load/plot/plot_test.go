package plot

import (
	"bytes"
	"regexp"
	"strconv"
	"testing"
)

// A tick below the smallest value stands where it belongs on the axis, and not at that
// value: 10 ms are left of and below 16.8 ms.
func TestTicksStandWhereTheyBelong(t *testing.T) {
	values := []float64{16.8, 20, 40, 90, 160}
	tick := regexp.MustCompile(`x1="([0-9.]+)" x2="[0-9.]+" y1="([0-9.]+)" y2="[0-9.]+"></line><text [^>]*>10(?: ms)?</text>`)
	first := regexp.MustCompile(`<polyline[^>]* points="([0-9.]+),([0-9.]+)`)
	for name, draw := range map[string]func(*Page, string, []Curve){"distributions": (*Page).Distributions, "tails": (*Page).Tails} {
		var out bytes.Buffer
		p := New(&out)
		draw(p, name, []Curve{{Name: "a", Colour: "red", Values: values}})
		if err := p.Flush(); err != nil {
			t.Fatal(err)
		}
		at, begins := tick.FindSubmatch(out.Bytes()), first.FindSubmatch(out.Bytes())
		if at == nil || begins == nil {
			t.Fatalf("%s: no tick or no line:\n%s", name, out.Bytes())
		}
		number := func(b []byte) float64 {
			v, err := strconv.ParseFloat(string(b), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		// 16.8 is 0.22 of the decade above 10, and the axis is a decade and a third.
		const least = 30
		if name == "distributions" && number(begins[1])-number(at[1]) < least || name == "tails" && number(at[2])-number(begins[2]) < least {
			t.Errorf("%s: 10 ms at %s, %s; the first value at %s, %s", name, at[1], at[2], begins[1], begins[2])
		}
	}
}
