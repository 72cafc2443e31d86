package sglang

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"weir/internal/engine"
	"weir/internal/engine/idstream"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
	"weir/internal/trace"
)

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
	body, bad := srv.appendRequest(make([]byte, 0, bodyRoom+7*len(req.Prompt)), req, leg.DPRank)
	if bad != nil {
		return nil, bad
	}
	g := e.newGeneration(req, attempt, sink, srv)
	if err := e.host.Hand(ctx, &g.Generation, &upstream.Request{Method: http.MethodPost, Path: "/generate", Header: idstream.TraceOf(leg.Caller), Fields: idstream.Fields, Body: body, Leg: leg}); err != nil {
		return nil, err
	}
	return g, nil
}

// newGeneration makes the generation of a request to a server.
func (e *Engine) newGeneration(req *infer.Request, attempt uint32, sink engine.Sink, srv *server) *generation {
	g := &generation{e: e, id: req.ID, prompt: len(req.Prompt), media: len(req.Media) > 0, tally: tally{form: srv.form}}
	g.Generation = idstream.Generation{Wire: g, Attempt: attempt, Sink: sink}
	if req.Half != nil {
		switch g.role = req.Half.Role; g.role {
		case infer.RoleDecode:
			if !srv.mode.Meets("").HoldsPages {
				g.Waits = new(engine.Deferral)
			}
		case infer.RolePrefill:
			g.Short, g.chunks = true, srv.mode.AbortsChunks()
		}
	}
	if req.Logprobs != nil {
		g.scan.scored, g.top, g.logprobs = true, *req.Logprobs, new(infer.Logprobs)
	}
	if from := req.LogprobsFrom; from != nil && g.role != infer.RoleDecode { // which has computed nothing of the prompt
		g.scan.prompt, g.asked = true, req.Prompt[*from:]
	}
	return g
}

// bodyRoom is room for what most requests have besides their ids, of up to seven bytes each.
const bodyRoom = 512

// Failure is what a status of the engine's means here, with its words.
func Failure(engine string, status int, message string) *infer.Error {
	err := idstream.Failure(engine, status, message)
	if unpaired(message) && err.Code != infer.CodeOverloaded && err.Code != infer.CodeUnavailable {
		err.Code, err.Retryable, err.Handover = infer.CodeEngine, true, true
		err.Message = "the prefill engine did not hand the request over to the decode engine"
	}
	return err
}

const bootstrapFailed = "Prefill bootstrap failed"

// unpaired reports whether a message is about what two engines are to each other.
func unpaired(message string) bool {
	for _, begin := range [...]string{bootstrapFailed, "Prefill transfer failed", "Decode handshake failed", "Decode transfer failed"} {
		if strings.HasPrefix(message, begin) {
			return true
		}
	}
	return false
}

// Unbegun reports whether an engine's words for the end of a prefill half say that it had not
// met its decode half, and so was computed by nobody.
func Unbegun(message string) bool { return strings.HasPrefix(message, bootstrapFailed) }

// unbegun reports whether an abort's event says that the engine had computed nothing of a
// prefill half. One that was aborted in the queue is no batch's, and so nobody has counted its
// prompt. chunks is set where one that was aborted between two chunks looks the same.
func (e *event) unbegun(chunks bool) bool {
	return !chunks && e.finish == "abort" && e.prompt <= 0 && !unpaired(e.message) || Unbegun(e.message)
}

// generation is a request that the engine has.
type generation struct {
	idstream.Generation
	e      *Engine
	id     string
	prompt int // its ids
	role   infer.Role
	chunks bool     // of a prefill half: see unbegun
	media  bool     // only the engine knows the length of its prompt
	top    int      // alternatives of each id, where they come with log probabilities
	asked  []uint32 // of the prompt, whose log probabilities are still to come

	scan     scanner
	tally    tally
	logprobs *infer.Logprobs // of the event at hand; nil: it has none
	stamps   infer.Stamps
}

// Stop implements idstream.Wire.
func (g *generation) Stop() { g.e.aborts.add(g.id) }

// Progress implements idstream.Wire. The last event has the end.
func (g *generation) Progress() (int, *infer.Delta) { return g.tally.have, nil }

// Event implements idstream.Wire.
func (g *generation) Event(s *idstream.Scanner, data []byte, now int64) (last bool) {
	g.scan.Scanner = s
	last = g.event(&g.scan, data, now)
	g.scan.Scanner = nil // its reader's
	return last
}

