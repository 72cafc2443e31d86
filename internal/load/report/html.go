package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"weir/internal/load"
	"weir/internal/load/plot"
	"weir/internal/workload/latency"
)

// page is one that a report is written to.
type page struct{ *plot.Page }

// WriteHTML writes the report as one page that needs nothing else to open:
// no script, no file, no network.
func WriteHTML(w io.Writer, r *Report, rows []Row) error {
	p := &page{plot.New(w)}
	p.Begin("weir bench: " + r.URL)
	p.Put("<h1>weir bench %s</h1>\n", r.URL)
	p.run(r, rows)
	return p.End()
}

// run writes all that is known of one run.
func (p *page) run(r *Report, rows []Row) {
	p.summary(r)
	p.latencies(r, rows)
	p.overTime(rows)
	p.attribution(r)
	p.waterfall(rows)
}

// summary writes the verdict and the figures.
func (p *page) summary(r *Report) {
	p.Put("<p class=\"verdict %s\"><b>%s</b>", string(r.Verdict.Trust), string(r.Verdict.Trust))
	for _, why := range r.Verdict.Reasons {
		p.Put("<br/>%s", why)
	}
	p.Put("</p>\n<table class=\"facts\"><tbody>")
	row := func(name, format string, args ...any) {
		p.Put("<tr><td>%s</td><td>%s</td></tr>\n", name, fmt.Sprintf(format, args...))
	}
	row("started", "%s", r.Started.UTC().Format("2006-01-02 15:04:05 MST"))
	row("API, model", "%s, %s", r.API, r.Model)
	if r.Rate > 0 {
		row("load", "open loop, %g/s %s; %.2f/s realised, gap CV %.2f, dispersion %.2f", r.Rate, r.Arrival, r.Realised.Rate, r.Realised.CV, r.Realised.Dispersion)
	} else {
		row("load", "closed loop of %d", r.Concurrency)
	}
	row("requests", "%d in %.1f s: %d complete, %d corrupt, %d errored, %d abandoned, %d unfinished", r.Requests, r.Elapsed, r.Complete, r.Corrupt, r.Errored, r.Abandoned, r.Unfinished)
	row("throughput", "%.2f requests/s, %.1f tokens/s", r.RequestsPerSecond, r.TokensPerSecond)
	row("generator", "%.0f %% of %d cores, slip p99 %s ms, runnable p99 %.3f ms", 100*r.Generator.CPUShare, r.Generator.Cores, figure(r.Slip.P99), r.Generator.SchedP99)
	if r.Choices != nil {
		row("choices", "%s", r.Choices)
	}
	p.Put("</tbody></table>\n")
	if len(r.Errors) > 0 {
		p.Put("<h2>Errors</h2><table><thead><tr><th>kind</th><th>requests</th><th>example</th></tr></thead><tbody>")
		for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
			p.Put("<tr><td>%s</td><td>%d</td><td>%s</td></tr>\n", string(kind), r.Errors[kind], r.Examples[kind])
		}
		p.Put("</tbody></table>\n")
	}
	if len(r.Engines) > 0 {
		p.Put("<h2>Engines</h2><table><thead><tr><th>engine</th><th>requests</th><th>share</th><th>complete</th></tr></thead><tbody>")
		for _, e := range r.Engines {
			rate := "-"
			if e.SuccessRate != nil {
				rate = fmt.Sprintf("%.2f %%", 100**e.SuccessRate)
			}
			p.Put("<tr><td>%s</td><td>%d</td><td>%.1f %%</td><td>%s</td></tr>\n", e.Name, e.Requests, 100*e.Share, rate)
		}
		p.Put("</tbody></table>\n")
	}
}

// figure writes milliseconds; - is what is refused.
func figure(f latency.Figure) string {
	if f.Refused() {
		return "-"
	}
	return fmt.Sprintf("%.3f", float64(f))
}

