package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"weir/internal/disk"
	"weir/internal/infer"
	"weir/internal/load"
	"weir/internal/load/plot"
	"weir/internal/workload/latency"
)

// Timeline is the content of a gateway's records. Its JSON form is one object.
type Timeline struct {
	Files    []string `json:"files"`
	Requests int      `json:"requests"`
	// Torn reports whether a file ended within a line, which a killed process leaves.
	Torn     bool           `json:"torn,omitempty"`
	Outcomes map[string]int `json:"outcomes"`
	// Codes are those of the errors, by how many requests ended so.
	Codes       map[string]int `json:"codes,omitempty"`
	Seconds     float64        `json:"seconds"` // from the first arrival to the last end
	TTFT        latency.Judged `json:"ttft_ms"`
	Total       latency.Judged `json:"total_ms"`
	Engines     []Engine       `json:"engines,omitempty"`
	Choices     *Choices       `json:"choices,omitempty"`
	Attribution []Band         `json:"attribution,omitempty"`
	// Live and Pending are the output delay by how much was going on.
	Live    []DelayBand `json:"output_delay_by_live,omitempty"`
	Pending []DelayBand `json:"output_delay_by_pending,omitempty"`
	// Slowest are the requests that took longest to their first output, and as a whole.
	Slowest []Slow `json:"slowest,omitempty"`
	// Stalls are the stalls of the gateway itself while requests were in flight, the
	// longest first.
	Stalls []Stalled `json:"stalls,omitempty"`
	// Disorder lists stamps that contradict each other, Empty those that engines did not
	// report.
	Disorder []Disorder `json:"disorder,omitempty"`
	Empty    []Empty    `json:"empty,omitempty"`

	rows   []Row
	delays []Delay
}

