package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"

	"weir/internal/disk"
	"weir/internal/load"
	"weir/internal/workload/latency"
)

// Read reads the JSON of a report.
func Read(name string) (*Report, error) {
	data, err := disk.Read(name, disk.MaxReport)
	if err != nil {
		return nil, err
	}
	r := &Report{Report: &load.Report{}}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: not a report of weir bench --json: %w", name, err)
	}
	if r.Verdict.Trust == "" || r.API == "" {
		return nil, fmt.Errorf("%s: not a report of weir bench --json: it has no verdict or no api", name)
	}
	return r, nil
}

// Difference is one figure of two runs.
type Difference struct {
	Metric string `json:"metric"`
	Figure string `json:"figure"`
	// A and B are the figures, in milliseconds or per second, null where refused.
	A latency.Figure `json:"a"`
	B latency.Figure `json:"b"`
	// By is B less A, and CI95 the interval in which it lies with 95 % confidence,
	// as far as requests are independent; an end is null where it is not known.
	By   latency.Figure `json:"by"`
	CI95 latency.Range  `json:"ci95"`
	// Finding is the conclusion: "higher", "lower", "no difference shown", or "not known".
	Finding string `json:"finding"`
}

// Comparison compares two runs.
type Comparison struct {
	A, B string
	// Apart lists the settings that differ, which may explain any difference.
	Apart       []string     `json:"apart"`
	Differences []Difference `json:"differences"`
	Verdicts    [2]load.Trust
}

// Compare compares two reports, named for a person.
func Compare(a, b *Report, nameA, nameB string) *Comparison {
	c := &Comparison{A: nameA, B: nameB, Verdicts: [2]load.Trust{a.Verdict.Trust, b.Verdict.Trust}}
	c.Apart = unlike(append(asked(a, b), setting{"concurrency", a.Concurrency, b.Concurrency}, setting{"rate", a.Rate, b.Rate}, setting{"seed", a.Seed, b.Seed}))
	for _, m := range []struct {
		name string
		a, b latency.Judged
	}{
		{"ttft_ms", a.TTFT, b.TTFT}, {"ttft_sent_ms", a.TTFTSent, b.TTFTSent}, {"tpot_ms", a.TPOT, b.TPOT}, {"itl_ms", a.ITL, b.ITL}, {"e2e_ms", a.E2E, b.E2E},
	} {
		for _, f := range []struct {
			name string
			of   func(latency.Judged) latency.Figure
		}{
			{"mean", func(j latency.Judged) latency.Figure { return j.Mean }}, {"p50", func(j latency.Judged) latency.Figure { return j.P50 }},
			{"p90", func(j latency.Judged) latency.Figure { return j.P90 }}, {"p99", func(j latency.Judged) latency.Figure { return j.P99 }},
			{"p999", func(j latency.Judged) latency.Figure { return j.P999 }},
		} {
			if m.a.Count == 0 && m.b.Count == 0 {
				continue
			}
			d := difference(m.name, f.name, f.of(m.a), f.of(m.b), interval(m.a, f.name), interval(m.b, f.name))
			d.widen(rangeOf(m.a, f.name, d.A), rangeOf(m.b, f.name, d.B))
			c.Differences = append(c.Differences, d)
		}
	}
	unknown := latency.Range{nan, nan}
	for _, m := range []struct {
		name string
		a, b float64
	}{{"requests_per_second", a.RequestsPerSecond, b.RequestsPerSecond}, {"tokens_per_second", a.TokensPerSecond, b.TokensPerSecond}} {
		c.Differences = append(c.Differences, difference(m.name, "mean", latency.Figure(m.a), latency.Figure(m.b), unknown, unknown))
	}
	return c
}

// setting is a setting of two runs.
type setting struct {
	name string
	a, b any
}

// asked returns the settings of two runs, except rate and amount.
func asked(a, b *Report) []setting {
	return []setting{
		{"api", a.API, b.API}, {"model", a.Model, b.Model}, {"arrival", a.Arrival, b.Arrival}, {"burst_cv", a.CV, b.CV}, {"workload", a.Workload, b.Workload},
		{"input_tokens", a.InputTokens, b.InputTokens}, {"output_tokens", a.OutputTokens, b.OutputTokens}, {"stream", a.Stream, b.Stream},
	}
}

