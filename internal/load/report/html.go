package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
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

// run writes everything about one run: the results first, and how they were measured last.
func (p *page) run(r *Report, rows []Row) {
	p.verdict(r)
	p.Note("%s", r.Heading())
	p.Tiles(headline(r))
	p.errors(r)
	p.latencies(r, rows)
	p.overTime(r, rows)
	p.stages(r.Attribution, rows)
	p.engines(r)
	p.facts(r)
}

// verdict writes whether the figures can be trusted.
func (p *page) verdict(r *Report) {
	p.Put("<p class=\"verdict %s\"><b>%s</b>", string(r.Verdict.Trust), string(r.Verdict.Trust))
	for _, why := range r.Verdict.Reasons {
		p.Put("<br/>%s", why)
	}
	p.Put("</p>\n")
}

// headline are the figures that most readers want, and for which many need no other.
func headline(r *Report) (all []plot.Tile) {
	if r.Requests == 0 {
		return nil
	}
	add := func(name, format string, args ...any) {
		all = append(all, plot.Tile{Value: fmt.Sprintf(format, args...), Name: name})
	}
	add("requests/s", "%.4g", r.RequestsPerSecond)
	add("tokens/s", "%.4g", r.TokensPerSecond)
	for _, l := range []struct {
		name string
		of   latency.Figure
	}{{"ttft p50, ms", r.TTFT.P50}, {"ttft p99, ms", r.TTFT.P99}, {"tpot p50, ms", r.TPOT.P50}, {"tpot p99, ms", r.TPOT.P99}, {"e2e p50, ms", r.E2E.P50}, {"e2e p99, ms", r.E2E.P99}} {
		if !l.of.Refused() {
			add(l.name, "%.4g", float64(l.of))
		}
	}
	add(fmt.Sprintf("complete of %d requests", r.Requests), "%d", r.Complete)
	if failed := r.Errored + r.Corrupt; failed > 0 {
		add("errored or corrupt", "%d", failed)
	}
	if r.Verified {
		add("tokens lost", "%d", r.Lost)
	}
	return all
}

// errors writes how requests failed.
func (p *page) errors(r *Report) {
	if len(r.Errors) == 0 {
		return
	}
	rows := [][]string{{"kind", "requests", "example"}}
	for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
		rows = append(rows, []string{string(kind), strconv.Itoa(r.Errors[kind]), r.Examples[kind]})
	}
	p.Put("<h2>Errors</h2>\n")
	p.Table(rows, 2)
}

// engines writes how the requests fell on them.
func (p *page) engines(r *Report) {
	if len(r.Engines) == 0 {
		return
	}
	rows := [][]string{{"engine", "requests", "share", "complete"}}
	for _, e := range r.Engines {
		rate := "-"
		if e.SuccessRate != nil {
			rate = fmt.Sprintf("%.2f %%", 100**e.SuccessRate)
		}
		rows = append(rows, []string{e.Name, strconv.Itoa(e.Requests), fmt.Sprintf("%.1f %%", 100*e.Share), rate})
	}
	p.Put("<h2>Engines</h2>\n")
	p.Table(rows, -1)
}

// facts writes the terminal's lines.
func (p *page) facts(r *Report) {
	rows := [][2]string{{"started", r.Started.UTC().Format("2006-01-02 15:04:05 MST")}}
	for _, f := range r.Facts() {
		if f.Name != "verdict" { // which is above all
			rows = append(rows, [2]string{f.Name, f.Text})
		}
	}
	if r.Choices != nil {
		rows = append(rows, [2]string{"choices", r.Choices.String()})
	}
	p.Put("<h2>How it was measured</h2>\n")
	p.Facts(rows)
}

// figure writes milliseconds, or - for a refused figure.
func figure(f latency.Figure) string {
	if f.Refused() {
		return "-"
	}
	return fmt.Sprintf("%.3f", float64(f))
}

// blue, green, red and violet are the colours of lines that stand for one thing each.
const (
	blue   = "#3b7dd8"
	green  = "#2f9e5b"
	red    = "#d04437"
	violet = "#8a63c9"
)

