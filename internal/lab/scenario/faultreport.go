//go:build linux

package scenario

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"weir/internal/lab/proc"
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

// spentByOthers returns the machine's CPU seconds that neither this process nor its ended
// children have used.
func spentByOthers() float64 {
	all, err := proc.MachineCPU()
	if err != nil {
		return 0 // nobody knows, and no figure depends on it
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			return 0
		}
		all -= float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	}
	return all
}

// faultHead are the columns of the faults.
var faultHead = []string{"kind", "fault", "requests", "refused", "broken", "lost", "repeated", "waited", "longest", "avoided", "out", "knowable", "back", "half its share", "wrongly out"}

func (x *Faulted) cells() []string {
	if x.Pair {
		return x.pairCells()
	}
	knowable := after(x.Knowable)
	if late := after(x.Late); x.Knowable > 0 && late != after(0) {
		knowable += " + " + late
	}
	return []string{x.Kind, x.Fault, fmt.Sprint(x.Requests), fmt.Sprint(x.Refused), fmt.Sprint(x.Broken), fmt.Sprint(x.Lost), fmt.Sprint(x.Wrong), fmt.Sprint(x.Waited),
		after(x.Longest), after(x.Avoided), after(x.Out), knowable, after(x.Back), after(x.Share), fmt.Sprint(x.WronglyOut)}
}

// faultedTables are the cells for a person, those of single engines and those of pairs.
func faultedTables(cells []Faulted) (tables [][][]string) {
	for _, pairs := range []bool{false, true} {
		var table [][]string
		for i := range cells {
			if x := &cells[i]; x.NotMeasured == "" && x.Requests > 0 && x.Pair == pairs {
				table = append(table, x.cells())
			}
		}
		if table != nil {
			tables = append(tables, append([][]string{headOf(pairs)}, table...))
		}
	}
	return tables
}

func headOf(pairs bool) []string {
	if pairs {
		return pairHead
	}
	return faultHead
}

// generated parts what Markdown writes from what people write into the same file.
const generatedBegins, generatedEnds = "<!-- weir scenario faults writes from here -->", "<!-- to here -->"

// WriteMarkdown writes the tables and verdicts into a file, in place of those of an earlier
// run; other text in the file is kept.
func (r *Report) WriteMarkdown(path string) error {
	before, after, err := around(path)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(before)
	if err := r.markdown(&b); err != nil {
		return err
	}
	b.WriteString(after)
	return os.WriteFile(path, []byte(b.String()), 0o666)
}

// Writable reports whether WriteMarkdown can write into a file. It creates the file if
// there is none.
func Writable(path string) error {
	if _, _, err := around(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	return f.Close()
}

// around returns what stands in a file before and after the tables.
func around(path string) (before, after string, err error) {
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return "", "", err
	}
	before, rest, found := strings.Cut(string(old), generatedBegins)
	_, rest, closed := strings.Cut(rest, generatedEnds)
	if found && !closed {
		return "", "", fmt.Errorf("%s: %s has no %s after it", path, generatedBegins, generatedEnds)
	}
	if !found {
		rest = "\n"
	}
	return before + generatedBegins + "\n\n", "\n" + generatedEnds + rest, nil
}

func (r *Report) markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "`weir scenario faults` of commit %s, %s: %d cells in %.0f s, %d streams in each; %s. Other programs took %.1f CPUs meanwhile.\n\n",
		cmp.Or(r.Commit, "not recorded"), r.Started.UTC().Format("2006-01-02 15:04 UTC"), len(r.Faulted), r.Elapsed, r.Streams, r.Machine, r.Others)
	for _, section := range []struct {
		title string
		of    func(x *Faulted) bool
		head  []string
	}{
		{"", func(x *Faulted) bool { return !x.Lives && !x.Pair }, faultHead},
		{"\nWhat engines live with, and must not be taken out for:\n\n", func(x *Faulted) bool { return x.Lives }, faultHead},
		{"\nPairs:\n\n", func(x *Faulted) bool { return x.Pair }, pairHead},
	} {
		var rows []string
		for i := range r.Faulted {
			x := &r.Faulted[i]
			switch {
			case !section.of(x):
			case x.NotMeasured != "":
				rows = append(rows, fmt.Sprintf("%s | %s | not measured: %s", x.Kind, x.Fault, strings.ReplaceAll(x.NotMeasured, "\n", " ")))
			case x.Requests > 0:
				rows = append(rows, strings.Join(x.cells(), " | "))
			}
		}
		if rows == nil {
			continue
		}
		fmt.Fprintf(&b, "%s| %s |\n|%s\n", section.title, strings.Join(section.head, " | "), strings.Repeat("---|", len(section.head)))
		for _, row := range rows {
			fmt.Fprintf(&b, "| %s |\n", row)
		}
	}
	b.WriteString("\n")
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "- %s: %s\n", v.Outcome, v.Text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
