//go:build linux

package scenario

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"weir/internal/load"
)

// overloadedRows are those of a run in which all is as it must be.
func overloadedRows() ([]Overloaded, *Refusing) {
	return []Overloaded{
			{Gateway: queued, Load: 1, Capacity: 60, Served: 59, Goodput: 58},
			{Gateway: queued, Load: 10, Capacity: 60, Offered: 600, Served: 60, Goodput: 59, Refused: 540, Wait: 0.51},
			{Gateway: pushed, Load: 1, Capacity: 60, Served: 60, Goodput: 59},
			{Gateway: pushed, Load: 10, Capacity: 60, Served: 60, Goodput: 3, Wait: 0.6, Over: 9, Failed: 3},
		},
		&Refusing{Requests: 9000, Refused: 9000, Seconds: 2, CPU: 33, HangUps: 32, Retaken: 32, Freed50: 0.1, Freed: 0.5}
}

func TestJudgeOverload(t *testing.T) {
	for _, c := range []struct {
		name           string
		change         func(rows []Overloaded, x *Refusing)
		failed, missed string // part of the one such verdict; empty: none
	}{
		{"as it must be", func([]Overloaded, *Refusing) {}, "", ""},
		{"weir loses", func(rows []Overloaded, _ *Refusing) { rows[1].LostTokens = 3 }, "loses no token: 3 lost", ""},
		{"weir loses when it pushes", func(rows []Overloaded, _ *Refusing) { rows[3].LostTokens = 3 }, "loses no token: 3 lost", ""},
		{"weir repeats", func(rows []Overloaded, _ *Refusing) { rows[0].Corrupt = 2 }, "2 answers with repeated", ""},
		{"ends by error", func(rows []Overloaded, _ *Refusing) { rows[1].Failed, rows[1].FirstError = 4, "status_500" }, "4, such as status_500", ""},
		{"goodput falls", func(rows []Overloaded, _ *Refusing) { rows[1].Goodput = 56 }, "", "56.0 requests/s of 58.0 (96.6 %)"},
		{"the machine keeps the engines from working", func(rows []Overloaded, _ *Refusing) { rows[1].Goodput, rows[1].Lost = 48, 0.2 }, "", ""},
		{"some wait too long", func(rows []Overloaded, _ *Refusing) { rows[0].Over, rows[0].Wait = 2, 0.7 }, "", "2 do, the longest wait is 0.700 s"},
		{"the control keeps up", func(rows []Overloaded, _ *Refusing) { rows[3].Goodput = 31 }, "31.0 requests/s of 60.0 at 10 times what the engines can do, and the queue has 59.0 of 60.0; it kept up", ""},
		{"the control was not measured", func(rows []Overloaded, _ *Refusing) { rows[3].NotMeasured = "no port" }, "pushed was not measured at 10 times what the engines can do: no port", ""},
		{"some are let in", func(_ []Overloaded, x *Refusing) { x.Refused-- }, "refuses all that come: 8999 of 9000", ""},
		{"none came", func(_ []Overloaded, x *Refusing) { x.Refused, x.Requests = 0, 0 }, "refuses all that come: 0 of 0", ""},
		{"refusing costs too much", func(_ []Overloaded, x *Refusing) { x.CPU = 51 }, "", "at most 50 us of CPU, its reading included: 51.0 us"},
		{"places stay taken", func(_ []Overloaded, x *Refusing) { x.Retaken = 31 }, "of 32 places 31 were taken again", ""},
		{"places are free late", func(_ []Overloaded, x *Refusing) { x.Freed = 101 }, "", "at most 100ms: 101.0 ms"},
		{"refusals were not measured", func(_ []Overloaded, x *Refusing) { x.NotMeasured = "no port" }, "refusals were not measured: no port", ""},
	} {
		rows, x := overloadedRows()
		c.change(rows, x)
		failed, missed := outcomes(&Report{Verdicts: judgeOverload(rows, x)})
		if c.name == "the control was not measured" {
			failed = failed[:1] // the other says that it did not fail
		}
		wantOne(t, c.name, "failed", failed, c.failed)
		wantOne(t, c.name, "missed", missed, c.missed)
	}
	rows, _ := overloadedRows()
	for name, verdicts := range map[string][]Verdict{"nothing at all": judgeOverload(nil, nil), "no refusals": judgeOverload(rows, nil)} {
		if failed, _ := outcomes(&Report{Verdicts: verdicts}); len(failed) != 1 {
			t.Errorf("%s passed: %q", name, failed)
		}
	}
}

