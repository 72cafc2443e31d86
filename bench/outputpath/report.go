//go:build linux

package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// line is a result in one line.
func (r *Result) line() string {
	if r.Failed != "" {
		return fmt.Sprintf("%-9s %-20s not measured: %s", r.Load, r.Gateway, r.Failed)
	}
	s := fmt.Sprintf("%-9s %-20s %7.0f tok/s %5.1f%%  %6.2f CPU s/M  %5.2f tok/write  delay %.2f %.2f %.1f ms  %.0f MB  lost %d  errors %d",
		r.Load, r.Gateway, r.Delivered, 100*r.Share, r.CPUPerMega, r.PerWrite, r.P50, r.P99, r.Max, r.Resident, r.Lost, r.Errors+r.Cut+r.Unfinished)
	s += fmt.Sprintf("  (CPU s: gateway %.1f engine %.1f client %.1f others %.1f)", r.CPU, r.EngineCPU, r.ClientCPU, r.OtherCPU)
	if r.FirstError != "" {
		s += fmt.Sprintf("  first error: %.200s", r.FirstError)
	}
	return s
}

// mediansOf gives one result per load and gateway: of each figure the median
// over the repeats, of each count of what went wrong the sum.
func mediansOf(results []*Result) []*Result {
	var medians []*Result
	for i, r := range results {
		same := func(o *Result) bool { return o.Load == r.Load && o.Gateway == r.Gateway }
		if slices.IndexFunc(results, same) != i {
			continue
		}
		var of []*Result
		m := &Result{Load: r.Load, Gateway: r.Gateway}
		for _, o := range results {
			if !same(o) {
				continue
			}
			if o.Failed != "" {
				m.Failed = o.Failed
				continue
			}
			of = append(of, o)
		}
		if len(of) > 0 {
			m.combine(of)
		}
		medians = append(medians, m)
	}
	return medians
}

func (r *Result) combine(of []*Result) {
	for _, figure := range []func(*Result) *float64{
		func(r *Result) *float64 { return &r.Offered },
		func(r *Result) *float64 { return &r.Sent },
		func(r *Result) *float64 { return &r.Delivered },
		func(r *Result) *float64 { return &r.Share },
		func(r *Result) *float64 { return &r.CPU },
		func(r *Result) *float64 { return &r.CPUPerMega },
		func(r *Result) *float64 { return &r.EngineCPU },
		func(r *Result) *float64 { return &r.ClientCPU },
		func(r *Result) *float64 { return &r.OtherCPU },
		func(r *Result) *float64 { return &r.PerWrite },
		func(r *Result) *float64 { return &r.PerSyscall },
		func(r *Result) *float64 { return &r.PerEvent },
		func(r *Result) *float64 { return &r.P50 },
		func(r *Result) *float64 { return &r.P99 },
		func(r *Result) *float64 { return &r.Max },
		func(r *Result) *float64 { return &r.Resident },
		func(r *Result) *float64 { return &r.KBPerStream },
		func(r *Result) *float64 { return &r.ProbeFirst.P99 },
		func(r *Result) *float64 { return &r.ProbeFirst.Max },
	} {
		*figure(r) = median(of, figure)
	}
	for _, o := range of {
		r.Streams += o.Streams
		r.Complete += o.Complete
		r.Errors += o.Errors
		r.Cut += o.Cut
		r.Unfinished += o.Unfinished
		r.Lost += o.Lost
		r.LostStreams += o.LostStreams
		r.Wrong += o.Wrong
		r.Negative += o.Negative
		r.Unstamped += o.Unstamped
		r.ProbeFirst.Count += o.ProbeFirst.Count
		if r.FirstError == "" {
			r.FirstError = o.FirstError
		}
		if o.ProbeOwn != nil && r.ProbeOwn == nil {
			r.ProbeOwn = new(ProbeTimes)
		}
	}
	if r.ProbeOwn != nil {
		r.ProbeOwn.P99 = median(of, func(o *Result) *float64 { return &o.ProbeOwn.P99 })
		r.ProbeOwn.Max = median(of, func(o *Result) *float64 { return &o.ProbeOwn.Max })
		for _, o := range of {
			r.ProbeOwn.Count += o.ProbeOwn.Count
		}
	}
}

