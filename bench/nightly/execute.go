//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"weir/internal/lab/nightly"
	"weir/internal/lab/proc"
)

// file stands in a step's command for the file that it writes its results to.
const file = "{file}"

// shell executes steps.
type shell struct {
	folder string        // for the output and files of steps
	grace  time.Duration // a step has this time to end after an interrupt
}

// execute runs a step's command by a shell, in a process group of its own, so that
// everything that the command starts can be stopped.
func (sh *shell) execute(ctx context.Context, s nightly.Step) (nightly.Output, error) {
	var out nightly.Output
	results := filepath.Join(sh.folder, s.Name+".json")
	log, err := os.Create(filepath.Join(sh.folder, s.Name+".log"))
	if err != nil {
		return out, err
	}
	defer log.Close()
	busy, err := proc.MachineCPU()
	if err != nil {
		return out, err
	}
	began := time.Now()
	cmd := exec.Command("sh", "-c", strings.ReplaceAll(s.Command, file, results))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return out, err
	}
	failed := sh.wait(ctx, cmd)
	after, err := proc.MachineCPU()
	if err != nil {
		return out, err
	}
	own := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	out.Others = max(0, (after-busy-own.Seconds())/time.Since(began).Seconds())
	if out.Printed, err = os.ReadFile(log.Name()); err != nil {
		return out, err
	}
	if out.File, err = os.ReadFile(results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return out, err
	}
	if failed != nil {
		return out, fmt.Errorf("%w; %s ends with:\n%s", failed, log.Name(), last(out.Printed, 15))
	}
	return out, nil
}

// wait waits for a command, and stops its group when ctx ends: by an interrupt, and
// then by force. The command's own children are stopped too.
func (sh *shell) wait(ctx context.Context, cmd *exec.Cmd) error {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	signal := func(s syscall.Signal) { syscall.Kill(-cmd.Process.Pid, s) } // a group that is gone needs none
	defer signal(syscall.SIGKILL)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	signal(syscall.SIGINT)
	timer := time.NewTimer(sh.grace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		signal(syscall.SIGKILL)
		<-ended
	}
	return context.Cause(ctx)
}

// last returns the last lines of a text, indented.
func last(text []byte, lines int) string {
	all := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	all = all[max(0, len(all)-lines):]
	return "      " + string(bytes.Join(all, []byte("\n      ")))
}
