package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A cost is what a part took.
type cost struct {
	Part     string
	Budget   float64 // 0: not judged
	Factor   float64 // how much longer the reference work took than on the machine of the budgets
	CPU      float64 // CPU seconds of the tests
	Compiled float64 // CPU seconds of everything else: the compiler, checks, what was fetched
	Wall     float64
	Others   float64 // CPUs that other processes took meanwhile
	Runs     int     // 2: the first one was too dear
	OK       bool
	Dearest  []timed `json:",omitempty"` // of a part that was too dear
}

type timed struct {
	Name string
	CPU  float64
}

// A report is what a run is remembered by.
type report struct {
	Began    time.Time
	Machine  string
	Commit   string
	Parts    []cost
	Repeated []repeat `json:",omitempty"`
}

// A runner runs parts one after the other.
type runner struct {
	out    io.Writer
	judge  bool
	budget *budget
	// reference is what the reference work takes, in CPU seconds; 0: it is measured.
	reference float64
	report    report
	last      []string // go test's own lines of the latest part that has some
}

// folder is where the parts leave what they print, what they cost, and the events of their
// tests.
const folder = "bin/parts.d"

// all runs parts until one fails.
func (r *runner) all(ctx context.Context, parts []part) bool {
	r.report = report{Began: time.Now().UTC().Truncate(time.Second), Machine: machine(), Commit: commit()}
	for _, p := range parts {
		c := r.one(ctx, p)
		for c.OK && r.judge && c.dear(p) && c.Runs < 2 {
			fmt.Fprintf(r.out, "parts: %s: it is run again, as chance may have made it dear\n", c.verdict(p))
			again := r.one(ctx, p)
			again.Runs, again.Wall = c.Runs+1, again.Wall+c.Wall
			c = again
		}
		if c.OK && r.judge && c.dear(p) {
			c.OK = false
			fmt.Fprintf(r.out, "parts: %s, twice in a row. Its dearest tests, in CPU seconds:\n", c.verdict(p))
			for _, t := range c.Dearest {
				fmt.Fprintf(r.out, "%9.1f  %s\n", t.CPU, t.Name)
			}
		}
		r.report.Parts = append(r.report.Parts, c)
		if !c.OK {
			return false
		}
	}
	return true
}

func (c *cost) dear(p part) bool { return p.budget > 0 && c.CPU > p.allowed(c.Factor) }

func (c *cost) verdict(p part) string {
	return fmt.Sprintf("%s took %.0f CPU seconds, and may take %.0f (1.3 times its budget of %.0f, and 10; this machine takes %.2f times as long as that of the budgets)",
		p.name, c.CPU, p.allowed(c.Factor), p.budget, c.Factor)
}

