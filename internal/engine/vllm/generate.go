package vllm

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"weir/internal/engine"
	"weir/internal/engine/idstream"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
	"weir/internal/trace"
)

// rankHeader names the data-parallel rank that a request is for.
const rankHeader = "X-Data-Parallel-Rank"

// bodyRoom is room for what most requests have besides their ids, of up to seven bytes each.
const bodyRoom = 512

// Generate implements engine.Tokens, of whole requests and of halves. The engine answers 200 as soon as it
// has read the request, which is its confirmation.
func (e *Engine) Generate(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg) (engine.Generation, error) {
	leg.Engine = e.opts.Name
	srv := e.server.Load()
	if leg.DPRank >= srv.ranks {
		leg.DPRank = -1 // it was started with fewer since, or says nothing of them
	}
	if err := ctx.Err(); err != nil {
		return nil, infer.AsError(err)
	}
	generate, bad := srv.generates(req)
	if bad != nil {
		return nil, bad
	}
	if prefills(req) {
		return e.prefill(ctx, req, attempt, sink, leg, srv, generate)
	}
	body, bad := srv.appendRequest(make([]byte, 0, bodyRoom+7*len(req.Prompt)), req, generate)
	if bad != nil {
		return nil, bad
	}
	header := headerOf(leg)
	g := e.newGeneration(req, attempt, sink, generate)
	if err := e.host.Hand(ctx, &g.Generation, &upstream.Request{Method: http.MethodPost, Path: srv.path(generate), Header: header, Fields: idstream.Fields, Body: body, Leg: leg}); err != nil {
		return nil, err
	}
	return g, nil
}

// headerOf returns the fields of a request's head.
func headerOf(leg *trace.Leg) http.Header {
	header := idstream.TraceOf(leg.Caller)
	if leg.DPRank >= 0 {
		if header == nil {
			header = http.Header{}
		}
		header[rankHeader] = []string{strconv.Itoa(leg.DPRank)}
	}
	return header
}

// newGeneration makes the generation of a request to one of the endpoints.
func (e *Engine) newGeneration(req *infer.Request, attempt uint32, sink engine.Sink, generate bool) *generation {
	g := &generation{e: e, generate: generate, prompt: len(req.Prompt), media: len(req.Media) > 0, tally: tally{limit: req.MaxTokens}}
	g.Generation = idstream.Generation{Wire: g, Attempt: attempt, Sink: sink}
	if h := req.Half; h != nil && h.Params != nil {
		g.decodes, g.cached = true, engine.HandedCached(h.Params)
	}
	if req.Logprobs != nil {
		g.scored, g.top, g.logprobs = true, *req.Logprobs, new(infer.Logprobs)
	}
	if !generate {
		g.Trim = g.echo.trim
	}
	return g
}

// generation is a request that the engine has.
type generation struct {
	idstream.Generation
	e        *Engine
	generate bool // it is at /inference/v1/generate
	prompt   int  // its ids
	decodes  bool // it is a decode half, of whose prompt the prefill engine had
	cached   int  // so many tokens in its cache; -1: not reported
	media    bool // only the engine knows the length of its prompt
	scored   bool // its ids come with log probabilities, and with
	top      int  // so many alternatives each

	echo     echo
	tally    tally
	finish   *infer.Finish // the reason has come; the last event, with the counts, has not
	held     []uint32      // the ids that came with the reason, which are offered with the end
	scores   scores
	logprobs *infer.Logprobs // of the event at hand; nil: it has none
}

// Stop implements idstream.Wire: the engine stops for whoever is gone.
func (g *generation) Stop() { g.HangUp() }

// Progress implements idstream.Wire. An answer that breaks off behind its finish reason has
// all that was asked for.
func (g *generation) Progress() (have int, last *infer.Delta) {
	if g.finish != nil {
		last = g.last(g.finish)
	}
	return g.tally.have - len(g.held), last
}

