//go:build linux

package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/client"
)

// scripted is a runner whose cells go as a test says.
func scripted(result func(l cell.Load, gateway string) *client.Result) *runner {
	o := Options{}
	if err := o.check(Scenario{Streams: 100}); err != nil {
		panic(err)
	}
	return &runner{options: o, cell: func(_ context.Context, l cell.Load, _ cell.Times, gateway string) *client.Result {
		r := result(l, gateway)
		r.Load, r.Gateway = l.Name, gateway
		return r
	}}
}

// good is a result that every requirement holds for; its control fails at once.
func good(l cell.Load, gateway string) *client.Result {
	r := &client.Result{Delivered: offered(l), Share: 1, P99: 10, PerWrite: 2, CPUPerMega: 2, Streams: l.Streams, Complete: l.Streams, Received: 1000}
	switch gateway {
	case lab.OneWrite:
		r.P99, r.CPUPerMega, r.Delivered = 100, 3, 0.9*r.Delivered
	case lab.LatestWins:
		r.Lost, r.LostStreams = 7, 3
	}
	return r
}

func outcomes(report *Report) (failed, missed []string) {
	for _, v := range report.Verdicts {
		switch v.Outcome {
		case Failed:
			failed = append(failed, v.Text)
		case Missed:
			missed = append(missed, v.Text)
		}
	}
	return failed, missed
}

// wantOne holds what a report has of an outcome to one text with that part; empty: none.
func wantOne(t *testing.T, name, what string, got []string, part string) {
	t.Helper()
	if part == "" && len(got) > 0 || part != "" && (len(got) != 1 || !strings.Contains(got[0], part)) {
		t.Errorf("%s: %s %q, want %q", name, what, got, part)
	}
}

func TestVerdicts(t *testing.T) {
	change := func(gateway string, f func(*client.Result)) func(cell.Load, string) *client.Result {
		return func(l cell.Load, g string) *client.Result {
			r := good(l, g)
			if g == gateway {
				f(r)
			}
			return r
		}
	}
	fine := func(r *client.Result) { r.P99, r.Delivered, r.Lost = 10, 1e9, 0 }
	for _, c := range []struct {
		name           string
		scenario       func(context.Context, *runner) *Report
		result         func(cell.Load, string) *client.Result
		failed, missed string // part of the one such verdict; empty: none
	}{
		{"backlog", backlog, good, "", ""},
		{"loss", loss, good, "", ""},
		{"plane loses", backlog, change(lab.Plane, func(r *client.Result) { r.Lost = 1 }), "weir plane loses no token: 2 lost", ""},
		{"relay loses", loss, change(lab.Relay, func(r *client.Result) { r.Lost = 1 }), "weir relay loses no token: 1 lost", ""},
		{"relay repeats", backlog, change(lab.Relay, func(r *client.Result) { r.Wrong = 2 }), "2 repeated", ""},
		{"nothing arrived", loss, change(lab.Relay, func(r *client.Result) { r.Received = 0 }), "of 0 received", ""},
		{"plane not measured", loss, change(lab.Plane, func(r *client.Result) { *r = client.Result{Failed: "no port"} }), "not measured under the load \"overload\": no port", ""},
		{"the clock was set", loss, change(lab.Plane, func(r *client.Result) { r.Negative = 3 }), "clock was set", ""},
		{"no control", loss, change(lab.LatestWins, func(r *client.Result) { *r = client.Result{Failed: "no port"} }), "latest-wins loses tokens of streams that end as complete: not measured", ""},
		{"control keeps up", backlog, change(lab.OneWrite, fine), "it did not, even at 8640k", ""},
		{"control loses nothing", loss, change(lab.LatestWins, fine), "it did not, even at 8640k", ""},
		{"streams end by error", backlog, change(lab.Relay, func(r *client.Result) { r.Errors, r.FirstError = 1, "gone" }), "", "the first: gone"},
		{"no nginx", backlog, change(lab.Nginx, func(r *client.Result) { *r = client.Result{Failed: lab.ErrNoNginx.Error()} }), "", ""},
		{"relay behind nginx", backlog, change(lab.Relay, func(r *client.Result) { r.Delivered /= 2 }), "", "at least what nginx does"},
		{"late for new requests", backlog, change(lab.Plane, func(r *client.Result) { r.ProbeOwn = &client.ProbeTimes{Count: 9, P99: 51} }), "", "output_path_delay"},
		{"merging costs more", loss, change(lab.Plane, func(r *client.Result) { r.CPUPerMega = 4 }), "", "costs no more"},
		{"nothing was merged", loss, change(lab.Plane, func(r *client.Result) { r.PerWrite = 1 }), "", "merged what landed"},
	} {
		report := c.scenario(t.Context(), scripted(c.result))
		failed, missed := outcomes(report)
		wantOne(t, c.name, "failed", failed, c.failed)
		wantOne(t, c.name, "missed", missed, c.missed)
	}
}

