package report

import (
	"bufio"
	"encoding/csv"
	"io"
	"strconv"

	"weir/internal/trace"
)

// column is a column of the CSV and its value in a row; empty where there is
// none.
type column struct {
	name string
	of   func(*Row) string
}

// stamped is a column of a moment, or of a number from 1, empty where there is
// none.
func stamped(name string, of func(*Row) int64) column {
	return column{name, func(r *Row) string {
		if v := of(r); v != 0 {
			return strconv.FormatInt(v, 10)
		}
		return ""
	}}
}

// lasted is a column of a duration, empty where one of its ends is missing.
func lasted(name string, of func(*Row) (int64, bool)) column {
	return column{name, func(r *Row) string {
		if v, ok := of(r); ok {
			return strconv.FormatInt(v, 10)
		}
		return ""
	}}
}

func counted(name string, of func(*Row) int) column {
	return column{name, func(r *Row) string { return strconv.Itoa(of(r)) }}
}

func said(name string, of func(*Row) string) column { return column{name, of} }

// columns returns the columns: those of the design in its order, then the client's.
func columns() []column {
	return []column{
		said("request_id", func(r *Row) string { return r.RequestID }),
		said("engine", func(r *Row) string { return r.Engine }),
		said("prefill_engine", func(r *Row) string { return r.PrefillEngine }),
		counted("attempts", func(r *Row) int { return r.Attempts }),
		stamped("arrival_time", func(r *Row) int64 { return r.Arrival }),
		stamped("to_server_time", func(r *Row) int64 { return r.ToServer }),
		stamped("server_created_time", func(r *Row) int64 { return r.ServerCreated }),
		stamped("queue_time_start", func(r *Row) int64 { return r.QueueStart }),
		stamped("queue_time_end", func(r *Row) int64 { return r.QueueEnd }),
		stamped("server_start_time", func(r *Row) int64 { return r.QueueEnd }),
		stamped("server_first_token_time", func(r *Row) int64 { return r.ServerFirstToken }),
		stamped("finish_time", func(r *Row) int64 { return r.Finish }),
		lasted("server_latency", func(r *Row) (int64, bool) { return between(r.ToServer, r.Finish) }),
		lasted("total_latency", func(r *Row) (int64, bool) { return between(r.Arrival, r.Finish) }),
		lasted("ttft", (*Row).TTFT),
		lasted("queue_time_in_router", func(r *Row) (int64, bool) { return between(r.Arrival, r.ToServer) }),
		lasted("queue_time_in_server", func(r *Row) (int64, bool) { return between(r.ToServer, r.QueueEnd) }),
		lasted("pure_queue_time", func(r *Row) (int64, bool) { return between(r.QueueStart, r.QueueEnd) }),
		lasted("schedule_overhead", func(r *Row) (int64, bool) { return between(r.TokenizeEnd, r.QueueStart) }),
		lasted("tokenize_duration", func(r *Row) (int64, bool) { return between(r.TokenizeStart, r.TokenizeEnd) }),
		lasted("prefill_duration", func(r *Row) (int64, bool) {
			if r.paired() {
				return stage(func(p *Pair) *int64 { return p.Prefill })(r)
			}
			return between(r.PrefillStart, r.ServerFirstToken)
		}),
		lasted("output_path_delay", func(r *Row) (int64, bool) { return between(r.FirstOutput, r.FirstFlushed) }),
		lasted("output_hop", func(r *Row) (int64, bool) { return between(r.FirstOutput, r.FirstReceived) }),
		lasted("output_delay", func(r *Row) (int64, bool) {
			if r.Gateway != nil && !r.Gateway.Stream && r.LastReceived != 0 && r.LastReceived <= r.FirstSent {
				return between(r.LastReceived, r.FirstSent)
			}
			return between(r.FirstReceived, r.FirstSent)
		}),
		stamped("prefill_start_time", func(r *Row) int64 { return r.PrefillStart }),
		stamped("prefill_end_time", func(r *Row) int64 { return r.PrefillEnd }),
		stamped("first_output_time", func(r *Row) int64 { return r.FirstOutput }),
		stamped("first_received_time", func(r *Row) int64 { return r.FirstReceived }),
		stamped("first_flushed_time", func(r *Row) int64 { return r.FirstFlushed }),

		counted("index", func(r *Row) int { return r.Index }),
		said("outcome", func(r *Row) string { return r.Outcome.String() }),
		said("error", func(r *Row) string { return string(r.Kind) }),
		said("error_detail", func(r *Row) string { return r.Detail }),
		said("status", func(r *Row) string {
			if r.Status == 0 {
				return ""
			}
			return strconv.Itoa(r.Status)
		}),
		said("finish_reason", func(r *Row) string { return r.FinishReason }),
		said("prompt_tokens", usage(func(r *Row) int { return r.PromptTokens })),
		said("cached_tokens", usage(func(r *Row) int { return r.CachedTokens })),
		counted("completion_tokens", func(r *Row) int { return r.Tokens }),
		stamped("intended_time", func(r *Row) int64 { return r.Intended }),
		stamped("sent_time", func(r *Row) int64 { return r.Sent }),
		stamped("first_byte_time", func(r *Row) int64 { return r.FirstByte }),
		stamped("first_content_time", func(r *Row) int64 { return r.FirstContent }),
		stamped("first_answer_time", func(r *Row) int64 { return r.FirstToken }),
		stamped("last_content_time", func(r *Row) int64 { return r.LastToken }),
		stamped("last_byte_time", func(r *Row) int64 { return r.LastByte }),
		lasted("client_ttft", streamed(func(r *Row) (int64, bool) { return between(r.Intended, r.FirstContent) })),
		lasted("client_ttft_sent", streamed(func(r *Row) (int64, bool) { return between(r.Sent, r.FirstContent) })),
		lasted("client_ttft_answer", streamed(func(r *Row) (int64, bool) { return between(r.Intended, r.FirstToken) })),
		lasted("client_tpot", func(r *Row) (int64, bool) { return r.TPOT() }),
		lasted("client_e2e", func(r *Row) (int64, bool) { return between(r.Intended, r.LastByte) }),
		lasted("client_e2e_sent", func(r *Row) (int64, bool) { return between(r.Sent, r.LastByte) }),
		stamped("session", func(r *Row) int64 { return int64(r.Session) }),
		stamped("turn", func(r *Row) int64 { return int64(r.Turn) }),
		said("live_at_arrival", backlog(func(g *Record) int { return g.LiveAtArrival })),
		said("live_at_first_token", backlog(func(g *Record) int { return g.LiveAtFirstToken })),
		said("pending_at_arrival", backlog(func(g *Record) int { return g.PendingAtArrival })),
		said("pending_at_first_token", backlog(func(g *Record) int { return g.PendingAtFirstToken })),
		stamped("met_time", func(r *Row) int64 { return r.Met }),
		stamped("prefilled_time", func(r *Row) int64 { return r.Prefilled }),
		stamped("transferred_time", func(r *Row) int64 { return r.Transferred }),
		stamped("running_time", func(r *Row) int64 { return r.Running }),
		lasted("bootstrap_duration", stage(func(p *Pair) *int64 { return p.Bootstrap })),
		lasted("transfer_duration", stage(func(p *Pair) *int64 { return p.Transfer })),
		lasted("waiting_to_running_duration", stage(func(p *Pair) *int64 { return p.WaitingToRunning })),
		lasted("decode_duration", stage(func(p *Pair) *int64 { return p.Decode })),
		lasted("handover_duration", stage(func(p *Pair) *int64 { return p.Handover })),
		stamped("received_time", func(r *Row) int64 { return r.Received }),
		stamped("tokenize_start_time", func(r *Row) int64 { return r.TokenizeStart }),
		stamped("tokenize_end_time", func(r *Row) int64 { return r.TokenizeEnd }),
		stamped("acked_time", func(r *Row) int64 { return r.Acked }),
		stamped("retracted", (*Row).Retracted),
		stamped("first_sent_time", func(r *Row) int64 { return r.FirstSent }),
		stamped("last_received_time", func(r *Row) int64 { return r.LastReceived }),
		lasted("longest_gap", func(r *Row) (int64, bool) {
			if r.Gateway == nil || r.Gateway.Gap == nil {
				return 0, false
			}
			return r.Gateway.Gap.For, true
		}),
	}
}