// latencies writes the table and the distributions.
func (p *page) latencies(r *Report, rows []Row) {
	p.Put("<h2>Latencies, ms</h2>\n<div class=\"wide\"><table><thead><tr><th></th><th>count</th><th>mean</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>max</th></tr></thead><tbody>")
	for _, l := range []struct {
		name string
		j    latency.Judged
	}{{"time to first content", r.TTFT}, {"… from sent", r.TTFTSent}, {"time to first answer", r.TTFTAnswer}, {"per token after the first", r.TPOT},
		{"between events", r.ITL}, {"to the last byte", r.E2E}, {"… from sent", r.E2ESent}} {
		if l.j.Count > 0 {
			p.Put("<tr><td>%s</td><td>%d</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", l.name, l.j.Count,
				figure(l.j.Mean), figure(l.j.P50), figure(l.j.P90), figure(l.j.P99), figure(l.j.P999), figure(l.j.Max))
		}
		if within := l.j.Between(); within != "" {
			p.Put("<tr><td>… known to be</td><td colspan=\"7\">%s</td></tr>\n", within)
		}
	}
	p.Put("</tbody></table></div>\n")
	for _, l := range []struct {
		name string
		j    latency.Judged
	}{{"Latencies", r.TTFT}, {"Latencies", r.E2E}} {
		if why := l.j.Refused["all"]; why != "" {
			p.Put("<p class=\"note\">%s are refused: %s.</p>\n", l.name, why)
			break
		}
	}
	curves := []plot.Curve{{Name: "to first content", Colour: "#3b7dd8"}, {Name: "per token", Colour: "#d9920a"}, {Name: "to the last byte", Colour: "#2f9e5b"}}
	for i := range rows {
		row := &rows[i]
		if row.Outcome != load.Complete {
			continue
		}
		add := func(k int, ns int64, ok bool) {
			if ok {
				curves[k].Values = append(curves[k].Values, float64(ns)/1e6)
			}
		}
		if row.Streamed() {
			ns, ok := between(row.Intended, row.FirstContent)
			add(0, ns, ok)
		}
		ns, ok := row.TPOT()
		add(1, ns, ok)
		add(2, row.LastByte-row.Intended, true)
	}
	p.Distributions("share of requests within", curves)
	p.Tails("latency by percentile, ms", curves)
}

// overTime writes what came and went in each slice of time.
func (p *page) overTime(rows []Row) {
	if len(rows) == 0 {
		return
	}
	first, last := rows[0].Intended, rows[0].LastByte
	for i := range rows {
		first, last = min(first, rows[i].Intended), max(last, rows[i].LastByte)
	}
	if last <= first {
		return
	}
	// Slices in which there is something to count.
	slices := min(120, max(12, len(rows)/5))
	width := float64(last-first) / float64(slices)
	at := func(stamp int64) int { return min(slices-1, max(0, int(float64(stamp-first)/width))) }
	begun := plot.Series{Name: "begun", Colour: "#3b7dd8", Values: make([]float64, slices)}
	ended := plot.Series{Name: "complete", Colour: "#2f9e5b", Values: make([]float64, slices)}
	failed := plot.Series{Name: "failed", Colour: "#d04437", Values: make([]float64, slices)}
	flight := plot.Series{Name: "in flight", Colour: "#8a63c9", Values: make([]float64, slices)}
	per := 1e9 / width
	for i := range rows {
		r := &rows[i]
		begun.Values[at(r.Started)] += per
		switch r.Outcome {
		case load.Complete:
			ended.Values[at(r.LastByte)] += per
		case load.Corrupt, load.Errored:
			failed.Values[at(r.LastByte)] += per
		}
		for k := at(r.Started); k <= at(r.LastByte); k++ {
			low, high := first+int64(float64(k)*width), first+int64(float64(k+1)*width)
			flight.Values[k] += float64(max(0, min(high, r.LastByte)-max(low, r.Started))) / width
		}
	}
	p.Put("<h2>Over time</h2>\n")
	p.Lines("requests a second", float64(last-first)/1e9, []plot.Series{begun, ended, failed})
	p.Lines("requests in flight", float64(last-first)/1e9, []plot.Series{flight})
}

