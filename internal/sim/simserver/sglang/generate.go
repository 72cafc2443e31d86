package sglang

import (
	"errors"
	"net/http"
	"strconv"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/flags"
	"weir/internal/sim/simserver/pairs"
	"weir/internal/sim/simserver/web"
	"weir/internal/trace"
)

// generation is the answer to one request to /generate. It is the form of its own exchange.
//
// By default the server streams cumulatively: an event repeats all of the output so far, so
// the bytes of a stream grow with the square of its length. Each output keeps its previous
// JSON, so that an event only needs to copy it.
type generation struct {
	exchange.Exchange
	server      *Server
	items       []item
	said        []said
	batch       bool // events have an index, and a whole answer is a list
	streams     bool
	incremental bool
	promptIDs   bool
}

// said is the JSON of an output so far or, if the server streams incrementally, of the next
// event.
type said struct {
	text, ids             []byte
	logprobs, top, wanted []byte
	scored                int    // entries of logprobs, in all events
	all                   []byte // the text, where the next event does not have all of it
	last                  uint32 // the latest id

	head, inputs, stages string // what all events say; stages from the first token on
	known                bool   // stages is complete
	dispatched           int64  // when the engine had it, ns
	firstSent            int64  // when its first event was made, ns
}

func (f *Server) generate(w http.ResponseWriter, r *http.Request) {
	g := &generation{Exchange: exchange.New(f.run, f.vocab, w, r, r.Header.Get("X-Request-Id"), trace.Now()), server: f}
	var req generateRequest
	if err := web.ReadJSON(w, r, &req); err != nil {
		f.run.Refused()
		web.WriteSGLangError(w, err)
		return
	}
	refuse := func(err error) { writeNativeError(w, err) }
	if req.Stream {
		// For any error, the answer is a stream, and its status 200.
		refuse = func(err error) {
			web.EventStream(w, "text/event-stream; charset=utf-8")
			b := append([]byte("data: "), appendNativeStreamError(nil, err)...)
			// An error here is the client's hang-up.
			_, _ = w.Write(append(b, "\n\ndata: [DONE]\n\n"...))
		}
	}
	requests, err := g.accept(&req)
	if err == nil {
		err = f.register(&g.Exchange)
	}
	if errors.Is(err, flags.ErrDies) {
		f.run.Die(err)
		panic(http.ErrAbortHandler) // the server goes with it
	}
	if err != nil {
		f.run.Refused()
		refuse(err)
		return
	}
	defer f.forget(&g.Exchange)
	if !g.Delay(func(err error) { writeNativeError(w, err) }) {
		f.run.Refused()
		return
	}
	defer g.Abandon()
	if !g.dispatch(requests, refuse) {
		return
	}
	if g.streams {
		g.Stream(g, false)
	} else if g.Whole(refuse) {
		g.WriteWhole(g.WholeBody())
	}
}

// accept reads a request up to the point where the engine may be asked.
func (g *generation) accept(req *generateRequest) ([]sim.Request, error) {
	items, batch, err := g.server.items(g.Request.Context(), g.ID, req)
	if err != nil {
		return nil, err
	}
	for i := range items {
		if errors.Is(items[i].giveUp, flags.ErrDies) {
			return nil, items[i].giveUp
		}
	}
	g.items, g.batch, g.streams, g.promptIDs = items, batch, req.Stream, req.ReturnPromptTokenIDs
	g.AtOnce = !req.Stream
	g.incremental = req.Stream && g.server.flags.Incremental
	if g.ID == "" {
		g.ID = items[0].rid
	}
	var prompts [][]uint32
	for i := range items {
		prompts = append(prompts, items[i].params.Prompt)
	}
	g.Draw(prompts)
	requests := make([]sim.Request, 0, len(items))
	g.Outputs, g.said = make([]exchange.Output, 0, len(items)), make([]said, len(items))
	for i := range items {
		it := &items[i]
		o := exchange.Output{
			Name:     it.rid,
			Ask:      it.ask,
			Stops:    exchange.NewStops(it.stops, !it.trim),
			ShowStop: !it.trim,
		}
		if err := pairs.SGLang(&g.Exchange, g.server.flags, &o, &it.params, &it.pair); err != nil {
			return nil, err
		}
		prepared, err := g.Add(o, it.params)
		if err != nil {
			return nil, err
		}
		requests = append(requests, prepared)
		g.begin(&g.said[i], it)
	}
	return requests, nil
}