// latencies writes the table and the distributions, each with an axis of its own: a token
// takes milliseconds where a request takes seconds.
func (p *page) latencies(r *Report, rows []Row) {
	lines := r.Latencies()
	if len(lines) == 0 {
		return
	}
	p.Put("<h2>Latencies, ms</h2>\n")
	table := [][]string{{"", "count", "mean", "p50", "p90", "p99", "p99.9", "max"}}
	of := ""
	for _, l := range lines {
		cells := l.Cells()
		name, twin := strings.CutPrefix(l.Name, "  ")
		if twin {
			name = of + " " + name
		} else {
			of = name
		}
		table = append(table, append([]string{name}, cells[:]...))
		if l.Within != "" {
			table = append(table, []string{"known to be", l.Within})
		}
	}
	p.Table(table, -1)
	p.Note("ttft is the time to the first content, tpot the mean time per token after it, itl the gap between events with content, e2e the time to the last byte. ttft and e2e count from when a request was due; from sent, from when it was sent.")
	for _, l := range []latency.Judged{r.TTFT, r.E2E} {
		if why := l.Refused["all"]; why != "" {
			p.Note("Latencies are refused: %s.", why)
			break
		}
	}
	curves := []plot.Curve{{Name: "ttft", Colour: blue}, {Name: "tpot", Colour: blue}, {Name: "e2e", Colour: blue}}
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
	p.Grid(func() {
		for _, c := range curves {
			p.Distributions("share of requests by "+c.Name, []plot.Curve{c})
		}
		for _, c := range curves {
			p.Tails(c.Name+" by percentile, ms", []plot.Curve{c})
		}
	})
}

// overTime writes what came and went in each slice of time.
func (p *page) overTime(r *Report, rows []Row) {
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
	begun := plot.Series{Name: "begun", Colour: blue, Values: make([]float64, slices)}
	ended := plot.Series{Name: "complete", Colour: green, Values: make([]float64, slices)}
	failed := plot.Series{Name: "failed", Colour: red, Values: make([]float64, slices)}
	flight := plot.Series{Name: "in flight", Colour: violet, Values: make([]float64, slices)}
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
	length := float64(last-first) / 1e9
	p.Grid(func() {
		p.Lines("requests begun a second", length, []plot.Series{begun})
		p.Lines("requests complete a second", length, []plot.Series{ended})
		if r.Errored+r.Corrupt > 0 {
			p.Lines("requests failed a second", length, []plot.Series{failed})
		}
		p.Lines("requests in flight", length, []plot.Series{flight})
	})
	if r.Concurrency > 0 && spiked(begun.Values) {
		p.Note("A closed loop of %d begins a request when one ends. Requests that began together and are as long as one another end together, so that both come in bursts, one e2e apart. The load that the server has is that of the requests in flight.", r.Concurrency)
	}
}

// spiked reports whether values come in bursts, with next to nothing between them.
func spiked(values []float64) bool {
	sum, top := 0.0, 0.0
	for _, v := range values[1:] { // all begin at once
		sum, top = sum+v, max(top, v)
	}
	return top > 3*sum/float64(len(values))
}

// colours are those of the stages, in their order.
var colours = map[string]string{
	StageClient: "#98a0ab", StageTransport: "#b9a27a", StageRead: "#c7b3d9", StageTemplate: "#b0483a", StageTokenWait: "#e0709a", StageTokenize: "#f0a35e", StageQueue: "#d04437", StageRetry: "#8f2d22", StageRouter: "#e58a4e",
	StageDispatch: "#d9c20a", StageIntake: "#a8b820", StageWaiting: "#8a63c9", StageBootstrap: "#b05ac0", StagePrefill: "#3b7dd8", StageTransfer: "#c98d1a", StageToRunning: "#6f8fc0", StageEngine: "#5a6fb0",
	StageOutput: "#4fb3c9", StagePath: "#1f8f86", StageDelivery: "#7fc4a0", StageDecode: "#2f9e5b", StageFlush: "#7a5c3e", StageEnd: "#667788",
}

// seldom is the share of a bar below which a stage has no colour of its own, unless it has
// more of another one.
const seldom = 0.01

