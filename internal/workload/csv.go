package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// table reads a trace in CSV with a header. Columns are found by name, in any
// order; others are left alone.
type table struct {
	o      Options
	name   string
	csv    *csv.Reader
	record recordReader
	line   int // of the latest record
	form   *csvForm
	column [3]int // of the form's columns
	n      uint64
	at     arrivals
	part   [1]Part
}

// csvForm is a form of CSV: the names of its columns for arrival, prompt and
// output, and how a time is written.
type csvForm struct {
	kind    Kind
	columns [3]string
	time    func(string) (time.Duration, error)
}

// The forms of CSV: the traces of Azure (2023 and 2024), with dates, and
// BurstGPT's (releases 1 and 2), with seconds.
var csvForms = []csvForm{
	{Azure, [3]string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, dateTime},
	{BurstGPT, [3]string{"Timestamp", "Request tokens", "Response tokens"}, seconds},
}

// newTable reads the header, and finds the form by it where kind is empty.
func newTable(r io.Reader, name string, kind Kind, o Options) (*table, error) {
	t := &table{o: o, name: name, record: recordReader{r: r}}
	t.csv = csv.NewReader(&t.record)
	t.csv.ReuseRecord = true
	t.csv.FieldsPerRecord = -1 // said in words below
	header, err := t.read()
	if err == io.EOF {
		return nil, &Error{File: name, Err: errors.New("the file is empty")}
	}
	if err != nil {
		return nil, t.broken(err)
	}
	header[0] = strings.TrimPrefix(header[0], "\ufeff")
	for i := range csvForms {
		form := &csvForms[i]
		if kind != "" && form.kind != kind {
			continue
		}
		missing := ""
		for c, want := range form.columns {
			t.column[c] = -1
			for i, got := range header {
				if strings.EqualFold(strings.TrimSpace(got), want) {
					t.column[c] = i
				}
			}
			if t.column[c] < 0 && missing == "" {
				missing = want
			}
		}
		if missing == "" {
			t.form = form
			t.csv.FieldsPerRecord = len(header)
			return t, nil
		}
		if kind != "" {
			return nil, &Error{File: name, Line: 1, Field: missing, Err: fmt.Errorf("the header has no such column; a trace of kind %s has %s", kind, strings.Join(form.columns[:], ", "))}
		}
	}
	return nil, &Error{File: name, Line: 1, Err: fmt.Errorf("neither a JSON object nor a known header; a trace is %s", knownForms())}
}

// knownForms lists the beginnings of supported trace files.
func knownForms() string {
	var b strings.Builder
	b.WriteString("JSON lines (mooncake)")
	for _, f := range csvForms {
		fmt.Fprintf(&b, ", or CSV with the columns %s (%s)", strings.Join(f.columns[:], ", "), f.kind)
	}
	return b.String()
}

// broken puts an error of the CSV reader into words.
func (t *table) broken(err error) error {
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		if errors.Is(parse.Err, csv.ErrFieldCount) {
			return &Error{File: t.name, Line: parse.Line, Err: fmt.Errorf("it does not have the %d columns of the header", t.csv.FieldsPerRecord)}
		}
		return &Error{File: t.name, Line: parse.Line, Err: fmt.Errorf("column %d: %w", parse.Column, parse.Err)}
	}
	if !errors.Is(err, errLongRecord) {
		err = fmt.Errorf("read: %w", err)
	}
	return &Error{File: t.name, Line: t.line + 1, Err: err}
}

// read returns the next record. It is valid until the next call.
func (t *table) read() ([]string, error) {
	t.record.n = 0
	row, err := t.csv.Read()
	if err == nil {
		t.line, _ = t.csv.FieldPos(0)
	}
	return row, err
}

// recordReader ends the reading of a record that is longer than maxLine, which package csv
// would collect.
type recordReader struct {
	r io.Reader
	n int // bytes since the record's beginning, or since a little before
}

var errLongRecord = fmt.Errorf("the record is longer than %d MiB", maxLine>>20)

// Read implements io.Reader.
func (r *recordReader) Read(p []byte) (int, error) {
	if r.n > maxLine {
		return 0, errLongRecord
	}
	n, err := r.r.Read(p)
	r.n += n
	return n, err
}

// Next implements Source.
func (t *table) Next(r *Request) error {
	row, err := t.read()
	if err == io.EOF {
		return io.EOF
	}
	if err != nil {
		return t.broken(err)
	}
	wrong := func(c int, err error) error {
		return &Error{File: t.name, Line: t.line, Field: t.form.columns[c], Err: err}
	}
	at, err := t.form.time(strings.TrimSpace(row[t.column[0]]))
	if err == nil {
		at, err = t.at.next(at)
	}
	if err != nil {
		return wrong(0, err)
	}
	input, err := count(row[t.column[1]])
	if err != nil {
		return wrong(1, err)
	}
	output, err := count(row[t.column[2]])
	if err != nil {
		return wrong(2, err)
	}
	parts := t.part[:0]
	if input > 0 {
		parts = append(parts, Part{key(t.o.Seed, ownParts, t.n), input})
	}
	t.n++
	*r = Request{At: at, Parts: parts, Output: output, Line: t.line}
	return nil
}

func count(text string) (int, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number of tokens", clip(text))
	}
	return tokens(n)
}

// seconds reads a time as BurstGPT writes it.
func seconds(text string) (time.Duration, error) {
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || !(s >= 0 && s < maxTime.Seconds()) {
		return 0, fmt.Errorf("%q is not a number of seconds", clip(text))
	}
	// Split, so that a time of years keeps its nanoseconds.
	whole, part := math.Modf(s)
	return time.Duration(whole)*time.Second + time.Duration(part*1e9), nil
}

// epoch is when dates begin to count; traces are younger.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// dateTime reads a time as Azure's traces write it: 2023 without a zone and
// with seven digits of a second, 2024 with both.
func dateTime(text string) (time.Duration, error) {
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05"} {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if d := t.Sub(epoch); d >= 0 && d < maxTime {
			return d, nil
		}
		return 0, fmt.Errorf("%q is not in this century", clip(text))
	}
	return 0, fmt.Errorf("%q is not a time such as 2023-11-16 18:15:46.6805900", clip(text))
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:37] + "..."
	}
	return s
}
