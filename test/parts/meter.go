package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A metered is what one run of a test binary cost.
type metered struct {
	Package string // its folder, from the module's
	CPU     float64
	Wall    float64
	Tests   map[string]float64 // CPU seconds of each test at the top
}

// costsFile names the variable with the file to which meter appends. It does not begin with
// WEIR_, as the tests' environment is also that of the weir that they start.
const costsFile = "PARTS_COSTS"

// meter runs a test binary as go test -exec has it run, and appends what it cost to the
// file that PARTS_COSTS names. It returns the binary's exit code.
//
// The output of the binary says when a test begins, pauses and ends. The CPU time since the
// line before is shared out among the tests that run; that of a program which a test started
// counts when the test has waited for it.
func meter(args []string) int {
	began := time.Now()
	cmd := exec.Command(args[0], args[1:]...)
	printed, out := io.Pipe()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out, os.Stderr
	cmd.WaitDelay = time.Minute // a process that outlives the binary may keep its output open
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "parts exec:", err)
		return 1
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGQUIT, syscall.SIGTERM, os.Interrupt) // go test's, of a test that takes too long
	go func() {
		for s := range signals {
			cmd.Process.Signal(s)
		}
	}()
	shared := make(chan map[string]float64)
	go func() { shared <- share(printed, os.Stdout, func() float64 { return used(cmd.Process.Pid) }) }()
	late := cmd.Wait()
	out.Close()
	tests := <-shared
	if errors.Is(late, exec.ErrWaitDelay) {
		fmt.Fprintln(os.Stderr, "parts exec: a process that a test started is still there a minute after it")
		return 1
	}
	state := cmd.ProcessState
	dir, _ := os.Getwd()
	if root, err := moduleRoot(dir); err == nil {
		dir = strings.TrimPrefix(strings.TrimPrefix(dir, root), "/")
	}
	m := metered{dir, (state.UserTime() + state.SystemTime()).Seconds(), time.Since(began).Seconds(), tests}
	if err := m.append(os.Getenv(costsFile)); err != nil {
		fmt.Fprintln(os.Stderr, "parts exec:", err)
		return 1
	}
	if code := state.ExitCode(); code >= 0 {
		return code
	}
	return 2 // a signal ended it
}

// share copies what a test binary prints, and returns the CPU seconds of its tests at the
// top, those of less than 0.05 s apart.
func share(in io.Reader, out io.Writer, used func() float64) map[string]float64 {
	tests, running, before := map[string]float64{}, map[string]bool{}, 0.0
	for r := bufio.NewReader(in); ; {
		line, err := r.ReadString('\n')
		io.WriteString(out, line)
		if verb, name, ok := mark(line); ok {
			now := used()
			for test := range running {
				tests[test] += max(0, now-before) / float64(len(running))
			}
			before = max(before, now)
			if running[name] = verb == "RUN" || verb == "CONT"; !running[name] {
				delete(running, name)
			}
		}
		if err != nil {
			break
		}
	}
	for name, seconds := range tests {
		if seconds < 0.05 {
			delete(tests, name)
		}
	}
	return tests
}

// mark reads a line such as "=== RUN   TestX" or "--- PASS: TestX (0.1s)" of a test at the
// top. The test binary may put a byte 0x16 before it.
func mark(line string) (verb, name string, ok bool) {
	_, after, _ := strings.Cut("\x16"+line, "\x16")
	if i := strings.LastIndexByte(after, '\x16'); i >= 0 {
		after = after[i+1:]
	}
	words := strings.Fields(after)
	if len(words) < 3 || words[0] != "===" && words[0] != "---" || strings.Contains(words[2], "/") {
		return "", "", false
	}
	switch verb = strings.TrimSuffix(words[1], ":"); verb {
	case "RUN", "CONT", "PAUSE", "PASS", "FAIL", "SKIP":
		return verb, words[2], true
	}
	return "", "", false
}

// used returns the CPU seconds of a process and of those that it has waited for.
func used(pid int) (seconds float64) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), ") ") // the name in brackets may have spaces
	if fields := strings.Fields(after); len(fields) > 14 {
		for _, f := range fields[11:15] { // utime, stime, cutime, cstime, in hundredths of a second
			ticks, _ := strconv.ParseFloat(f, 64)
			seconds += ticks / 100
		}
	}
	return seconds
}

func (m metered) append(file string) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// moduleRoot returns the folder of go.mod at or above a folder.
func moduleRoot(dir string) (string, error) {
	for at := dir; at != "/"; at = at[:max(1, strings.LastIndexByte(at, '/'))] {
		if _, err := os.Stat(at + "/go.mod"); err == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("no go.mod above %s", dir)
}