// dispatch hands all outputs to the engine. One that is refused is aborted in
// the stream, and ends the request where nothing is streamed; then it is false.
func (g *generation) dispatch(requests []sim.Request, refuse func(error)) bool {
	if g.streams {
		web.EventStream(g.Writer, "text/event-stream; charset=utf-8")
		// The head is sent before there is anything to say.
		if http.NewResponseController(g.Writer).Flush() != nil {
			return false
		}
	}
	for i := range requests {
		o := &g.Outputs[i]
		if err := g.items[i].giveUp; err != nil {
			if g.Run.Refused(); !g.streams {
				refuse(err)
				return false
			}
			g.Refused(o, err)
			continue
		}
		err := g.Submit(o, requests[i])
		g.said[i].dispatched = trace.Now()
		switch {
		case err == nil:
		case g.Request.Context().Err() != nil:
			return false
		case g.streams && infer.AsError(err).Code == infer.CodeOverloaded:
			g.Refused(o, errQueueFull())
		case infer.AsError(err).Code == infer.CodeOverloaded:
			refuse(errQueueFull())
			return false
		default:
			refuse(err)
			return false
		}
	}
	return true
}

// errQueueFull has SGLang's words; callers look for them.
func errQueueFull() error {
	return infer.Errorf(infer.CodeOverloaded, "The request queue is full.")
}

// begin composes the common part of an output's events.
func (g *generation) begin(s *said, it *item) {
	b := append([]byte(`],"meta_info":{"id":`), web.Quote(it.rid)...)
	s.head = string(append(b, `,"finish_reason":`...))
	if it.logprob {
		s.inputs = string(g.server.appendInputLogprobs(nil, it))
	}
}

// Event implements exchange.Form.
func (g *generation) Event(b []byte, o *exchange.Output) []byte {
	b = append(b, "data: "...)
	b = g.object(b, o)
	return append(b, "\n\n"...)
}

// Stray implements exchange.Form.
func (g *generation) Stray(b []byte) []byte {
	return append(b, `data: {"text":"","output_ids":[],"meta_info":{"id":"stray","finish_reason":null,"prompt_tokens":1,"completion_tokens":0,"cached_tokens":0},"index":1048576}`+"\n\n"...)
}

// End implements exchange.Form.
func (g *generation) End(b []byte) []byte { return append(b, "data: [DONE]\n\n"...) }

// WholeBody returns a complete answer that is not streamed.
func (g *generation) WholeBody() []byte {
	var b []byte
	if g.batch {
		b = append(b, '[')
	}
	for i := range g.Outputs {
		if i > 0 {
			b = append(b, ',')
		}
		b = g.object(b, &g.Outputs[i])
	}
	if g.batch {
		b = append(b, ']')
	}
	return b
}

// object appends the JSON of an output.
func (g *generation) object(b []byte, o *exchange.Output) []byte {
	s, it := &g.said[o.Slot], &g.items[o.Slot]
	if s.firstSent == 0 {
		s.firstSent = trace.Now()
	}
	first := !o.Began
	if it.hidden {
		o.Completion, o.Text, o.IDs = 0, o.Text[:0], o.IDs[:0]
	}
	g.take(o, s, it)
	if g.abortedUnderWay(o) {
		return g.abortObject(b, o, s)
	}
	b = append(b, '{')
	if !g.server.flags.SkipTokenizer {
		b = append(b, `"text":"`...)
		b = append(b, s.text...)
		b = append(b, `",`...)
	}
	b = append(b, `"output_ids":[`...)
	b = append(b, s.ids...)
	b = append(b, s.head...)
	b = g.appendFinishReason(b, o, it)
	b = g.appendMeta(b, o, s, it, first)
	b = append(b, '}')
	if g.promptIDs {
		b = append(b, `,"prompt_token_ids":[`...)
		b = web.AppendIDs(b, o.Prompt)
		b = append(b, ']')
	}
	if g.batch && g.streams {
		b = append(b, `,"index":`...)
		b = strconv.AppendUint(b, uint64(o.Slot), 10)
	}
	if g.incremental {
		s.text, s.ids = s.text[:0], s.ids[:0]
		s.logprobs, s.top, s.wanted = s.logprobs[:0], s.top[:0], s.wanted[:0]
	}
	return append(b, '}')
}

// take turns what an output has pending into JSON.
func (g *generation) take(o *exchange.Output, s *said, it *item) {
	if it.logprob && !it.hidden {
		g.takeLogprobs(o, s, it)
	}
	at := len(s.text)
	s.text = web.AppendText(s.text, o.Text)
	if g.incremental {
		s.all = append(s.all, s.text[at:]...)
	}
	if len(o.IDs) > 0 {
		if len(s.ids) > 0 {
			s.ids = append(s.ids, ',')
		}
		s.ids = web.AppendIDs(s.ids, o.IDs)
		s.last = o.IDs[len(o.IDs)-1]
	}
	o.Clear()
}

