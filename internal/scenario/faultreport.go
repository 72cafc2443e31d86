//go:build linux

package scenario

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// spin has more processes want to run than there are cores, until stop is called.
func spin() (stop func(), err error) {
	var all []*exec.Cmd
	stop = func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait() // it was killed
		}
	}
	for range runtime.NumCPU() + 4 {
		c := exec.Command("/bin/sh", "-c", "while :; do :; done")
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			stop()
			return nil, err
		}
		all = append(all, c)
	}
	return stop, nil
}

// faultHead are the columns of the faults.
var faultHead = []string{"kind", "fault", "requests", "refused", "broken", "lost", "repeated", "waited", "longest", "avoided", "out", "knowable", "back", "half its share", "wrongly out"}

func (x *Faulted) cells() []string {
	knowable := after(x.Knowable)
	if late := after(x.Late); x.Knowable > 0 && late != after(0) {
		knowable += " + " + late
	}
	return []string{x.Kind, x.Fault, fmt.Sprint(x.Requests), fmt.Sprint(x.Refused), fmt.Sprint(x.Broken), fmt.Sprint(x.Lost), fmt.Sprint(x.Wrong), fmt.Sprint(x.Waited),
		after(x.Longest), after(x.Avoided), after(x.Out), knowable, after(x.Back), after(x.Share), fmt.Sprint(x.WronglyOut)}
}

// faultedTable is the cells for a person.
func faultedTable(cells []Faulted) (table [][]string) {
	table = [][]string{faultHead}
	for i := range cells {
		if cells[i].NotMeasured == "" && cells[i].Requests > 0 {
			table = append(table, cells[i].cells())
		}
	}
	return table
}

// generated parts what Markdown writes from what people write into the same file.
const generatedBegins, generatedEnds = "<!-- weir scenario faults writes from here -->", "<!-- to here -->"

// WriteMarkdown writes the tables and verdicts into a file, in place of those of an
// earlier run; what else stands in it is left as it is.
func (r *Report) WriteMarkdown(path string) error {
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	before, rest, found := strings.Cut(string(old), generatedBegins)
	_, rest, closed := strings.Cut(rest, generatedEnds)
	if found && !closed {
		return fmt.Errorf("%s: %s has no %s after it", path, generatedBegins, generatedEnds)
	}
	var b strings.Builder
	b.WriteString(before + generatedBegins + "\n\n")
	if err := r.markdown(&b); err != nil {
		return err
	}
	b.WriteString("\n" + generatedEnds + rest)
	if !found {
		b.WriteString("\n")
	}
	return os.WriteFile(path, []byte(b.String()), 0o666)
}

func (r *Report) markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "`weir scenario faults`, %d streams, %.0f s, %s, %s:\n\n", r.Streams, r.Elapsed, r.Machine, r.Started.UTC().Format("2006-01-02"))
	for _, lives := range []bool{false, true} {
		if lives {
			b.WriteString("\nWhat engines live with, and must not be taken out for:\n\n")
		}
		fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(faultHead, " | "), strings.Repeat("---|", len(faultHead)))
		for i := range r.Faulted {
			x := &r.Faulted[i]
			switch {
			case x.Lives != lives:
			case x.NotMeasured != "":
				fmt.Fprintf(&b, "| %s | %s | not measured: %s |\n", x.Kind, x.Fault, strings.ReplaceAll(x.NotMeasured, "\n", " "))
			case x.Requests > 0:
				fmt.Fprintf(&b, "| %s |\n", strings.Join(x.cells(), " | "))
			}
		}
	}
	b.WriteString("\n")
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "- %s: %s\n", v.Outcome, v.Text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
