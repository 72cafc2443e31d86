package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"weir/internal/load"
)

// Report is a run's report with what its rows show. Its JSON form is one
// object.
type Report struct {
	*load.Report
	// Joined reports whether the gateway's timeline is included.
	Joined Joined `json:"timeline"`
	// Engines lists the share of each engine, if the gateway reported it.
	Engines []Engine `json:"engines,omitempty"`
	// Choices describes the choices of engines, if the gateway reported them.
	Choices *Choices `json:"choices,omitempty"`
	// Attribution shows where the time went.
	Attribution []Band `json:"attribution,omitempty"`
}

// Joined reports how many of the requests have a record of a gateway's timeline.
type Joined struct {
	// From is the admin listener it was read from; empty where there was none.
	From string `json:"from,omitempty"`
	// Requests have a record, Missing were sent and have none.
	Requests int `json:"requests"`
	Missing  int `json:"missing"`
	// Problem is why records are missing, where that is known.
	Problem string `json:"problem,omitempty"`
	Clock   *Clock `json:"clock,omitempty"`
}

// Engine is how one engine fared.
type Engine struct {
	Name     string `json:"engine"`
	Requests int    `json:"requests"`
	// Share is the share among all requests that an engine was chosen for.
	Share    float64 `json:"share"`
	Complete int     `json:"complete"`
	// Judged counts the requests that this client did not abandon or cut short.
	Judged int `json:"judged"`
	// SuccessRate is the success rate of the judged ones; null if there are none.
	SuccessRate *float64 `json:"success_rate"`
}

// New makes a report of a run's own and its rows.
func New(r *load.Report, rows []Row, joined Joined) *Report {
	fell := engines(rows)
	return &Report{Report: r, Joined: joined, Engines: fell, Choices: choices(rows, fell), Attribution: Attribute(rows)}
}

// engines counts the requests of each engine, in the order of their names.
func engines(rows []Row) []Engine {
	byName := map[string]*Engine{}
	for i := range rows {
		r := &rows[i]
		if r.Engine == "" {
			continue
		}
		e := byName[r.Engine]
		if e == nil {
			e = &Engine{Name: r.Engine}
			byName[r.Engine] = e
		}
		e.Requests++
		switch r.Outcome {
		case load.Complete:
			e.Complete++
			e.Judged++
		case load.Corrupt, load.Errored:
			e.Judged++
		}
	}
	out := make([]Engine, 0, len(byName))
	for _, e := range byName {
		out = append(out, *e)
	}
	return shareOut(out)
}

// shareOut works out shares and rates of engines' counts, and puts them in the
// order of their names.
func shareOut(all []Engine) []Engine {
	total := 0
	for i := range all {
		total += all[i].Requests
	}
	for i := range all {
		e := &all[i]
		e.Share, e.SuccessRate = float64(e.Requests)/float64(total), nil
		if e.Judged > 0 {
			rate := float64(e.Complete) / float64(e.Judged)
			e.SuccessRate = &rate
		}
	}
	slices.SortFunc(all, func(a, b Engine) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error { return load.WriteJSON(w, r) }

// Text writes the report for a person.
func (r *Report) Text(w io.Writer) error {
	if err := r.Report.Text(w); err != nil {
		return err
	}
	var b strings.Builder
	if j := r.Joined; j.From != "" {
		fmt.Fprintf(&b, "\ntimeline    %d of %d requests joined from %s", j.Requests, j.Requests+j.Missing, j.From)
		if c := j.Clock; c != nil && c.Gateway.Add != 0 {
			fmt.Fprintf(&b, "; its clock is %.3f ms behind, to within %.3f", float64(c.Gateway.Add)/1e6, float64(c.Gateway.Uncertain)/1e6)
		}
		if j.Problem != "" {
			fmt.Fprintf(&b, " (%s)", j.Problem)
		}
		b.WriteByte('\n')
	}
	for _, e := range r.Engines {
		fmt.Fprintf(&b, "engine      %s: %d requests, %.1f %%, ", e.Name, e.Requests, 100*e.Share)
		if e.SuccessRate == nil {
			b.WriteString("none judged\n")
			continue
		}
		fmt.Fprintf(&b, "%.2f %% of them complete\n", 100**e.SuccessRate)
	}
	if r.Choices != nil {
		fmt.Fprintf(&b, "choices     %s\n", r.Choices)
	}
	for _, band := range r.Attribution {
		fmt.Fprintf(&b, "%s\n", band.Sentence)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
