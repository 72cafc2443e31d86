package report

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"maps"
	"slices"
	"strings"

	"weir/internal/latency"
	"weir/internal/load"
)

// page writes HTML; its first error stays.
type page struct {
	w   *bufio.Writer
	err error
}

// put writes text with values in it; strings among them are escaped.
func (p *page) put(format string, args ...any) {
	if p.err != nil {
		return
	}
	for i, a := range args {
		switch v := a.(type) {
		case string:
			args[i] = html.EscapeString(v)
		case fmt.Stringer:
			args[i] = html.EscapeString(v.String())
		}
	}
	_, p.err = fmt.Fprintf(p.w, format, args...)
}

// style is the page's whole look: nothing is loaded from anywhere.
const style = `
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6470;--line:#d5d9e0;--back:#fff;--card:#f6f7f9}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#a3abb6;--line:#3a4048;--back:#15181c;--card:#1d2126}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:1080px;margin:2em auto;padding:0 1em}
h1{font-size:1.4em;overflow-wrap:anywhere}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600;white-space:nowrap}td:first-child,th:first-child,.text{text-align:left!important}
.points td{white-space:nowrap}td:last-child{overflow-wrap:anywhere}
.facts td{text-align:left}.wide,.plot{overflow-x:auto}
figure{margin:1em 0;background:var(--card);border-radius:6px;padding:.6em .8em}figcaption{font-weight:600}
svg{display:block;width:100%;min-width:620px;height:auto}
svg text{fill:var(--soft);font:12px system-ui,sans-serif}.axis{stroke:var(--line)}
.verdict{padding:.6em 1em;border-radius:6px;background:var(--card);border-left:6px solid}
.VALID{border-color:#2f9e5b}.DEGRADED{border-color:#d9920a}.INVALID{border-color:#d04437}
.key{margin:.2em 0}.key span{display:inline-block;margin-right:1.2em}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
details.run{border-top:1px solid var(--line);padding:.4em 0}summary{cursor:pointer}
p.note{color:var(--soft)}`

// begin writes the head of a page.
func (p *page) begin(title string) {
	p.put("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width\"/><title>weir bench: %s</title><style>", title)
	if p.err == nil {
		_, p.err = p.w.WriteString(style)
	}
	p.put("</style></head><body>\n")
}

// end writes its end.
func (p *page) end() error {
	p.put("</body></html>\n")
	if p.err != nil {
		return p.err
	}
	return p.w.Flush()
}

// WriteHTML writes the report as one page that needs nothing else to open:
// no script, no file, no network.
func WriteHTML(w io.Writer, r *Report, rows []Row) error {
	p := &page{w: bufio.NewWriter(w)}
	p.begin(r.URL)
	p.put("<h1>weir bench %s</h1>\n", r.URL)
	p.run(r, rows)
	return p.end()
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
	p.put("<p class=\"verdict %s\"><b>%s</b>", string(r.Verdict.Trust), string(r.Verdict.Trust))
	for _, why := range r.Verdict.Reasons {
		p.put("<br/>%s", why)
	}
	p.put("</p>\n<table class=\"facts\"><tbody>")
	row := func(name, format string, args ...any) {
		p.put("<tr><td>%s</td><td>%s</td></tr>\n", name, fmt.Sprintf(format, args...))
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
	p.put("</tbody></table>\n")
	if len(r.Errors) > 0 {
		p.put("<h2>Errors</h2><table><thead><tr><th>kind</th><th>requests</th><th>example</th></tr></thead><tbody>")
		for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
			p.put("<tr><td>%s</td><td>%d</td><td>%s</td></tr>\n", string(kind), r.Errors[kind], r.Examples[kind])
		}
		p.put("</tbody></table>\n")
	}
	if len(r.Engines) > 0 {
		p.put("<h2>Engines</h2><table><thead><tr><th>engine</th><th>requests</th><th>share</th><th>complete</th></tr></thead><tbody>")
		for _, e := range r.Engines {
			rate := "-"
			if e.SuccessRate != nil {
				rate = fmt.Sprintf("%.2f %%", 100**e.SuccessRate)
			}
			p.put("<tr><td>%s</td><td>%d</td><td>%.1f %%</td><td>%s</td></tr>\n", e.Name, e.Requests, 100*e.Share, rate)
		}
		p.put("</tbody></table>\n")
	}
}

// figure writes milliseconds; - is what is refused.
func figure(f latency.Figure) string {
	if f.Refused() {
		return "-"
	}
	return fmt.Sprintf("%.3f", float64(f))
}

// curve is the distribution of one latency.
type curve struct {
	name, colour string
	values       []float64 // ms, ascending
}

