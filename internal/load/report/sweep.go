package report

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/disk"
	"weir/internal/load"
	"weir/internal/load/experiment"
	"weir/internal/load/slo"
	"weir/internal/workload/latency"
)

// Sweep is the report of several runs: of a sweep, of a search for a rate, or of
// an experiment. Its JSON form is one object.
type Sweep struct {
	Name string `json:"name"`
	// URL is the server's address. It is empty if each run had its own fleet, which Fleet
	// then describes.
	URL   string `json:"url,omitempty"`
	Fleet string `json:"fleet,omitempty"`
	// Fixed lists the settings of an experiment that do not vary.
	Fixed []string `json:"fixed,omitempty"`
	// SLO are the objectives of a search, as they were written.
	SLO     string              `json:"slo,omitempty"`
	Seed    uint64              `json:"seed"`
	Repeats int                 `json:"repeats"`
	Factors []experiment.Factor `json:"factors"`
	Started time.Time           `json:"started"`
	Elapsed float64             `json:"elapsed_seconds"`
	// Interrupted reports whether not all runs were carried out.
	Interrupted bool `json:"interrupted"`

	// Points are the cells of the grid, in its order, and of a search the rates, in
	// theirs.
	Points []SweepPoint `json:"points"`
	// Searches has one for each cell, where there are objectives.
	Searches []SweepSearch `json:"searches,omitempty"`
	// Drift lists figures that changed over time independently of the factors.
	Drift []string `json:"drift"`
	// Runs are all runs, in the order in which they were carried out.
	Runs []SweepRun `json:"runs"`
}

// SweepRun is one run of a sweep.
type SweepRun struct {
	// Series and At place it: the values of the factors, and the rate or the
	// concurrency.
	Series string  `json:"series"`
	At     float64 `json:"at"`
	Repeat int     `json:"repeat"`
	// After is when it began, in seconds since the sweep did.
	After float64 `json:"after_seconds"`
	// Decision belongs to a search: what the run revealed about its rate.
	Decision string  `json:"decision,omitempty"`
	Report   *Report `json:"report"`

	page []byte // of the run, in the sweep's page
}

// SweepPoint combines all runs of one load on one fleet.
type SweepPoint struct {
	Series string     `json:"series"`
	At     float64    `json:"at"`
	Runs   []int      `json:"runs"`    // by their places in Runs, from 0
	Trust  load.Trust `json:"verdict"` // the worst of its runs
	// Unstable reports whether in one of its runs at least more arrived than was
	// answered.
	Unstable bool     `json:"unstable"`
	Reasons  []string `json:"reasons"`
	// SuccessRate covers the requests of all runs that this client did not abandon or cut
	// short; null if there are none.
	SuccessRate *float64 `json:"success_rate"`
	Engines     []Engine `json:"engines,omitempty"`
	Choices     *Choices `json:"choices,omitempty"`
	// Figures are means over the runs, by name.
	Figures map[string]SweepFigure `json:"figures"`
}

// SweepFigure is a figure of a point: the mean over its runs and the 95 % interval. With
// one run it is the run's own interval, with several it follows Student's distribution
// between them. An unknown end is null.
type SweepFigure struct {
	Mean latency.Figure `json:"mean"`
	CI95 latency.Range  `json:"ci95"`
}

// SweepSearch is a search for the highest rate on one fleet.
type SweepSearch struct {
	Series string `json:"series"`
	slo.Result
	Sentence string `json:"sentence"`
}

// sweepFigure is a figure of a point: of a rate its mean alone, of a latency a
// percentile.
type sweepFigure struct{ metric, figure, head string }

// sweepFigures are in the order of the table.
var sweepFigures = []sweepFigure{
	{"requests_per_second", "mean", "req/s"}, {"tokens_per_second", "mean", "tokens/s"},
	{"ttft_ms", "p50", "ttft p50"}, {"ttft_ms", "p99", "p99"}, {"tpot_ms", "p50", "tpot p50"}, {"tpot_ms", "p99", "p99"},
	{"e2e_ms", "p50", "e2e p50"}, {"e2e_ms", "p99", "p99"},
}

