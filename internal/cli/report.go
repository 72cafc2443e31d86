package cli

import (
	"errors"
	"fmt"
	"io"

	"weir/internal/report"
)

type reportCommand struct {
	Files []string `arg:"" placeholder:"FILE" type:"path" help:"One report of weir bench --json to print, or two to compare; with --merge, records."`
	Merge bool     `help:"Make one report of the records of all workers of a schedule (weir bench --worker K/N --record FILE)."`
	JSON  string   `name:"json" env:"-" type:"path" placeholder:"FILE" help:"Write it as one JSON object too; - prints it in place of the text."`
}

// Help implements kong's extended help.
func (reportCommand) Help() string {
	return `Of two runs each figure is given with the 95 % interval of its difference, and called higher or lower only where that leaves out 0.

Examples:
  weir bench http://127.0.0.1:8000 --rate 50 --requests 2000 --json before.json
  weir report before.json
  weir report before.json after.json
  weir report --merge worker-1.rec worker-2.rec --json run.json`
}

// Run implements the command.
func (c *reportCommand) Run(s *streams) error {
	if c.Merge {
		merged, err := report.MergeRecords(c.Files)
		if err != nil {
			return err
		}
		return c.print(merged, s)
	}
	if len(c.Files) > 2 {
		return wrongf("give one report to print or two to compare, not %d", len(c.Files))
	}
	var read []*report.Report
	for _, name := range c.Files {
		if sweep, err := report.ReadSweep(name); err != nil {
			return err
		} else if sweep != nil {
			if len(c.Files) == 2 {
				return wrongf("%s is of several runs; two reports of single runs can be compared", name)
			}
			return c.print(sweep, s)
		}
		r, err := report.Read(name)
		if err != nil {
			return err
		}
		read = append(read, r)
	}
	var show form = read[0]
	if len(read) == 2 {
		show = report.Compare(read[0], read[1], c.Files[0], c.Files[1])
	}
	return c.print(show, s)
}

// print prints a report in the forms asked for.
func (c *reportCommand) print(show form, s *streams) error {
	if c.JSON == "-" {
		return show.JSON(s.out)
	}
	if err := show.Text(s.out); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if c.JSON == "" {
		return nil
	}
	file, err := create(c.JSON)
	if err != nil {
		return wrongf("--json: %w", err)
	}
	if err := errors.Join(show.JSON(file), file.close()); err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}

// form is a report in its two forms.
type form interface {
	Text(io.Writer) error
	JSON(io.Writer) error
}
