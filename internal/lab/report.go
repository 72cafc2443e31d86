//go:build linux

package lab

import (
	"fmt"
	"io"
	"slices"
	"time"

	"weir/internal/lab/client"
	"weir/internal/lab/proc"
)

// Line is a result in one line.
func Line(r *client.Result) string {
	if r.Failed != "" {
		return fmt.Sprintf("%-9s %-20s not measured: %s", r.Load, r.Gateway, r.Failed)
	}
	s := fmt.Sprintf("%-9s %-20s %7.0f tok/s %5.1f%%  %6.2f CPU s/M  %5.2f tok/write  delay %.2f %.2f %.1f ms  %.0f MB  lost %d  errors %d",
		r.Load, r.Gateway, r.Delivered, 100*r.Share, r.CPUPerMega, r.PerWrite, r.P50, r.P99, r.Max, r.Resident, r.Lost, r.Broken())
	if r.Requests > 0 {
		s += fmt.Sprintf("  %.0f requests/s of %.0f us CPU", r.Requests, r.CPUPerRequest)
	}
	if r.ProbeAdded.Count > 0 {
		s += fmt.Sprintf("  first token added %.2f %.2f ms", r.ProbeAdded.P50, r.ProbeAdded.P99)
	}
	if r.Flooded > 0 {
		s += fmt.Sprintf("  flood %.0f requests/s", r.Flooded)
	}
	s += fmt.Sprintf("  (CPU s: gateway %.1f engine %.1f client %.1f others %.1f)", r.CPU, r.EngineCPU, r.ClientCPU, r.OtherCPU)
	if r.FirstError != "" {
		s += fmt.Sprintf("  first error: %.200s", r.FirstError)
	}
	return s
}

// Medians returns one result per load and gateway: the median of each figure over the
// repeats, and the sum of each count of failures.
func Medians(results []*client.Result) []*client.Result {
	var medians []*client.Result
	for i, r := range results {
		same := func(o *client.Result) bool { return o.Load == r.Load && o.Gateway == r.Gateway }
		if slices.IndexFunc(results, same) != i {
			continue
		}
		var of []*client.Result
		m := &client.Result{Load: r.Load, Gateway: r.Gateway}
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
			combine(m, of)
		}
		medians = append(medians, m)
	}
	return medians
}

// combine makes r of others.
func combine(r *client.Result, of []*client.Result) {
	for _, figure := range []func(*client.Result) *float64{
		func(r *client.Result) *float64 { return &r.Offered },
		func(r *client.Result) *float64 { return &r.Sent },
		func(r *client.Result) *float64 { return &r.Delivered },
		func(r *client.Result) *float64 { return &r.Share },
		func(r *client.Result) *float64 { return &r.CPU },
		func(r *client.Result) *float64 { return &r.CPUPerMega },
		func(r *client.Result) *float64 { return &r.Requests },
		func(r *client.Result) *float64 { return &r.CPUPerRequest },
		func(r *client.Result) *float64 { return &r.Flooded },
		func(r *client.Result) *float64 { return &r.EngineCPU },
		func(r *client.Result) *float64 { return &r.ClientCPU },
		func(r *client.Result) *float64 { return &r.OtherCPU },
		func(r *client.Result) *float64 { return &r.PerWrite },
		func(r *client.Result) *float64 { return &r.PerSyscall },
		func(r *client.Result) *float64 { return &r.PerEvent },
		func(r *client.Result) *float64 { return &r.P50 },
		func(r *client.Result) *float64 { return &r.P99 },
		func(r *client.Result) *float64 { return &r.Max },
		func(r *client.Result) *float64 { return &r.Resident },
		func(r *client.Result) *float64 { return &r.KBPerStream },
		func(r *client.Result) *float64 { return &r.ProbeFirst.P50 },
		func(r *client.Result) *float64 { return &r.ProbeFirst.P99 },
		func(r *client.Result) *float64 { return &r.ProbeFirst.Max },
		func(r *client.Result) *float64 { return &r.ProbeAdded.P50 },
		func(r *client.Result) *float64 { return &r.ProbeAdded.P99 },
		func(r *client.Result) *float64 { return &r.ProbeAdded.Max },
	} {
		*figure(r) = median(of, figure)
	}
	for _, o := range of {
		r.Received += o.Received
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
		r.ProbeAdded.Count += o.ProbeAdded.Count
		if r.FirstError == "" {
			r.FirstError = o.FirstError
		}
		if o.ProbeOwn != nil && r.ProbeOwn == nil {
			r.ProbeOwn = new(client.ProbeTimes)
		}
	}
	if r.ProbeOwn != nil {
		r.ProbeOwn.P99 = median(of, func(o *client.Result) *float64 { return &o.ProbeOwn.P99 })
		r.ProbeOwn.Max = median(of, func(o *client.Result) *float64 { return &o.ProbeOwn.Max })
		for _, o := range of {
			r.ProbeOwn.Count += o.ProbeOwn.Count
		}
	}
}