// unlike returns which settings differ.
func unlike(all []setting) []string {
	apart := []string{}
	for _, x := range all {
		if x.a != x.b {
			apart = append(apart, fmt.Sprintf("%s: %v and %v", x.name, x.a, x.b))
		}
	}
	return apart
}

var nan = latency.Figure(math.NaN())

// interval returns a figure's interval; both ends are unknown if it has none.
func interval(j latency.Judged, name string) latency.Range {
	if ci, ok := j.CI95[name]; ok {
		return ci
	}
	return latency.Range{nan, nan}
}

// rangeOf returns the bounds of a figure, or the figure itself if it has none.
func rangeOf(j latency.Judged, name string, f latency.Figure) latency.Range {
	if in, ok := j.Bounds[name]; ok {
		return in
	}
	return latency.Range{f, f}
}

// widen adds the uncertainty of the figures' bounds to the interval. It is not random and
// does not cancel.
func (d *Difference) widen(ofA, ofB latency.Range) {
	d.CI95[0] -= ofA[1] - d.A + d.B - ofB[0]
	d.CI95[1] += d.A - ofA[0] + ofB[1] - d.B
	d.Finding = finding(d.CI95, 0)
}

// difference compares two figures. Its interval is computed from theirs by the method of
// variance estimates recovery (Zou and Donner, Construction of confidence limits about
// effect measures, 2008), which does not require symmetric intervals.
func difference(metric, figure string, a, b latency.Figure, ofA, ofB latency.Range) Difference {
	by := b - a
	apart := func(x, y latency.Figure) latency.Figure { return latency.Figure(math.Hypot(float64(x), float64(y))) }
	d := Difference{Metric: metric, Figure: figure, A: a, B: b, By: by,
		CI95: latency.Range{by - apart(b-ofB[0], ofA[1]-a), by + apart(ofB[1]-b, a-ofA[0])}}
	d.Finding = finding(d.CI95, 0)
	return d
}

// The findings.
const (
	isHigher = "higher"
	isLower  = "lower"
	noneSeen = "no difference shown"
	notKnown = "not known"
)

// finding returns what an interval does of the value that is no difference.
func finding(ci latency.Range, none latency.Figure) string {
	switch {
	case ci[0] > none:
		return isHigher
	case ci[1] < none:
		return isLower
	case ci[0].Refused() || ci[1].Refused():
		return notKnown
	}
	return noneSeen
}

// JSON writes the comparison as one object.
func (c *Comparison) JSON(w io.Writer) error {
	return load.WriteJSON(w, map[string]any{"a": c.A, "b": c.B, "verdicts": c.Verdicts, "apart": c.Apart, "differences": c.Differences})
}

// Text writes the comparison for a person.
func (c *Comparison) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "A  %s (%s)\nB  %s (%s)\n", c.A, c.Verdicts[0], c.B, c.Verdicts[1])
	for _, x := range c.Apart {
		fmt.Fprintf(&b, "asked for otherwise: %s\n", x)
	}
	fmt.Fprintf(&b, "\n%-20s %-5s %12s %12s %12s  %-26s %s\n", "", "", "A", "B", "B - A", "95 % interval", "B is")
	for i := range c.Differences {
		if d := &c.Differences[i]; !d.A.Refused() || !d.B.Refused() {
			fmt.Fprintf(&b, "%-20s %-5s %s\n", d.Metric, d.Figure, d.text())
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text returns both figures and what lies between them, in columns.
func (d *Difference) text() string {
	return fmt.Sprintf("%12s %12s %12s  %-26s %s", figure(d.A), figure(d.B), figure(d.By), within(d.CI95), d.Finding)
}

// within writes an interval.
func within(ci latency.Range) string {
	if ci[0].Refused() && ci[1].Refused() {
		return "-"
	}
	return figure(ci[0]) + " to " + figure(ci[1])
}
