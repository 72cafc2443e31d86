package report

import (
	"bufio"
	"fmt"
	"io"
)

// WritePerfetto writes the requests for ui.perfetto.dev in the trace event format: an
// engine is a process, a request is a thread, and its stages are slices. A failed request
// has one slice, with its error.
func WritePerfetto(w io.Writer, rows []Row) error {
	out := bufio.NewWriter(w)
	var failed error
	engines := map[string]int{}
	sep := ""
	event := func(format string, args ...any) {
		if failed == nil {
			_, failed = fmt.Fprintf(out, sep+format, args...)
			sep = ",\n"
		}
	}
	quote := func(s string) []byte { return appendString(nil, s) }
	if _, err := out.WriteString("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"); err != nil {
		return err
	}
	for i := range rows {
		r := &rows[i]
		name := r.Engine
		if name == "" {
			name = "requests"
		}
		pid, known := engines[name]
		if !known {
			pid = len(engines) + 1
			engines[name] = pid
			event(`{"name":"process_name","ph":"M","pid":%d,"args":{"name":%s}}`, pid, quote(name))
		}
		event(`{"name":"thread_name","ph":"M","pid":%d,"tid":%d,"args":{"name":%s}}`, pid, r.Index, quote(r.RequestID))
		slice := func(stage string, start, length int64) {
			event(`{"name":%s,"ph":"X","pid":%d,"tid":%d,"ts":%d.%03d,"dur":%d.%03d,"args":{"outcome":%s}}`, quote(stage), pid, r.Index,
				start/1000, start%1000, length/1000, length%1000, quote(r.Outcome.String()))
		}
		if r.FirstContent == 0 || !r.Streamed() {
			label := string(r.Kind)
			if label == "" {
				label = r.Outcome.String()
			}
			slice(label, r.Intended, max(0, r.LastByte-r.Intended))
			continue
		}
		spans, _ := r.Spans()
		for _, s := range spans {
			slice(s.Stage, r.Intended+s.Start, s.For)
		}
	}
	if failed != nil {
		return failed
	}
	if _, err := out.WriteString("\n]}\n"); err != nil {
		return err
	}
	return out.Flush()
}
