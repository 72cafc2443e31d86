package attempt

import (
	"weir/internal/engine"
	"weir/internal/infer"
)

// A decode half at an SGLang engine must not be aborted before its first output. The engine
// gives the pages of an aborted request to other requests while the prefill engine may still
// write to them (sgl-project/sglang#35049). Over a relay, closing the connection is the abort.
// It is therefore delayed: the attempt may end, and the half continues at the adapter as
// described by engine.Deferral.

// pages are the decode engine's, into which the prefill engine writes the KV. The partner's
// lock guards them.
type pages struct {
	ceased  bool   // the prefill engine has ended the half after it was given up, and writes none of its KV any more
	release func() // lets the decode half's abort go out; nil: none waits
}

// defers reports whether the decode half must not be hung up on before its first
// output.
func (p *partner) defers() bool {
	return p != nil && p.target.Meets.Way == engine.ByRoom
}

// writesNoMore reports whether the prefill engine writes none of the half's KV any more: it has
// failed by itself, has handed all KV over (SGLang's answers no sooner), says that it had begun
// with nothing of it, or was never sent the whole of it. The lock is held.
func (p *partner) writesNoMore() bool {
	if !p.ended() {
		return false
	}
	return p.pages.ceased || p.quit || p.err == nil && p.defers() || p.unsent()
}

// unsent reports whether the half has ended before its engine had all of the request.
func (p *partner) unsent() bool {
	select {
	case <-p.gone:
		return p.leg.ToServer == 0 && p.leg.Acked == 0 && p.err != nil && p.err.Code != infer.CodeInternal // a panic may come after that
	default:
		return false
	}
}

// frees has release called when the prefill engine writes none of the half's KV any more, which
// may be now. It is called once the decode half is to be aborted.
func (p *partner) frees(release func()) {
	p.mu.Lock()
	p.pages.release = release
	p.mu.Unlock()
	p.freed()
}

// freed calls release if it is time to, once.
func (p *partner) freed() {
	p.mu.Lock()
	release := p.pages.release
	if release != nil && p.writesNoMore() {
		p.pages.release = nil
	} else {
		release = nil
	}
	p.mu.Unlock()
	if release != nil {
		release()
	}
}
