package sglang

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
	"weir/internal/sse"
	"weir/internal/trace"
)

var requestHeader = http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}, "Accept-Encoding": {"identity"}, "User-Agent": {"weir"}}

// Generate implements engine.Tokens, of whole requests and of halves. The engine answers 200 as soon as it has
// read the request, which is its confirmation; a refusal after that comes as
// the generation's end.
func (e *Engine) Generate(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg) (engine.Generation, error) {
	leg.Engine = e.opts.Name
	srv := e.server.Load()
	if leg.DPRank >= srv.ranks {
		leg.DPRank = -1 // it was started with fewer since, or says nothing of them
	}
	if err := ctx.Err(); err != nil {
		return nil, infer.AsError(err)
	}
	body, bad := srv.appendRequest(nil, req, leg.DPRank)
	if bad != nil {
		return nil, bad
	}
	running, err := e.enter()
	if err != nil {
		return nil, err
	}
	// ctx bounds the hand-over, and Run all of it.
	within, cancel := context.WithCancelCause(running)
	unhook := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	g := &generation{e: e, id: req.ID, attempt: attempt, limit: req.MaxTokens, prompt: len(req.Prompt), media: len(req.Media) > 0, sink: sink, ctx: within, cancel: cancel, tally: tally{form: srv.form}}
	if req.Half != nil && req.Half.Role == infer.RoleDecode {
		g.waits = engine.NewDeferral(g.abort)
	}
	if req.Logprobs != nil {
		g.scored, g.top = true, *req.Logprobs
	}
	resp, err := e.ask(within, &upstream.Request{Method: http.MethodPost, Path: "/generate", Header: requestHeader, Body: body, Leg: leg})
	switch {
	case err != nil:
	case !unhook():
		resp.Body.Close()
		err = infer.AsError(context.Cause(ctx))
	default:
		if g.body = resp.Body; !g.poll() {
			go g.run()
		}
		return g, nil
	}
	unhook()
	cancel(nil)
	if leg.ToServer != 0 && (resp == nil || resp.Status == http.StatusOK) {
		// It may have the request, and would work on it until it notices.
		e.aborts.add(req.ID)
	}
	e.live.Done()
	return nil, err
}

// ask hands a request over, and gives the response that confirms it. With an error
// there may be a response, which says that the engine has not taken the request.
func (e *Engine) ask(ctx context.Context, req *upstream.Request) (resp *upstream.Response, err error) {
	defer func() {
		if p := engine.Caught(recover(), e.opts.Panicked); p != nil {
			err = p.Failed(e.opts.Name)
		}
	}()
	resp, err = e.client.Do(ctx, req)
	switch {
	case err != nil:
		return nil, upstream.Fault(e.opts.Name, err)
	case resp.Status != http.StatusOK:
		return resp, e.refusal(resp)
	}
	return resp, nil
}

// maxRefusal bounds what is read of a refusal.
const maxRefusal = 64 << 10

// refusal reads why the engine refused a request.
func (e *Engine) refusal(resp *upstream.Response) error {
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		return upstream.Fault(e.opts.Name, err)
	}
	var ev event
	s := newScanner()
	if err := s.full(bytes.TrimSpace(data), &ev); err != nil || ev.message == "" {
		ev.message = topMessage(s, data)
	}
	refused := Failure(e.opts.Name, resp.Status, ev.message)
	refused.NotRun = resp.Status < http.StatusInternalServerError || refused.Code == infer.CodeOverloaded
	refused.RetryAfter = upstream.RetryAfter(resp.Status, resp.Header)
	return refused
}

// topMessage reads the message of an error that is not inside of "error".
func topMessage(s *scanner, data []byte) (message string) {
	s.reset(data)
	if s.dec.PeekKind() != '{' {
		return ""
	}
	if s.members(func(name []byte) error {
		if string(name) == "message" {
			return s.text(&message)
		}
		return s.dec.SkipValue()
	}) != nil {
		return ""
	}
	return message
}

