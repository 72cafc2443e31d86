package nightly

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Step is one measurement.
type Step struct {
	Name    string
	Command string // for a shell, in the module's root
	// Why is what the step shows that no faster one does.
	Why string
	// Typical is about how long it takes, Limit after how long it is stopped.
	Typical, Limit time.Duration
	// Needs names the programs without which it cannot run.
	Needs []string
	// Read takes the figures from the step's output and from the file that it wrote, if its
	// command names one. It may be nil.
	Read func(printed, file []byte) ([]Figure, error)
}

// Output is the result of a step's command.
type Output struct {
	Printed, File []byte
	// Others is how many CPUs other processes took meanwhile.
	Others float64
}

// Options are what a run needs.
type Options struct {
	Steps []Step
	About About
	// Missing returns what the machine lacks for a step, or "".
	Missing func(Step) string
	// Execute runs a step's command to its end, or stops it when ctx ends. It returns
	// the output in every case.
	Execute func(ctx context.Context, s Step) (Output, error)
	// Keep is called with all results so far whenever a step has ended.
	Keep func(*Record) error
	// Progress gets a line when a step begins, when it ends, and each minute between.
	Progress io.Writer
}

var errOutOfTime = errors.New("out of time")

// Run runs the steps in turn. When ctx ends, the step under way is stopped, and the earlier
// steps are the result. The error is that of Keep or ctx.
func Run(ctx context.Context, o Options) (*Record, error) {
	record := &Record{Steps: []Result{}}
	for i, s := range o.Steps {
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintf(o.Progress, "%2d/%d  %-16s %s\n", i+1, len(o.Steps), s.Name, s.Command)
		result := o.step(ctx, s)
		record.Steps = append(record.Steps, result)
		fmt.Fprintf(o.Progress, "       %-16s %s, %v, %d figures\n", s.Name, result.Outcome, seconds(result.Seconds), len(result.Figures))
		if err := o.Keep(record); err != nil {
			return record, err
		}
	}
	return record, ctx.Err()
}

// step carries out one step.
func (o *Options) step(ctx context.Context, s Step) Result {
	r := Result{Name: s.Name, Command: s.Command, Started: time.Now(), About: o.About}
	if r.Why = o.Missing(s); r.Why != "" {
		r.Outcome = NotRun
		return r
	}
	limited, cancel := context.WithTimeoutCause(ctx, s.Limit, errOutOfTime)
	defer cancel()
	beats := make(chan struct{})
	go o.beat(limited, s, r.Started, beats)
	out, err := o.Execute(limited, s)
	cause := context.Cause(limited)
	cancel()
	<-beats
	r.Seconds, r.Others = time.Since(r.Started).Seconds(), out.Others
	switch {
	case err == nil: // it may have ended by itself at the last moment
		r.Figures, r.Outcome = o.read(s, out, &r.Why)
	case ctx.Err() != nil:
		r.Outcome = Interrupted
	case errors.Is(cause, errOutOfTime):
		r.Outcome, r.Why = OutOfTime, fmt.Sprintf("out of time: it was stopped after %s; it takes about %s", short(s.Limit), short(s.Typical))
	default:
		r.Outcome, r.Why = Failed, err.Error()
	}
	return r
}

// read takes a step's figures from its output.
func (o *Options) read(s Step, out Output, why *string) ([]Figure, Outcome) {
	if s.Read == nil {
		return nil, Passed
	}
	figures, err := s.Read(out.Printed, out.File)
	if err == nil {
		err = check(figures)
	}
	if err != nil {
		*why = "its figures cannot be read: " + err.Error()
		return nil, Failed
	}
	return figures, Passed
}

// beat shows each minute that a step is under way, until ctx ends.
func (o *Options) beat(ctx context.Context, s Step, began time.Time, ended chan<- struct{}) {
	defer close(ended)
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			fmt.Fprintf(o.Progress, "       %-16s %s of about %s\n", s.Name, short(time.Since(began).Round(time.Minute)), short(s.Typical))
		}
	}
}

// Select returns the steps of a comma-separated list of names, in their own order; all
// if it is empty.
func Select(steps []Step, only string) ([]Step, error) {
	if only == "" {
		return steps, nil
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(only, ",") {
		wanted[name] = true
	}
	var chosen []Step
	for _, s := range steps {
		if wanted[s.Name] {
			chosen = append(chosen, s)
			delete(wanted, s.Name)
		}
	}
	for name := range wanted {
		return nil, fmt.Errorf("there is no step %q; the steps are %s", name, strings.Join(Names(steps), ", "))
	}
	return chosen, nil
}

// Names lists the names of steps.
func Names(steps []Step) []string {
	var names []string
	for _, s := range steps {
		names = append(names, s.Name)
	}
	return names
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second / 10)
}
