package nightly

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// script stands for the execution of steps: each takes its time, or until it is
// stopped, and fails if it says so.
type script map[string]struct {
	takes time.Duration
	err   error
}

func (s script) execute(ctx context.Context, step Step) (Output, error) {
	select {
	case <-ctx.Done():
		time.Sleep(time.Second) // to stop it
		return Output{Printed: []byte("cut")}, context.Cause(ctx)
	case <-time.After(s[step.Name].takes):
	}
	return Output{Printed: []byte(step.Name), Others: 0.5}, s[step.Name].err
}

// length is a reader.
func length(printed, _ []byte) ([]Figure, error) {
	return []Figure{Of("length", Count, "", float64(len(printed)))}, nil
}

func options(s script, kept *[]int, steps ...Step) Options {
	return Options{
		Steps: steps, About: About{Commit: "c", Machine: "m"}, Progress: new(bytes.Buffer), Execute: s.execute,
		Missing: func(s Step) string { return strings.Join(s.Needs, " ") },
		Keep:    func(r *Record) error { *kept = append(*kept, len(r.Steps)); return nil },
	}
}

var ignoreStart = cmpopts.IgnoreFields(Result{}, "Started", "Command")

// TestRun: each way in which a step may go, in one run that goes on after each.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept []int
		o := options(script{
			"good": {takes: 150 * time.Second}, "slow": {takes: time.Hour}, "bad": {err: errors.New("exit status 2")},
			"garbled": {}, "absurd": {}, "silent": {takes: time.Second},
		}, &kept,
			Step{Name: "good", Typical: 2 * time.Minute, Limit: time.Hour, Read: length},
			Step{Name: "slow", Typical: time.Minute, Limit: 3 * time.Minute, Read: length},
			Step{Name: "bad", Limit: time.Hour, Read: length},
			Step{Name: "absent", Limit: time.Hour, Needs: []string{"there is no docker"}},
			Step{Name: "garbled", Limit: time.Hour, Read: func(_, _ []byte) ([]Figure, error) { return nil, errors.New("no figures") }},
			Step{Name: "absurd", Limit: time.Hour, Read: func(_, _ []byte) ([]Figure, error) {
				return []Figure{Of("f", Time, "s", math.NaN())}, nil
			}},
			Step{Name: "silent", Limit: time.Hour},
		)
		record, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		about := About{Commit: "c", Machine: "m"}
		want := &Record{Steps: []Result{
			{Name: "good", Outcome: Passed, Seconds: 150, About: about, Others: 0.5, Figures: []Figure{Of("length", Count, "", 4)}},
			{Name: "slow", Outcome: OutOfTime, Seconds: 181, About: about, Why: "out of time: it was stopped after 3m; it takes about 1m"},
			{Name: "bad", Outcome: Failed, About: about, Others: 0.5, Why: "exit status 2"},
			{Name: "absent", Outcome: NotRun, About: about, Why: "there is no docker"},
			{Name: "garbled", Outcome: Failed, About: about, Others: 0.5, Why: "its figures cannot be read: no figures"},
			{Name: "absurd", Outcome: Failed, About: about, Others: 0.5, Why: "its figures cannot be read: figure f: NaN is no measurement"},
			{Name: "silent", Outcome: Passed, Seconds: 1, About: about, Others: 0.5},
		}}
		if diff := cmp.Diff(want, record, ignoreStart); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]int{1, 2, 3, 4, 5, 6, 7}, kept); diff != "" {
			t.Error("kept: ", diff)
		}
		if got := o.Progress.(*bytes.Buffer).String(); strings.Count(got, "good ") != 4 || !strings.Contains(got, "good             2m of about 2m\n") {
			t.Errorf("progress:\n%s", got)
		}
	})
}

// TestInterrupted: what was measured before is kept, the step under way is stopped,
// and none begins after it.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		var kept []int
		record, err := Run(ctx, options(script{"a": {takes: time.Minute}, "b": {takes: time.Minute}, "c": {}}, &kept,
			Step{Name: "a", Limit: time.Hour, Read: length}, Step{Name: "b", Limit: time.Hour}, Step{Name: "c", Limit: time.Hour}))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		about := About{Commit: "c", Machine: "m"}
		want := &Record{Steps: []Result{
			{Name: "a", Outcome: Passed, Seconds: 60, About: about, Others: 0.5, Figures: []Figure{Of("length", Count, "", 1)}},
			{Name: "b", Outcome: Interrupted, Seconds: 31, About: about},
		}}
		if diff := cmp.Diff(want, record, ignoreStart); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]int{1, 2}, kept); diff != "" {
			t.Error("kept: ", diff)
		}
	})
}

// TestKeepFails: a run whose results cannot be kept ends at once.
func TestKeepFails(t *testing.T) {
	full := errors.New("no space left on device")
	var kept []int
	o := options(script{}, &kept, Step{Name: "a", Limit: time.Hour}, Step{Name: "b", Limit: time.Hour})
	o.Keep = func(*Record) error { return full }
	record, err := Run(t.Context(), o)
	if !errors.Is(err, full) || len(record.Steps) != 1 {
		t.Errorf("%v after %d steps", err, len(record.Steps))
	}
}

func TestSelect(t *testing.T) {
	all := []Step{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	for _, c := range []struct {
		only, want, err string
	}{
		{"", "a b c", ""}, {"c,a", "a c", ""}, {"b,b", "b", ""},
		{"a,x", "", `there is no step "x"; the steps are a, b, c`}, {"a,", "", `there is no step ""`},
	} {
		chosen, err := Select(all, c.only)
		if got := strings.Join(Names(chosen), " "); got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %q, %v", c.only, got, err)
		}
	}
}

func TestList(t *testing.T) {
	var out bytes.Buffer
	err := List(&out, []Step{
		{Name: "a", Command: "make a", Why: "because", Typical: 90 * time.Second, Limit: 2 * time.Hour},
		{Name: "b", Command: "make b", Why: "so", Typical: time.Second, Limit: time.Minute, Needs: []string{"docker"}},
	}, func(s Step) string { return strings.Join(s.Needs, "") })
	want := `a                about 1m30s, at most 2h: because
                 make a
b                about 1s, at most 1m: so
                 make b
                 cannot run here: docker
`
	if diff := cmp.Diff(want, out.String()); diff != "" || err != nil {
		t.Error(diff, err)
	}
}