func median(of []*client.Result, figure func(*client.Result) *float64) float64 {
	values := make([]float64, len(of))
	for i, r := range of {
		values[i] = *figure(r)
	}
	return Median(values)
}

// PrintTables prints a table for each load, with ratios to nginx.
func PrintTables(w io.Writer, medians []*client.Result, repeats int, measure time.Duration) {
	seconds := measure.Seconds()
	fmt.Fprintf(w, "%s\n\nMedians of %d. In brackets: the ratio to nginx in the same run. CPU s/M: gateway's user + system seconds per million tokens delivered. others: CPU seconds per second of the window that the machine spent on anything else.\n", proc.Machine(), repeats)
	load := ""
	var base *client.Result
	for _, r := range medians {
		if r.Load != load {
			load, base = r.Load, nil
			if i := slices.IndexFunc(medians, func(o *client.Result) bool { return o.Load == load && o.Gateway == Nginx && o.Failed == "" }); i >= 0 {
				base = medians[i]
			}
			fmt.Fprintf(w, "\n### %s\n\n", load)
			fmt.Fprintln(w, "| gateway | offered tok/s | delivered tok/s | % | CPU s/M | tokens/write | delay p50 ms | p99 ms | max ms | resident MB | KB/stream | lost | ended by error % | others | requests/s | CPU us/request | new: first token p99, max ms | added p50, p99 ms |")
			fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
		}
		if r.Failed != "" {
			fmt.Fprintf(w, "| %s | not measured: %s |\n", r.Gateway, r.Failed)
			continue
		}
		against := func(figure func(*client.Result) float64) string {
			if base == nil || base == r || figure(base) == 0 {
				return ""
			}
			return fmt.Sprintf(" (%.2f)", figure(r)/figure(base))
		}
		offered := "no bound"
		if r.Offered > 0 {
			offered = fmt.Sprintf("%.0f", r.Offered)
		}
		probes, added := "", "–"
		if r.ProbeAdded.Count > 0 {
			added = fmt.Sprintf("%.2f%s, %.2f", r.ProbeAdded.P50, against(func(r *client.Result) float64 { return r.ProbeAdded.P50 }), r.ProbeAdded.P99)
		}
		if r.ProbeFirst.Count > 0 {
			probes = fmt.Sprintf("%.1f, %.1f", r.ProbeFirst.P99, r.ProbeFirst.Max)
		}
		if r.ProbeOwn != nil {
			probes += fmt.Sprintf("; output_path_delay %.1f, %.1f (%d)", r.ProbeOwn.P99, r.ProbeOwn.Max, r.ProbeOwn.Count)
		}
		requests, each := "–", "–"
		if r.Requests > 0 {
			requests, each = fmt.Sprintf("%.0f", r.Requests), fmt.Sprintf("%.0f%s", r.CPUPerRequest, against(func(r *client.Result) float64 { return r.CPUPerRequest }))
		}
		fmt.Fprintf(w, "| %s | %s | %.0f%s | %.1f | %.2f%s | %.2f | %.2f%s | %.2f%s | %.1f | %.0f | %.1f | %d | %.3f | %.2f | %s | %s | %s | %s |\n",
			r.Gateway, offered, r.Delivered, against(func(r *client.Result) float64 { return r.Delivered }), 100*r.Share,
			r.CPUPerMega, against(func(r *client.Result) float64 { return r.CPUPerMega }), r.PerWrite,
			r.P50, against(func(r *client.Result) float64 { return r.P50 }), r.P99, against(func(r *client.Result) float64 { return r.P99 }), r.Max,
			r.Resident, r.KBPerStream, r.Lost, 100*r.ErrorShare(), r.OtherCPU/seconds, requests, each, probes, added)
	}
	fmt.Fprintln(w)
}