// paired reports whether two engines served the request.
func (r *Row) paired() bool { return r.Gateway != nil && r.Gateway.Pair != nil }

// stage is a stage of a pair.
func stage(of func(*Pair) *int64) func(*Row) (int64, bool) {
	return func(r *Row) (int64, bool) {
		if !r.paired() {
			return 0, false
		}
		if ns := of(r.Gateway.Pair); ns != nil {
			return *ns, true
		}
		return 0, false
	}
}

// Retracted returns how often the engine retracted the request, as far as it reports this.
func (r *Row) Retracted() int64 {
	if r.Gateway == nil || r.Gateway.leg() == nil {
		return 0
	}
	return r.Gateway.leg().Retracted
}

// backlog is the text of a count that only a gateway has.
func backlog(of func(*Record) int) func(*Row) string {
	return func(r *Row) string {
		if r.Gateway == nil {
			return ""
		}
		return strconv.Itoa(of(r.Gateway))
	}
}

// usage is the text of a count that only the server's usage has.
func usage(of func(*Row) int) func(*Row) string {
	return func(r *Row) string {
		if !r.HasUsage {
			return ""
		}
		return strconv.Itoa(of(r))
	}
}

// streamed leaves out what an answer that came at once has no time for.
func streamed(of func(*Row) (int64, bool)) func(*Row) (int64, bool) {
	return func(r *Row) (int64, bool) {
		if !r.Streamed() {
			return 0, false
		}
		return of(r)
	}
}

// WriteCSV writes the rows with a header.
func WriteCSV(w io.Writer, rows []Row) error {
	out := csv.NewWriter(w)
	all := columns()
	record := make([]string, len(all))
	for i, c := range all {
		record[i] = c.name
	}
	if err := out.Write(record); err != nil {
		return err
	}
	for i := range rows {
		for k, c := range all {
			record[k] = c.of(&rows[i])
		}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// WriteJSONL writes one object per line and row: the columns of the CSV (numbers as
// numbers, empty values left out), wall_time, and as gateway the unchanged record of the
// timeline, with all attempts and legs.
func WriteJSONL(w io.Writer, rows []Row) error {
	out := bufio.NewWriter(w)
	all := columns()
	for i := range rows {
		r := &rows[i]
		b := appendString([]byte(`{"wall_time":`), trace.Wall(r.Intended).UTC().Format("2006-01-02T15:04:05.000000000Z"))
		for _, c := range all {
			v := c.of(r)
			if v == "" {
				continue
			}
			b = append(append(append(b, `,"`...), c.name...), `":`...)
			if text[c.name] {
				b = appendString(b, v)
			} else {
				b = append(b, v...)
			}
		}
		if g := r.Gateway; g != nil {
			b = append(append(b, `,"gateway":`...), g.raw...)
		}
		if _, err := out.Write(append(b, "}\n"...)); err != nil {
			return err
		}
	}
	return out.Flush()
}

// text are the columns that are not numbers.
var text = map[string]bool{"request_id": true, "engine": true, "prefill_engine": true, "outcome": true, "error": true, "error_detail": true, "finish_reason": true}
