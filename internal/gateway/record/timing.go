package record

import (
	"bytes"
	"net/http"
	"strconv"

	"weir/internal/trace"
)

// This file reports to a caller where its request's time went, if the request asks
// for it.

// timingHeader is the request header by which a caller asks for its request's times. A
// field of the body would reach the engines of relayed requests.
const timingHeader = "X-Weir-Timing"

// asksTiming reports whether the caller of a request wants to know. It takes the field away, which
// is for no engine.
func asksTiming(h http.Header) bool {
	v := h[timingHeader]
	if len(v) == 0 {
		return false
	}
	delete(h, timingHeader)
	return v[0] != "" && v[0] != "0" && v[0] != "off"
}

// milliseconds appends a duration with microseconds.
func milliseconds(dst []byte, ns int64) []byte {
	return strconv.AppendFloat(dst, float64(ns/1000)/1e3, 'f', -1, 64)
}

// PutTiming puts the times so far into a response's head, as Server-Timing has them: each
// stage, and all of it.
func (q *Request) PutTiming(h http.Header) {
	if !q.Timed {
		return
	}
	now := trace.Now()
	var b []byte
	spent := q.Ledger.Until(now)
	for i, ns := range spent {
		if ns > 0 {
			b = append(append(b, trace.Stage(i).String()...), ";dur="...)
			b = append(milliseconds(b, ns), ", "...)
		}
	}
	b = milliseconds(append(b, "total;dur="...), now-q.Arrival)
	h.Add("Server-Timing", string(b)) // beside an engine's own
}

// timingComment is a comment of a stream of events with all that is known of the request's
// time: the stages, and the stamps since its arrival, under the names of the timeline.
func timingComment(rec *trace.Record) []byte {
	now := trace.Now()
	b := strconv.AppendQuote([]byte(`: weir {"request_id":`), rec.RequestID) // of harmless letters
	b = append(b, `,"attempts":`...)
	b = strconv.AppendInt(b, int64(len(rec.Attempts)), 10)
	b = append(b, `,"stages_ms":{`...)
	for i, ns := range rec.Ledger.Until(now) {
		if ns > 0 {
			b = strconv.AppendQuote(b, trace.Stage(i).String())
			b = append(milliseconds(append(b, ':'), ns), ',')
		}
	}
	b = append(bytes.TrimSuffix(b, []byte{','}), `},"since_arrival_ms":{`...)
	stamps := []struct {
		name string
		at   int64
	}{
		{"received_time", rec.Received}, {"parsed_time", rec.Parsed}, {"rendered_time", rec.Rendered}, {"tokenize_start_time", rec.TokenizeStart},
		{"tokenize_end_time", rec.TokenizeEnd}, {"queued_time", rec.Queued}, {"routed_time", rec.Routed},
	}
	if leg := rec.Leg(); leg != nil {
		e := &leg.Stamps
		stamps = append(stamps, []struct {
			name string
			at   int64
		}{
			{"to_server_time", leg.ToServer}, {"acked_time", leg.Acked}, {"server_created_time", e.ServerCreated}, {"queue_time_start", e.QueueStart}, {"queue_time_end", e.QueueEnd},
			{"prefill_start_time", e.PrefillStart}, {"prefill_end_time", e.PrefillEnd}, {"server_first_token_time", e.FirstToken}, {"first_output_time", e.FirstOutput},
		}...)
	}
	stamps = append(stamps, []struct {
		name string
		at   int64
	}{{"first_received_time", rec.FirstReceived}, {"first_sent_time", rec.FirstSent()}, {"first_flushed_time", rec.FirstFlushed}}...)
	for _, x := range stamps {
		if x.at != 0 {
			b = strconv.AppendQuote(b, x.name)
			b = append(milliseconds(append(b, ':'), x.at-rec.Arrival), ',')
		}
	}
	b = append(bytes.TrimSuffix(b, []byte{','}), `},"total_ms":`...)
	return append(milliseconds(b, now-rec.Arrival), "}\n\n"...)
}

// doneEvent begins the last event of the streams that have one.
var doneEvent = []byte("data: [DONE]")

// WithTiming puts the comment into the part of a stream with its end: before [DONE], and
// where a dialect has none before the event that is the last. It comes once. Clients leave
// comments out, and those that read no further than the end marker have had it by then.
func (q *Request) WithTiming(out []byte, last bool) []byte {
	at := -1
	if i := bytes.Index(out, doneEvent); i == 0 || i > 0 && out[i-1] == '\n' {
		at = i
	} else if last {
		at = bytes.LastIndex(bytes.TrimRight(out, "\r\n"), []byte("\n\n")) + 2
		if at == 1 {
			at = 0
		}
	}
	if at < 0 {
		return out
	}
	q.Timed = false
	with := append(make([]byte, 0, len(out)+1024), out[:at]...)
	return append(append(with, timingComment(q.Record)...), out[at:]...)
}