// Alone is the load that the loads with a flood are compared with.
const Alone = "alone"

// PrintFloods prints for each gateway by how much a flood of other requests delays the streams
// that go on: the p99 of the delay beside the flood, as a multiple of the p99 without one.
func PrintFloods(w io.Writer, medians []*client.Result) {
	begun := false
	for _, r := range medians {
		alone := sameCell(medians, Alone, r.Gateway)
		if r.Flooded == 0 || r.Failed != "" || alone == nil || alone.P99 == 0 {
			continue
		}
		if !begun {
			begun = true
			fmt.Fprint(w, "### Beside floods\n\n| flood | gateway | requests/s | p99 ms | alone | ratio | nginx's ratio |\n|---|---|---|---|---|---|---|\n")
		}
		fmt.Fprintf(w, "| %s | %s | %.0f | %.2f | %.2f | %.2f | %s |\n", r.Load, r.Gateway, r.Flooded, r.P99, alone.P99, r.P99/alone.P99, nginxRatio(medians, r.Load))
	}
	if begun {
		fmt.Fprintln(w)
	}
}

// nginxRatio is by how much the same flood delays the streams of nginx.
func nginxRatio(medians []*client.Result, load string) string {
	alone, beside := sameCell(medians, Alone, Nginx), sameCell(medians, load, Nginx)
	if alone == nil || beside == nil || alone.P99 == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", beside.P99/alone.P99)
}

// PrintRanges prints a table for each load with the range of its figures over the
// repeats: the median, and in brackets the least and the most.
func PrintRanges(w io.Writer, results []*client.Result) {
	fmt.Fprintf(w, "%s\n", proc.Machine())
	load := ""
	for _, m := range Medians(results) {
		if m.Load != load {
			load = m.Load
			fmt.Fprintf(w, "\n### %s\n\n", load)
			fmt.Fprintln(w, "| gateway | runs | delivered tok/s | % | CPU s/M | requests/s | CPU us/request | tokens/write | p50 ms | p99 ms | first token p50 ms | p99 ms | KB/stream | resident MB | lost | wrong | ended by error | others |")
			fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
		}
		var of []*client.Result
		failed := ""
		for _, r := range results {
			switch {
			case r.Load != m.Load || r.Gateway != m.Gateway:
			case r.Failed != "":
				failed = r.Failed
			default:
				of = append(of, r)
			}
		}
		if len(of) == 0 {
			fmt.Fprintf(w, "| %s | 0 | not measured: %.200s |\n", m.Gateway, failed)
			continue
		}
		in := func(format string, figure func(*client.Result) float64) string {
			values := make([]float64, len(of))
			for i, r := range of {
				values[i] = figure(r)
			}
			slices.Sort(values)
			n := len(values)
			mid := fmt.Sprintf(format, (values[(n-1)/2]+values[n/2])/2)
			if n == 1 {
				return mid
			}
			return fmt.Sprintf("%s ("+format+" to "+format+")", mid, values[0], values[n-1])
		}
		fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | %s | %.2f | %s | %s | %s | %s | %s | %.0f | %d | %d | %d of %d | %s |\n", m.Gateway, len(of),
			in("%.0f", func(r *client.Result) float64 { return r.Delivered }), in("%.1f", func(r *client.Result) float64 { return 100 * r.Share }),
			in("%.2f", func(r *client.Result) float64 { return r.CPUPerMega }),
			in("%.0f", func(r *client.Result) float64 { return r.Requests }), in("%.0f", func(r *client.Result) float64 { return r.CPUPerRequest }), m.PerWrite,
			in("%.2f", func(r *client.Result) float64 { return r.P50 }), in("%.2f", func(r *client.Result) float64 { return r.P99 }),
			in("%.2f", func(r *client.Result) float64 { return r.ProbeAdded.P50 }), in("%.2f", func(r *client.Result) float64 { return r.ProbeAdded.P99 }),
			in("%.1f", func(r *client.Result) float64 { return r.KBPerStream }), m.Resident, m.Lost, m.Wrong, m.Broken(), m.Streams,
			in("%.1f", func(r *client.Result) float64 { return r.OtherCPU }))
	}
}