// Failure is what a status of the engine's means here, with its words. A full queue, a wait
// that was too long and a preemption are all 503 there, and so is an engine
// that is starting or shutting down: another may take the request.
func Failure(engine string, status int, message string) *infer.Error {
	err := &infer.Error{Engine: engine, Cause: fmt.Errorf("status %d: %s", status, message)}
	switch {
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests:
		err.Code, err.Retryable = infer.CodeOverloaded, true
		err.Message = "the engine has no room for the request now; try again later"
	case status == http.StatusBadGateway, status == http.StatusGatewayTimeout:
		err.Code, err.Retryable = infer.CodeUnavailable, true
		err.Message = "the engine cannot be reached"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		err.Code, err.Retryable = infer.CodeEngine, true
		err.Message = "the engine does not let the gateway in"
	case unpaired(message):
		err.Code, err.Retryable, err.Handover = infer.CodeEngine, true, true
		err.Message = "the prefill engine did not hand the request over to the decode engine"
	case status >= 400 && status < 500:
		err.Code = infer.CodeInvalid
		err.Message = "the engine refused the request"
		if message != "" {
			err.Message += ": " + message
		}
	default:
		err.Code, err.Retryable = infer.CodeEngine, true
		err.Message = "the engine failed"
	}
	return err
}

// unpaired says whether a message is about what two engines are to each other.
func unpaired(message string) bool {
	for _, begin := range [...]string{"Prefill bootstrap failed", "Prefill transfer failed", "Decode handshake failed", "Decode transfer failed"} {
		if strings.HasPrefix(message, begin) {
			return true
		}
	}
	return false
}

// generation is a request that the engine has. Its reading side belongs to the
// goroutine that gives it its turn, or to its own where it has one.
type generation struct {
	e       *Engine
	id      string
	attempt uint32
	limit   int
	prompt  int  // its ids
	media   bool // only the engine knows the length of its prompt
	scored  bool // its ids come with log probabilities, and with
	top     int  // so many alternatives each
	sink    engine.Sink
	ctx     context.Context
	cancel  context.CancelCauseFunc // breaks the connection
	aborted atomic.Pointer[time.Timer]
	waits   *engine.Deferral // holds the abort of a decode half back
	over    atomic.Bool      // the terminal delta was offered
	turns

	body     *upstream.Body
	events   sse.Parser
	tally    tally
	logprobs infer.Logprobs // of the event at hand
	stamps   infer.Stamps
}

// errUnheard breaks the connection of a generation that goes on after its abort.
var errUnheard = errors.New("the engine did not end an aborted request")

// Abort implements engine.Generation. That of a decode half may wait.
func (g *generation) Abort() {
	if g.waits != nil {
		g.waits.Abort()
		return
	}
	g.abort()
}

// Released is what engine.Released calls.
func (g *generation) Released() {
	if g.waits != nil {
		g.waits.Released()
	}
}

// abort tells the engine to stop.
func (g *generation) abort() {
	if g.over.Load() || g.aborted.Load() != nil {
		return
	}
	t := time.AfterFunc(g.e.opts.AbortTimeout, func() { g.cancel(errUnheard) })
	if !g.aborted.CompareAndSwap(nil, t) {
		t.Stop()
		return
	}
	g.e.aborts.add(g.id)
}

// run reads the answer to its end, waiting for it.
func (g *generation) run() {
	defer g.close()
	defer g.caught(new(bool))
	s := newScanner()
	for whole := false; !whole; {
		chunk, err := g.body.Next()
		now := trace.Now()
		if err != nil {
			g.broken(err, now)
			break
		}
		whole = g.take(s, chunk, now)
	}
	// What follows the end tells nothing but whether the connection is good for
	// another request.
	t := time.AfterFunc(afterwards, func() { g.cancel(nil) })
	for {
		if _, err := g.body.Next(); err != nil {
			break
		}
	}
	t.Stop()
}