// name is that in the JSON, such as ttft_p50_ms.
func (f sweepFigure) name() string {
	if latency, ok := strings.CutSuffix(f.metric, "_ms"); ok {
		return latency + "_" + f.figure + "_ms"
	}
	return f.metric
}

// of returns the figure of a run and its interval.
func (f sweepFigure) of(r *Report) (latency.Figure, latency.Range) {
	unknown := latency.Range{nan, nan}
	var j latency.Judged
	switch f.metric {
	case "requests_per_second":
		return latency.Figure(r.RequestsPerSecond), unknown
	case "tokens_per_second":
		return latency.Figure(r.TokensPerSecond), unknown
	case "ttft_ms":
		j = r.TTFT
	case "tpot_ms":
		j = r.TPOT
	case "e2e_ms":
		j = r.E2E
	}
	of := j.P99
	if f.figure == "p50" {
		of = j.P50
	}
	ci, in := interval(j, f.figure), rangeOf(j, f.figure, of)
	return of, latency.Range{ci[0] - (of - in[0]), ci[1] + (in[1] - of)}
}

// Add takes a run; rows are those of its page, if one will be written.
func (s *Sweep) Add(run SweepRun, rows []Row) error {
	if rows != nil {
		page, err := runPage(run.Report, rows)
		if err != nil {
			return err
		}
		run.page = page
	}
	s.Runs = append(s.Runs, run)
	return nil
}

// Settle computes the points, in the given order of series and loads. Points that are not
// in it come last, ordered by load.
func (s *Sweep) Settle(order []SweepPoint) {
	s.Points = slices.Clone(order)
	for i := range s.Runs {
		r := &s.Runs[i]
		at := slices.IndexFunc(s.Points, func(p SweepPoint) bool { return p.Series == r.Series && p.At == r.At })
		if at < 0 {
			s.Points = append(s.Points, SweepPoint{Series: r.Series, At: r.At})
			at = len(s.Points) - 1
		}
		s.Points[at].Runs = append(s.Points[at].Runs, i)
	}
	if len(order) == 0 {
		// Series in the order in which they were first run.
		first := map[string]int{}
		for i := range s.Runs {
			if _, ok := first[s.Runs[i].Series]; !ok {
				first[s.Runs[i].Series] = i
			}
		}
		slices.SortStableFunc(s.Points, func(a, b SweepPoint) int {
			return cmp.Or(cmp.Compare(first[a.Series], first[b.Series]), cmp.Compare(a.At, b.At))
		})
	}
	for i := range s.Points {
		s.settle(&s.Points[i])
	}
	s.Drift = s.drift()
}

// rank orders the verdicts.
var rank = map[load.Trust]int{load.Valid: 0, load.Degraded: 1, load.Invalid: 2}

// settle works out one point.
func (s *Sweep) settle(p *SweepPoint) {
	p.Trust, p.Reasons, p.Figures = load.Valid, []string{}, map[string]SweepFigure{}
	complete, judged := 0, 0
	var engines []Engine
	var chosen Choices
	for _, i := range p.Runs {
		r := s.Runs[i].Report
		if rank[r.Verdict.Trust] > rank[p.Trust] {
			p.Trust = r.Verdict.Trust
		}
		p.Unstable = p.Unstable || r.Unstable() != ""
		for _, why := range r.Verdict.Reasons {
			// If reasons differ only in their figures, the first one is kept.
			if !slices.ContainsFunc(p.Reasons, func(said string) bool { return wordsOf(said) == wordsOf(why) }) {
				p.Reasons = append(p.Reasons, why)
			}
		}
		complete += r.Complete
		judged += r.Requests - r.Abandoned - r.Unfinished
		for _, e := range r.Engines {
			engines = addEngine(engines, e)
		}
		if r.Choices != nil {
			chosen.add(r.Choices)
		}
	}
	if judged > 0 {
		rate := float64(complete) / float64(judged)
		p.SuccessRate = &rate
	}
	p.Engines = shareOut(engines)
	p.Choices = chosen.settled(p.Engines)
	for _, f := range sweepFigures {
		var values []float64
		alone := latency.Range{nan, nan}
		for _, i := range p.Runs {
			if v, ci := f.of(s.Runs[i].Report); !v.Refused() {
				values, alone = append(values, float64(v)), ci
			}
		}
		// A figure that some run refuses is that of the others, and no mean of all.
		if len(values) == 0 || len(values) < len(p.Runs) {
			p.Figures[f.name()] = SweepFigure{nan, latency.Range{nan, nan}}
			continue
		}
		p.Figures[f.name()] = meanOf(values, alone)
	}
}

