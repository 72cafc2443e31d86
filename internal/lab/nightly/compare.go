package nightly

import (
	"fmt"
	"slices"
)

// Verdict is the result of a comparison.
type Verdict string

// The verdicts. Those of figures come first, then those of whole steps.
const (
	Held      Verdict = "held"
	Improved  Verdict = "better" // by more than its tolerance
	Worse     Verdict = "WORSE"
	Vanished  Verdict = "VANISHED"
	Fresh     Verdict = "new"
	NotJudged Verdict = "not judged"

	Broken     Verdict = "FAILED" // the step's outcome has the details
	Missing    Verdict = "NOT RUN"
	NoBaseline Verdict = "no baseline yet"
	Changed    Verdict = "CHANGED" // the command is not the baseline's
)

// Finding is a verdict on a step or on one of its figures.
type Finding struct {
	Step    string
	Figure  string // empty: the verdict is on the step
	Verdict Verdict
	Old     *Figure
	New     *Figure
	// Why explains the verdict, if there is more to say.
	Why string
}

// Fails reports whether a run with this finding fails.
func (f Finding) Fails(allowMissing bool) bool {
	switch f.Verdict {
	case Worse, Vanished, Broken, Changed:
		return true
	case Missing:
		return !allowMissing
	}
	return false
}

// Compare compares a run with a baseline. steps names the existing steps: a step of the
// baseline that no longer exists has vanished. A step that exists and was not asked for is
// left out.
func Compare(base, run *Record, steps []string) []Finding {
	var all []Finding
	for i := range run.Steps {
		now := &run.Steps[i]
		switch old := base.step(now.Name); {
		case now.Outcome == NotRun:
			all = append(all, Finding{Step: now.Name, Verdict: Missing, Why: now.Why})
		case now.Outcome != Passed:
			why := now.Why
			if why == "" {
				why = string(now.Outcome)
			}
			all = append(all, Finding{Step: now.Name, Verdict: Broken, Why: why})
		case old == nil:
			all = append(all, Finding{Step: now.Name, Verdict: NoBaseline})
		case old.Command != now.Command:
			all = append(all, Finding{Step: now.Name, Verdict: Changed, Why: fmt.Sprintf("the baseline was measured by %q; accept a new one", old.Command)})
		default:
			all = append(all, compareStep(old, now)...)
		}
	}
	for _, old := range base.Steps {
		if !slices.Contains(steps, old.Name) {
			all = append(all, Finding{Step: old.Name, Verdict: Vanished, Why: "there is no such step any more; take it out of the baseline"})
		}
	}
	return all
}

// compareStep compares the figures of a step that passed.
func compareStep(old, now *Result) []Finding {
	var all []Finding
	for i := range now.Figures {
		f := &now.Figures[i]
		was := figure(old.Figures, f.Name)
		found := Finding{Step: now.Name, Figure: f.Name, Old: was, New: f}
		if was == nil {
			found.Verdict = Fresh
		} else {
			found.Verdict, found.Why = judge(*was, *f, func(r Rule) string { return incomparable(r, old, now) })
		}
		all = append(all, found)
	}
	for i := range old.Figures {
		if f := &old.Figures[i]; figure(now.Figures, f.Name) == nil {
			all = append(all, Finding{Step: now.Name, Figure: f.Name, Verdict: Vanished, Old: f})
		}
	}
	return all
}

func figure(all []Figure, name string) *Figure {
	i := slices.IndexFunc(all, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// incomparable returns why figures of a rule cannot be compared, or is empty.
func incomparable(r Rule, old, now *Result) string {
	switch {
	case r.Needs == SameMachine && old.Machine != now.Machine:
		return fmt.Sprintf("the baseline was measured on another machine (%s)", old.Machine)
	case r.Needs >= Quiet && now.disturbed():
		return fmt.Sprintf("other processes took %.1f CPUs", now.Others)
	case r.Needs >= Quiet && old.disturbed():
		return fmt.Sprintf("other processes took %.1f CPUs when the baseline was measured", old.Others)
	}
	return ""
}

// judge compares two values of a figure by the rule of its kind, unless that gives a
// reason why they cannot be compared.
func judge(old, now Figure, incomparable func(Rule) string) (Verdict, string) {
	if old.Kind != now.Kind || old.Unit != now.Unit {
		return Worse, fmt.Sprintf("it was %s in %q, and is %s in %q; accept a new baseline", old.Kind, old.Unit, now.Kind, now.Unit)
	}
	rule, _ := now.Kind.rule() // Read has refused unknown kinds
	if why := incomparable(rule); why != "" {
		return NotJudged, why
	}
	switch by, tolerance := rule.worseBy(old.Value, now.Value), rule.tolerance(old); {
	case by > tolerance:
		return Worse, ""
	case -by > tolerance:
		return Improved, ""
	}
	return Held, ""
}
