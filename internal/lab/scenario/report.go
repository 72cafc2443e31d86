//go:build linux

package scenario

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"weir/internal/lab/client"
	"weir/internal/load"
)

// Report is the result of a scenario. Its JSON form is one object.
type Report struct {
	Scenario string    `json:"scenario"`
	Summary  string    `json:"summary"`
	Machine  string    `json:"machine"`
	Started  time.Time `json:"started"`
	Elapsed  float64   `json:"elapsed_seconds"`
	Commit   string    `json:"commit,omitempty"`
	Streams  int       `json:"streams"`
	Passed   bool      `json:"passed"` // no verdict failed
	Verdicts []Verdict `json:"verdicts"`
	Rows     []Row     `json:"rows"`
	Starved  []Starved `json:"starvation,omitempty"`

	Collapsed []Collapsed `json:"collapse,omitempty"`
	Faulted   []Faulted   `json:"faults,omitempty"`
	// Others is how many CPUs other programs took during all of faults, continuation,
	// replicas or tenants, on average.
	Others float64 `json:"other_processes_cpus,omitempty"`

	Blamed []Blamed `json:"blame,omitempty"`

	Overloaded []Overloaded `json:"overload,omitempty"`
	Refusing   *Refusing    `json:"refusing,omitempty"`

	Continued []Continued `json:"continuation,omitempty"`

	Tenants []Tenanted `json:"tenants,omitempty"`

	Replicas *Replicas `json:"replicas,omitempty"`
}

// Row is one gateway under one load. Delays are from the engine's stamp before
// its write to the arrival in the client's kernel.
type Row struct {
	Load    string `json:"load"`
	Gateway string `json:"gateway"`
	// NotMeasured is why there are no figures.
	NotMeasured string `json:"not_measured,omitempty"`

	Offered   float64 `json:"offered_tokens_per_second"`
	Delivered float64 `json:"delivered_tokens_per_second"`
	Share     float64 `json:"delivered_share"`
	// CPU is user + system of the gateway's processes, the receiving half of its
	// loopback writes included.
	CPU      float64 `json:"cpu_seconds_per_million_tokens"`
	PerWrite float64 `json:"tokens_per_write"`
	P50      float64 `json:"delay_p50_ms"`
	P99      float64 `json:"delay_p99_ms"`
	Max      float64 `json:"delay_max_ms"`
	// KBPerStream is resident memory beyond that before the first stream.
	KBPerStream float64 `json:"resident_kb_per_stream"`

	Streams     int     `json:"streams"`
	Complete    int     `json:"complete"`
	Errors      int     `json:"ended_by_error"` // or cut, or not at all
	FirstError  string  `json:"first_error,omitempty"`
	Lost        int     `json:"lost_tokens"` // of streams that ended as complete
	LostStreams int     `json:"streams_that_lost"`
	Wrong       int     `json:"tokens_repeated_or_out_of_order"`
	Others      float64 `json:"other_processes_cpus"`

	// NewP99 and NewMax are the delays of first tokens of requests that began
	// within the window.
	New    int     `json:"new_requests,omitempty"`
	NewP99 float64 `json:"new_request_p99_ms,omitempty"`
	NewMax float64 `json:"new_request_max_ms,omitempty"`
}

// report makes the rows.
func (r *runner) report() *Report {
	report := &Report{Rows: []Row{}}
	for _, x := range r.results {
		report.Rows = append(report.Rows, r.row(x))
	}
	return report
}

func (r *runner) row(x *client.Result) Row {
	row := Row{Load: x.Load, Gateway: x.Gateway, NotMeasured: x.Failed, Offered: offered(r.loads[x.Load])}
	if x.Failed != "" {
		return row
	}
	row.Delivered, row.Share, row.CPU, row.PerWrite = x.Delivered, x.Share, x.CPUPerMega, x.PerWrite
	row.P50, row.P99, row.Max, row.KBPerStream = x.P50, x.P99, x.Max, x.KBPerStream
	row.Streams, row.Complete, row.Errors, row.FirstError = x.Streams, x.Complete, x.Broken(), x.FirstError
	row.Lost, row.LostStreams, row.Wrong = x.Lost, x.LostStreams, x.Wrong
	row.Others = x.OtherCPU / r.times().Measure.Seconds()
	row.New, row.NewP99, row.NewMax = x.ProbeFirst.Count, x.ProbeFirst.P99, x.ProbeFirst.Max
	return row
}

// Missed counts the figures that were not reached.
func (r *Report) Missed() (n int) {
	for _, v := range r.Verdicts {
		if v.Outcome == Missed {
			n++
		}
	}
	return n
}

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error { return load.WriteJSON(w, r) }

