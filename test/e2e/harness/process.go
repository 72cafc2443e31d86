package harness

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/internal/disk"
)

// Patience bounds each wait for another process. A busy machine must not reach
// it, and a hang must not outlast the test's own limit.
var Patience = 5 * time.Minute

// Context returns a context that ends with the test, and earlier when Patience is
// at an end: a request that hangs fails its own test.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Finish runs weir to its end. A run that does not end prints what its goroutines wait for, as a
// Process does.
func Finish(t testing.TB, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*Patience) // a command may measure for minutes
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 10 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%v still ran after %v:\n%s\n%s", cmd.Args, 3*Patience, out.String(), errs.String())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Tokenize runs weir tokenize to its end.
func Tokenize(t testing.TB, stdin string, args ...string) (stdout, stderr string, code int) {
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
	rest  []byte        // of a line whose end has not come
}

// printed takes what a Process prints.
type printed Process

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, b...)
	for {
		line, rest, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		p.add(line)
		p.rest = rest
	}
}

// add keeps a line; the mutex is held.
func (p *printed) add(line []byte) {
	p.lines = append(p.lines, string(line))
	close(p.more)
	p.more = make(chan struct{})
}

// end keeps a last line that has no end.
func (p *printed) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.rest) > 0 {
		p.add(p.rest)
	}
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
	cmd.Env = slices.Concat(os.Environ(), []string{"GORACE=halt_on_error=1 exitcode=66"}, procs, cmd.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second // a grandchild that outlives the program keeps its pipes open
	cmd.Stdout = (*printed)(p)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.Err = cmd.Wait()
		(*printed)(p).end()
		close(p.Exited)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%v printed:\n%s\n%s", cmd.Args, p.Output(), p.Stderr.String())
		}
	})
	return p
}

// Kill ends the program and all that it started, at once.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.Cmd.Process.Pid, syscall.SIGKILL)
	<-p.Exited
}

// stuck has a program of Go's say what each of its goroutines waits for, and ends it. The test has
// failed, and prints that at its end.
func (p *Process) stuck() {
	_ = p.Cmd.Process.Signal(syscall.SIGQUIT) // fails if it has exited
	select {
	case <-p.Exited:
	case <-time.After(10 * time.Second):
	}
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
	line := p.Find(prefix, func(line string) bool { return strings.HasPrefix(line, prefix) })
	word, _, _ := strings.Cut(strings.TrimSpace(line[len(prefix):]), " ")
	return word
}

// Find waits for a line that matches, and returns it. The error of a failure has the words in what.
func (p *Process) Find(what string, matches func(line string) bool) string {
	p.T.Helper()
	deadline := time.After(Patience)
	for at, exited := 0, false; ; {
		p.mu.Lock()
		lines, more := p.lines, p.more
		p.mu.Unlock()
		for ; at < len(lines); at++ {
			if matches(lines[at]) {
				return lines[at]
			}
		}
		if exited {
			p.T.Fatalf("exited (%v) before it printed %q:\n%s", p.Err, what, p.Stderr.String())
		}
		select {
		case <-more:
		case <-p.Exited:
			exited = true // its last lines are there now
		case <-deadline:
			p.stuck()
			p.T.Fatalf("never printed %q", what)
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

// Wait waits for the program's end.
func (p *Process) Wait() {
	p.T.Helper()
	select {
	case <-p.Exited:
	case <-time.After(Patience):
		p.stuck()
		p.T.Fatal("still running")
	}
}

// Exits waits for the program's end, and wants this exit code.
func (p *Process) Exits(code int) {
	p.T.Helper()
	p.Wait()
	if got := p.Cmd.ProcessState.ExitCode(); got != code {
		p.T.Fatalf("exit code %d, want %d\n%s", got, code, p.Stderr.String())
	}
}

// Eventually polls until a condition holds that another process brings about. It
// fails at once when a process that the condition needs has exited.
func Eventually(t testing.TB, what string, holds func() bool, needs ...*Process) {
	t.Helper()
	deadline := time.After(Patience)
	wait := 20 * time.Millisecond // and longer each time: most of these scrape all metrics
	for !holds() {
		for _, p := range needs {
			select {
			case <-p.Exited:
				t.Fatalf("not %s: %v exited (%v):\n%s\n%s", what, p.Cmd, p.Err, p.Output(), p.Stderr.String())
			default:
			}
		}
		select {
		case <-time.After(wait):
			wait = min(wait*5/4, 100*time.Millisecond)
		case <-t.Context().Done():
			t.Fatalf("not %s before the test's end", what)
		case <-deadline:
			for _, p := range needs {
				p.stuck()
			}
			t.Fatalf("not %s in %v", what, Patience)
		}
	}
}

// OnceOf wants one try of several to find nothing wrong. It is for shares and paces, which
// a busy machine spoils now and then and a wrong gateway gets right never.
func OnceOf(t testing.TB, tries int, try func() (wrong string)) {
	t.Helper()
	wrong := ""
	for i := range tries {
		if wrong = try(); wrong == "" {
			return
		}
		t.Logf("try %d: %s", i+1, wrong)
	}
	t.Errorf("each of %d tries was wrong, the last one: %s", tries, wrong)
}

// Rewrite puts another text in the place of a watched file, as a whole, so that it is read again at
// once.
func Rewrite(t testing.TB, path, text string) {
	t.Helper()
	if err := disk.Replace(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// WriteFile writes a file that only this user reads.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
