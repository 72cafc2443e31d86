package nightly

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Report writes the result of a comparison: a line for each step, below it one for each
// figure that changed, and at the end what makes the run fail. It reports whether anything
// does.
func Report(w io.Writer, run *Record, found []Finding, allowMissing bool) (fails bool, err error) {
	var b strings.Builder
	var failures []string
	for _, s := range run.Steps {
		var of []Finding
		for _, f := range found {
			if f.Step == s.Name {
				of = append(of, f)
			}
		}
		stepLines(&b, &s, of)
	}
	for _, f := range found {
		if run.step(f.Step) == nil {
			fmt.Fprintf(&b, "%-16s %s: %s\n", f.Step, f.Verdict, f.Why)
		}
		if f.Fails(allowMissing) {
			failures = append(failures, strings.TrimSpace(f.Step+" "+f.Figure)+" "+string(f.Verdict))
		}
	}
	switch len(failures) {
	case 0:
		b.WriteString("nothing got worse\n")
	case 1:
		fmt.Fprintf(&b, "FAIL: %s\n", failures[0])
	default:
		fmt.Fprintf(&b, "FAIL: %d:\n  %s\n", len(failures), strings.Join(failures, "\n  "))
	}
	_, err = io.WriteString(w, b.String())
	return len(failures) > 0, err
}

// stepLines writes a step and those of its findings that say something.
func stepLines(b *strings.Builder, s *Result, found []Finding) {
	counts := map[Verdict]int{}
	reason := ""
	for _, f := range found {
		if f.Figure == "" { // the only one
			fmt.Fprintf(b, "%-16s %s%s\n", s.Name, f.Verdict, because(f.Why))
			if f.Verdict == NoBaseline || f.Verdict == Changed {
				for i := range s.Figures {
					line(b, "", s.Figures[i].Name, nil, &s.Figures[i])
				}
			}
			return
		}
		if counts[f.Verdict]++; f.Verdict == NotJudged {
			reason = f.Why
		}
	}
	var parts []string
	for _, v := range []Verdict{Held, Improved, Worse, Vanished, Fresh, NotJudged} {
		if n := counts[v]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	fmt.Fprintf(b, "%-16s %s, %v: %s%s\n", s.Name, s.Outcome, seconds(s.Seconds), strings.Join(parts, ", "), because(reason))
	for _, f := range found {
		if f.Verdict != Held {
			line(b, f.Verdict, f.Figure, f.Old, f.New)
			if f.Verdict == Worse && f.Why != "" {
				fmt.Fprintf(b, "    %s\n", f.Why)
			}
		}
	}
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// line writes a figure with its old and new value.
func line(b *strings.Builder, v Verdict, name string, old, now *Figure) {
	fmt.Fprintf(b, "  %-10s %s", v, name)
	switch {
	case old == nil:
		fmt.Fprintf(b, ": %s", value(now))
	case now == nil:
		fmt.Fprintf(b, ": was %s", value(old))
	case old.Unit != now.Unit || old.Kind != now.Kind:
		fmt.Fprintf(b, ": %s -> %s", value(old), value(now))
	default:
		fmt.Fprintf(b, ": %s -> %s%s", number(old.Value), value(now), change(old, now))
	}
	b.WriteString("\n")
}

// change writes by how much a figure changed, and how much is allowed.
func change(old, now *Figure) string {
	rule, ok := old.Kind.rule()
	if !ok || old.Value == 0 {
		return ""
	}
	percent := 100 / math.Abs(old.Value)
	return fmt.Sprintf(" (%+.3g %%; %s is better, tolerance %.3g %%)", percent*(now.Value-old.Value), rule.Better, percent*rule.tolerance(*old))
}

func value(f *Figure) string { return strings.TrimSpace(number(f.Value) + " " + f.Unit) }

// number writes a value with four digits, and whole ones whole.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// short writes a duration without its zeros.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// List writes the steps: the purpose and duration of each.
func List(w io.Writer, steps []Step, missing func(Step) string) error {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%-16s about %s, at most %s: %s\n", s.Name, short(s.Typical), short(s.Limit), s.Why)
		fmt.Fprintf(&b, "%-16s %s\n", "", s.Command)
		if lack := missing(s); lack != "" {
			fmt.Fprintf(&b, "%-16s cannot run here: %s\n", "", lack)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
