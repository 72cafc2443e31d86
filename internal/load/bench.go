package load

import (
	"context"
	"fmt"
	"io"
	"os"
)

// Output says where a report goes beside the terminal.
type Output struct {
	// JSON writes the report to the terminal as JSON instead of text.
	JSON bool
	// JSONFile also writes it to a file as JSON; empty does not.
	JSONFile string
}

// Exit codes of Bench.
const (
	ExitClean  = 0 // every request was complete
	ExitFailed = 1 // some were not, or nothing was measured
)

// Bench carries out a plan for a command line: it prints the report to w and
// gives the process's exit code. Ending ctx ends the run and still prints what
// was measured. An error means that there is no report, or that it could not
// be written.
func Bench(ctx context.Context, plan Plan, out Output, w io.Writer) (code int, err error) {
	report, err := Run(ctx, plan)
	if err != nil {
		return ExitFailed, err
	}
	if out.JSON {
		err = report.JSON(w)
	} else {
		err = report.Text(w)
	}
	if err != nil {
		return ExitFailed, fmt.Errorf("write report: %w", err)
	}
	if out.JSONFile != "" {
		if err := writeJSON(report, out.JSONFile); err != nil {
			return ExitFailed, err
		}
	}
	// A run whose requests were all abandoned as planned did what it was told.
	if report.Corrupt > 0 || report.Errored > 0 || report.Complete+report.Abandoned == 0 {
		return ExitFailed, nil
	}
	return ExitClean, nil
}

// writeJSON writes the report to a file; a full disk is an error, not a short
// file.
func writeJSON(report *Report, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	err = report.JSON(f)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