// one runs a part once.
func (r *runner) one(ctx context.Context, p part) cost {
	c := cost{Part: p.name, Budget: p.budget, Runs: 1, Factor: 1}
	dir := filepath.Join(folder, p.name)
	os.RemoveAll(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		fmt.Fprintln(r.out, "parts:", err)
		return c
	}
	if r.judge && p.budget > 0 {
		took := r.reference
		if took == 0 {
			took = reference()
		}
		c.Factor = max(1, took/r.budget.reference)
	}
	costs, err := filepath.Abs(filepath.Join(dir, "costs"))
	if err != nil {
		fmt.Fprintln(r.out, "parts:", err)
		return c
	}
	began, busy := time.Now(), busySeconds()
	cmd := exec.CommandContext(ctx, "sh", "-c", p.command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C ends all that the part has started
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "PARTS_EVENTS="+filepath.Dir(costs))
	if r.judge {
		cmd.Env = append(cmd.Env, costsFile+"="+costs)
	}
	var printed lines
	cmd.Stdout, cmd.Stderr = io.MultiWriter(r.out, &printed), os.Stderr
	err = cmd.Run()
	c.OK, c.Wall = err == nil, time.Since(began).Seconds()
	if cmd.ProcessState != nil {
		all := (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
		var tests []timed
		c.CPU, tests = read(costs)
		c.Compiled = max(0, all-c.CPU)
		c.Others = max(0, busySeconds()-busy-all) / c.Wall
		c.Dearest = tests[:min(5, len(tests))]
	}
	if !c.dear(p) {
		c.Dearest = nil
	}
	if c.OK && r.judge && p.budget > 0 && c.CPU == 0 {
		fmt.Fprintf(r.out, "parts: %s has a budget, and ran no test\n", p.name)
		c.OK = false
	}
	if len(printed.ended) > 0 {
		r.last = printed.ended
	}
	repeated, err := repeats(dir)
	if err != nil {
		fmt.Fprintln(r.out, "parts:", err)
		c.OK = false
	}
	r.report.Repeated = append(r.report.Repeated, repeated...)
	fmt.Fprintf(r.out, "parts: %s: %.0f s, %.0f CPU s of all its processes\n", p.name, c.Wall, c.CPU+c.Compiled)
	return c
}

// read sums up what the test binaries of a part noted, and returns its tests, the dearest
// first. What a package took outside of its tests counts as a test of no name.
func read(file string) (sum float64, tests []timed) {
	text, _ := os.ReadFile(file)
	byName := map[string]float64{}
	for line := range bytes.Lines(text) {
		var m metered
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		sum += m.CPU
		rest := m.CPU
		for name, seconds := range m.Tests {
			byName[m.Package+" "+name] += seconds
			rest -= seconds
		}
		byName[m.Package] += max(0, rest)
	}
	for name, seconds := range byName {
		tests = append(tests, timed{name, seconds})
	}
	slices.SortFunc(tests, func(a, b timed) int { return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(a.Name, b.Name)) })
	return sum, tests
}

// lines keeps the lines by which go test ends a package.
type lines struct {
	rest  []byte
	ended []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		if s := string(line); strings.HasPrefix(s, "ok  \t") || strings.HasPrefix(s, "FAIL\t") {
			l.ended = append(l.ended, s)
		}
		l.rest = rest
	}
}

// close prints what the parts cost, and what was repeated.
func (r *runner) close() {
	if r.judge {
		fmt.Fprint(r.out, "\n", table(r.report.Parts))
	}
	if len(r.report.Repeated) == 0 {
		return
	}
	fmt.Fprintln(r.out, "\nFailed among the others and passed by themselves: mend these, or delete them.")
	for _, t := range r.report.Repeated {
		fmt.Fprintln(r.out, " ", t)
	}
}

// lines prints go test's own lines of the last part once more, for readers of the end.
func (r *runner) lines() {
	if len(r.last) > 0 {
		fmt.Fprintf(r.out, "\n%s\n", strings.Join(r.last, "\n"))
	}
}

func (r *runner) keep(file string) error {
	text, err := json.MarshalIndent(r.report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// machine describes the processor.
func machine() string {
	name := "an unknown processor"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
			if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
				name = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d cores of %s, %s", runtime.NumCPU(), name, runtime.Version())
}

func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// busySeconds returns the CPU seconds that all processes of the machine have taken.
func busySeconds() (sum float64) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	var user, nice, system float64
	fmt.Sscanf(first, "cpu %f %f %f", &user, &nice, &system)
	return (user + nice + system) / 100
}

// reference returns the CPU seconds of a piece of work that resembles what tests do: JSON,
// maps, allocation, and system calls. It is the median of three.
func reference() float64 {
	var took []float64
	for range 3 {
		before := own()
		work()
		took = append(took, own()-before)
	}
	slices.Sort(took)
	return took[1]
}

func own() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func work() {
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	defer r.Close()
	defer w.Close()
	kept := map[string]any{}
	for i := range 20000 {
		text, _ := json.Marshal(map[string]any{"id": i, "text": strings.Repeat("weir ", i%20), "list": []int{i, i + 1, i + 2}})
		var back map[string]any
		json.Unmarshal(text, &back)
		kept[fmt.Sprint("key ", i%5000)] = back
		w.Write(text[:min(len(text), 64)])
		r.Read(text)
	}
	runtime.KeepAlive(slices.Sorted(maps.Keys(kept)))
}
