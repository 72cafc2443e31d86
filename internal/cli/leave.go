package cli

import (
	"context"
	"net"
	"net/http"
	"time"
)

// leaving is how a process stops.
type leaving struct {
	shared bool          // --reuse-port: another gateway may take this one's place
	delay  time.Duration // from the signal to the drain
	drain  time.Duration // requests in flight may take this long to end
}

// linger returns a load balancer time to stop sending requests. It ends early at another
// signal or a failure.
func (p *process) linger(again <-chan struct{}, failed <-chan error) error {
	in := arriving{since: time.Now().Add(-letInFor), unread: p.gateway.Unread}
	p.gateway.Leave()
	if p.leaving.shared {
		for _, l := range []net.Listener{p.api.listener, p.admin.listener} {
			if l == nil {
				continue
			}
			if err := giveWay(l); err != nil {
				p.log.Warn("connections cannot be left to the gateway beside this one", "listener", l.Addr(), "error", err)
			}
		}
		in.queue = queueOf(p.api.listener) // which is lost when the listener is closed
	}
	if p.leaving.delay > 0 {
		p.say("leaving: /readyz says so, and requests are taken for another %v; press Ctrl-C again to drain now", p.leaving.delay)
		over := time.NewTimer(p.leaving.delay)
		defer over.Stop()
		select {
		case <-over.C:
		case <-again:
		case err := <-failed:
			return err
		}
	}
	l, handed := p.api.listener.(*handedOver)
	if handed {
		l.leave()
		l.awaitLeft(again)
	}
	if !handed && !p.leaving.shared {
		return nil
	}
	if left := in.wait(again); left > 0 {
		p.log.Warn("connections that brought no request are closed", "connections", left)
	}
	return nil
}

// shutDown drains the API's server, until another signal comes.
func (p *process) shutDown(api *http.Server, again <-chan struct{}) {
	p.gateway.Drain()
	if n := p.gateway.Live(); n > 0 {
		p.say("draining: %d requests in flight, up to %v; press Ctrl-C again to cut them", n, p.leaving.drain)
	}
	patience, cancel := context.WithTimeout(context.Background(), p.leaving.drain)
	defer cancel()
	go func() {
		select {
		case <-again:
			cancel()
		case <-patience.Done():
		}
	}()
	// The server does not know of streams that have left net/http.
	if api.Shutdown(patience) == nil && p.atRest(patience) {
		return
	}
	p.say("cutting %d requests", p.gateway.Live())
	p.gateway.Cut()
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	p.atRest(last)
	api.Close()
	p.atRest(last)
}

// atRest waits until no request is in flight; false when ctx ended before.
func (p *process) atRest(ctx context.Context) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.gateway.Live() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