// DelayBand is the output delay of requests in a range of how much was going on.
type DelayBand struct {
	From     int     `json:"from"`
	To       int     `json:"to"`
	Requests int     `json:"requests"`
	Mean     float64 `json:"mean_ms"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
}

// Disorder is a stamp that lies before one that must come before it.
type Disorder struct {
	Stamp    string  `json:"stamp"`
	Before   string  `json:"before"` // the one that it should follow
	Requests int     `json:"requests"`
	Worst    float64 `json:"worst_ms"`
	Example  string  `json:"example"` // a request's id
}

// Empty are stamps that an engine gave for none of its requests.
type Empty struct {
	Engine   string   `json:"engine"`
	Kind     string   `json:"kind,omitempty"`
	Requests int      `json:"requests"`
	Stamps   []string `json:"stamps"`
	// Advice is how to get these stamps.
	Advice string `json:"advice"`
}

// ReadTimeline reports on the files of gateways' timelines together.
func ReadTimeline(names []string) (*Timeline, error) {
	t := &Timeline{Files: names}
	var records []*Record
	for _, name := range names {
		f, err := disk.Open(name)
		if err != nil {
			return nil, err
		}
		some, torn, err := readRecords(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		records, t.Torn = append(records, some...), t.Torn || torn
	}
	t.make(records)
	return t, nil
}

// make works out all that the records show.
func (t *Timeline) make(records []*Record) {
	t.Requests, t.Outcomes, t.Codes = len(records), map[string]int{}, map[string]int{}
	ttft, total := latency.New(24*time.Hour), latency.New(24*time.Hour)
	first, last := int64(math.MaxInt64), int64(0)
	all := make([]Row, len(records))
	for i, g := range records {
		all[i] = OfRecord(g)
		t.Outcomes[g.Outcome]++
		if g.Code != "" {
			t.Codes[g.Code]++
		}
		first, last = min(first, g.Arrival), max(last, g.Finished)
		if g.Outcome == infer.Finished.String() {
			total.Add(g.Finished - g.Arrival)
			if g.FirstFlushed != 0 && g.Stream {
				ttft.Add(g.FirstFlushed - g.Arrival)
			}
		}
		if d, ok := DelayOf(g); ok {
			t.delays = append(t.delays, d)
		}
	}
	t.Seconds = float64(max(last-first, 0)) / 1e9
	t.TTFT, t.Total = ttft.Judge(true), total.Judge(true)
	t.Engines = engines(all)
	t.Choices = choices(all, t.Engines)
	t.rows = streamedRows(records)
	t.Attribution = Attribute(t.rows)
	t.Live = delayBands(t.delays, func(d *Delay) int { return d.Live })
	t.Pending = delayBands(t.delays, func(d *Delay) int { return d.Pending })
	t.Slowest, t.Stalls = slowest(records), stalls(records)
	t.Disorder, t.Empty = disorder(records), empty(records)
}

// delayBands cuts requests into some bands of about as many each, by how much was going on.
func delayBands(delays []Delay, of func(*Delay) int) (bands []DelayBand) {
	const most, least = 8, 10
	all := slices.Clone(delays)
	slices.SortStableFunc(all, func(a, b Delay) int { return cmp.Compare(of(&a), of(&b)) })
	for from := 0; from < len(all); {
		to := min(len(all), from+max(least, (len(all)+most-1)/most))
		for to < len(all) && of(&all[to]) == of(&all[to-1]) { // a value is in one band
			to++
		}
		if len(all)-to < least {
			to = len(all)
		}
		b := DelayBand{From: of(&all[from]), To: of(&all[to-1]), Requests: to - from}
		values := make([]float64, 0, to-from)
		for _, d := range all[from:to] {
			values = append(values, d.Delay)
			b.Mean += d.Delay / float64(to-from)
		}
		slices.Sort(values)
		b.P50, b.P99 = values[len(values)/2], values[min(len(values)-1, len(values)*99/100)]
		bands = append(bands, b)
		from = to
	}
	return bands
}

// Slow is a request that took long, and why.
type Slow struct {
	RequestID string `json:"request_id"`
	Reason
}

// Stalled is a time in which the gateway stood still.
type Stalled struct {
	Why      string  `json:"why"`
	MS       float64 `json:"ms"`
	Requests int     `json:"requests"` // that lived through it

	start int64
}

// mostSlow is how many requests are named by each of the two measures, and mostStalls how
// many stalls.
const (
	mostSlow   = 3
	mostStalls = 8
)

// slowest finds the requests that took longest.
func slowest(records []*Record) (all []Slow) {
	named := map[*Record]bool{}
	for _, took := range [...]func(*Record) int64{
		func(g *Record) int64 {
			if g.FirstFlushed == 0 || !g.Stream {
				return 0
			}
			return g.FirstFlushed - g.Arrival
		},
		func(g *Record) int64 { return g.Finished - g.Arrival },
	} {
		sorted := slices.SortedFunc(slices.Values(records), func(a, b *Record) int { return cmp.Compare(took(b), took(a)) })
		for _, g := range sorted[:min(mostSlow, len(sorted))] {
			if took(g) > 0 && !named[g] {
				named[g] = true
				all = append(all, Slow{g.RequestID, ReasonOf(g)})
			}
		}
	}
	return all
}

// stalls finds the gateway's. Each is in the record of every request that lived through it.
func stalls(records []*Record) (all []Stalled) {
	at := map[int64]*Stalled{}
	for _, g := range records {
		for _, s := range g.Stalls {
			one := at[s.Start]
			if one == nil {
				one = &Stalled{start: s.Start}
				at[s.Start] = one
			}
			one.Why, one.MS = cmp.Or(one.Why, s.Why), max(one.MS, round(s.For))
			one.Requests++
		}
	}
	for _, s := range at {
		s.Why = cmp.Or(s.Why, unknownHolder)
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b Stalled) int { return cmp.Or(cmp.Compare(b.MS, a.MS), cmp.Compare(a.start, b.start)) })
	return all[:min(mostStalls, len(all))]
}

// stamp is one of a request's.
type stamp struct {
	name string
	of   func(*Record, *Leg) int64
	// engines reports whether it is the engine's stamp, whose clock may be off.
	engines bool
	// written reports whether it is when a write had returned: the other side may have read before.
	written bool
}

// order is that in which a request has its stamps.
var order = []stamp{
	{"arrival_time", func(g *Record, _ *Leg) int64 { return g.Arrival }, false, false},
	{"received_time", func(g *Record, _ *Leg) int64 { return g.Received }, false, false},
	{"parsed_time", func(g *Record, _ *Leg) int64 { return g.Parsed }, false, false},
	{"rendered_time", func(g *Record, _ *Leg) int64 { return g.Rendered }, false, false},
	{"tokenize_start_time", func(g *Record, _ *Leg) int64 { return g.TokenizeStart }, false, false},
	{"tokenize_end_time", func(g *Record, _ *Leg) int64 { return g.TokenizeEnd }, false, false},
	{"queued_time", func(g *Record, _ *Leg) int64 { return g.Queued }, false, false},
	{"routed_time", func(g *Record, _ *Leg) int64 { return g.Routed }, false, false},
	{"handed_time", func(_ *Record, l *Leg) int64 { return l.Handed }, false, false},
	{"to_server_time", func(_ *Record, l *Leg) int64 { return l.ToServer }, false, true},
	{"server_created_time", func(_ *Record, l *Leg) int64 { return l.ServerCreated }, true, false},
	{"queue_time_start", func(_ *Record, l *Leg) int64 { return l.QueueStart }, true, false},
	{"queue_time_end", func(_ *Record, l *Leg) int64 { return l.QueueEnd }, true, false},
	{"prefill_start_time", func(_ *Record, l *Leg) int64 { return l.PrefillStart }, true, false},
	{"prefill_end_time", func(_ *Record, l *Leg) int64 { return l.PrefillEnd }, true, false},
	{"server_first_token_time", func(_ *Record, l *Leg) int64 { return l.FirstToken }, true, false},
	{"first_output_time", func(_ *Record, l *Leg) int64 { return l.FirstOutput }, true, false},
	{"first_received_time", func(g *Record, _ *Leg) int64 { return g.FirstReceived }, false, false},
	{"first_sent_time", func(g *Record, _ *Leg) int64 { return g.FirstSent }, false, false},
	{"first_flushed_time", func(g *Record, _ *Leg) int64 { return g.FirstFlushed }, false, false},
	{"finish_time", func(g *Record, _ *Leg) int64 { return g.Finished }, false, false},
}

// slack is how much a stamp may precede the one that it follows. Engines' stamps in seconds
// since 1970 are accurate to half a microsecond, and a clock's offset is an estimate.
const slack = 1e6

// disorder finds stamps out of order, beyond the known uncertainty of their clocks.
func disorder(records []*Record) (all []Disorder) {
	type pair struct{ before, stamp int }
	found := map[pair]*Disorder{}
	for _, g := range records {
		leg := g.leg()
		if leg == nil {
			leg = new(Leg)
		}
		latest, at := -1, int64(0)
		for i := range order {
			v := order[i].of(g, leg)
			if v == 0 {
				continue
			}
			within := int64(slack)
			if latest >= 0 && order[i].engines != order[latest].engines {
				within += leg.Uncertain
			}
			if latest >= 0 && at-v > within {
				d := found[pair{latest, i}]
				if d == nil {
					d = &Disorder{Stamp: order[i].name, Before: order[latest].name}
					found[pair{latest, i}] = d
				}
				if d.Requests++; float64(at-v)/1e6 > d.Worst {
					d.Worst, d.Example = float64(at-v)/1e6, g.RequestID
				}
			}
			if v >= at && !order[i].written {
				latest, at = i, v
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(found), func(a, b pair) int { return cmp.Or(cmp.Compare(a.stamp, b.stamp), cmp.Compare(a.before, b.before)) })
	for _, k := range keys {
		all = append(all, *found[k])
	}
	return all
}

// advice returns what has an engine of a kind give its stamps.
func advice(kind string) string {
	switch kind {
	case "sglang":
		return "start SGLang with --enable-metrics; it has no stamps of the prefill's begin and of the first token"
	case "vllm-core":
		return "start vLLM without --disable-log-stats; vLLM gives none but those of queue, prefill and first output"
	case "sglang-ipc":
		return "there is no flag: this wire's stamps are not read; --engine sglang=URL with SGLang's --enable-metrics gives them"
	case "openai":
		return "there is no flag: an OpenAI API tells no stamps; --engine sglang=URL with SGLang's --enable-metrics, or vllm-core, gives them"
	case "weir":
		return "the engine's server leaves them out of its steps (Stamps of proto/weir/plane/v1/plane.proto)"
	}
	return "it is not known what the engine is: the record is of an older weir"
}

// empty finds the stamps that engines gave for none of the requests that they served.
func empty(records []*Record) (all []Empty) {
	type engine struct {
		kind     string
		requests int
		given    map[string]bool
	}
	byName := map[string]*engine{}
	for _, g := range records {
		leg := g.leg()
		if leg == nil || g.FirstReceived == 0 {
			continue
		}
		e := byName[leg.Engine]
		if e == nil {
			e = &engine{given: map[string]bool{}}
			byName[leg.Engine] = e
		}
		e.requests++
		e.kind = cmp.Or(leg.Kind, e.kind)
		for i := range order {
			if order[i].engines && order[i].of(g, leg) != 0 {
				e.given[order[i].name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		e := byName[name]
		one := Empty{Engine: name, Kind: e.kind, Requests: e.requests, Advice: advice(e.kind)}
		for i := range order {
			if order[i].engines && !e.given[order[i].name] {
				one.Stamps = append(one.Stamps, order[i].name)
			}
		}
		if len(one.Stamps) > 0 {
			all = append(all, one)
		}
	}
	return all
}

// JSON writes it as one object.
func (t *Timeline) JSON(w io.Writer) error { return load.WriteJSON(w, t) }

// counts returns how many there are of each.
func counts(of map[string]int) string {
	var parts []string
	for _, name := range slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) }) {
		parts = append(parts, fmt.Sprintf("%d %s", of[name], name))
	}
	return strings.Join(parts, ", ")
}

// Text writes it for a person.
func (t *Timeline) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "requests    %d in %.1f s: %s\n", t.Requests, t.Seconds, counts(t.Outcomes))
	if len(t.Codes) > 0 {
		fmt.Fprintf(&b, "errors      %s\n", counts(t.Codes))
	}
	if t.Torn {
		b.WriteString("            the last line is torn and left out\n")
	}
	for _, l := range []struct {
		name string
		of   *latency.Judged
	}{{"ttft, ms", &t.TTFT}, {"total, ms", &t.Total}} {
		if l.of.Count > 0 {
			fmt.Fprintf(&b, "%-11s mean %s, p50 %s, p90 %s, p99 %s, max %s\n", l.name, figure(l.of.Mean), figure(l.of.P50), figure(l.of.P90), figure(l.of.P99), figure(l.of.Max))
		}
	}
	for _, e := range t.Engines {
		fmt.Fprintf(&b, "engine      %s: %d requests, %.1f %%\n", e.Name, e.Requests, 100*e.Share)
	}
	if t.Choices != nil {
		fmt.Fprintf(&b, "choices     %s\n", t.Choices)
	}
	for _, band := range t.Attribution {
		fmt.Fprintf(&b, "%s\n", band.Sentence)
	}
	for _, s := range t.Slowest {
		fmt.Fprintf(&b, "slowest     %s: %s\n", s.RequestID, s.Sentence)
	}
	for _, s := range t.Stalls {
		fmt.Fprintf(&b, "stall       %.0f ms in which weir itself stood still, and %s with it, held by %s\n", s.MS, requests(s.Requests), s.Why)
	}
	for _, of := range []struct {
		what  string
		bands []DelayBand
	}{{"requests in flight", t.Live}, {"streams pending", t.Pending}} {
		if len(of.bands) < 2 {
			continue // it was always the same
		}
		fmt.Fprintf(&b, "output delay by %s\n", of.what)
		for _, d := range of.bands {
			fmt.Fprintf(&b, "  %6d to %6d: p50 %.3f ms, p99 %.3f ms, of %d\n", d.From, d.To, d.P50, d.P99, d.Requests)
		}
	}
	for _, d := range t.Disorder {
		fmt.Fprintf(&b, "disorder    %s is before %s in %d requests, by up to %.3f ms (%s)\n", d.Stamp, d.Before, d.Requests, d.Worst, d.Example)
	}
	for _, e := range t.Empty {
		fmt.Fprintf(&b, "no stamps   %s (%s) gave none of %s for %d requests: %s\n", e.Engine, cmp.Or(e.Kind, "kind unknown"), strings.Join(e.Stamps, ", "), e.Requests, e.Advice)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteHTML writes it as one page that needs nothing else to open.
func (t *Timeline) WriteHTML(w io.Writer) error {
	p := &page{plot.New(w)}
	p.Begin("weir report: " + strings.Join(t.Files, ", "))
	p.Put("<h1>%s</h1>\n", strings.Join(t.Files, ", "))
	p.Tiles(t.headline())
	facts := [][2]string{{"requests", fmt.Sprintf("%d in %.1f s: %s", t.Requests, t.Seconds, counts(t.Outcomes))}}
	add := func(name, format string, args ...any) {
		facts = append(facts, [2]string{name, fmt.Sprintf(format, args...)})
	}
	if len(t.Codes) > 0 {
		add("errors", "%s", counts(t.Codes))
	}
	for _, s := range t.Slowest {
		add("slowest", "%s: %s", s.RequestID, s.Sentence)
	}
	for _, s := range t.Stalls {
		add("stall", "%.0f ms in which weir itself stood still, and %s with it, held by %s", s.MS, requests(s.Requests), s.Why)
	}
	for _, d := range t.Disorder {
		add("disorder", "%s is before %s in %d requests, by up to %.3f ms (%s)", d.Stamp, d.Before, d.Requests, d.Worst, d.Example)
	}
	for _, e := range t.Empty {
		add("no stamps", "%s (%s) gave none of %s: %s", e.Engine, cmp.Or(e.Kind, "kind unknown"), strings.Join(e.Stamps, ", "), e.Advice)
	}
	p.Facts(facts)
	p.stages(t.Attribution, t.rows)
	p.delays(t.delays)
	return p.End()
}

// headline are the figures that are to be seen first.
func (t *Timeline) headline() (all []plot.Tile) {
	add := func(name, format string, args ...any) {
		all = append(all, plot.Tile{Value: fmt.Sprintf(format, args...), Name: name})
	}
	add("requests", "%d", t.Requests)
	for _, l := range []struct {
		name string
		of   latency.Figure
	}{{"ttft p50, ms", t.TTFT.P50}, {"ttft p99, ms", t.TTFT.P99}, {"total p50, ms", t.Total.P50}, {"total p99, ms", t.Total.P99}} {
		if !l.of.Refused() {
			add(l.name, "%.4g", float64(l.of))
		}
	}
	return all
}

// maxSpots bounds the points of a plot.
const maxSpots = 2000

// delays writes the output delay as a function of the load.
func (p *page) delays(delays []Delay) {
	if len(delays) < 2 {
		return
	}
	p.Put("<h2>Output delay</h2>\n")
	p.Grid(func() { p.delaySpots(delays) })
}

func (p *page) delaySpots(delays []Delay) {
	step := max(1, (len(delays)+maxSpots-1)/maxSpots)
	for _, of := range []struct {
		title, axis string
		of          func(*Delay) int
	}{{"output delay by requests in flight, ms", "requests in flight", func(d *Delay) int { return d.Live }},
		{"output delay by streams whose output waits, ms", "streams pending", func(d *Delay) int { return d.Pending }}} {
		var spots []plot.Spot
		for i := 0; i < len(delays); i += step {
			d := &delays[i]
			spots = append(spots, plot.Spot{X: float64(of.of(d)), Y: d.Delay, Low: math.NaN(), High: math.NaN(), Title: fmt.Sprintf("%s: %.3f ms", d.RequestID, d.Delay)})
		}
		p.Spots(of.title, of.axis, []plot.Scatter{{Name: "requests", Colour: blue, Points: spots}})
	}
}
