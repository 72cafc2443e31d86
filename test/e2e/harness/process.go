package harness

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds each wait for another process. A busy machine must not reach
// it, and a hang must not outlast the test's own limit.
const patience = 5 * time.Minute

// Finish runs weir to its end.
func Finish(t testing.TB, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(Binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Tokenize runs weir tokenize to its end.
func Tokenize(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return Finish(t, stdin, append([]string{"tokenize"}, args...)...)
}

// Process is a running program, in a process group with all that it starts. The
// test's end kills the group.
type Process struct {
	T      testing.TB
	Cmd    *exec.Cmd
	Exited chan struct{} // closed when Err is set
	Err    error         // of waiting for the program's end
	Stderr bytes.Buffer  // to be read once the program has exited

	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed and replaced with every line
}

// Start runs weir.
func Start(t testing.TB, args ...string) *Process {
	t.Helper()
	return StartWith(t, nil, nil, args...)
}

// StartWith runs weir with files to inherit, from descriptor 3 on, and with more
// of an environment.
func StartWith(t testing.TB, files []*os.File, env []string, args ...string) *Process {
	t.Helper()
	cmd := exec.Command(Binary, args...)
	cmd.ExtraFiles = files
	cmd.Env = env
	return StartCommand(t, cmd)
}

// StartCommand runs any program. The command's environment is added to this
// process's.
func StartCommand(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{T: t, Cmd: cmd, Exited: make(chan struct{}), more: make(chan struct{})}
	cmd.Stderr = &p.Stderr
	cmd.Env = slices.Concat(os.Environ(), []string{"GORACE=halt_on_error=1 exitcode=66"}, cmd.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second // a grandchild that outlives the program keeps its pipes open
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			close(p.more)
			p.more = make(chan struct{})
			p.mu.Unlock()
		}
		p.Err = cmd.Wait()
		close(p.Exited)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-p.Exited
		if t.Failed() {
			t.Logf("%v printed:\n%s\n%s", cmd.Args, p.Output(), p.Stderr.String())
		}
	})
	return p
}

// Output returns what the program has printed until now.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// Line waits for a line that begins with prefix, and returns its next word.
func (p *Process) Line(prefix string) string {
	p.T.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		for _, l := range p.lines {
			if rest, ok := strings.CutPrefix(l, prefix); ok {
				p.mu.Unlock()
				word, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
				return word
			}
		}
		more := p.more
		p.mu.Unlock()
		select {
		case <-more:
		case <-p.Exited:
			p.T.Fatalf("exited (%v) before it printed %q:\n%s", p.Err, prefix, p.Stderr.String())
		case <-deadline:
			p.T.Fatalf("never printed %q", prefix)
		}
	}
}

// Interrupt sends SIGINT and wants the program to exit with 0.
func (p *Process) Interrupt() {
	p.T.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGINT); err != nil {
		p.T.Fatal(err)
	}
	p.Exits(0)
}

// Exits waits for the program's end, and wants this exit code.
func (p *Process) Exits(code int) {
	p.T.Helper()
	select {
	case <-p.Exited:
	case <-time.After(patience):
		p.T.Fatal("still running")
	}
	if got := p.Cmd.ProcessState.ExitCode(); got != code {
		p.T.Fatalf("exit code %d, want %d\n%s", got, code, p.Stderr.String())
	}
}

// Eventually polls until a condition holds that another process brings about.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("not %s before the test's end", what)
		case <-deadline:
			t.Fatalf("not %s in %v", what, patience)
		}
	}
}

// WriteFile writes a file that only this user reads.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
