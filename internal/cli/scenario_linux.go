package cli

import (
	"errors"
	"fmt"

	"weir/internal/lab"
	"weir/internal/lab/scenario"
)

type benchProcessCommand struct {
	Role string `arg:"" help:"What to be."`
	Cell string `arg:"" help:"What it must know, as JSON."`
}

// Run implements the command. Only the program itself runs it.
func (c *benchProcessCommand) Run() error { return lab.RunRole(c.Role, c.Cell) }

// run runs the scenario.
func (c *scenarioCommand) run(s *streams) error {
	chosen, err := scenario.Find(c.Name)
	if err != nil {
		return wrongUsage{err}
	}
	if c.Write != "" && c.Name != "faults" {
		return wrongf("--write belongs to weir scenario faults")
	}
	// A file that cannot be written is known before the time is spent.
	if c.Write != "" {
		if err := scenario.Writable(c.Write); err != nil {
			return wrongf("--write: %w", err)
		}
	}
	var file *output
	if c.JSON != "" && c.JSON != "-" {
		if file, err = create(c.JSON); err != nil {
			return wrongf("--json: %w", err)
		}
		defer file.file.Close()
	}
	ctx, _, stop := s.interrupt()
	defer stop()
	report, err := chosen.Run(ctx, scenario.Options{
		Duration: c.Duration, Streams: c.Streams, Faults: c.Fault, Kinds: c.Kind, Loads: c.Load, RoleCommand: benchProcess, Progress: s.err, Commit: commitOf(build()),
	})
	var invalid scenario.Invalid
	switch {
	case errors.As(err, &invalid):
		return wrongUsage{err}
	case ctx.Err() != nil:
		return errors.New("interrupted: no report; everything that was started has ended")
	case err != nil:
		return err
	}
	if file != nil {
		if err := errors.Join(report.JSON(file), file.close()); err != nil {
			return fmt.Errorf("--json: %w", err)
		}
	}
	if c.Write != "" {
		if err := report.WriteMarkdown(c.Write); err != nil {
			return fmt.Errorf("--write: %w", err)
		}
	}
	write := report.Text
	if c.JSON == "-" {
		write = report.JSON
	}
	if err := write(s.out); err != nil {
		return err
	}
	if missed := report.Missed(); c.Strict && missed > 0 {
		sayLine(s.err, "weir: --strict: %d figures were missed", missed)
		return exitStatus(1)
	}
	if !report.Passed {
		return exitStatus(1)
	}
	return nil
}
