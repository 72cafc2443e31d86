package timeline

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/trace"
)

// Append appends the record as one JSON object without a newline. All times are
// nanoseconds: stamps on CLOCK_MONOTONIC of the boot with this boot_id, and durations.
// Moments that were not reached, or that an engine did not stamp, are left out.
func Append(dst []byte, r *trace.Record, bootID string) []byte {
	o := object{dst: append(dst, '{'), first: true}
	o.str("request_id", r.RequestID)
	if c := r.Trace; c != nil {
		o.str("trace_id", hex.EncodeToString(c.Trace[:]))
		o.str("span_id", hex.EncodeToString(c.Span[:]))
	}
	o.key("wall_time")
	o.dst = append(trace.Wall(r.Arrival).UTC().AppendFormat(append(o.dst, '"'), time.RFC3339Nano), '"')
	o.str("boot_id", bootID)
	if r.Key != "" {
		o.str("key", r.Key)
		o.str("tenant", r.Tenant)
	}
	o.str("endpoint", r.Endpoint)
	if r.Client.IsValid() {
		if o.key("client"); r.Client.Zone() != "" { // which may have any characters
			o.dst, _ = jsontext.AppendQuote(o.dst, r.Client.String())
		} else {
			o.dst = append(r.Client.AppendTo(append(o.dst, '"')), '"')
		}
	}
	o.str("model", r.Model)
	o.bool("stream", r.Stream)
	o.str("outcome", r.Outcome.String())
	if r.Code != "" {
		o.str("code", r.Code)
		o.str("error", r.Message)
	}
	o.int("status", int64(r.Status))
	o.int("prompt_tokens", int64(r.PromptTokens))
	o.int("completion_tokens", int64(r.CompletionTokens))
	o.int("cached_tokens", int64(r.CachedTokens))
	o.int("writes", int64(r.Flushes))
	o.int("bytes_in", r.BytesIn)
	o.int("bytes_out", r.BytesOut)
	o.int("live_at_arrival", int64(r.LiveAtArrival))
	o.int("live_at_first_token", int64(r.LiveAtFirstToken))
	o.int("pending_at_arrival", int64(r.PendingAtArrival))
	o.int("pending_at_first_token", int64(r.PendingAtFirstToken))

	for _, s := range [...]struct {
		name  string
		stamp int64
	}{
		{"arrival_time", r.Arrival}, {"received_time", r.Received}, {"parsed_time", r.Parsed}, {"decoded_time", r.Parsed}, // the old name for one release more

		{"rendered_time", r.Rendered}, {"tokenize_start_time", r.TokenizeStart}, {"tokenize_end_time", r.TokenizeEnd},
		{"queued_time", r.Queued}, {"routed_time", r.Routed}, {"first_received_time", r.FirstReceived},
		{"first_sent_time", r.FirstSent()}, {"first_flushed_time", r.FirstFlushed}, {"finish_time", r.Finished},
	} {
		o.stamp(s.name, s.stamp)
	}
	o.derived(r)
	o.key("stages")
	o.open('{')
	for s, ns := range r.Ledger.Spent {
		if ns != 0 {
			o.int(trace.Stage(s).String(), ns)
		}
	}
	o.close('}')
	o.int("residual", r.Residual())
	o.pace(r)
	o.stalls(r)
	o.pair(r)
	o.key("attempts")
	o.open('[')
	for i := range r.Attempts {
		delivered := int64(0)
		if i == len(r.Attempts)-1 && r.Routed > 0 {
			delivered = r.FirstReceived - r.Routed
		}
		o.attempt(&r.Attempts[i], delivered)
	}
	o.close(']')
	return append(o.dst, '}')
}

// derived writes the durations of the design, under its names, as far as their
// two ends are known.
func (o *object) derived(r *trace.Record) {
	if wait := r.Ledger.Spent[trace.PoolWait]; wait > 0 {
		o.int("tokenize_wait", wait) // a large request may wait twice
	}
	o.between("tokenize_duration", r.TokenizeStart, r.TokenizeEnd)
	if ttft, ok := r.TTFT(); ok {
		o.int("ttft", ttft)
	}
	o.between("total_latency", r.Arrival, r.Finished)
	if delay, ok := r.OutputDelay(); ok {
		o.int("output_delay", delay)
	}
	leg := r.Leg()
	if leg == nil {
		return
	}
	s, sent := &leg.Stamps, r.ToServer()
	o.between("queue_time_in_router", r.Arrival, sent)
	o.between("queue_time_in_server", sent, s.QueueEnd)
	o.between("pure_queue_time", s.QueueStart, s.QueueEnd)
	o.between("schedule_overhead", r.TokenizeEnd, s.QueueStart)
	if p, ok := r.Pair(); ok {
		o.lasted("prefill_duration", p.Stages()[1])
	} else {
		o.between("prefill_duration", s.PrefillStart, s.FirstToken)
	}
	if r.Stream {
		o.between("output_path_delay", s.FirstOutput, r.FirstFlushed) // for one release more
	}
	if hop, ok := r.Hop(); ok {
		o.int("output_hop", hop)
	}
	o.between("server_latency", sent, r.Finished)
}

