//go:build linux

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir/internal/lab/proc"
)

// Process is a child that Stop ends. It leads its own process group, so that a Ctrl-C at
// the terminal reaches only this program, which then stops its children in order. It is
// killed if this program is killed.
type Process struct {
	cmd  *exec.Cmd
	out  output
	err  output
	done chan struct{}
}

// output keeps a child's output and may be read while the child writes.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.b.Bytes())
}

// String returns the beginning of the output, which contains the cause.
func (o *output) String() string { return fmt.Sprintf("%.500s", bytes.TrimSpace(o.bytes())) }

// Start starts a command with an environment; nil is this process's own.
func Start(args, env []string) (*Process, error) {
	p := &Process{cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	p.cmd.Env = env
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended does not matter once it is stopped
	}()
	return p, nil
}

// Environment returns this process's environment without weir's settings, which would also
// reach the gateways.
func Environment() []string { return withoutSettings(os.Environ()) }

func withoutSettings(of []string) []string {
	return slices.DeleteFunc(slices.Clone(of), func(v string) bool { return strings.HasPrefix(v, "WEIR_") })
}

// Stop asks the process to end, and makes it and its children.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(3 * time.Second):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	}
}

// yields gives all threads of the process the lowest priority.
func (p *Process) yields() error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid))
	if err != nil {
		return fmt.Errorf("lower the priority: %w", err)
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return fmt.Errorf("lower the priority: %w", err)
		}
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, id, 19); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("lower the priority: %w", err)
		}
	}
	return nil
}

// Signal sends the process a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Interrupt is a Ctrl-C.
func (p *Process) Interrupt() { _ = p.cmd.Process.Signal(syscall.SIGINT) }

// Wait waits for the process to end by itself and returns its output; ctx bounds the wait.
func (p *Process) Wait(ctx context.Context) (stdout []byte, err error) {
	select {
	case <-p.done:
		return p.out.bytes(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Problem returns the process's standard error.
func (p *Process) Problem() string { return p.err.String() }

// PIDs returns the process, its children and theirs.
func (p *Process) PIDs() []int {
	pids := []int{p.cmd.Process.Pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, proc.Children(pids[i])...)
	}
	return pids
}

// AwaitQuiet waits until the process and its descendants have used next to no CPU for half
// a second. Workers that are still starting would otherwise miss the first requests, and
// the work would not be divided evenly. It gives up after a minute.
func (p *Process) AwaitQuiet(ctx context.Context) error {
	const span, little = 500 * time.Millisecond, 0.03
	poll := time.NewTicker(span)
	defer poll.Stop()
	before := -1.0
	for range 120 {
		used, err := proc.Of(p.PIDs())
		if err == nil && before >= 0 && used.CPU-before <= little {
			return nil
		}
		before = used.CPU
		select {
		case <-poll.C:
		case <-p.done:
			return fmt.Errorf("%s ended: %s", filepath.Base(p.cmd.Path), &p.err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("%s is busy with nothing to do", filepath.Base(p.cmd.Path))
}

// AwaitHTTP waits until a URL answers with status 200.
func (p *Process) AwaitHTTP(ctx context.Context, url string) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return p.await(ctx, url, func() bool {
		resp, err := client.Get(url)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// AwaitTCP waits until an address accepts.
func (p *Process) AwaitTCP(ctx context.Context, addr string) error {
	return p.await(ctx, addr, func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

// AwaitLine waits until the process has printed a line with a prefix, and returns the
// word after it, such as an address that the process has chosen.
func (p *Process) AwaitLine(ctx context.Context, prefix string) (word string, err error) {
	err = p.await(ctx, prefix, func() bool {
		for line := range bytes.Lines(p.out.bytes()) {
			if rest, ok := bytes.CutPrefix(line, []byte(prefix)); ok && bytes.HasSuffix(line, []byte("\n")) {
				first, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
				word = string(first)
				return true
			}
		}
		return false
	})
	return word, err
}

func (p *Process) await(ctx context.Context, what string, ready func() bool) error {
	const patience = 3 * time.Minute
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !ready() {
		select {
		case <-poll.C:
		case <-p.done:
			return fmt.Errorf("%s ended: %s", filepath.Base(p.cmd.Path), &p.err)
		case <-within.Done():
			if err := ctx.Err(); err != nil {
				return err
			}
			return fmt.Errorf("%s does not answer after %v: %s", what, patience, &p.err)
		}
	}
	return nil
}

// RaiseFiles lets this process and its children open as many files as the streams of
// a load need, and returns the limit. If it may not raise the limit that far, it
// raises it as far as possible.
func RaiseFiles() (uint64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("getrlimit: %w", err)
	}
	want := syscall.Rlimit{Cur: 65536, Max: max(65536, limit.Max)}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want) == nil {
		return want.Cur, nil
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("setrlimit: %w", err)
	}
	return limit.Cur, nil
}

// errInterrupted is why a cell has no result when the run was cancelled.
var errInterrupted = errors.New("interrupted")

// Sleep waits for a while, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