// abortedUnderWay reports whether an output ended outside of a running batch: refused, or
// aborted while it was queued, before it ran or after a retraction.
func (g *generation) abortedUnderWay(o *exchange.Output) bool {
	return o.Reason == infer.ReasonAbort && !o.Summary.Prefilled && (o.Failure != nil || o.Queued || o.Completion == 0)
}

// givenUp reports whether the scheduler accepted an output and gave it up at once. SGLang
// then runs a prompt of one token, so the request ends as others do: with an id and with
// the counts of that prompt.
func (g *generation) givenUp(o *exchange.Output) bool { return g.items[o.Slot].giveUp != nil }

// abortObject appends the object of such an output. It differs from other objects: it has
// no prompt_tokens, and in a stream it repeats the last id and all of the text.
func (g *generation) abortObject(b []byte, o *exchange.Output, s *said) []byte {
	b = append(b, '{')
	if !g.server.flags.SkipTokenizer {
		b = append(b, `"text":"`...)
		if g.incremental {
			b = append(b, s.all...)
		} else {
			b = append(b, s.text...)
		}
		b = append(b, `",`...)
	}
	b = append(b, `"output_ids":[`...)
	switch {
	case g.givenUp(o):
		b = append(b, '0')
	case !g.streams:
		b = append(b, s.ids...)
	case o.Completion > 0:
		b = strconv.AppendUint(b, uint64(s.last), 10)
	}
	b = append(b, s.head...)
	b = g.appendFinishReason(b, o, &g.items[o.Slot])
	b = append(b, `,"weight_version":`...)
	b = append(b, web.Quote(g.server.flags.WeightVersion)...)
	b = append(b, `,"e2e_latency":`...)
	b = appendSeconds(b, trace.Now()-g.Created)
	completion := o.Completion
	if g.givenUp(o) {
		completion = 1
		b = append(b, `,"prompt_tokens":1,"cached_tokens":0`...)
	}
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(completion), 10)
	b = append(b, '}')
	if g.batch && g.streams {
		b = append(b, `,"index":`...)
		b = strconv.AppendUint(b, uint64(o.Slot), 10)
	}
	return append(b, '}')
}

// appendFinishReason appends SGLang's finish_reason, an object or null.
func (g *generation) appendFinishReason(b []byte, o *exchange.Output, it *item) []byte {
	switch o.Reason {
	case "":
		return append(b, "null"...)
	}
	if o.Leg != nil && o.Leg.Key != "" && o.Reason != infer.ReasonAbort {
		return append(b, `{"type":"length","length":0}`...) // whatever its id is
	}
	switch o.Reason {
	case infer.ReasonStop:
		b = append(b, `{"type":"stop","matched":`...)
		return append(o.Matched.Append(b), '}')
	case infer.ReasonLength:
		b = append(b, `{"type":"length","length":`...)
		return append(strconv.AppendInt(b, int64(it.limit), 10), '}')
	}
	switch {
	case o.Failure == nil && g.abortedUnderWay(o):
		return append(b, `{"type":"abort","message":"Abort in waiting queue"}`...)
	case o.Failure == nil:
		return append(b, `{"type":"abort","message":"Aborted","status_code":null,"err_type":null}`...)
	}
	e := infer.AsError(o.Failure)
	code, _ := web.StatusOf(e.Code)
	b = append(b, `{"type":"abort","message":`...)
	b = append(b, web.Quote(e.Message)...)
	b = append(b, `,"status_code":`...)
	b = strconv.AppendInt(b, int64(code), 10)
	if it.giveUp != nil {
		return append(b, `,"err_type":"BadRequestError"}`...)
	}
	return append(b, `,"err_type":null}`...)
}