// pair writes where the time of a request went that two engines served: the points that it
// passed, and how long its stages lasted.
func (o *object) pair(r *trace.Record) {
	p, ok := r.Pair()
	if !ok {
		return
	}
	o.key("pair")
	o.open('{')
	o.stamp("handed_time", p.Handed)
	for at, stamp := range p.At {
		o.stamp(trace.PairPoint(at).String()+"_time", stamp)
	}
	for i, ns := range p.Stages() {
		o.lasted(trace.PairStages[i], ns)
	}
	o.lasted("handover", p.Handover())
	o.close('}')
}

// pace writes when the last output was read, and the longest gap between two.
func (o *object) pace(r *trace.Record) {
	p := r.Pace
	if p == nil {
		return
	}
	o.stamp("last_received_time", p.Last)
	g := &p.Gap
	if g.For == 0 {
		return
	}
	o.key("gap")
	o.open('{')
	o.int("duration", g.For)
	o.int("token", int64(g.Token))
	o.int("tokens", int64(p.Tokens))
	if a := r.Attempts[g.Attempt].Legs; len(a) > 0 {
		o.str("engine", a[len(a)-1].Engine)
	}
	o.int("before_weir", g.Before)
	o.int("in_weir", g.Weir())
	o.int("client", g.Client)
	o.close('}')
}

// stalls writes the gateway's stalls during the request.
func (o *object) stalls(r *trace.Record) {
	if len(r.Stalls) == 0 {
		return
	}
	o.int("stalled", r.Stalled())
	o.key("stalls")
	o.open('[')
	for _, s := range r.Stalls {
		o.open('{')
		o.int("start_time", s.Start)
		o.int("duration", s.End-s.Start)
		if s.Why != "" {
			o.str("why", s.Why)
		}
		o.close('}')
	}
	o.close(']')
}

// attempt writes one try at one engine. delivered is how long its first output took from
// the choice on, 0 where none came.
func (o *object) attempt(a *trace.Attempt, delivered int64) {
	o.open('{')
	o.key("legs")
	o.open('[')
	for i := range a.Legs {
		leg := &a.Legs[i]
		o.open('{')
		o.str("role", leg.Role)
		o.str("engine", leg.Engine)
		if leg.Kind != "" {
			o.str("kind", leg.Kind)
		}
		if leg.RequestID != "" {
			o.str("engine_request_id", leg.RequestID)
		}
		if leg.DPRank >= 0 {
			o.int("dp_rank", int64(leg.DPRank))
		}
		o.str("outcome", leg.Outcome)
		s := &leg.Stamps
		for _, x := range [...]struct {
			name  string
			stamp int64
		}{
			{"handed_time", leg.Handed}, {"to_server_time", leg.ToServer}, {"acked_time", leg.Acked}, {"known_time", leg.Known}, {"answered_time", leg.Answered},
			{"server_created_time", s.ServerCreated}, {"queue_time_start", s.QueueStart},
			{"queue_time_end", s.QueueEnd}, {"server_start_time", s.QueueEnd},
			{"prefill_start_time", s.PrefillStart}, {"prefill_end_time", s.PrefillEnd},
			{"server_first_token_time", s.FirstToken}, {"first_output_time", s.FirstOutput},
			{"bootstrap_time_start", s.BootstrapStart}, {"bootstrap_time_end", s.BootstrapEnd},
			{"transfer_time_start", s.TransferStart}, {"transfer_time_end", s.TransferEnd},
			{"waiting_to_running_time", s.WaitingToRunning},
			{"clock_uncertainty", s.ClockUncertain}, {"retracted", s.Retracted},
		} {
			o.stamp(x.name, x.stamp)
		}
		if ack, ok := leg.Ack(); ok {
			for i, ns := range ack.Parts() {
				if ns >= 0 {
					o.int("ack_"+trace.AckParts[i], ns)
				}
			}
		}
		o.close('}')
	}
	o.close(']')
	if a.Repeated {
		o.bool("repeated", true)
		o.bool("may_have_run", a.MayHaveRun)
	}
	if a.Continued {
		o.bool("continued", true)
		o.int("given_tokens", int64(a.Given))
	}
	if t := a.Turn; t != nil {
		o.key("turn")
		o.open('{')
		o.str("band", t.Band)
		o.str("tenant", t.Tenant)
		o.int("waiting_own", int64(t.Own))
		o.int("waiting_others", int64(t.Others))
		o.int("waiting_tenants", int64(t.Tenants))
		o.int("charged_ns", int64(t.Charged*1e6))
		o.close('}')
	}
	if len(a.Choice.Best) > 0 {
		o.choice("choice", &a.Choice, a.Prefill, delivered)
	}
	o.close('}')
}