// elsewhere is the common name of the others.
const elsewhere = "all others"

// stages writes where the time went, by bands of requests and for single requests. One key
// serves both.
func (p *page) stages(bands []Band, rows []Row) {
	chosen := choose(rows)
	if len(bands)+len(chosen) == 0 {
		return
	}
	shown := map[string]bool{}
	for i := range bands {
		for _, s := range bands[i].Stages {
			shown[s.Stage] = shown[s.Stage] || s.Share >= seldom
		}
	}
	for _, c := range chosen {
		for _, s := range c.spans {
			shown[s.Stage] = shown[s.Stage] || float64(s.For) >= seldom*float64(c.row.LastByte-c.row.Intended)
		}
	}
	var names []plot.Name
	some := false
	for _, s := range stageOrder {
		if is, met := shown[s]; is {
			names = append(names, plot.Name{Name: s, Colour: colours[s]})
		} else if met {
			some = true
		}
	}
	colour := func(stage string) string {
		if shown[stage] {
			return colours[stage]
		}
		return other
	}
	if some {
		names = append(names, plot.Name{Name: elsewhere, Colour: other})
	}
	p.Open("Where the time went", names)
	p.bands(bands, colour)
	p.waterfall(chosen, colour)
	p.Close()
}

// other is the colour of a stage without its own.
const other = "#c4c9d0"

// bands writes the stages' shares of each band, and the sentences.
func (p *page) bands(all []Band, colour func(stage string) string) {
	for _, metric := range []string{"ttft", "e2e"} {
		var bars []plot.Bar
		var sentences []string
		for _, b := range all {
			if b.Metric != metric {
				continue
			}
			one := plot.Bar{Label: fmt.Sprintf("p%g to p%g, mean %.1f ms", b.From, b.To, b.Mean)}
			for _, s := range b.Stages {
				one.Parts = append(one.Parts, plot.Part{Colour: colour(s.Stage), Length: s.Mean, Title: fmt.Sprintf("%s: %.2f ms, %.1f %%", s.Stage, s.Mean, 100*s.Share)})
			}
			bars, sentences = append(bars, one), append(sentences, b.Sentence)
		}
		p.Bars("stages of "+metric, "ms", bars)
		for _, sentence := range sentences {
			p.Put("<p>%s.</p>\n", sentence)
		}
	}
}

// shownRow is a request that is shown stage by stage, and why it is.
type shownRow struct {
	why   string
	row   *Row
	spans []Span
}

// choose picks the requests that are: by their ttft the fastest, those at the percentiles,
// the slowest.
func choose(rows []Row) (all []shownRow) {
	var streams []*Row
	for i := range rows {
		if r := &rows[i]; r.Outcome == load.Complete && r.Streamed() && r.FirstContent != 0 {
			streams = append(streams, r)
		}
	}
	if len(streams) == 0 {
		return nil
	}
	slices.SortStableFunc(streams, func(a, b *Row) int { return cmp.Compare(a.FirstContent-a.Intended, b.FirstContent-b.Intended) })
	for _, c := range []struct {
		share float64
		name  string
	}{{0, "fastest"}, {0.5, "p50"}, {0.9, "p90"}, {0.99, "p99"}, {1, "slowest"}} {
		r := streams[int(c.share*float64(len(streams)-1))]
		spans, _ := r.Spans()
		all = append(all, shownRow{c.name, r, spans})
	}
	return all
}

// waterfall writes requests stage by stage.
func (p *page) waterfall(all []shownRow, colour func(stage string) string) {
	var bars []plot.Bar
	for _, c := range all {
		one := plot.Bar{Label: strings.TrimSpace(fmt.Sprintf("%s: %s %s", c.why, c.row.RequestID, c.row.Engine))}
		for _, s := range c.spans {
			one.Parts = append(one.Parts, plot.Part{Colour: colour(s.Stage), Length: float64(s.For) / 1e6, Title: fmt.Sprintf("%s: %.3f ms, from %.3f ms", s.Stage, float64(s.For)/1e6, float64(s.Start)/1e6)})
		}
		bars = append(bars, one)
	}
	p.Bars("stages of single requests, by their ttft", "ms", bars)
}