// caught makes a panic the end of the generation, and says that it is over. It is
// deferred.
func (g *generation) caught(over *bool) {
	p := engine.Caught(recover(), g.e.opts.Panicked)
	if p == nil {
		return
	}
	*over = true
	defer func() { engine.Caught(recover(), g.e.opts.Panicked) }() // in the sink
	if !g.over.Load() {
		g.e.aborts.add(g.id)
		g.fail(p.Failed(g.e.opts.Name), trace.Now())
	}
}

// afterwards is how long an engine may take to end an answer that is complete.
const afterwards = time.Second

// close lets the connection go.
func (g *generation) close() {
	defer g.e.live.Done()
	defer func() { engine.Caught(recover(), g.e.opts.Panicked) }()
	g.body.Close()
	g.cancel(nil)
}

// take offers what a part of the answer brings, and says whether the terminal
// delta was in it.
func (g *generation) take(s *scanner, chunk []byte, now int64) (whole bool) {
	s.scored = g.scored
	g.events.Feed(chunk)
	for ev, ok := g.events.Next(); ok; ev, ok = g.events.Next() {
		if !ev.Comment && g.event(s, ev.Data, now) {
			return true
		}
	}
	if err := g.events.Err(); err != nil {
		g.flawed("event_too_large", err, nil, now)
		return true
	}
	return false
}

// event takes in an event and says whether it was the last.
func (g *generation) event(s *scanner, data []byte, now int64) (last bool) {
	if string(data) == sse.DoneMarker {
		g.broken(errors.New("the answer ends without a finish reason"), now)
		return true
	}
	var e event
	if err := s.scan(data, &e); err != nil {
		g.flawed("bad_event", err, data, now)
		return true
	}
	if e.failed {
		g.fail(Failure(g.e.opts.Name, e.status, e.message), now)
		return true
	}
	if e.prompt > 0 && e.prompt != g.prompt && !g.media && e.finish != "abort" { // one given up has another prompt
		g.flawed("prompt_length", fmt.Errorf("the engine counts %d tokens of a prompt of %d: it was given another", e.prompt, g.prompt), data, now)
		return true
	}
	fresh, unsent, err := g.tally.take(s, &e)
	var ids []uint32
	if err == nil {
		ids, err = g.tally.read(s, &e, fresh)
	}
	if err != nil {
		g.flawed("bad_ids", err, data, now)
		return true
	}
	var logprobs *infer.Logprobs
	if g.scored && len(ids) > 0 {
		logprobs = &g.logprobs
		if err := g.tally.scores(&e, ids, unsent, g.top, logprobs); err != nil {
			g.tally.have -= fresh // they are not given out
			if e.finish != "abort" {
				g.flawed("bad_logprobs", err, data, now)
				return true
			}
			ids, logprobs = nil, nil // the end is all that matters of it
		}
	}
	g.e.learn(g.tally.form)
	d := infer.Delta{Attempt: g.attempt, IDs: ids, Logprobs: logprobs, Total: g.tally.have, Received: now, Stamps: g.stamp(&e), CachedTokens: max(e.cached, 0), CachedKnown: e.cached >= 0}
	if g.media {
		d.PromptTokens = max(e.prompt, 0)
	}
	switch e.finish {
	case "":
		if len(ids) > 0 {
			g.sink.Offer(&d)
			if g.waits != nil && len(ids) == g.tally.have {
				g.waits.Released() // its KV is there
			}
		}
		return false
	case "stop", "length":
		d.Finish = &infer.Finish{Reason: infer.Reason(e.finish), PromptTokens: e.prompt, CachedTokens: e.cached, Unsent: unsent, StopID: e.stopID, ByID: e.matched > 0}
	case "abort":
		if g.aborted.Load() == nil {
			if g.tally.have == fresh && e.status/100 == 4 { // a refusal, whatever the engine has run for it
				g.tally.have = 0
			} else if len(ids) > 0 {
				g.sink.Offer(&d)
			}
			g.fail(Failure(g.e.opts.Name, e.status, e.message), now)
			return true
		}
		d.Finish = &infer.Finish{Reason: infer.ReasonAbort, PromptTokens: e.prompt, CachedTokens: e.cached}
	default:
		g.flawed("finish_reason", fmt.Errorf("no finish reason %.40q is known", e.finish), data, now)
		return true
	}
	g.end(&d)
	return true
}

