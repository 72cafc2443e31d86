package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/pires/go-proxyproto"

	"weir/internal/fleet"
	"weir/internal/fleet/admission"
	"weir/internal/fleet/route"
	"weir/internal/gateway"
	"weir/internal/observe/integrity"
	"weir/internal/observe/metrics"
	"weir/internal/observe/otlp"
	"weir/internal/observe/timeline"
)

// inFlightQuery selects requests that are in flight.
type inFlightQuery = gateway.InFlightQuery

// notifyOfSignals sends some of the process's own signals to a channel.
func notifyOfSignals(to chan<- os.Signal, some ...os.Signal) (stop func()) {
	signal.Notify(to, some...)
	return func() { signal.Stop(to) }
}

// interrupt returns a context that the first signal ends, and a channel with the further
// signals, by which the operator asks not to wait.
func (s *streams) interrupt() (ctx context.Context, again <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	received := make(chan os.Signal, 2)
	ignore := s.notify(received, os.Interrupt, syscall.SIGTERM)
	further := make(chan struct{}, 1)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-received:
			case <-done:
				return
			}
			if ctx.Err() == nil {
				cancel()
				continue
			}
			select {
			case further <- struct{}{}:
			default: // one waits to be heeded
			}
		}
	}()
	return ctx, further, func() {
		ignore()
		cancel()
		close(done)
		<-ended
	}
}

// signals are the signals that a gateway handles. It catches them before it loads models.
type signals struct {
	stopping context.Context  // ended by the first SIGINT or SIGTERM
	again    <-chan struct{}  // has each further one
	reload   <-chan os.Signal // SIGHUP
	stop     func()
}

// signals catches the signals of a gateway. A gateway ends neither when it loses its terminal
// nor when the reader of its output goes away.
func (s *streams) signals() *signals {
	reload := make(chan os.Signal, 1) // further ones, while one waits, ask for the same
	ignore := s.notify(reload, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE)
	ctx, again, stop := s.interrupt()
	return &signals{ctx, again, reload, func() { stop(); ignore() }}
}

// process is a gateway with everything that it needs, ready to serve.
type process struct {
	log          *slog.Logger
	gateway      *gateway.Gateway
	fleet        *fleet.Fleet
	changes      *changes           // nil: its engines are given once and for all
	sources      *sources           // what else says which engines there are; nil: nothing
	timeline     *timeline.Recorder // nil: no records are kept
	spans        *otlp.Exporter     // nil: there are none
	metrics      *metrics.Metrics
	integrity    *integrity.Log
	self         watcher
	keys         *keys
	adminTLS     *gateway.Certificate // nil: admin is served without TLS
	listener     net.Listener         // of the API
	admin        net.Listener         // nil: there is none
	hosts        names                // of admin
	pprof        bool                 // served by admin
	adminChanges string               // who may change the fleet over it
	settings     settings             // shown by admin
	started      time.Time
	drain        time.Duration
	shared       bool              // --reuse-port: another gateway may take this one's place
	delay        time.Duration     // before it
	proxies      admission.Proxies // that begin each connection with the PROXY protocol

	certificate *gateway.Certificate // nil: the API is served without TLS
	authorities *x509.CertPool       // of client certificates; nil: none are asked for
	h2c         bool                 // and then HTTP/2 too
	say         func(format string, args ...any)
}

// url is the API's base URL at an address.
func (p *process) url(addr string) string {
	if p.certificate != nil {
		return "https://" + addr
	}
	return "http://" + addr
}

// announce prints the addresses of the gateway, the page first. It prints more behind the
// address of the admin listener.
func (p *process) announce(more string) {
	if p.admin != nil {
		p.say("page      %s/ (in a browser: engines, requests, where the time goes)", p.adminURL(here(p.admin.Addr().String())))
	}
	p.say("gateway   %s", p.url(p.listener.Addr().String()))
	if line := p.keys.line(); line != "" {
		p.say("keys      %s", line)
	}
	if p.admin == nil {
		p.say("admin     off")
		return
	}
	p.say("admin     %s%s", p.adminURL(p.admin.Addr().String()), more)
}

