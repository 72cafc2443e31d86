//go:build linux

package scenario

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/internal/load"
)

// tenantRows are those of a run in which all is as it must be.
func tenantRows() []Tenanted {
	return []Tenanted{
		{Run: withoutGreedy, Asked: 500, Served: 500, Least: 1, TTFT99: 0.1},
		{Run: withGreedy, Offered: 1461.6, Asked: 500, Served: 498, Least: 0.9, TTFT99: 0.2},
		{Run: oneKey, Asked: 500, Served: 50, Least: 0, TTFT99: 4},
	}
}

func TestJudgeTenants(t *testing.T) {
	for _, c := range []struct {
		name           string
		change         func(rows []Tenanted)
		failed, missed string // part of the one such verdict; empty: none
	}{
		{"as it must be", func([]Tenanted) {}, "", ""},
		{"weir loses", func(rows []Tenanted) { rows[1].LostTokens = 3 }, "loses no token: 3 lost", ""},
		{"weir repeats", func(rows []Tenanted) { rows[2].Corrupt = 2 }, "2 answers with repeated", ""},
		{"ends by error", func(rows []Tenanted) { rows[1].Failed, rows[1].FirstError = 4, "status_500" }, "4, such as status_500", ""},
		{"the load alone is too much", func(rows []Tenanted) { rows[0].Served = 499 }, "", "499 of 500"},
		{"one tenant starves", func(rows []Tenanted) { rows[1].Least = 0.84 }, "", "the least is 84.0 %"},
		{"they wait long", func(rows []Tenanted) { rows[1].TTFT99 = 0.21 }, "", "2.10 times, 0.210 s and 0.100 s"},
		{"the machine is slow", func(rows []Tenanted) { rows[1].TTFT99, rows[1].Lost = 0.3, 0.25 }, "", "no time for the engines for 25 % of theirs"},
		{"the machine was slow without the greedy one", func(rows []Tenanted) { rows[0].TTFT99, rows[0].Lost = 0.5, 0.03 }, "", "no time for the engines for 3 % of theirs"},
		{"none is served", func(rows []Tenanted) { rows[1].Served, rows[1].TTFT99 = 0, 0 }, "", "0.00 times"},
		{"the control gives shares", func(rows []Tenanted) { rows[2].Least = 0.85 }, "it kept up, so this run shows nothing", ""},
		{"the control is soon", func(rows []Tenanted) { rows[2].TTFT99 = 0.15 }, "it kept up, so this run shows nothing", ""},
	} {
		rows := tenantRows()
		c.change(rows)
		failed, missed := outcomes(&Report{Verdicts: judgeTenants(rows)})
		wantOne(t, c.name, "failed", failed, c.failed)
		wantOne(t, c.name, "missed", missed, c.missed)
	}
	for i, row := range tenantRows() {
		rows := tenantRows()
		rows[i].NotMeasured = "no port"
		if failed, _ := outcomes(&Report{Verdicts: judgeTenants(rows)}); len(failed) != 2 || !strings.Contains(failed[0], row.Run+" was not measured: no port") {
			t.Errorf("%s: %q", row.Run, failed)
		}
	}
	if failed, _ := outcomes(&Report{Verdicts: judgeTenants(nil)}); len(failed) != 1 {
		t.Errorf("nothing at all passed: %q", failed)
	}
}

// Those requests count that were to come within the span, by tenant. What failed counts whenever
// it came.
func TestTenantsSeen(t *testing.T) {
	s := tenantsSeen{from: 10e9, to: 20e9}
	answered := func(at, ttft time.Duration) *load.Sample {
		return &load.Sample{Outcome: load.Complete, Status: 200, Intended: int64(at), Started: int64(at) + 1e6, FirstToken: int64(at + ttft)}
	}
	refused := func(at time.Duration) *load.Sample {
		return &load.Sample{Outcome: load.Errored, Status: statusRefused, Intended: int64(at)}
	}
	for range 5 {
		s.take(0, answered(11*time.Second, time.Second))
		s.take(0, refused(12*time.Second))
	}
	s.take(1, answered(10*time.Second, 100*time.Millisecond))
	s.take(1, answered(19*time.Second, 300*time.Millisecond))
	s.take(1, answered(9*time.Second, 9*time.Second)) // to come before
	s.take(1, refused(20*time.Second))                // and after
	s.take(2, answered(15*time.Second, 200*time.Millisecond))
	s.take(2, refused(15*time.Second))
	s.take(3, &load.Sample{Outcome: load.Errored, Status: 503, Kind: "status_503", Detail: "no engine", Intended: 2e9})
	s.take(3, &load.Sample{Outcome: load.Unfinished, Intended: 2e9})
	var x Tenanted
	s.figures(&x)
	if x.Asked != 4 || x.Served != 3 || x.Least != 0.5 || x.TTFT50 != 0.2 || x.Greedy != 0.5 || x.Refused != 0.6 || x.Failed != 2 || x.FirstError != "status_503: no engine" {
		t.Errorf("%+v", x)
	}
	x = Tenanted{}
	if new(tenantsSeen).figures(&x); x.Least != 0 {
		t.Errorf("of nothing: %+v", x)
	}
}

func TestTenantsOptions(t *testing.T) {
	s, err := Find("tenants")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		want string // empty: it is good
	}{
		{Options{}, ""},
		{Options{Duration: 8 * time.Second, Streams: 16}, ""},
		{Options{Duration: 7 * time.Second}, "--duration: 7s is too short for three loads; give at least 8s"},
		{Options{Streams: tenantMost + 1}, "--streams: 257"},
		{Options{Loads: []float64{1}}, "only weir scenario overload"},
	} {
		err := c.o.check(s)
		var invalid Invalid
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %s", c.o, err, c.want)
		}
	}
	o := Options{}
	if err := errors.Join(o.check(s), s.enoughFiles(&o, 4096)); err != nil {
		t.Error(err)
	}
	if err := s.enoughFiles(&o, 1024); err == nil {
		t.Error("few files are enough")
	}
}

func TestTenantsText(t *testing.T) {
	report := &Report{Scenario: "tenants", Tenants: tenantRows(), Others: 0.5}
	var text, object bytes.Buffer
	if err := errors.Join(report.Text(&text), report.JSON(&object)); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"by shares   1461.6      0.0          500     498     90.0  0.000  0.200", "took up to 0.5 CPUs"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("%q is not in\n%s", part, text.String())
		}
	}
	if !strings.Contains(object.String(), `"least_served_share": 0.9`) {
		t.Errorf("%s", object.String())
	}
}

// Each tenant has a key of its own, and none stands in the file.
func TestTenantKeys(t *testing.T) {
	all, err := newTenantKeys(filepath.Join(t.TempDir(), "keys.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	distinct := map[string]bool{}
	for _, key := range all.keys {
		distinct[key] = true
	}
	if len(distinct) != tenantCount {
		t.Errorf("%d keys", len(distinct))
	}
}
