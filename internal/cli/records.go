package cli

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/infer"
	"weir/internal/load/report"
	"weir/internal/observe/timeline"
	"weir/internal/trace"
)

// This file has the admin listener's answers about requests (docs/timeline.md).

// params reads the parameters of a query, and keeps the first that is wrong.
type params struct {
	values url.Values
	err    error
}

// paramsOf refuses parameters that are not known.
func paramsOf(r *http.Request, known ...string) *params {
	p := &params{}
	if p.values, p.err = url.ParseQuery(r.URL.RawQuery); p.err != nil {
		return p
	}
	for name := range p.values {
		if !slices.Contains(known, name) {
			p.wrong("%q is not known; there are %s", name, strings.Join(known, ", "))
		}
	}
	return p
}

func (p *params) wrong(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

func (p *params) text(name string) string { return p.values.Get(name) }

// word returns a parameter that must be one of words; by default the first one.
func (p *params) word(name string, words ...string) string {
	v := p.text(name)
	if v == "" {
		return words[0]
	}
	if !slices.Contains(words, v) {
		p.wrong("%s=%q: want one of %s", name, v, strings.Join(slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "" }), ", "))
	}
	return v
}

// number is a whole number from 1 on.
func (p *params) number(name string, otherwise, most int) int {
	v := p.text(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		p.wrong("%s=%q: want a number from 1 to %d", name, v, most)
	}
	return n
}

// span is a duration, 0 where none is given.
func (p *params) span(name string) time.Duration {
	v := p.text(name)
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		p.wrong("%s=%q: want a duration such as 90s or 5m", name, v)
	}
	return d
}

// refused answers a query that is wrong.
func (p *params) refused(w http.ResponseWriter) bool {
	if p.err != nil {
		http.Error(w, p.err.Error(), http.StatusBadRequest)
	}
	return p.err != nil
}

// maxRecords bounds the records of one answer.
const maxRecords = 10000

// recordsView is the answer of /records.
type recordsView struct {
	Window  float64      `json:"window_seconds"`
	Ended   int          `json:"ended"`       // requests, within the window
	Kept    int          `json:"kept"`        // records in memory
	Passed  int          `json:"passed_over"` // of those that ended within the window, not kept
	Matched int          `json:"matched"`
	Records []recordView `json:"records"`
}

// recordView is a short record. Unknown values are left out.
type recordView struct {
	RequestID     string   `json:"request_id"`
	WallTime      string   `json:"wall_time"` // of its arrival
	Age           float64  `json:"age_seconds"`
	Endpoint      string   `json:"endpoint"`
	Model         string   `json:"model"`
	Stream        bool     `json:"stream"`
	Client        string   `json:"client,omitzero"`
	Outcome       string   `json:"outcome"`
	Code          string   `json:"code,omitzero"`
	Error         string   `json:"error,omitzero"`
	Status        int      `json:"status"`
	Engine        string   `json:"engine,omitzero"`
	PrefillEngine string   `json:"prefill_engine,omitzero"`
	Attempts      int      `json:"attempts"`
	Prompt        int      `json:"prompt_tokens"`
	Completion    int      `json:"completion_tokens"`
	Cached        int      `json:"cached_tokens"`
	TTFT          *float64 `json:"ttft_ms,omitzero"`
	Total         float64  `json:"total_ms"`
	OutputDelay   *float64 `json:"output_delay_ms,omitzero"` // weir's own part
	Hop           *float64 `json:"output_hop_ms,omitzero"`   // none: the engine does not stamp its output
	Gap           *float64 `json:"longest_gap_ms,omitzero"`
	Live          int      `json:"live"` // at its first token, or where it had none at its arrival
	Pending       int      `json:"pending"`
	Slowest       string   `json:"slowest_stage"`
	SlowestFor    float64  `json:"slowest_stage_ms"`
	Sampled       bool     `json:"sampled"`
	Stalls        int      `json:"stalls,omitzero"` // that it lived through (docs/watching.md)
	StalledFor    float64  `json:"stalled_ms,omitzero"`
	// Reason explains the request's duration, if that was asked for.
	Reason *report.Reason `json:"reason,omitzero"`
}

