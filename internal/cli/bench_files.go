package cli

import (
	"errors"
	"fmt"
	"io"

	"weir/internal/report"
)

// benchFile is a form in which weir bench writes what it measured.
type benchFile struct {
	flag  string
	path  string
	rows  bool // it has a row for each request
	write func(io.Writer, *report.Report, []report.Row) error
	out   *output // nil where it is standard output
}

// benchFiles are those that were asked for, open from the start.
type benchFiles struct {
	files []*benchFile
	text  bool // the report is printed as text
}

// open opens the files that the flags name.
func (c *benchCommand) open() (*benchFiles, error) {
	b := &benchFiles{text: true}
	for _, f := range []benchFile{
		{flag: "csv", path: c.CSV, rows: true, write: func(w io.Writer, _ *report.Report, rows []report.Row) error { return report.WriteCSV(w, rows) }},
		{flag: "json", path: c.JSON, write: func(w io.Writer, r *report.Report, _ []report.Row) error { return r.JSON(w) }},
		{flag: "jsonl", path: c.JSONL, rows: true, write: func(w io.Writer, _ *report.Report, rows []report.Row) error { return report.WriteJSONL(w, rows) }},
		{flag: "html", path: c.HTML, rows: true, write: report.WriteHTML},
		{flag: "perfetto", path: c.Perfetto, rows: true, write: func(w io.Writer, _ *report.Report, rows []report.Row) error { return report.WritePerfetto(w, rows) }},
	} {
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

// rows says whether any file has a row for each request.
func (b *benchFiles) rows() bool {
	for _, f := range b.files {
		if f.rows {
			return true
		}
	}
	return false
}

// write writes every file, also when another one cannot be written: a full disk
// does not take the rest of a measurement with it.
func (b *benchFiles) write(r *report.Report, rows []report.Row, stdout io.Writer) error {
	var failed error
	if b.text {
		if err := r.Text(stdout); err != nil {
			failed = fmt.Errorf("write report: %w", err)
		}
	}
	for _, f := range b.files {
		w := stdout
		if f.out != nil {
			w = f.out
		}
		err := f.write(w, r, rows)
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
func (b *benchFiles) close() error {
	var failed error
	for _, f := range b.files {
		if f.out != nil {
			failed = errors.Join(failed, f.out.close())
			f.out = nil
		}
	}
	return failed
}
