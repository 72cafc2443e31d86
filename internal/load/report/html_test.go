package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"weir/internal/load"
	"weir/internal/workload/latency"
)

// hostile is text that must not become part of the page.
const hostile = `<script>alert("1")</script>&'`

// measured is a run of 200 requests with a gateway, some of which failed.
func measured(t *testing.T) (*Report, []Row) {
	t.Helper()
	var b Book
	b.records, b.boot = map[string]*Record{}, "b"
	for i := range 200 {
		sent := int64(1e18) + int64(i)*20e6
		s := sample(i, sent)
		switch {
		case i%50 == 7:
			*s = load.Sample{Index: i, RequestID: hostile, Intended: sent, Started: sent, LastByte: sent + 5e6, Outcome: load.Errored, Kind: load.KindConnect, Detail: hostile}
		case i%50 == 8:
			s.Outcome = load.Unfinished
		case i%4 != 0:
			if err := b.take([]byte(record("b", i, sent, 0)), nil); err != nil {
				t.Fatal(err)
			}
		}
		b.Add(s)
	}
	rows := b.Rows()
	rec := latency.New(1e12)
	rec.AddN(5e6, 300)
	r := &load.Report{URL: hostile, API: load.Chat, Model: hostile, Rate: 50, Arrival: "poisson", Requests: 200, Complete: 192, Errored: 4, Unfinished: 4,
		Errors: map[load.Kind]int{load.KindConnect: 4}, Examples: map[load.Kind]string{load.KindConnect: hostile},
		TTFT: rec.Judge(true), E2E: rec.Judge(true), Slip: rec.Judge(false), Verdict: load.Verdict{Trust: load.Degraded, Reasons: []string{hostile}}}
	return New(r, rows, Joined{From: "x", Requests: 100}), rows
}

// elements reads a page strictly and counts its elements; the text between them
// is given too.
func elements(t *testing.T, page string) (counts map[string]int, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(strings.TrimPrefix(page, "<!DOCTYPE html>")))
	counts = map[string]int{}
	var b strings.Builder
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return counts, b.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			counts[x.Name.Local]++
			for _, a := range x.Attr {
				if a.Name.Local == "src" || a.Name.Local == "href" || strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("<%s %s=%q>", x.Name.Local, a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			b.Write(x)
		}
	}
}

// The page is whole, has its plots, needs nothing from elsewhere, and takes no
// text for markup.
func TestHTML(t *testing.T) {
	r, rows := measured(t)
	var out bytes.Buffer
	if err := WriteHTML(&out, r, rows); err != nil {
		t.Fatal(err)
	}
	counts, text := elements(t, out.String())
	// Three distributions, their percentiles, four over time with the failed ones, each with a
	// line that is drawn in one of its own; bars of two times four bands and five requests, and
	// an axis below each of the three.
	if counts["svg"] != 2*10+4+4+5+3 || counts["figure"] != 13 || counts["script"] != 0 || counts["link"] != 0 || counts["img"] != 0 || counts["polyline"] != 10 || counts["rect"] < 40 {
		t.Errorf("%v", counts)
	}
	for _, part := range []string{hostile, "DEGRADED", "Where the time went", "The slowest 1 %", "slowest: r-", "p99: r-", "engine queue", "100.00 %"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in the page", part)
		}
	}
	// The figures that most want come before all else, and the key of the stages once.
	if first, table := strings.Index(text, "requests/s"), strings.Index(text, "Latencies, ms"); first < 0 || first > table {
		t.Errorf("headline at %d, latencies at %d", first, table)
	}
	if n := strings.Count(out.String(), `class="key"`); n != 1 {
		t.Errorf("%d keys", n)
	}
	for _, outside := range []string{"http://", "https://", "@import", "url("} {
		if strings.Contains(out.String(), outside) {
			t.Errorf("the page has %q in it", outside)
		}
	}
	// There is also a page for nothing, and for one failure.
	for _, few := range [][]Row{nil, rows[7:8]} {
		out.Reset()
		if err := WriteHTML(&out, New(&load.Report{}, few, Joined{}), few); err != nil {
			t.Fatal(err)
		}
		elements(t, out.String())
	}
	for _, left := range []int{0, 5000, 20000} {
		if WriteHTML(&full{left: left}, r, rows) == nil {
			t.Errorf("a disk with %d bytes left held the page", left)
		}
	}
}