// choice writes how an attempt's engine was chosen and, nested in it, how the engine that
// computed the prompt was chosen.
func (o *object) choice(key string, c, prefill *trace.Choice, delivered int64) {
	o.key(key)
	o.open('{')
	o.str("why", c.Why)
	o.int("engines", int64(c.Of))
	o.str("engine", c.Best[c.Chosen].Engine)
	o.int("prompt_tokens", int64(c.Length))
	o.prediction(&c.Best[c.Chosen])
	if key == "choice" {
		o.int("available_cached_tokens", int64(c.Available))
		o.int("predicted_regret", int64(float64(c.Regret)*1e6))
	}
	if delivered > 0 {
		o.int("delivered_ttft", delivered)
	}
	if c.Cached >= 0 {
		o.int("cached_tokens", int64(c.Cached))
	}
	o.key("best")
	o.open('[')
	for i := range c.Best {
		o.open('{')
		o.str("engine", c.Best[i].Engine)
		o.prediction(&c.Best[i])
		o.close('}')
	}
	o.close(']')
	if prefill != nil && len(prefill.Best) > 0 {
		o.choice("prefill", prefill, nil, 0)
	}
	o.close('}')
}

func (o *object) prediction(p *trace.Option) {
	ns := func(ms float32) int64 { return int64(float64(ms) * 1e6) }
	o.int("predicted_cached_tokens", int64(p.Resident))
	o.int("predicted_wait", ns(p.Wait))
	o.int("predicted_ttft", ns(p.TTFT()))
	o.int("predicted_room", ns(p.Room))
	o.int("predicted_prefill", ns(p.Prefill))
	o.int("predicted_decode", ns(p.Decode))
	o.int("predicted_others", ns(p.Others))
	o.int("decoders", int64(p.Decoders))
	if p.Cold {
		o.bool("cold", true)
	}
	if p.Half {
		o.bool("half", true)
	}
}

// object appends JSON with commas where they belong.
type object struct {
	dst   []byte
	first bool
}

func (o *object) comma() {
	if !o.first {
		o.dst = append(o.dst, ',')
	}
	o.first = false
}

func (o *object) open(b byte) {
	// After a key the comma was written; within an array it is due.
	if n := len(o.dst); o.dst[n-1] != ':' {
		o.comma()
	}
	o.dst = append(o.dst, b)
	o.first = true
}

func (o *object) close(b byte) {
	o.dst = append(o.dst, b)
	o.first = false
}

func (o *object) key(name string) {
	o.comma()
	o.dst = append(append(append(o.dst, '"'), name...), `":`...)
}

func (o *object) int(name string, v int64) {
	o.key(name)
	o.dst = strconv.AppendInt(o.dst, v, 10)
}

func (o *object) bool(name string, v bool) {
	o.key(name)
	o.dst = strconv.AppendBool(o.dst, v)
}

// str writes any string, with invalid UTF-8 replaced.
func (o *object) str(name, v string) {
	o.key(name)
	o.dst, _ = jsontext.AppendQuote(o.dst, v) // fails on invalid UTF-8 only, which it replaces
}

func (o *object) stamp(name string, v int64) {
	if v != 0 {
		o.int(name, v)
	}
}

// lasted writes a duration; a negative one is not known.
func (o *object) lasted(name string, ns int64) {
	if ns >= 0 {
		o.int(name, ns)
	}
}

func (o *object) between(name string, from, to int64) {
	if from != 0 && to != 0 {
		o.int(name, to-from)
	}
}