// end offers the terminal delta.
func (g *generation) end(d *infer.Delta) {
	g.over.Store(true)
	g.sink.Offer(d)
	if t := g.aborted.Load(); t != nil {
		t.Stop()
	}
	if g.waits != nil {
		g.waits.End()
	}
}

// fail ends the generation with an error.
func (g *generation) fail(err *infer.Error, now int64) {
	g.end(&infer.Delta{Attempt: g.attempt, Total: g.tally.have, Received: now, Finish: &infer.Finish{
		Reason: infer.ReasonError, PromptTokens: -1, CachedTokens: -1, Err: err,
	}})
}

// broken ends the generation because its answer broke off, which is all that was
// wanted of an aborted one.
func (g *generation) broken(err error, now int64) {
	if g.aborted.Load() != nil {
		g.end(&infer.Delta{Attempt: g.attempt, Total: g.tally.have, Received: now,
			Finish: &infer.Finish{Reason: infer.ReasonAbort, PromptTokens: -1, CachedTokens: -1}})
		return
	}
	e := *upstream.Fault(g.e.opts.Name, err)
	g.fail(&e, now)
}

// flaw is an event that cannot be what an engine means to say, as evidence.
type flaw struct {
	error
	reason string
	found  []byte // the event's end
	length int    // of all of it
}

// Unwrap gives what was wrong.
func (f *flaw) Unwrap() error { return f.error }

// FaultReason implements infer.Fault.
func (f *flaw) FaultReason() string { return f.reason }

// Evidence gives what was kept, for JSON.
func (f *flaw) Evidence() any {
	e := struct {
		Counts *mismatch     `json:"counts,omitempty"`
		Found  infer.Excerpt `json:"found"`
		Length int           `json:"found_bytes"` // of which found shows the last
	}{Found: infer.NewExcerpt(f.found), Length: f.length}
	errors.As(f.error, &e.Counts)
	return e
}

var _ infer.Fault = (*flaw)(nil)

const foundBytes = 1 << 10

// flawed ends the generation because what the engine sends does not add up, and
// stops the engine.
func (g *generation) flawed(reason string, err error, data []byte, now int64) {
	var counts *mismatch
	if errors.As(err, &counts) {
		reason = counts.reason
	}
	g.e.aborts.add(g.id)
	found := bytes.Clone(data[max(0, len(data)-foundBytes):])
	g.fail(&infer.Error{Code: infer.CodeIntegrity, Engine: g.e.opts.Name, Retryable: true, Cause: &flaw{err, reason, found, len(data)},
		Message: "what the engine sent does not add up; send the request again"}, now)
	g.cancel(nil)
}

// stamp gives the engine's stamps so far, when an event has brought any.
func (g *generation) stamp(e *event) *infer.Stamps {
	srv := g.e.server.Load()
	was := g.stamps
	set := func(to *int64, seconds float64) {
		if at := srv.stamp(seconds); at != 0 && *to == 0 {
			*to = at
		}
	}
	set(&g.stamps.QueueEnd, e.forwardEntry)
	if e.forwardEntry > 0 {
		set(&g.stamps.QueueStart, e.forwardEntry-e.queueTime)
	}
	set(&g.stamps.PrefillEnd, e.prefillFinished)
	set(&g.stamps.ServerCreated, e.requestReceived)
	if g.tally.have > 0 {
		set(&g.stamps.FirstOutput, e.responseSent)
	}
	if g.stamps == was {
		return nil
	}
	g.stamps.ClockUncertain = srv.clock.Uncertain
	now := g.stamps
	return &now
}