// colours are those of the stages, in their order.
var colours = map[string]string{
	StageClient: "#98a0ab", StageTransport: "#b9a27a", StageRead: "#c7b3d9", StageTemplate: "#b0483a", StageTokenWait: "#e0709a", StageTokenize: "#f0a35e", StageQueue: "#d04437", StageRetry: "#8f2d22", StageRouter: "#e58a4e",
	StageDispatch: "#d9c20a", StageIntake: "#a8b820", StageWaiting: "#8a63c9", StageBootstrap: "#b05ac0", StagePrefill: "#3b7dd8", StageTransfer: "#c98d1a", StageToRunning: "#6f8fc0", StageEngine: "#5a6fb0",
	StageOutput: "#4fb3c9", StagePath: "#1f8f86", StageDelivery: "#7fc4a0", StageDecode: "#2f9e5b", StageFlush: "#7a5c3e", StageEnd: "#667788",
}

// attribution writes the stages' shares of each band, and the sentences.
func (p *page) attribution(r *Report) {
	if len(r.Attribution) == 0 {
		return
	}
	p.Put("<h2>Where the time went</h2>\n")
	used := map[string]bool{}
	for _, metric := range []struct{ name, what string }{{"ttft", "to first content"}, {"e2e", "to the last byte"}} {
		var bars []plot.Bar
		for _, b := range r.Attribution {
			if b.Metric != metric.name {
				continue
			}
			one := plot.Bar{Label: fmt.Sprintf("p%g to p%g, mean %.1f ms", b.From, b.To, b.Mean)}
			for _, s := range b.Stages {
				used[s.Stage] = true
				one.Parts = append(one.Parts, plot.Part{Colour: colours[s.Stage], Length: s.Mean, Title: fmt.Sprintf("%s: %.2f ms, %.1f %%", s.Stage, s.Mean, 100*s.Share)})
			}
			bars = append(bars, one)
		}
		p.Bars("stages, "+metric.what, bars)
		for _, b := range r.Attribution {
			if b.Metric == metric.name {
				p.Put("<p>%s.</p>\n", b.Sentence)
			}
		}
	}
	p.key(used)
}

// key says which colour is which stage.
func (p *page) key(used map[string]bool) {
	p.Put("<p class=\"key\">")
	for _, s := range stageOrder {
		if used[s] {
			p.Put("<span><i style=\"background:%s\"></i>%s</span>", colours[s], s)
		}
	}
	p.Put("</p>\n")
}

// waterfall writes requests stage by stage: the fastest, those at the
// percentiles, the slowest.
func (p *page) waterfall(rows []Row) {
	var streams []*Row
	for i := range rows {
		if r := &rows[i]; r.Outcome == load.Complete && r.Streamed() && r.FirstContent != 0 {
			streams = append(streams, r)
		}
	}
	if len(streams) == 0 {
		return
	}
	slices.SortStableFunc(streams, func(a, b *Row) int {
		return int(min(1, max(-1, (a.FirstContent-a.Intended)-(b.FirstContent-b.Intended))))
	})
	p.Put("<h2>Chosen requests</h2>\n<p class=\"note\">In the order of their time to first content.</p>\n")
	used := map[string]bool{}
	var bars []plot.Bar
	for _, c := range []struct {
		share float64
		name  string
	}{{0, "fastest"}, {0.5, "p50"}, {0.9, "p90"}, {0.99, "p99"}, {1, "slowest"}} {
		r := streams[int(c.share*float64(len(streams)-1))]
		spans, _ := r.Spans()
		one := plot.Bar{Label: strings.TrimSpace(fmt.Sprintf("%s: %s %s", c.name, r.RequestID, r.Engine))}
		for _, s := range spans {
			used[s.Stage] = true
			one.Parts = append(one.Parts, plot.Part{Colour: colours[s.Stage], Length: float64(s.For) / 1e6, Title: fmt.Sprintf("%s: %.3f ms, from %.3f ms", s.Stage, float64(s.For)/1e6, float64(s.Start)/1e6)})
		}
		bars = append(bars, one)
	}
	p.Bars("stages of chosen requests", bars)
	p.key(used)
}