// event takes in an event and says whether it was the last.
func (g *generation) event(s *scanner, data []byte, now int64) (last bool) {
	var e event
	if err := s.scan(data, &e); err != nil {
		g.Flawed("bad_event", err, data, now)
		return true
	}
	if e.failed && g.role == infer.RolePrefill && g.Aborted() && e.unbegun(g.chunks) {
		e.failed, e.finish = false, "abort"
	}
	if e.failed {
		g.Fail(Failure(g.e.opts.Name, e.status, e.message), now)
		return true
	}
	if e.prompt > 0 && e.prompt != g.prompt && !g.media && e.finish != "abort" { // one given up has another prompt
		g.Flawed("prompt_length", fmt.Errorf("the engine counts %d tokens of a prompt of %d: it was given another", e.prompt, g.prompt), data, now)
		return true
	}
	fresh, unsent, err := g.tally.take(s, &e)
	var ids []uint32
	if err == nil {
		ids, err = g.tally.read(s, &e, fresh)
	}
	if err != nil {
		g.Flawed("bad_ids", err, data, now)
		return true
	}
	var logprobs *infer.Logprobs
	if s.scored && len(ids) > 0 {
		logprobs = g.logprobs
		if err := g.tally.scores(&e, ids, unsent, g.top, logprobs); err != nil {
			g.tally.have -= fresh // they are not given out
			if e.finish != "abort" {
				g.Flawed("bad_logprobs", err, data, now)
				return true
			}
			ids, logprobs = nil, nil // the end is all that matters of it
		}
	}
	if g.asked != nil && (len(ids) > 0 || e.finish == "stop" || e.finish == "length") {
		if logprobs == nil {
			logprobs = new(infer.Logprobs)
		}
		if logprobs.Prompt, err = promptScores(&e, g.asked, g.top); err != nil {
			g.tally.have -= fresh
			g.Flawed("bad_logprobs", err, data, now)
			return true
		}
		g.asked = nil
	}
	g.e.learn(g.tally.form)
	d := &s.Delta
	*d = infer.Delta{Attempt: g.Attempt, IDs: ids, Logprobs: logprobs, Total: g.tally.have, Received: now, Stamps: g.stamp(&e), CachedTokens: max(e.cached, 0), CachedKnown: e.cached >= 0}
	if g.media {
		d.PromptTokens = max(e.prompt, 0)
	}
	switch e.finish {
	case "":
		if len(ids) > 0 {
			g.Sink.Offer(d)
			if len(ids) == g.tally.have {
				g.Waits.Released() // its KV is there
			}
		}
		return false
	case "stop", "length":
		d.Finish = &infer.Finish{Reason: infer.Reason(e.finish), PromptTokens: e.prompt, CachedTokens: e.cached, Unsent: unsent, StopID: e.stopID, ByID: e.matched > 0}
	case "abort":
		if !g.Aborted() {
			if g.tally.have == fresh && e.status/100 == 4 { // a refusal, whatever the engine has run for it
				g.tally.have = 0
			} else if len(ids) > 0 {
				g.Sink.Offer(d)
			}
			g.Fail(Failure(g.e.opts.Name, e.status, e.message), now)
			return true
		}
		d.Finish = &infer.Finish{Reason: infer.ReasonAbort, PromptTokens: e.prompt, CachedTokens: e.cached,
			Unbegun: g.role == infer.RolePrefill && g.tally.have == 0 && e.unbegun(g.chunks)}
	default:
		g.Flawed("finish_reason", fmt.Errorf("no finish reason %.40q is known", e.finish), data, now)
		return true
	}
	g.End(d)
	return true
}

// stamp returns the engine's stamps so far, when an event has brought any.
func (g *generation) stamp(e *event) *infer.Stamps {
	srv := g.e.server.Load()
	was := g.stamps
	set := func(to *int64, seconds float64) {
		if at := srv.stamp(seconds); at != 0 && *to == 0 {
			*to = at
		}
	}
	for i, to := range g.stamps.Named() { // those that say the most
		if e.named[i] != 0 && *to == 0 {
			*to = srv.patched(e.named[i])
		}
	}
	set(&g.stamps.QueueEnd, e.forwardEntry)
	if e.forwardEntry > 0 {
		set(&g.stamps.QueueStart, e.forwardEntry-e.queueTime)
	}
	set(&g.stamps.PrefillEnd, e.prefillFinished)
	g.stamps.Met(g.role)
	g.stamps.Retracted = max(g.stamps.Retracted, int64(e.retracted))
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