// ms rounds to microseconds.
func ms(ns int64) float64 { return math.Round(float64(ns)/1e3) / 1e3 }

// recordViewOf returns the view of a record at a time.
func recordViewOf(f *timeline.Found, now int64) recordView {
	rec := f.Record
	v := recordView{
		RequestID: rec.RequestID, WallTime: trace.Wall(rec.Arrival).UTC().Format(time.RFC3339Nano), Age: seconds(now - rec.Finished),
		Endpoint: rec.Endpoint, Model: rec.Model, Stream: rec.Stream, Outcome: rec.Outcome.String(), Code: rec.Code, Error: rec.Message,
		Status: int(rec.Status), Attempts: len(rec.Attempts), Prompt: rec.PromptTokens, Completion: rec.CompletionTokens, Cached: int(rec.CachedTokens),
		Total: ms(rec.Total()), Live: int(rec.LiveAtArrival), Pending: int(rec.PendingAtArrival), Sampled: f.Sampled, Stalls: len(rec.Stalls), StalledFor: ms(rec.Stalled()),
	}
	if rec.Client.IsValid() {
		v.Client = rec.Client.String()
	}
	if ttft, ok := rec.TTFT(); ok {
		v.TTFT = new(ms(ttft))
	}
	if rec.FirstFlushed != 0 {
		v.Live, v.Pending = int(rec.LiveAtFirstToken), int(rec.PendingAtFirstToken)
	}
	if leg := rec.Leg(); leg != nil {
		v.Engine = leg.Engine
		if first := rec.Attempts[len(rec.Attempts)-1].Legs[0]; first.Role == infer.RolePrefill.String() {
			v.PrefillEngine = first.Engine
		}
	}
	if delay, ok := rec.OutputDelay(); ok {
		v.OutputDelay = new(ms(delay))
	}
	if hop, ok := rec.Hop(); ok {
		v.Hop = new(ms(hop))
	}
	if p := rec.Pace; p != nil && p.Gap.For > 0 {
		v.Gap = new(ms(p.Gap.For))
	}
	stage, spent := rec.Slowest()
	v.Slowest, v.SlowestFor = stage.String(), ms(spent)
	return v
}

// queryParams are those by which records are chosen.
var queryParams = []string{"since", "model", "engine"}

// query reads them.
func (p *params) query() timeline.Query {
	return timeline.Query{Since: p.span("since"), Model: p.text("model"), Engine: p.text("engine")}
}

// records shows the records in memory that are asked for.
func (p *process) records(w http.ResponseWriter, r *http.Request) {
	if p.timeline == nil {
		noRecords(w)
		return
	}
	given := paramsOf(r, append([]string{"limit", "order", "id", "outcome", "code", "reason"}, queryParams...)...)
	q := given.query()
	q.Limit = given.number("limit", 100, maxRecords)
	q.Order = timeline.Order(given.word("order", string(timeline.ByLatest), string(timeline.ByTTFT), string(timeline.ByTotal)))
	q.Outcome = given.word("outcome", "", infer.Finished.String(), infer.Cancelled.String(), infer.Rejected.String(), infer.Failed.String())
	q.ID, q.Code = given.text("id"), given.text("code")
	reasons := given.word("reason", "", "1") != ""
	if given.refused(w) {
		return
	}
	now := trace.Now()
	found := p.timeline.Search(q, now)
	view := recordsView{Window: timeline.Window.Seconds(), Ended: found.Ended, Kept: found.Kept, Passed: found.Passed, Matched: found.Matched, Records: make([]recordView, len(found.Records))}
	for i := range found.Records {
		view.Records[i] = recordViewOf(&found.Records[i], now)
		if reasons {
			view.Records[i].Reason = new(report.ReasonOf(report.Of(found.Records[i].Record)))
		}
	}
	writeView(w, view)
}

// noRecords answers where none are kept.
func noRecords(w http.ResponseWriter) {
	http.Error(w, "records are off; start weir without --timeline off", http.StatusNotFound)
}
