package nightly

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Figure is one measured value. If it was measured more than once, Value is the median of
// Samples.
type Figure struct {
	Name    string    `json:"name"`
	Kind    Kind      `json:"kind"`
	Unit    string    `json:"unit,omitempty"`
	Value   float64   `json:"value"`
	Samples []float64 `json:"samples,omitempty"`
}

// Of makes a figure from its repeats; there must be at least one.
func Of(name string, kind Kind, unit string, samples ...float64) Figure {
	f := Figure{Name: name, Kind: kind, Unit: unit, Value: median(samples)}
	if len(samples) > 1 {
		f.Samples = samples
	}
	return f
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// Outcome is how a step went.
type Outcome string

// The outcomes.
const (
	Passed      Outcome = "passed"
	Failed      Outcome = "failed"
	OutOfTime   Outcome = "out of time"
	NotRun      Outcome = "not run" // it cannot run here
	Interrupted Outcome = "interrupted"
)

var outcomes = []Outcome{Passed, Failed, OutOfTime, NotRun, Interrupted}

// Result is one step of a run: what was done, where, and its outcome.
type Result struct {
	Name    string  `json:"name"`
	Command string  `json:"command"`
	Outcome Outcome `json:"outcome"`
	// Why is what went wrong.
	Why     string    `json:"why,omitempty"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	About
	// Others is how many CPUs processes took that were not the step's.
	Others  float64  `json:"other_processes_cpus"`
	Figures []Figure `json:"figures,omitempty"`
}

// About describes what was measured, and on which machine.
type About struct {
	Commit  string `json:"commit"`
	Machine string `json:"machine"` // with the version of Go
}

// disturbed reports whether other processes took more of the machine than a figure
// that needs it quiet can bear.
func (r *Result) disturbed() bool { return r.Others > 0.25 }

// Record is what a run measured or, over several runs, what was accepted.
type Record struct {
	Steps []Result `json:"steps"`
}

// step finds a step's result.
func (r *Record) step(name string) *Result {
	i := slices.IndexFunc(r.Steps, func(s Result) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Steps[i]
}

// Accept replaces the baseline's steps by those of a run. It returns the accepted steps,
// and the reasons for the others. From a disturbed step it takes only the figures that
// tolerate disturbance, and none if the baseline's step was not disturbed.
func (r *Record) Accept(run *Record) (accepted, refused []string) {
	for _, s := range run.Steps {
		old := r.step(s.Name)
		spoilt := false
		if s.disturbed() {
			s.Figures = slices.DeleteFunc(slices.Clone(s.Figures), func(f Figure) bool {
				rule, _ := f.Kind.rule()
				spoilt = spoilt || rule.Needs != Any
				return rule.Needs != Any
			})
		}
		switch {
		case s.Outcome != Passed:
			refused = append(refused, fmt.Sprintf("%s: %s", s.Name, s.Outcome))
			continue
		case spoilt && (len(s.Figures) == 0 || old != nil && !old.disturbed()):
			refused = append(refused, fmt.Sprintf("%s: other processes took %.1f CPUs; measure it on a quiet machine", s.Name, s.Others))
			continue
		case old != nil:
			*old = s
		default:
			r.Steps = append(r.Steps, s)
		}
		accepted = append(accepted, s.Name)
	}
	return accepted, refused
}

// Write writes the record as JSON.
func (r *Record) Write(w io.Writer) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(samplesInLine(text), '\n'))
	return err
}

// samplesInLine puts each array of numbers into one line.
func samplesInLine(text []byte) []byte {
	var out []byte
	for {
		before, rest, found := bytes.Cut(text, []byte(`"samples": [`))
		if out = append(out, before...); !found {
			return out
		}
		samples, after, _ := bytes.Cut(rest, []byte("]"))
		out = append(out, `"samples": [`...)
		out = append(out, bytes.Join(bytes.Fields(samples), []byte(" "))...)
		out, text = append(out, ']'), after
	}
}

// Read reads a record. Its error states what is wrong and where.
func Read(text []byte) (*Record, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	r := new(Record)
	if err := d.Decode(r); err != nil {
		return nil, located(text, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the record")
	}
	seen := map[string]bool{}
	for _, s := range r.Steps {
		if s.Name == "" || seen[s.Name] {
			return nil, fmt.Errorf("step %q: a step needs a name of its own", s.Name)
		}
		if seen[s.Name] = true; !slices.Contains(outcomes, s.Outcome) {
			return nil, fmt.Errorf("step %s: no outcome %q", s.Name, s.Outcome)
		}
		if err := check(s.Figures); err != nil {
			return nil, fmt.Errorf("step %s: %w", s.Name, err)
		}
	}
	return r, nil
}

// located adds the line of the text to an error of package json.
func located(text []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	at := int64(0)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON text ends too early")
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at = kind.Offset
	default:
		return err
	}
	return fmt.Errorf("line %d: %w", 1+bytes.Count(text[:min(int(at), len(text))], []byte("\n")), err)
}

// check refuses figures that could not be compared.
func check(figures []Figure) error {
	seen := map[string]bool{}
	for _, f := range figures {
		if f.Name == "" || seen[f.Name] {
			return fmt.Errorf("figure %q: a figure needs a name of its own", f.Name)
		}
		seen[f.Name] = true
		if _, ok := f.Kind.rule(); !ok {
			return fmt.Errorf("figure %s: no kind %q", f.Name, f.Kind)
		}
		for _, v := range append([]float64{f.Value}, f.Samples...) {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("figure %s: %v is no measurement", f.Name, v)
			}
		}
	}
	return nil
}