// appendMeta appends the rest of meta_info after finish_reason.
func (g *generation) appendMeta(b []byte, o *exchange.Output, s *said, it *item, first bool) []byte {
	ended := o.Reason != ""
	b = append(b, `,"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(len(o.Prompt)), 10)
	for kind, n := range it.media {
		if n > 0 {
			b = append(append(append(b, `,"`...), infer.MediaKind(kind).String()...), `_tokens":`...)
			b = strconv.AppendInt(b, int64(n), 10)
		}
	}
	b = append(b, g.server.weights...)
	b = strconv.AppendInt(b, int64(o.Retractions), 10)
	b = append(b, `,"reasoning_tokens":0`...)
	if !s.known && o.Stamps.QueueEnd != 0 {
		s.known, s.stages = true, string(g.appendStages(nil, o))
	}
	b = append(b, s.stages...)
	if it.logprob {
		b = append(b, s.inputs...)
		b = g.appendOutputLogprobs(b, s, it)
	}
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(g.Reported(o)), 10)
	b = append(b, `,"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(o.Cached), 10)
	metrics := g.server.flags.Metrics
	if ended {
		b = append(b, `,"e2e_latency":`...)
		b = appendSeconds(b, trace.Now()-g.Created)
		if metrics {
			b = g.appendFinalStamps(b, o, s)
		}
	}
	if first || ended && metrics {
		b = append(b, `,"response_sent_to_client_ts":`...)
		b = appendEpoch(b, s.firstSent)
	}
	return b
}

// appendStages appends the stamps that an output has from its first token on.
func (g *generation) appendStages(b []byte, o *exchange.Output) []byte {
	if g.Run.Options().DPSize > 1 {
		b = append(b, `,"dp_rank":`...)
		b = strconv.AppendInt(b, int64(o.Rank), 10)
	}
	if g.server.flags.Patched {
		stamps := o.Stamps
		for i, at := range stamps.Named() {
			if *at != 0 {
				b = append(append(append(b, `,"`...), infer.StampNames[i]...), `":`...)
				b = appendEpoch(b, *at)
			}
		}
	}
	if !g.server.flags.Metrics {
		return b
	}
	queued, entered := o.Stamps.QueueStart, o.Stamps.QueueEnd
	if o.Stamps.WaitingToRunning != 0 { // a decode leg is queued when its KV is there
		queued, entered = o.Stamps.TransferEnd, o.Stamps.WaitingToRunning
	}
	b = append(b, `,"queue_time":`...)
	b = appendSeconds(b, entered-queued)
	b = append(b, `,"forward_entry_time":`...)
	b = appendEpoch(b, entered)
	if o.Stamps.PrefillEnd == 0 {
		return b // a decode leg computes no prompt
	}
	b = append(b, `,"prefill_finished_time":`...)
	return appendEpoch(b, o.Stamps.PrefillEnd)
}

// appendFinalStamps appends the server's own times of an output that ended.
func (g *generation) appendFinalStamps(b []byte, o *exchange.Output, s *said) []byte {
	b = append(b, `,"request_received_ts":`...)
	b = appendEpoch(b, g.Created)
	b = append(b, `,"api_server_dispatch_finish_ts":`...)
	b = appendEpoch(b, s.dispatched)
	b = append(b, `,"request_finished_ts":`...)
	b = appendEpoch(b, trace.Now())
	if d := o.Latest - o.Stamps.FirstToken; d > 0 && o.Completion > 1 {
		b = append(b, `,"decode_throughput":`...)
		b = strconv.AppendFloat(b, float64(o.Completion-1)/(float64(d)/1e9), 'f', 3, 64)
	}
	return b
}

// appendSeconds appends nanoseconds as seconds.
func appendSeconds(b []byte, ns int64) []byte {
	return strconv.AppendFloat(b, float64(ns)/1e9, 'f', 9, 64)
}

// appendEpoch appends a stamp as seconds since 1970.
func appendEpoch(b []byte, stamp int64) []byte {
	t := trace.Wall(stamp)
	b = strconv.AppendInt(b, t.Unix(), 10)
	b = append(b, '.')
	frac := t.Nanosecond()
	for unit := 100_000_000; unit > 0; unit /= 10 {
		b = append(b, byte('0'+frac/unit%10))
	}
	return b
}

// writeNativeError answers in the forms of /generate's errors: one for errors of the
// caller, one for errors of the server.
func writeNativeError(w http.ResponseWriter, err error) {
	e := infer.AsError(err)
	code, _ := web.StatusOf(e.Code)
	if code >= http.StatusInternalServerError {
		web.WriteSGLangError(w, err)
		return
	}
	web.WriteJSON(w, code, map[string]any{"error": map[string]string{"message": e.Message}})
}

// appendNativeStreamError appends the error of a stream that never began.
func appendNativeStreamError(b []byte, err error) []byte {
	e := infer.AsError(err)
	code, _ := web.StatusOf(e.Code)
	kind := "invalid_request_error"
	if code >= http.StatusInternalServerError {
		kind = "internal_server_error"
	}
	b = append(b, `{"error":{"message":`...)
	b = append(b, web.Quote(e.Message)...)
	b = append(b, `,"type":"`+kind+`","code":`...)
	b = strconv.AppendInt(b, int64(code), 10)
	return append(b, `,"retryable":false}}`...)
}