// The page has the terminal's lines under the terminal's names.
func TestPageSpeaksAsTheTerminal(t *testing.T) {
	r, rows := measured(t)
	var page, terminal bytes.Buffer
	if err := errors.Join(WriteHTML(&page, r, rows), r.Report.Text(&terminal)); err != nil {
		t.Fatal(err)
	}
	_, text := elements(t, page.String())
	for _, f := range r.Facts() {
		if f.Name == "verdict" { // the page has it apart, with a line for each reason
			f.Text = string(r.Verdict.Trust)
		}
		if !strings.Contains(terminal.String(), f.Name+strings.Repeat(" ", max(1, 12-len(f.Name)))+f.Text) || !strings.Contains(text, f.Text) {
			t.Errorf("%s: %s", f.Name, f.Text)
		}
	}
	for _, l := range r.Latencies() {
		if name := strings.TrimSpace(l.Name); !strings.Contains(terminal.String(), name) || !strings.Contains(text, name+fmt.Sprint(l.Count)) {
			t.Errorf("%s is not in both", l.Name)
		}
	}
	// That none failed is said once.
	if strings.Contains(terminal.String(), "errored     0.0000") {
		t.Error("a share of nothing is printed")
	}
}

// Bursts are explained where a closed loop has them, and nowhere else.
func TestBurstsOfAClosedLoop(t *testing.T) {
	rows := make([]Row, 320)
	for i := range rows {
		at := int64(i/32)*1e9 + int64(i%32)*1e5
		rows[i].Sample = load.Sample{Index: i, Intended: at, Started: at, LastByte: at + 99e7, Outcome: load.Complete}
	}
	for _, c := range []struct {
		concurrency int
		spread      bool
		want        bool
	}{{32, false, true}, {0, false, false}, {32, true, false}} {
		if c.spread {
			for i := range rows {
				rows[i].Started, rows[i].LastByte = int64(i)*31e6, int64(i)*31e6+99e7
			}
		}
		var out bytes.Buffer
		if err := WriteHTML(&out, New(&load.Report{Concurrency: c.concurrency}, rows, Joined{}), rows); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "one e2e apart"); got != c.want {
			t.Errorf("%+v: explained: %v", c, got)
		}
	}
}

// Every request is in the trace, and its slices are its stages.
func TestPerfetto(t *testing.T) {
	_, rows := measured(t)
	var out bytes.Buffer
	if err := WritePerfetto(&out, rows); err != nil {
		t.Fatal(err)
	}
	var trace struct {
		Events []struct {
			Name, PH string
			PID, TID int
			TS, Dur  json.Number
			Args     map[string]string
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(out.Bytes(), &trace); err != nil {
		t.Fatal(err)
	}
	threads, slices, processes := map[int]int64{}, 0, 0
	for _, e := range trace.Events {
		switch {
		case e.Name == "process_name":
			processes++
		case e.PH == "X":
			var us, ns int64
			if _, err := fmt.Sscanf(string(e.Dur), "%d.%d", &us, &ns); err != nil {
				t.Fatal(err)
			}
			threads[e.TID] += us*1000 + ns
			slices++
		}
	}
	if len(threads) != 200 || processes != 3 || slices < 1000 {
		t.Errorf("%d requests, %d processes, %d slices", len(threads), processes, slices)
	}
	for i := range rows {
		if want := rows[i].LastByte - rows[i].Intended; threads[i] != want {
			t.Errorf("request %d has slices of %d ns, took %d", i, threads[i], want)
		}
	}
	if WritePerfetto(&full{left: 9000}, rows) == nil {
		t.Error("a full disk held the trace")
	}
}
