//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"

	"weir/internal/lab"
	"weir/internal/load"
)

// collected are the requests of a row.
type collected struct {
	mu  sync.Mutex
	all []request
}

type request struct {
	started int64
	ttft    int64   // 0: there was no token
	each    float64 // tokens of an event
	events  []int64 // arrival times
}

// add adds a request that has ended, or was broken off.
func (c *collected) add(s *load.Sample) {
	r := request{started: s.Started, events: slices.Clone(s.Chunks), each: 1}
	if s.FirstToken != 0 {
		r.ttft = s.FirstToken - s.Intended
	}
	if n := len(s.Chunks); n > 0 && s.Outcome == load.Complete {
		r.each = float64(s.Tokens) / float64(n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, r)
}

// within adds to a result the part of the requests that lies in a window.
func (c *collected) within(from, to int64, into *result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ttft []float64
	for _, r := range c.all {
		if r.started >= from && r.started < to {
			into.Requests++
			if r.ttft > 0 {
				ttft = append(ttft, float64(r.ttft)/1e6)
			}
		}
		for _, at := range r.events {
			if at >= from && at < to {
				into.Tokens += r.each
			}
		}
	}
	into.TTFT = lab.Median(ttft)
}

// of returns the values that f reads from a row's results, by repeat.
func of(results []*result, load, wire, row string, f func(*result) float64) (all []float64) {
	for _, r := range results {
		if r.Load == load && r.Wire == wire && r.Row == row {
			all = append(all, f(r))
		}
	}
	return all
}

// ratios divides the values of a row by those of the neighbouring windows of another row. A
// window without a value has no ratio.
func ratios(row, base []float64) (all []float64) {
	for i := range min(len(row), len(base)) {
		if row[i] > 0 && base[i] > 0 {
			all = append(all, row[i]/base[i])
		}
	}
	return all
}

// spread returns the median and, for several values, their range.
func spread(values []float64) string {
	switch len(values) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%.3f", values[0])
	}
	return fmt.Sprintf("%.3f (%.3f to %.3f)", lab.Median(values), slices.Min(values), slices.Max(values))
}

// print prints a table of each load.
func print(w io.Writer, results []*result) {
	for _, s := range specs() {
		var t *tabwriter.Writer
		for _, wire := range s.Wires {
			for _, row := range s.rows(wire) {
				if !slices.ContainsFunc(results, func(r *result) bool { return r.Load == s.Name && r.Wire == wire && r.Row == row }) {
					continue
				}
				if t == nil {
					fmt.Fprintf(w, "\n%s: prefill %v, transfer %v, a token each %v, prompts of %d, answers of %s; a ratio is the median of those of adjacent windows (and their range)\n", s.Name, s.Prefill, s.Transfer, s.Decode, s.Input, s.Output)
					t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
					fmt.Fprintln(t, "wire\t\ttokens/s\tratio\trequests/s\tCPU us a request\tratio\tCPU s/M tokens\tratio\tTTFT p50 ms\tat prefill\tat decode\tas weir counts\tmachine used\tothers, CPUs\tlost\tfailed\t")
				}
				m := func(f func(*result) float64) float64 { return lab.Median(of(results, s.Name, wire, row, f)) }
				base := s.Rows[0]
				if row == barePair || row == bareOne {
					base = bareOne
				}
				ratio := func(f func(*result) float64) string {
					if row == base {
						return ""
					}
					return spread(ratios(of(results, s.Name, wire, row, f), of(results, s.Name, wire, base, f)))
				}
				speed := func(r *result) float64 { return r.Tokens / r.seconds }
				cpu, beside := [2]string{}, [2]string{}
				if row != direct {
					cpu = [2]string{fmt.Sprintf("%.0f", m((*result).perRequest)), fmt.Sprintf("%.2f", m((*result).perToken))}
					beside = [2]string{ratio((*result).perRequest), ratio((*result).perToken)}
				}
				gauges := ""
				if row == pair || row == one {
					gauges = fmt.Sprintf("%.1f, %.0f", m(func(r *result) float64 { return r.Gauges[0] }), m(func(r *result) float64 { return r.Gauges[1] }))
				}
				lost, failed := 0, 0
				for _, r := range results {
					if r.Load == s.Name && r.Wire == wire && r.Row == row {
						lost, failed = lost+r.Lost, failed+r.Failed
					}
				}
				fmt.Fprintf(t, "%s\t%s\t%.0f\t%s\t%.0f\t%s\t%s\t%s\t%s\t%.1f\t%.1f\t%.0f\t%s\t%.0f%%\t%.2f\t%d\t%d\t\n", wire, row, m(speed), ratio(speed),
					m(func(r *result) float64 { return r.Requests / r.seconds }), cpu[0], beside[0], cpu[1], beside[1],
					m(func(r *result) float64 { return r.TTFT }), m(func(r *result) float64 { return r.Prefills }), m(func(r *result) float64 { return r.Decodes }),
					gauges, 100*m(func(r *result) float64 { return r.Used }), m(func(r *result) float64 { return r.Others }), lost, failed)
			}
		}
		if t != nil {
			_ = t.Flush() // there is nowhere left to report it
		}
	}
}

// judge returns what makes a run fail: a token that was lost, or a request that failed.
// Figures that depend on the machine do not.
func judge(results []*result) error {
	var problems []error
	for _, r := range results {
		if r.Lost > 0 || r.Failed > 0 || r.Left > 0 {
			problems = append(problems, fmt.Errorf("%s", r))
		}
	}
	return errors.Join(problems...)
}