// adminURL is the admin listener's base URL at an address.
func (p *process) adminURL(addr string) string {
	if p.adminTLS != nil {
		return "https://" + addr
	}
	return "http://" + addr
}

// here is an address as this machine reaches it.
func here(addr string) string {
	if at, err := netip.ParseAddrPort(addr); err == nil && at.Addr().IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", at.Port())
	}
	return addr
}

// server returns the API's server and how it serves the API's own listener.
func (p *process) server() (api *http.Server, serve func(net.Listener) error) {
	api = p.gateway.Server()
	if p.certificate == nil {
		api.Protocols.SetUnencryptedHTTP2(p.h2c)
		return api, api.Serve
	}
	config := p.certificate.Config()
	if p.authorities != nil {
		config.ClientCAs, config.ClientAuth = p.authorities, tls.VerifyClientCertIfGiven
	}
	api.TLSConfig = p.gateway.TLS(config)
	return api, func(l net.Listener) error { return api.ServeTLS(l, "", "") }
}

// proxyHeaderTimeout bounds the wait for the PROXY header of a connection.
const proxyHeaderTimeout = 10 * time.Second

// clients returns the API's listener, whose connections know the addresses of their clients.
// With the PROXY protocol, a trusted proxy must send the client's address, and no other
// client may send one.
func (p *process) clients() net.Listener {
	if len(p.proxies) == 0 {
		return p.listener
	}
	return &proxyproto.Listener{Listener: p.listener, ReadHeaderTimeout: proxyHeaderTimeout,
		ConnPolicy: func(o proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if tcp, ok := o.Upstream.(*net.TCPAddr); ok && p.proxies.Trusts(tcp.AddrPort().Addr()) {
				return proxyproto.REQUIRE, nil
			}
			return proxyproto.SKIP, nil
		}}
}

// serve runs the process until a signal or a failure stops it. During --shutdown-delay
// requests are still accepted, and /readyz is not ready. Then the process drains: new
// requests are refused, and those in flight may end within the drain time. After that time,
// or at the second signal, the rest is cut. It returns when everything has ended.
func (p *process) serve(s *signals) error {
	running, stopFleet := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { p.fleet.Run(running) })
	tasks.Go(func() {
		if err := p.self.Run(running); running.Err() == nil {
			canaryEnded(p.log, err)
		}
	})
	tasks.Go(func() { p.reloadOn(running, s.reload) })
	tasks.Go(func() { p.watchSources(running) })

	api, serveAPI := p.server()
	type served struct {
		serve    func(net.Listener) error
		listener net.Listener
	}
	all := []served{{serveAPI, p.gateway.Listener(p.clients())}, {api.Serve, p.gateway.Returned()}}
	admin := p.adminServer(s.stopping)
	switch {
	case p.admin == nil:
	case p.adminTLS != nil:
		admin.TLSConfig = p.adminTLS.Config()
		all = append(all, served{func(l net.Listener) error { return admin.ServeTLS(l, "", "") }, p.admin})
	default:
		all = append(all, served{admin.Serve, p.admin})
	}
	failed := make(chan error, len(all))
	for _, of := range all {
		tasks.Go(func() {
			if err := of.serve(of.listener); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve %s: %w", of.listener.Addr(), err)
			}
		})
	}
	reportTo(p.log, daemon.SdNotifyReady)

	var err error
	select {
	case <-s.stopping.Done():
		reportTo(p.log, daemon.SdNotifyStopping)
		err = p.linger(s.again, failed)
	case err = <-failed:
	}
	p.shutDown(api, s.again)
	admin.Close()
	stopFleet()
	tasks.Wait()
	p.gateway.Close()
	return errors.Join(err, p.close())
}

// close ends what writes files.
func (p *process) close() error {
	p.self.close()
	return errors.Join(closed(p.spans), p.timeline.Close())
}

// reloadOn reloads the process's files whenever it is asked to.
func (p *process) reloadOn(running context.Context, asked <-chan os.Signal) {
	for {
		select {
		case <-asked:
			reportTo(p.log, reloading())
			p.reload()
			reportTo(p.log, daemon.SdNotifyReady)
		case <-running.Done():
			return
		}
	}
}