// legend explains a share far from 100 % without a loss.
const legend = `
delivered  arrived within the window, as a share of what was due within it. The rest of
           a lower share arrived later, or was still on its way when the load's time was
           over: late, and not lost. More than 100 % was due before the window.
lost       missing from streams that ended as if they were complete.
`

// Text writes the report for a person.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "scenario %s: %s\n%d streams, %.0f s; %s\n\n", r.Scenario, r.Summary, r.Streams, r.Elapsed, r.Machine)
	notes, disturbed := "", 0.0
	switch {
	case len(r.Starved) > 0:
		align(&b, starvedTable(r.Starved))
	case len(r.Collapsed) > 0:
		align(&b, collapsedTable(r.Collapsed))
	case len(r.Faulted) > 0:
		alignAll(&b, faultedTables(r.Faulted))
	case len(r.Blamed) > 0:
		align(&b, blameTable(r.Blamed))
	case len(r.Overloaded) > 0:
		align(&b, overloadedTable(r.Overloaded))
		for _, x := range r.Overloaded {
			disturbed = max(disturbed, x.Others)
		}
	case len(r.Continued) > 0:
		align(&b, continuedTable(r.Continued))
		disturbed = r.Others
	case len(r.Tenants) > 0:
		align(&b, tenantsTable(r.Tenants))
		disturbed = r.Others
	case r.Replicas != nil:
		alignAll(&b, replicasTables(r.Replicas))
		disturbed = r.Others
	default:
		notes, disturbed = r.rows(&b)
		b.WriteString(legend)
	}
	b.WriteString("\n")
	b.WriteString(notes)
	if disturbed > 0.1 {
		fmt.Fprintf(&b, "Other programs took up to %.1f CPUs meanwhile, so figures are worse than on a machine of their own.\n", disturbed)
	}
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "%-7s %s\n", v.Outcome, v.Text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rows writes the table of the gateways. It returns which are missing, and the most CPUs
// that other processes took.
func (r *Report) rows(b *strings.Builder) (missing string, disturbed float64) {
	table := [][]string{
		{"gateway", "offered", "delivered", "", "CPU s", "tokens", "delay", "", "", "KB per", "lost", "ended", "new requests"},
		{"", "tok/s", "tok/s", "%", "per M", "/write", "p50 ms", "p99 ms", "max ms", "stream", "", "by error", "p99, max ms"},
	}
	var notes strings.Builder
	for _, x := range r.Rows {
		if x.NotMeasured != "" {
			table = append(table, []string{x.Gateway, thousands(x.Offered), "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"})
			fmt.Fprintf(&notes, "%s: not measured: %s\n", x.Gateway, x.NotMeasured)
			continue
		}
		fresh := "-"
		if x.New > 0 {
			fresh = fmt.Sprintf("%.1f, %.1f", x.NewP99, x.NewMax)
		}
		row := []string{x.Gateway, thousands(x.Offered), fmt.Sprintf("%.0f", x.Delivered)}
		for _, figure := range []struct {
			value float64
			form  string
		}{{100 * x.Share, "%.1f"}, {x.CPU, "%.2f"}, {x.PerWrite, "%.2f"}, {x.P50, "%.2f"}, {x.P99, "%.1f"}, {x.Max, "%.1f"}, {x.KBPerStream, "%.1f"}} {
			row = append(row, fmt.Sprintf(figure.form, figure.value))
		}
		table = append(table, append(row, fmt.Sprint(x.Lost), fmt.Sprint(x.Errors), fresh))
		disturbed = max(disturbed, x.Others)
	}
	if !slices.ContainsFunc(r.Rows, func(x Row) bool { return x.New > 0 }) {
		for i, row := range table {
			table[i] = row[:len(row)-1]
		}
	}
	align(b, table)
	return notes.String(), disturbed
}

// alignAll writes tables one below the other.
func alignAll(b *strings.Builder, tables [][][]string) {
	for i, table := range tables {
		if i > 0 {
			b.WriteString("\n")
		}
		align(b, table)
	}
}

// align writes a table's cells in columns, the first to the left and the others
// to the right.
func align(b *strings.Builder, table [][]string) {
	width := make([]int, len(table[0]))
	for _, row := range table {
		for i, text := range row {
			width[i] = max(width[i], len(text))
		}
	}
	for _, row := range table {
		line := fmt.Sprintf("%-*s", width[0], row[0])
		for i, text := range row[1:] {
			line += fmt.Sprintf("  %*s", width[1+i], text)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}