// last is the terminal delta, which has the ids that came with the finish reason: whoever
// takes an id that ends the answer must learn at once that it does.
func (g *generation) last(f *infer.Finish) *infer.Delta {
	d := &infer.Delta{Attempt: g.Attempt, IDs: g.held, Total: g.tally.have, Finish: f}
	if g.scored && len(g.held) > 0 {
		d.Logprobs = g.logprobs
	}
	if g.media {
		d.PromptTokens = max(f.PromptTokens, 0)
	}
	return d
}

// Event implements idstream.Wire.
func (g *generation) Event(s *idstream.Scanner, data []byte, now int64) (last bool) {
	var e event
	if err := scan(s, data, &e); err != nil {
		g.Flawed("bad_event", err, data, now)
		return true
	}
	switch {
	case e.failed:
		g.Fail(idstream.Failure(g.e.opts.Name, e.status, e.message), now)
		return true
	case e.prompt > 0 && e.prompt != g.prompt && !g.media:
		g.Flawed("prompt_length", fmt.Errorf("the engine counts %d tokens of a prompt of %d: it was given another", e.prompt, g.prompt), data, now)
		return true
	case e.choices == 0:
		return g.counted(&e, data, now)
	case g.finish != nil:
		g.Flawed("after_end", fmt.Errorf("%d ids come behind the finish reason", e.n), data, now)
		return true
	}
	ids, err := g.tally.take(s, &e)
	if err == nil && g.scored && len(ids) > 0 {
		if err = g.scores.read(s, e.scores, ids, g.top, g.generate, g.logprobs); err != nil {
			g.tally.have -= len(ids) // they are not given out
		}
	}
	if err != nil {
		reason := "bad_ids"
		if g.scored {
			reason = "bad_logprobs"
		}
		g.Flawed(reason, err, data, now)
		return true
	}
	if e.finish == "stop" || e.finish == "length" {
		g.held = slices.Clone(ids)
	} else if len(ids) > 0 {
		d := &s.Delta
		*d = infer.Delta{Attempt: g.Attempt, IDs: ids, Total: g.tally.have, Received: now}
		if g.scored {
			d.Logprobs = g.logprobs
		}
		if g.media {
			d.PromptTokens = max(e.prompt, 0)
		}
		g.Sink.Offer(d)
	}
	return g.ended(&e, data, now)
}

// ended takes in the finish reason of an event, if it has one, and says whether nothing
// more is to come.
func (g *generation) ended(e *event, data []byte, now int64) (last bool) {
	switch e.finish {
	case "":
		return false
	case "stop", "length":
		g.finish = &infer.Finish{Reason: infer.Reason(e.finish), PromptTokens: e.prompt, CachedTokens: e.cached, StopID: e.stopID, ByID: e.stopped}
		return false
	case "abort":
		if g.Aborted() {
			g.End(&infer.Delta{Attempt: g.Attempt, Total: g.tally.have, Received: now, Finish: &infer.Finish{Reason: infer.ReasonAbort, PromptTokens: e.prompt, CachedTokens: -1}})
			return true
		}
		g.Fail(&infer.Error{Code: infer.CodeUnavailable, Engine: g.e.opts.Name, Retryable: true, Message: "the engine is shutting down or paused; send the request again"}, now)
		return true
	}
	g.Flawed("finish_reason", fmt.Errorf("no finish reason %.40q was asked for", e.finish), data, now)
	return true
}

// counted takes in the last event, which has the counts of all.
func (g *generation) counted(e *event, data []byte, now int64) (last bool) {
	switch {
	case g.finish == nil && e.completion < 0:
		return false // nothing is said in it
	case g.finish == nil || e.completion >= 0 && e.completion != g.tally.have:
		g.Flawed("total_mismatch", g.tally.wrong("total_mismatch", e), data, now)
		return true
	}
	f := *g.finish
	if f.CachedTokens = e.cached; g.decodes {
		f.CachedTokens = g.cached // all of its prompt comes from the other engine
	}
	d := g.last(&f)
	d.Received = now
	g.End(d)
	return true
}