// latencies writes the table and the distributions.
func (p *page) latencies(r *Report, rows []Row) {
	p.put("<h2>Latencies, ms</h2>\n<div class=\"wide\"><table><thead><tr><th></th><th>count</th><th>mean</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>max</th></tr></thead><tbody>")
	for _, l := range []struct {
		name string
		j    latency.Judged
	}{{"time to first content", r.TTFT}, {"… from sent", r.TTFTSent}, {"time to first answer", r.TTFTAnswer}, {"per token after the first", r.TPOT},
		{"between events", r.ITL}, {"to the last byte", r.E2E}, {"… from sent", r.E2ESent}} {
		if l.j.Count > 0 {
			p.put("<tr><td>%s</td><td>%d</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", l.name, l.j.Count,
				figure(l.j.Mean), figure(l.j.P50), figure(l.j.P90), figure(l.j.P99), figure(l.j.P999), figure(l.j.Max))
		}
		if within := l.j.Between(); within != "" {
			p.put("<tr><td>… known to be</td><td colspan=\"7\">%s</td></tr>\n", within)
		}
	}
	p.put("</tbody></table></div>\n")
	for _, l := range []struct {
		name string
		j    latency.Judged
	}{{"Latencies", r.TTFT}, {"Latencies", r.E2E}} {
		if why := l.j.Refused["all"]; why != "" {
			p.put("<p class=\"note\">%s are refused: %s.</p>\n", l.name, why)
			break
		}
	}
	curves := []curve{{name: "to first content", colour: "#3b7dd8"}, {name: "per token", colour: "#d9920a"}, {name: "to the last byte", colour: "#2f9e5b"}}
	for i := range rows {
		row := &rows[i]
		if row.Outcome != load.Complete {
			continue
		}
		add := func(k int, ns int64, ok bool) {
			if ok {
				curves[k].values = append(curves[k].values, float64(ns)/1e6)
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
	p.distributions(curves)
	p.tails(curves)
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
	begun := series{name: "begun", colour: "#3b7dd8", values: make([]float64, slices)}
	ended := series{name: "complete", colour: "#2f9e5b", values: make([]float64, slices)}
	failed := series{name: "failed", colour: "#d04437", values: make([]float64, slices)}
	flight := series{name: "in flight", colour: "#8a63c9", values: make([]float64, slices)}
	per := 1e9 / width
	for i := range rows {
		r := &rows[i]
		begun.values[at(r.Started)] += per
		switch r.Outcome {
		case load.Complete:
			ended.values[at(r.LastByte)] += per
		case load.Corrupt, load.Errored:
			failed.values[at(r.LastByte)] += per
		}
		for k := at(r.Started); k <= at(r.LastByte); k++ {
			low, high := first+int64(float64(k)*width), first+int64(float64(k+1)*width)
			flight.values[k] += float64(max(0, min(high, r.LastByte)-max(low, r.Started))) / width
		}
	}
	p.put("<h2>Over time</h2>\n")
	p.lines("requests a second", float64(last-first)/1e9, []series{begun, ended, failed})
	p.lines("requests in flight", float64(last-first)/1e9, []series{flight})
}

// colours are those of the stages, in their order.
var colours = map[string]string{
	StageClient: "#98a0ab", StageTransport: "#b9a27a", StageTokenWait: "#e0709a", StageQueue: "#d04437", StageRetry: "#8f2d22", StageRouter: "#e58a4e",
	StageDispatch: "#d9c20a", StageIntake: "#a8b820", StageWaiting: "#8a63c9", StagePrefill: "#3b7dd8", StageEngine: "#5a6fb0",
	StageOutput: "#4fb3c9", StagePath: "#1f8f86", StageDelivery: "#7fc4a0", StageDecode: "#2f9e5b", StageEnd: "#667788",
}

// attribution writes the stages' shares of each band, and the sentences.
func (p *page) attribution(r *Report) {
	if len(r.Attribution) == 0 {
		return
	}
	p.put("<h2>Where the time went</h2>\n")
	used := map[string]bool{}
	for _, metric := range []struct{ name, what string }{{"ttft", "to first content"}, {"e2e", "to the last byte"}} {
		var bars []bar
		for _, b := range r.Attribution {
			if b.Metric != metric.name {
				continue
			}
			one := bar{label: fmt.Sprintf("p%g to p%g, mean %.1f ms", b.From, b.To, b.Mean)}
			for _, s := range b.Stages {
				used[s.Stage] = true
				one.parts = append(one.parts, part{colours[s.Stage], s.Mean, fmt.Sprintf("%s: %.2f ms, %.1f %%", s.Stage, s.Mean, 100*s.Share)})
			}
			bars = append(bars, one)
		}
		p.bars("stages, "+metric.what, bars)
		for _, b := range r.Attribution {
			if b.Metric == metric.name {
				p.put("<p>%s.</p>\n", b.Sentence)
			}
		}
	}
	p.key(used)
}

// colourKey says which colour is which name.
func (p *page) colourKey(colour map[string]string) {
	p.put("<p class=\"key\">")
	for _, name := range slices.Sorted(maps.Keys(colour)) {
		p.put("<span><i style=\"background:%s\"></i>%s</span>", colour[name], name)
	}
	p.put("</p>\n")
}

// key says which colour is which stage.
func (p *page) key(used map[string]bool) {
	p.put("<p class=\"key\">")
	for _, s := range stageOrder {
		if used[s] {
			p.put("<span><i style=\"background:%s\"></i>%s</span>", colours[s], s)
		}
	}
	p.put("</p>\n")
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
	p.put("<h2>Chosen requests</h2>\n<p class=\"note\">In the order of their time to first content.</p>\n")
	used := map[string]bool{}
	var bars []bar
	for _, c := range []struct {
		share float64
		name  string
	}{{0, "fastest"}, {0.5, "p50"}, {0.9, "p90"}, {0.99, "p99"}, {1, "slowest"}} {
		r := streams[int(c.share*float64(len(streams)-1))]
		spans, _ := r.Spans()
		one := bar{label: strings.TrimSpace(fmt.Sprintf("%s: %s %s", c.name, r.RequestID, r.Engine))}
		for _, s := range spans {
			used[s.Stage] = true
			one.parts = append(one.parts, part{colours[s.Stage], float64(s.For) / 1e6, fmt.Sprintf("%s: %.3f ms, from %.3f ms", s.Stage, float64(s.For)/1e6, float64(s.Start)/1e6)})
		}
		bars = append(bars, one)
	}
	p.bars("stages of chosen requests", bars)
	p.key(used)
}
