//go:build linux

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
)

// Main is the main function of a benchmark whose processes run the same program: it runs
// one of these processes, or the benchmark until that ends or is interrupted.
func Main(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	args := os.Args[1:]
	var err error
	if IsRole(args) {
		err = RunRole(args[0], args[1])
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, args, os.Stdout, os.Stderr)
		stop()
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Build builds weir's program of this module as a file.
func Build(ctx context.Context, file string, stderr io.Writer) error {
	build := exec.CommandContext(ctx, "go", "build", "-o", file, "weir/cmd/weir")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released
	build.Stderr = stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build weir: %w", err)
	}
	return nil
}

// Median is that of some values, 0 of none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// WriteJSON writes a benchmark's results to a file; an empty name writes nothing.
func WriteJSON(name string, v any) error {
	if name == "" {
		return nil
	}
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}