// reload reads the certificates and the keys again, opens the timeline's file again, and
// prints both.
func (p *process) reload() {
	did := false
	for _, c := range []*gateway.Certificate{p.certificate, p.adminTLS} {
		if c == nil {
			continue
		}
		did = true
		switch changed, err := c.Reload(); {
		case err != nil:
			p.say("reload    the old certificate stays: %v", err)
		case changed:
			p.say("reload    certificate read again, valid until %s", c.Expires().Format(time.RFC3339))
		default:
			p.say("reload    certificate read again, it is the same")
		}
	}
	if len(p.keys.files()) > 0 {
		did = true
		p.keys.reload(p.log, p.say)
	}
	if had, err := p.timeline.Reopen(); had {
		did = true
		if err != nil {
			p.log.Error("the timeline's file cannot be opened again, the old one stays", "error", err)
			p.say("reload    the timeline's old file stays: %v", err)
		} else {
			p.say("reload    timeline opened again")
		}
	}
	if p.sources != nil && p.sources.again != nil {
		_, _ = p.reread() // which says what is wrong
		return
	}
	if !did {
		p.say("reload    nothing to read again: there is no certificate, keys file or timeline, and other flags change at a restart")
	}
}

// emptied reports the result of an engine's drain. If the engine was removed, it cuts the
// relayed requests that are left; the adapter ends the others.
func (p *process) emptied(m fleet.Member, e fleet.Emptied) {
	if e.Removed {
		time.AfterFunc(forgetAfter, func() { p.forget(m.Name) })
	}
	words := []any{"engine", m.Name, "requests", e.Left, "after", e.Took.Round(time.Millisecond)}
	switch {
	case e.Removed && e.Left > 0:
		p.log.Warn("engine was removed before its requests had ended: they are cut", words...)
		p.gateway.CutAt(m.Name, e.Generation)
	case e.Removed:
		p.log.Info("engine was removed", words...)
	case e.Left > 0:
		p.log.Warn("engine's drain has not ended in its time, and goes on", words...)
	default:
		p.log.Info("engine is drained", words...)
	}
}

// forgetAfter is when the series of an engine that has left are dropped: its last requests have
// been counted by then.
const forgetAfter = 2 * time.Second

// forget drops the series of an engine that has left, so that series do not accumulate while
// engines come and go.
func (p *process) forget(name string) {
	snap := p.fleet.Snapshot()
	if named := func(e *route.Engine) bool { return e.Name == name }; !slices.ContainsFunc(snap.Engines, named) && !slices.ContainsFunc(snap.Leaving, named) {
		p.metrics.Forget(name)
	}
}

// linger gives a load balancer time to stop sending requests. It ends early at another
// signal or a failure.
func (p *process) linger(again <-chan struct{}, failed <-chan error) error {
	in := arriving{since: time.Now().Add(-letInFor), unread: p.gateway.Unread}
	p.gateway.Leave()
	if p.shared {
		for _, l := range []net.Listener{p.listener, p.admin} {
			if l == nil {
				continue
			}
			if err := giveWay(l); err != nil {
				p.log.Warn("connections cannot be left to the gateway beside this one", "listener", l.Addr(), "error", err)
			}
		}
		in.queue = queueOf(p.listener) // which is lost when the listener is closed
	}
	if p.delay > 0 {
		p.say("leaving: /readyz says so, and requests are taken for another %v; press Ctrl-C again to drain now", p.delay)
		over := time.NewTimer(p.delay)
		defer over.Stop()
		select {
		case <-over.C:
		case <-again:
		case err := <-failed:
			return err
		}
	}
	l, handed := p.listener.(*handedOver)
	if handed {
		l.leave()
		l.awaitLeft(again)
	}
	if !handed && !p.shared {
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
		p.say("draining: %d requests in flight, up to %v; press Ctrl-C again to cut them", n, p.drain)
	}
	patience, cancel := context.WithTimeout(context.Background(), p.drain)
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