// wordsOf is a reason without its figures.
func wordsOf(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r == '.' {
			return -1
		}
		return r
	}, text)
}

// addEngine adds an engine's counts to those of its name.
func addEngine(all []Engine, e Engine) []Engine {
	for i := range all {
		if all[i].Name == e.Name {
			all[i].Requests += e.Requests
			all[i].Complete += e.Complete
			all[i].Judged += e.Judged
			return all
		}
	}
	return append(all, e)
}

// Failed reports whether requests failed in some run, or that not all was run.
func (s *Sweep) Failed() bool {
	if s.Interrupted || len(s.Runs) == 0 {
		return true
	}
	if len(s.Searches) > 0 { // that requests fail at some rate is what it looks for
		return slices.ContainsFunc(s.Searches, func(x SweepSearch) bool { return x.Low == 0 })
	}
	return slices.ContainsFunc(s.Runs, func(r SweepRun) bool { return r.Report.Failed() })
}

// JSON writes the report as one object.
func (s *Sweep) JSON(w io.Writer) error { return load.WriteJSON(w, s) }

// axis names the loads of a sweep.
func (s *Sweep) axis() string {
	for _, f := range s.Factors {
		if f.Name == experiment.Concurrency {
			return "concurrency"
		}
	}
	return "rate"
}

// apart reports whether there are several series.
func (s *Sweep) apart() bool {
	return slices.ContainsFunc(s.Points, func(p SweepPoint) bool { return p.Series != s.Points[0].Series || p.Series != "" })
}

// judgement is a point's verdict in a word.
func (p *SweepPoint) judgement() string {
	switch {
	case len(p.Runs) == 0:
		return "not run"
	case p.Unstable:
		return "unstable"
	}
	return string(p.Trust)
}

