package attempt

import (
	"bytes"
	"context"

	"weir/internal/engine"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/trace"
)

// tokenPrefill is a prefill half at a token engine. It has a generation for each choice, of
// which only the end and the engine's stamps are used. The partner's lock guards it.
type tokenPrefill struct {
	p       *partner
	atOnce  int // of the choices that are handed over at the same time
	choices []prefillChoice
	one     [1]prefillChoice // is choices, for most requests
	handed  bool
	left    int           // choices that have not ended
	err     *infer.Error  // by which one has failed
	stamps  *infer.Stamps // the engine's, of the first choice that has ended
	rest    func()        // reads what comes after the hand-over
}

// prefillChoice is a choice of it. It takes what the engine sends.
type prefillChoice struct {
	h          *tokenPrefill
	index      int
	request    *infer.Request
	generation engine.Generation // nil: it is not there yet, or has ended
	stamps     infer.Stamps
	scores     *infer.PromptLogprobs // nil: none were asked for, or none have come
	ended      bool
}

func newTokenPrefill(p *partner, q *prepare.Prepared) *tokenPrefill {
	h := &tokenPrefill{p: p, atOnce: q.AtOnce(), left: q.Count()}
	if h.choices = h.one[:]; h.left > 1 {
		h.choices = make([]prefillChoice, h.left)
	}
	for i := range h.choices {
		h.choices[i] = prefillChoice{h: h, index: i, request: p.submission(q, i, infer.RolePrefill, &p.target)}
	}
	return h
}

// serve implements prefill.
func (h *tokenPrefill) serve(ctx context.Context) error {
	p := h.p
	err := h.handOver(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		return inTime(err, "did not confirm the request", p.of.opts.SubmitTimeout, "--submit-timeout")
	}
	h.handed, p.clock.submit = true, 0
	p.leg.Known = trace.Now()
	h.tells()
	return nil
}

// handOver returns once the engine has confirmed all choices.
func (h *tokenPrefill) handOver(ctx context.Context) error {
	p := h.p
	if len(h.choices) == 1 {
		c := &h.choices[0]
		g, err := p.target.Tokens.Generate(ctx, c.request, 1, c, p.leg)
		c.has(g)
		return err
	}
	open, err := p.of.handOverAll(ctx, p.rec.RequestID, len(h.choices), h.atOnce, p.leg, func(ctx context.Context, i int, leg *trace.Leg) (engine.Generation, error) {
		return p.target.Tokens.Generate(ctx, h.choices[i].request, 1, &h.choices[i], leg)
	})
	for i, g := range open {
		h.choices[i].has(g)
	}
	return err
}

// has records the generation of a choice, which may have ended.
func (c *prefillChoice) has(g engine.Generation) {
	c.h.p.mu.Lock()
	defer c.h.p.mu.Unlock()
	if !c.ended {
		c.generation = g
	}
}

// read implements prefill.
func (h *tokenPrefill) read() {
	if h.rest != nil {
		h.rest()
	}
}

// abort implements prefill.
func (h *tokenPrefill) abort() {
	var open []engine.Generation
	h.p.mu.Lock()
	for i := range h.choices {
		if g := h.choices[i].generation; g != nil {
			open = append(open, g)
		}
	}
	h.p.mu.Unlock()
	for _, g := range open {
		g.Abort()
	}
}

// tells reports the end of the half, if it has ended. The lock is held.
func (h *tokenPrefill) tells() {
	if !h.handed || h.err == nil && h.left > 0 {
		return
	}
	if h.stamps != nil {
		h.p.leg.Stamps = *h.stamps
	}
	if h.err != nil {
		h.p.ends(h.err)
	} else {
		h.p.ends(nil)
	}
}

// Read is called by engine.Read. Each of several choices has a goroutine.
func (c *prefillChoice) Read(read func()) {
	if len(c.h.choices) == 1 {
		c.h.rest = read
	} else {
		go read()
	}
}

// Offer implements engine.Sink.
func (c *prefillChoice) Offer(d *infer.Delta) {
	if c.offer(d); d.Finish != nil {
		c.h.p.freed()
	}
}

func (c *prefillChoice) offer(d *infer.Delta) {
	h := c.h
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	switch {
	case c.ended:
		return
	case h.p.ended():
		c.ends(d.Finish)
		return
	}
	if d.Stamps != nil {
		c.stamps = *d.Stamps
	}
	if d.Logprobs != nil && d.Logprobs.Prompt != nil {
		c.scores = d.Logprobs.Prompt
	}
	if d.Finish == nil {
		return
	}
	c.ended, c.generation = true, nil
	if h.stamps == nil {
		h.stamps = &c.stamps
	}
	c.end(d.Finish)
	h.tells()
}

// ends records how the engine has ended the choice of a half that was aborted or given up
// before. If no choice can have KV that is still written, the half has none. The lock is
// held.
func (c *prefillChoice) ends(f *infer.Finish) {
	if f == nil {
		return
	}
	h := c.h
	c.ended, c.generation = true, nil
	if f.Reason == infer.ReasonError || f.Reason == infer.ReasonAbort && !f.Unbegun {
		return // its KV may be on its way
	}
	if h.left--; h.left == 0 {
		h.p.pages.ceased = true
	}
}

// end records how the choice has ended. The lock is held.
func (c *prefillChoice) end(f *infer.Finish) {
	h, p := c.h, c.h.p
	h.left--
	switch f.Reason {
	case infer.ReasonError:
		if h.err == nil {
			h.err = f.Err
		}
		return
	case infer.ReasonAbort:
		if h.err == nil {
			h.err = &infer.Error{Code: infer.CodeEngine, Engine: p.target.Name, Retryable: true, Message: "the prefill engine gave the request up"}
		}
		return
	}
	if f.CachedTokens >= 0 {
		p.usage.CachedTokens = max(p.usage.CachedTokens, 0) + f.CachedTokens
	}
	p.usage.PromptTokens += max(f.PromptTokens, 0)
	p.handed(c.index, bytes.Clone(f.Params))
}
