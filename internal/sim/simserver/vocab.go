package simserver

import (
	"weir/internal/sim"
	"weir/internal/sim/simserver/fields"
	"weir/internal/workload/content"
)

// script sets a request's script unless the output is only words. Every server calls it
// before it prepares a request. ask holds what the request's own fields ask for, in
// addition to its prompt. scripted reports whether the output is not plain text.
func (e *Engine) script(p *sim.Params, ask content.Ask) (scripted bool, err error) {
	s := e.opts.Speaker
	if s == nil {
		return false, nil
	}
	limit := p.MaxTokens
	if limit == 0 {
		limit = e.prepare.ContextLength - len(p.Prompt)
	}
	if limit <= 0 || len(p.Prompt) == 0 {
		return false, nil // Prepare refuses it
	}
	said, err := s.Script(&content.Request{Prompt: p.Prompt, Seed: p.Seed, MaxTokens: limit, Ask: ask})
	if err != nil {
		return false, fields.AskInvalid(err)
	}
	if said == nil {
		return false, nil
	}
	p.Script = said.IDs
	if said.Closed {
		// A document ends where it ends, as under a grammar.
		p.IgnoreEOS, p.MinTokens = false, 0
	}
	return true, nil
}
