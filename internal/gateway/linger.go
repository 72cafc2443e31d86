package gateway

import "weir/internal/engine"

// A decode half at an SGLang engine must not be aborted before its first output. The engine
// gives the pages of an aborted request to other requests while the prefill engine may still
// write to them (sgl-project/sglang#35049). Over a relay, closing the connection is the abort.
// It is therefore delayed: the attempt may end, and the half continues at the adapter as
// described by engine.Deferral.

// defers reports whether the decode half must not be hung up on before its first
// output.
func (p *partner) defers() bool {
	return p != nil && p.target.Meets.Way == engine.ByRoom
}

// writesNoMore reports whether the prefill engine has ended the half by itself: it failed,
// or has handed all KV over, since it answers no sooner.
func (p *partner) writesNoMore() bool { return p.ended() && (p.quit || p.err == nil) }

// lingers tracks a decode half that continues after its leg was closed. It ends at the
// gateway's cut at the latest.
func (l *relayLeg) lingers() {
	g, held := l.g, l.waits.Held()
	switch {
	case held == nil:
	case g.base.Err() != nil || l.partner.writesNoMore():
		l.waits.Released()
	default:
		g.streams.Add(1)
		go func() {
			defer g.streams.Done()
			select {
			case <-held:
			case <-g.base.Done():
				l.waits.Released()
			}
		}()
	}
}