func median(of []*Result, figure func(*Result) *float64) float64 {
	values := make([]float64, len(of))
	for i, r := range of {
		values[i] = *figure(r)
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// printTables prints a table for each load, with ratios to nginx.
func printTables(w io.Writer, medians []*Result, repeats int, measure time.Duration) {
	seconds := measure.Seconds()
	fmt.Fprintf(w, "%s\n\nMedians of %d. In brackets: the ratio to nginx in the same run. CPU s/M: gateway's user + system seconds per million tokens delivered. others: CPU seconds per second of the window that the machine spent on anything else.\n", machine(), repeats)
	load := ""
	var base *Result
	for _, r := range medians {
		if r.Load != load {
			load, base = r.Load, nil
			if i := slices.IndexFunc(medians, func(o *Result) bool { return o.Load == load && o.Gateway == nameNginx && o.Failed == "" }); i >= 0 {
				base = medians[i]
			}
			fmt.Fprintf(w, "\n### %s\n\n", load)
			fmt.Fprintln(w, "| gateway | offered tok/s | delivered tok/s | % | CPU s/M | tokens/write | delay p50 ms | p99 ms | max ms | resident MB | KB/stream | lost | ended by error % | others | new: first token p99, max ms |")
			fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
		}
		if r.Failed != "" {
			fmt.Fprintf(w, "| %s | not measured: %s |\n", r.Gateway, r.Failed)
			continue
		}
		against := func(figure func(*Result) float64) string {
			if base == nil || base == r || figure(base) == 0 {
				return ""
			}
			return fmt.Sprintf(" (%.2f)", figure(r)/figure(base))
		}
		offered := "no bound"
		if r.Offered > 0 {
			offered = fmt.Sprintf("%.0f", r.Offered)
		}
		probes := ""
		if r.ProbeFirst.Count > 0 {
			probes = fmt.Sprintf("%.1f, %.1f", r.ProbeFirst.P99, r.ProbeFirst.Max)
		}
		if r.ProbeOwn != nil {
			probes += fmt.Sprintf("; output_path_delay %.1f, %.1f (%d)", r.ProbeOwn.P99, r.ProbeOwn.Max, r.ProbeOwn.Count)
		}
		fmt.Fprintf(w, "| %s | %s | %.0f%s | %.1f | %.2f%s | %.2f | %.2f%s | %.2f%s | %.1f | %.0f | %.1f | %d | %.3f | %.2f | %s |\n",
			r.Gateway, offered, r.Delivered, against(func(r *Result) float64 { return r.Delivered }), 100*r.Share,
			r.CPUPerMega, against(func(r *Result) float64 { return r.CPUPerMega }), r.PerWrite,
			r.P50, against(func(r *Result) float64 { return r.P50 }), r.P99, against(func(r *Result) float64 { return r.P99 }), r.Max,
			r.Resident, r.KBPerStream, r.Lost, 100*ratio(float64(r.Errors+r.Cut+r.Unfinished), float64(r.Streams)), r.OtherCPU/seconds, probes)
	}
	fmt.Fprintln(w)
}

// judge says what makes a run fail: a cell that could not be measured, a
// gateway that lost or confused a token, a clock that was set, and a control
// that did not fail, by which the benchmark would be blind.
func judge(results []*Result) []string {
	var problems []string
	controls := map[string]bool{} // seen, and whether it failed as it must
	overload := false
	for _, r := range results {
		if r.Failed != "" {
			problems = append(problems, fmt.Sprintf("%s, %s: not measured: %s", r.Load, r.Gateway, r.Failed))
			continue
		}
		if r.Negative > 0 {
			problems = append(problems, fmt.Sprintf("%s, %s: %d tokens arrived before they were sent: the clock was set", r.Load, r.Gateway, r.Negative))
		}
		switch r.Gateway {
		case nameLatest:
			controls[nameLatest] = controls[nameLatest] || r.Lost > 0
		case nameSingle:
			overload = overload || overloads(r.Load)
			controls[nameSingle] = controls[nameSingle] || r.worseThan(sameCell(results, r.Load, namePlane))
		}
		if r.Gateway != nameLatest && (r.Lost > 0 || r.Wrong > 0) {
			problems = append(problems, fmt.Sprintf("%s, %s: %d tokens lost in %d streams that ended as complete, %d repeated or out of order",
				r.Load, r.Gateway, r.Lost, r.LostStreams, r.Wrong))
		}
	}
	if failed, ran := controls[nameLatest]; ran && !failed {
		problems = append(problems, "the control latest-wins lost no token: the benchmark cannot see a loss")
	}
	if failed, ran := controls[nameSingle]; ran && overload && !failed {
		problems = append(problems, "the control one-write-per-token is no worse than weir's plane: the loads do not overload it")
	}
	return problems
}

// overloads says whether a load is more than can be written token by token on
// any machine that two cores make. The founding load is not: they have become
// faster.
func overloads(load string) bool { return load == "flat out" }

// sameCell finds another gateway's first result under a load.
func sameCell(results []*Result, load, gateway string) *Result {
	for _, r := range results {
		if r.Load == load && r.Gateway == gateway && r.Failed == "" {
			return r
		}
	}
	return nil
}

// worseThan says whether a control is clearly behind: it delivered less, or
// twice as late.
func (r *Result) worseThan(weir *Result) bool {
	return weir != nil && overloads(r.Load) && (r.Delivered < 0.97*weir.Delivered || r.P99 > 2*weir.P99)
}
