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
	in := arriving{since: time.Now().Add(-letInFor), unread: p.gateway.Front().Unread, queue: queueOf(p.api.listener), bound: letInFor}
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
	replaced := handed || p.leaving.shared
	if !replaced && p.leaving.delay == 0 { // nothing keeps new clients away meanwhile
		in.bound = letInSoon
	}
	if left := in.wait(again); left > 0 && replaced {
		p.log.Warn("connections that brought no request are closed", "connections", left)
	}
	return nil
}

// shutDown drains the API's server, until another signal comes.
func (p *process) shutDown(api *http.Server, again <-chan struct{}) {
	p.gateway.Drain()
	if n := p.gateway.Served(); n > 0 {
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
	p.say("cutting %d requests", p.gateway.Served())
	p.gateway.Cut()
	if !lastWords(p.gateway.Served) {
		p.log.Warn("requests do not end, and their connections are closed", "requests", p.gateway.Served())
	}
	api.Close()
	lastWords(p.gateway.Served)
}

const (
	lookEvery = 10 * time.Millisecond
	// lastWordsFor is how long requests that were cut may take until the next one of them has
	// ended. It is longer than the time in which each of them gives up its client.
	lastWordsFor = 6 * time.Second
	// lastWordsMost bounds the wait for all of them.
	lastWordsMost = 30 * time.Second
)

// lastWords waits until no request is left of those that were cut. Each still writes the reason
// to its client, which takes thousands of them a while on a busy machine. Time in which the
// process is stopped counts as one check. It returns false if some do not end.
func lastWords(left func() int) bool {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for look, since, before := 0, 0, left(); before > 0; look++ {
		<-tick.C
		n := left()
		if n < before {
			since = look
		}
		before = n
		if n > 0 && (look-since >= int(lastWordsFor/lookEvery) || look >= int(lastWordsMost/lookEvery)) {
			return false
		}
	}
	return true
}

// atRest waits until no request is in flight; false when ctx ended before.
func (p *process) atRest(ctx context.Context) bool {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for p.gateway.Served() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
