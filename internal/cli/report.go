package cli

import (
	"io"

	"weir/internal/load/report"
)

type reportCommand struct {
	Files []string `arg:"" placeholder:"FILE" type:"path" help:"One report of weir bench --json to print, or two to compare; or the files of a gateway's timeline (weir serve --timeline), which make one report; with --merge, records."`
	Merge bool     `help:"Make one report from the records of all workers of a schedule (weir bench --worker K/N --record FILE)."`
	JSON  string   `name:"json" env:"-" type:"path" placeholder:"FILE" help:"Write the report as one JSON object; - prints it instead of the text."`
	HTML  string   `name:"html" env:"-" type:"path" placeholder:"FILE" help:"Write the report as one page, which opens anywhere; - prints it instead of the text."`
}

// Help implements kong's extended help.
func (reportCommand) Help() string {
	return `Two runs are compared figure by figure. A figure counts as higher or lower only if the 95 % interval of the difference does not contain 0. Two sweeps or experiments are compared in the cells that have the same parameters; cells that only one of them has are listed. The report of a gateway's timeline shows where the time of its requests went, how the lateness of output depends on the load, which stamps contradict each other, and how to make an engine report stamps that are missing (docs/timeline.md).

Examples:
  weir bench http://127.0.0.1:8000 --rate 50 --requests 2000 --json before.json
  weir report before.json
  weir report before.json after.json
  weir report sweep-before.json sweep-after.json --html compared.html
  weir report timeline.jsonl.1 timeline.jsonl --html where-the-time-went.html
  weir report --merge worker-1.rec worker-2.rec --json run.json`
}

// Run implements the command.
func (c *reportCommand) Run(s *streams) error {
	show, err := c.read()
	if err != nil {
		return err
	}
	files, err := openOutputs(
		outputFile[form]{flag: "json", path: c.JSON, write: func(w io.Writer, f form) error { return f.JSON(w) }},
		outputFile[form]{flag: "html", path: c.HTML, write: func(w io.Writer, f form) error { return f.WriteHTML(w) }},
	)
	if err != nil {
		return err
	}
	return files.write(show, show.Text, s.out)
}

// read reads what is to be shown.
func (c *reportCommand) read() (form, error) {
	if c.Merge {
		return report.MergeRecords(c.Files)
	}
	timelines := 0
	for _, name := range c.Files {
		is, err := report.IsTimeline(name)
		if err != nil {
			return nil, err
		}
		if is {
			timelines++
		}
	}
	switch timelines {
	case 0:
	case len(c.Files):
		return report.ReadTimeline(c.Files)
	default:
		return nil, wrongf("some files are a gateway's timeline and some are not: give files of one kind")
	}
	if len(c.Files) > 2 {
		return nil, wrongf("give one report to print or two to compare, not %d", len(c.Files))
	}
	var runs []*report.Report
	var sweeps []*report.Sweep
	for _, name := range c.Files {
		sweep, err := report.ReadSweep(name)
		if err != nil {
			return nil, err
		}
		if sweep != nil {
			sweeps = append(sweeps, sweep)
			continue
		}
		run, err := report.Read(name)
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	switch {
	case len(c.Files) == 1 && len(runs) == 1:
		return runs[0], nil
	case len(c.Files) == 1:
		return sweeps[0], nil
	case len(runs) == 2:
		return report.Compare(runs[0], runs[1], c.Files[0], c.Files[1]), nil
	case len(sweeps) == 2:
		return report.CompareSweeps(sweeps[0], sweeps[1], c.Files[0], c.Files[1])
	}
	return nil, wrongf("one report has a single run and the other has several: compare two of the same kind")
}

// form is a report in its forms.
type form interface {
	Text(io.Writer) error
	JSON(io.Writer) error
	WriteHTML(io.Writer) error
}