// shares returns how the requests of a point fell on its engines.
func (p *SweepPoint) shares() string {
	var parts []string
	for _, e := range p.Engines {
		text := fmt.Sprintf("%s %.0f %%", e.Name, 100*e.Share)
		if e.SuccessRate != nil && *e.SuccessRate < 1 {
			text += fmt.Sprintf(" (%.2f %% ok)", 100**e.SuccessRate)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// ReadSweep reads the JSON of a report of several runs; it is nil, without an
// error, where the file holds something else.
func ReadSweep(name string) (*Sweep, error) {
	data, err := disk.Read(name, disk.MaxReport)
	if err != nil {
		return nil, err
	}
	var s Sweep
	if err := json.Unmarshal(data, &s); err != nil || s.Points == nil || s.Runs == nil {
		return nil, nil
	}
	for i := range s.Runs {
		if r := s.Runs[i].Report; r == nil || r.Report == nil {
			return nil, fmt.Errorf("%s: damaged: run %d has no report", name, i+1)
		}
	}
	for i := range s.Points {
		for _, run := range s.Points[i].Runs {
			if run < 0 || run >= len(s.Runs) {
				return nil, fmt.Errorf("%s: damaged: point %d names run %d of %d", name, i+1, run+1, len(s.Runs))
			}
		}
	}
	return &s, nil
}

// table returns the points as rows of text; the first row holds the heads. The columns of
// varied distinguish the series; of returns their cells for a series.
func (s *Sweep) table(varied []string, of func(series string) []string) [][]string {
	head := append(slices.Clone(varied), s.axis(), "runs", "verdict")
	for _, f := range sweepFigures {
		head = append(head, f.head)
	}
	head = append(head, "ok %")
	chosen := slices.ContainsFunc(s.Points, func(p SweepPoint) bool { return p.Choices != nil })
	if chosen {
		head = append(head, choiceHead...)
	}
	rows := [][]string{append(head, "engines")}
	for i := range s.Points {
		p := &s.Points[i]
		var row []string
		if len(varied) > 0 {
			row = append(row, of(p.Series)...)
		}
		at := "-"
		if p.At > 0 {
			at = slo.Round(p.At)
		}
		row = append(row, at, strconv.Itoa(len(p.Runs)), p.judgement())
		for _, f := range sweepFigures {
			row = append(row, short(p.Figures[f.name()].Mean, len(p.Runs) > 0))
		}
		ok := "-"
		if p.SuccessRate != nil {
			ok = fmt.Sprintf("%.2f", 100**p.SuccessRate)
		}
		row = append(row, ok)
		if chosen {
			row = append(row, p.Choices.cells()...)
		}
		rows = append(rows, append(row, cmp.Or(p.shares(), "-")))
	}
	return rows
}

// series returns the column of a table that distinguishes the series by name, if there are
// several.
func (s *Sweep) series() (varied []string, of func(series string) []string) {
	if !s.apart() {
		return nil, nil
	}
	return []string{"fleet and load"}, func(series string) []string { return []string{cmp.Or(series, "-")} }
}

// factors are a column for each factor but the load, with its value in a series; where the
// series do not say so, the column of series.
func (s *Sweep) factors() (varied []string, of func(series string) []string) {
	values := map[string][]string{}
	for _, cell := range experiment.Grid(s.Factors) {
		var named, of []string
		for i, f := range s.Factors {
			if f.Name != experiment.Rate && f.Name != experiment.Concurrency {
				named, of = append(named, f.Name+"="+f.Values[cell[i]]), append(of, f.Values[cell[i]])
			}
		}
		values[strings.Join(named, " ")] = of
	}
	for i := range s.Points {
		if len(values[s.Points[i].Series]) == 0 {
			return s.series()
		}
	}
	for _, f := range s.Factors {
		if f.Name != experiment.Rate && f.Name != experiment.Concurrency {
			varied = append(varied, f.Name)
		}
	}
	return varied, func(series string) []string { return values[series] }
}

// short writes a figure with four digits.
func short(f latency.Figure, known bool) string {
	switch {
	case !known || f.Refused():
		return "-"
	case f >= 1000:
		return fmt.Sprintf("%.0f", float64(f))
	case f >= 100:
		return fmt.Sprintf("%.1f", float64(f))
	}
	return fmt.Sprintf("%.2f", float64(f))
}

// Text writes the report for a person.
func (s *Sweep) Text(w io.Writer) error {
	var b strings.Builder
	what := s.URL
	if what == "" {
		what = s.Fleet
	}
	fmt.Fprintf(&b, "%s: %s\n", s.Name, what)
	if s.SLO != "" {
		fmt.Fprintf(&b, "slo         %s\n", s.SLO)
	}
	for _, f := range s.Factors {
		fmt.Fprintf(&b, "factor      %s: %s\n", f.Name, strings.Join(f.Values, ", "))
	}
	if len(s.Fixed) > 0 {
		fmt.Fprintf(&b, "fixed       %s\n", strings.Join(s.Fixed, " "))
	}
	fmt.Fprintf(&b, "runs        %d in %s, seed %d", len(s.Runs), (time.Duration(s.Elapsed * 1e9)).Round(100*time.Millisecond), s.Seed)
	if s.Interrupted {
		b.WriteString(" (interrupted)")
	}
	b.WriteString("\n\n")
	for i := range s.Searches {
		s.Searches[i].text(&b)
	}
	align(&b, s.table(s.series()), s.apart())
	b.WriteString("latencies in ms, means over the runs of a point; - is refused or not known\n")
	for i := range s.Points {
		p := &s.Points[i]
		if len(p.Reasons) == 0 {
			continue
		}
		name := fmt.Sprintf("%s %s", s.axis(), slo.Round(p.At))
		if p.Series != "" {
			name = strings.TrimSpace(p.Series + " " + name)
		}
		fmt.Fprintf(&b, "%s at %s: %s\n", p.judgement(), name, strings.Join(p.Reasons, "; "))
	}
	for _, d := range s.Drift {
		fmt.Fprintf(&b, "drift: %s\n", d)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text writes a search's path and answer.
func (x *SweepSearch) text(b *strings.Builder) {
	if x.Series != "" {
		fmt.Fprintf(b, "%s\n", x.Series)
	}
	for i, step := range x.Path {
		again := ""
		if step.Repeat > 1 {
			again = fmt.Sprintf(" (run %d)", step.Repeat)
		}
		fmt.Fprintf(b, "%4d  %10s/s%-8s %-10s %s\n", i+1, slo.Round(step.Rate), again, step.Decision, step.Why)
	}
	fmt.Fprintf(b, "result      %s (%s)\n", x.Sentence, x.Why)
	for _, c := range x.Contradictions {
		fmt.Fprintf(b, "            not monotonic: %s; something else than the rate was at work\n", c)
	}
	b.WriteByte('\n')
}

// align writes rows in columns; the first one, and the last, stand to the left
// where they are words.
func align(b *strings.Builder, rows [][]string, words bool) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-len([]rune(cell)))
			switch {
			case i == len(row)-1:
				b.WriteString(cell)
			case i == 0 && words:
				b.WriteString(cell + pad + "  ")
			default:
				b.WriteString(pad + cell + "  ")
			}
		}
		b.WriteByte('\n')
	}
}

// CSV writes a row for each run, in the order in which they were carried out.
func (s *Sweep) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	head := []string{"run", "series", s.axis(), "repeat", "after_seconds", "verdict", "unstable", "decision", "requests", "complete", "success_rate"}
	for _, f := range sweepFigures {
		head = append(head, f.name())
	}
	if err := out.Write(append(head, "engines", "reasons", "imbalance", "cached_share", "regret_ms")); err != nil {
		return err
	}
	for i := range s.Runs {
		r := &s.Runs[i]
		one := SweepPoint{Runs: []int{i}}
		s.settle(&one)
		rate := ""
		if one.SuccessRate != nil {
			rate = strconv.FormatFloat(*one.SuccessRate, 'g', -1, 64)
		}
		row := []string{strconv.Itoa(i + 1), r.Series, strconv.FormatFloat(r.At, 'g', -1, 64), strconv.Itoa(r.Repeat), strconv.FormatFloat(r.After, 'f', 3, 64),
			string(one.Trust), strconv.FormatBool(one.Unstable), r.Decision, strconv.Itoa(r.Report.Requests), strconv.Itoa(r.Report.Complete), rate}
		for _, f := range sweepFigures {
			text := ""
			if v := one.Figures[f.name()].Mean; !v.Refused() {
				text = strconv.FormatFloat(float64(v), 'g', -1, 64)
			}
			row = append(row, text)
		}
		row = append(row, one.shares(), strings.Join(one.Reasons, "; "))
		if c := one.Choices; c != nil {
			cached := ""
			if c.Told > 0 {
				cached = strconv.FormatFloat(c.CachedShare, 'g', -1, 64)
			}
			row = append(row, strconv.FormatFloat(c.Imbalance, 'g', -1, 64), cached, strconv.FormatFloat(c.Regret, 'g', -1, 64))
		} else {
			row = append(row, "", "", "")
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