// The requests that ended within the span count, as in time if their first token and the others
// came soon enough. Failed requests count whenever they ended.
func TestInTime(t *testing.T) {
	s := inTime{from: 10e9, to: 20e9}
	answered := func(at, ttft, tpot time.Duration) load.Sample {
		last := int64(at + ttft + 9*tpot)
		return load.Sample{Outcome: load.Complete, Status: 200, Started: int64(at), FirstToken: int64(at + ttft), FirstContent: int64(at + ttft), LastToken: last, LastByte: last, Tokens: 10}
	}
	for _, x := range []load.Sample{
		answered(8*time.Second, 100*time.Millisecond, overloadDecode),   // ended before
		answered(20*time.Second, 100*time.Millisecond, overloadDecode),  // and after
		answered(11*time.Second, 100*time.Millisecond, overloadDecode),  // in time
		answered(11*time.Second, timelyTTFT, timelyTPOT),                // just so
		answered(11*time.Second, timelyTTFT+1, overloadDecode),          // begins late
		answered(11*time.Second, 100*time.Millisecond, timelyTPOT+1),    // goes on too slowly
		{Outcome: load.Errored, Status: statusRefused, LastByte: 12e9},  // refused
		{Outcome: load.Errored, Status: statusRefused, LastByte: 2e9},   // not within the span
		{Outcome: load.Errored, Kind: "status_500", Status: 500},        // failed
		{Outcome: load.Unfinished, LastByte: 12e9},                      // hung up on
		{Outcome: load.Errored, Kind: load.KindConnect, LastByte: 12e9}, // failed
	} {
		s.take(&x)
	}
	var row Overloaded
	if s.figures(&row, 10*time.Second); row.Served != 0.4 || row.Goodput != 0.2 || row.Refused != 0.1 || row.Failed != 2 || row.FirstError != "status_500: " || s.count() != 11 {
		t.Errorf("%+v, %d ended", row, s.count())
	}
}

// A wait ends with the engine that is given, or with the refusal; one that its caller has ended
// says nothing.
func TestOverloadWaits(t *testing.T) {
	const lines = `{"arrival_time":1000000000,"routed_time":1400000000,"finish_time":9000000000,"outcome":"finished"}
{"arrival_time":1000000000,"finish_time":1700000000,"outcome":"rejected"}
{"arrival_time":1000000000,"finish_time":8000000000,"outcome":"cancelled"}
{"arrival_time":1000000000,"routed_time":1600000000,"finish_time":8000000000,"outcome":"cancelled"}
{"arrival_time":500000000,"routed_time":5500000000,"finish_time":8000000000,"outcome":"finished"}
`
	var x Overloaded
	if err := x.waits([]byte(lines), [2]int64{1e9, 2e9}); err != nil || x.Over != 2 || x.Wait != 0.7 {
		t.Errorf("%v: %+v", err, x)
	}
	if err := x.waits([]byte("{"), [2]int64{}); err == nil {
		t.Error("half a line is none")
	}
}

func TestOverloadOptions(t *testing.T) {
	overload, err := Find("overload")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		want string // empty: it is good
	}{
		{Options{}, ""},
		{Options{Loads: []float64{1, 10}, Duration: 8 * time.Second}, ""},
		{Options{Loads: []float64{1, 1}}, "--load: [1 1]: want rising multiples"},
		{Options{Loads: []float64{0.01}}, "--load"},
		{Options{Loads: []float64{21}}, "--load"},
		{Options{Streams: overloadMost + 1}, "--streams"},
		{Options{Duration: 10 * time.Second}, "--duration: 10s is too short for 5 loads; give at least 17s"},
	} {
		err := c.o.check(overload)
		var invalid Invalid
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %s", c.o, err, c.want)
		}
	}
	if err := (&Options{Loads: []float64{1}}).check(All()[0]); err == nil || !strings.Contains(err.Error(), "only weir scenario overload") {
		t.Errorf("another scenario's loads: %v", err)
	}
	o := Options{}
	if err := errors.Join(o.check(overload), overload.enoughFiles(&o, 65536)); err != nil {
		t.Error(err)
	}
	if err := overload.enoughFiles(&o, 1024); err == nil || !strings.Contains(err.Error(), "--load") {
		t.Errorf("few files: %v", err)
	}
}

func TestOverloadedText(t *testing.T) {
	rows, x := overloadedRows()
	rows[3].Others = 1.5
	report := &Report{Scenario: "overload", Overloaded: rows, Refusing: x, Verdicts: x.judge()}
	var text, object bytes.Buffer
	if err := errors.Join(report.Text(&text), report.JSON(&object)); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"weir, queue    10    600.0     60.0    60.0     59.0    540.0", "pushed         10", "took up to 1.5 CPUs", "ok      that takes at most 100ms: 0.5 ms (p50 0.1)"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("%q is not in\n%s", part, text.String())
		}
	}
	if !strings.Contains(object.String(), `"in_time_per_second": 59`) || !strings.Contains(object.String(), `"gateway_cpu_us_per_refusal": 33`) {
		t.Errorf("%s", object.String())
	}
}
