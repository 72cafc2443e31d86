package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"weir/internal/load"
	"weir/internal/load/report"
)

// outputFile is a form in which a document is written.
type outputFile[T any] struct {
	flag  string
	path  string
	write func(io.Writer, T) error
	out   *output // nil where it is standard output
}

// outputFiles are the requested files. They are opened at the start, so that an unwritable
// file is known before the run.
type outputFiles[T any] struct {
	files []*outputFile[T]
	text  bool // the document is printed as text
}

// openOutputs opens those that have a path; "-" prints one of them instead of the text.
func openOutputs[T any](all ...outputFile[T]) (*outputFiles[T], error) {
	b := &outputFiles[T]{text: true}
	for _, f := range all {
		if f.path == "" {
			continue
		}
		if f.path == "-" {
			if !b.text {
				_ = b.close()
				return nil, wrongf("--%s -: another form is printed already; give it a file", f.flag)
			}
			b.text = false
		} else {
			out, err := create(f.path)
			if err != nil {
				_ = b.close()
				return nil, wrongf("--%s: %w", f.flag, err)
			}
			f.out = out
		}
		b.files = append(b.files, &f)
	}
	return b, nil
}

// write writes the text and every file, also when another one cannot be written:
// a full disk does not take the rest of a measurement with it.
func (b *outputFiles[T]) write(doc T, text func(io.Writer) error, stdout io.Writer) error {
	var failed error
	if b.text {
		var shown strings.Builder
		err := text(&shown)
		if err == nil { // the server's words are in it
			_, err = io.WriteString(stdout, graphicLines(shown.String()))
		}
		if err != nil {
			failed = fmt.Errorf("write report: %w", err)
		}
	}
	for _, f := range b.files {
		w := stdout
		if f.out != nil {
			w = f.out
		}
		err := f.write(w, doc)
		if f.out != nil {
			if closed := f.out.close(); err == nil {
				err = closed
			}
			f.out = nil
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("--%s: %w", f.flag, err))
		}
	}
	return failed
}

// close closes what has not been written.
func (b *outputFiles[T]) close() error {
	var failed error
	for _, f := range b.files {
		if f.out != nil {
			failed = errors.Join(failed, f.out.close())
			f.out = nil
		}
	}
	return failed
}

// oneRun is a run's report and its rows.
type oneRun struct {
	report *report.Report
	rows   []report.Row
	record *load.Record
}

// open opens the files of one run.
func (c *benchCommand) open() (*outputFiles[oneRun], error) {
	return openOutputs(
		outputFile[oneRun]{flag: "csv", path: c.CSV, write: func(w io.Writer, r oneRun) error { return report.WriteCSV(w, r.rows) }},
		outputFile[oneRun]{flag: "json", path: c.JSON, write: func(w io.Writer, r oneRun) error { return r.report.JSON(w) }},
		outputFile[oneRun]{flag: "jsonl", path: c.JSONL, write: func(w io.Writer, r oneRun) error { return report.WriteJSONL(w, r.rows) }},
		outputFile[oneRun]{flag: "html", path: c.HTML, write: func(w io.Writer, r oneRun) error { return report.WriteHTML(w, r.report, r.rows) }},
		outputFile[oneRun]{flag: "record", path: c.Record, write: func(w io.Writer, r oneRun) error { return report.WriteRecord(w, r.report, r.record) }},
		outputFile[oneRun]{flag: "perfetto", path: c.Perfetto, write: func(w io.Writer, r oneRun) error { return report.WritePerfetto(w, r.rows) }},
	)
}

// wantsRows reports whether any of the files has a row for each request.
func (c *benchCommand) wantsRows() bool {
	return c.CSV != "" || c.JSONL != "" || c.HTML != "" || c.Perfetto != ""
}

// openSweep opens the files of several runs.
func (f *sweepOutputFlags) openSweep() (*outputFiles[*report.Sweep], error) {
	write := func(form func(*report.Sweep, io.Writer) error) func(io.Writer, *report.Sweep) error {
		return func(w io.Writer, s *report.Sweep) error { return form(s, w) }
	}
	return openOutputs(
		outputFile[*report.Sweep]{flag: "csv", path: f.CSV, write: write((*report.Sweep).CSV)},
		outputFile[*report.Sweep]{flag: "json", path: f.JSON, write: write((*report.Sweep).JSON)},
		outputFile[*report.Sweep]{flag: "html", path: f.HTML, write: write((*report.Sweep).WriteHTML)},
	)
}