// The load is raised until the control fails, and no further.
func TestRaise(t *testing.T) {
	var loads []float64
	r := scripted(func(l cell.Load, gateway string) *client.Result {
		x := good(l, gateway)
		if gateway == lab.OneWrite {
			loads = append(loads, offered(l))
			if offered(l) < 2e6 {
				x.P99, x.Delivered = 10, offered(l)
			}
		}
		return x
	})
	if failed, _ := outcomes(backlog(t.Context(), r)); len(failed) > 0 {
		t.Errorf("failed %q", failed)
	}
	if want := []float64{135e3, 540e3, 2160e3}; !slices.Equal(loads, want) {
		t.Errorf("the control was offered %v, want %v", loads, want)
	}
}

// An interrupted run begins no further cell.
func TestInterrupted(t *testing.T) {
	for name, run := range map[string]func(context.Context, *runner) *Report{"backlog": backlog, "loss": loss} {
		ctx, cancel := context.WithCancel(t.Context())
		cells := 0
		r := scripted(func(l cell.Load, gateway string) *client.Result {
			if cells++; cells == 2 {
				cancel()
			}
			return good(l, gateway)
		})
		run(ctx, r)
		if cells != 2 {
			t.Errorf("%s: %d cells, want 2", name, cells)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Duration: time.Second}, "--duration: 1s is too short"},
		{Options{Duration: -time.Second}, "--duration"},
		{Options{Streams: 1}, "--streams: 1 is out of range"},
		{Options{Streams: MaxStreams + 1}, "--streams"},
	} {
		_, err := All()[0].Run(t.Context(), c.o)
		var invalid Invalid
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.o, err, c.want)
		}
	}
	if err := enoughFiles(4096, 4096); err == nil || !strings.Contains(err.Error(), "ulimit -n 8704") || !strings.Contains(err.Error(), "at most 1792") {
		t.Errorf("few files: %v", err)
	}
	if err := enoughFiles(4096, 65536); err != nil {
		t.Error(err)
	}
	if _, err := Find("backlgo"); err == nil || !strings.Contains(err.Error(), "backlog, blame, collapse, continuation, faults, loss, overload, replicas, starvation, tenants") {
		t.Errorf("an unknown scenario: %v", err)
	}
}

// The shares of the cells, and what is left for starting them, are the run.
func TestTimes(t *testing.T) {
	r := scripted(good)
	r.planned = 6
	got := r.times()
	if got.Measure != 6*time.Second || got.End() > 10*time.Second*8/10 {
		t.Errorf("%+v", got)
	}
}

func TestText(t *testing.T) {
	r := scripted(func(l cell.Load, gateway string) *client.Result {
		if gateway == lab.Nginx {
			return &client.Result{Failed: lab.ErrNoNginx.Error()}
		}
		x := good(l, gateway)
		x.ProbeFirst = client.ProbeTimes{Count: 5, P99: 1.5, Max: 2}
		x.OtherCPU = 3
		return x
	})
	report := backlog(t.Context(), r)
	report.Scenario, report.Streams, report.Elapsed = "backlog", 100, 60
	var text, object bytes.Buffer
	if err := errors.Join(report.Text(&text), report.JSON(&object)); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"scenario backlog", "100 streams, 60 s",
		"nginx                   135k          -",
		"weir plane              135k     135000  100.0   2.00    2.00    0.00    10.0     0.0     0.0     0         0      1.5, 2.0\n",
		"one-write-per-token     540k     486000",
		"nginx: not measured: nginx is not installed: run apt-get install",
		"took up to 0.5 CPUs",
		"ok      weir plane loses no token: 0 lost",
	} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("%q is not in\n%s", part, text.String())
		}
	}
	// The meaning of a share of delivery beside no loss stands below the table.
	if !strings.Contains(text.String(), "late, and not lost") {
		t.Errorf("no legend:\n%s", text.String())
	}
	if n := report.Missed(); n != 0 {
		t.Errorf("%d missed", n)
	}
	report.Verdicts = append(report.Verdicts, figure(false, "a"), figure(true, "b"), verdict(false, Failed, "c"))
	if n := report.Missed(); n != 1 {
		t.Errorf("%d missed, want 1", n)
	}
	report.Verdicts = report.Verdicts[:len(report.Verdicts)-3]
	var back Report
	if err := json.Unmarshal(object.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Rows) != 6 || back.Rows[2].Gateway != lab.Plane || back.Rows[2].Delivered != 135000 || len(back.Verdicts) != len(report.Verdicts) {
		t.Errorf("%+v", back)
	}
}
