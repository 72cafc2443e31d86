package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"weir/internal/fleet"
	"weir/internal/fleet/route"
	"weir/internal/gateway"
	"weir/internal/gateway/front"
	"weir/internal/observe/integrity"
	"weir/internal/observe/metrics"
)

// process is a gateway with everything that it needs, ready to serve.
type process struct {
	log     *slog.Logger
	gateway *gateway.Gateway
	fleet   *fleet.Fleet
	changes *changes // nil: its engines are given once and for all
	sources *sources // what else says which engines there are; nil: nothing
	written
	metrics   *metrics.Metrics
	integrity *integrity.Log
	self      watcher
	keys      *keys
	peer      *peer // among several gateways; nil: there are no others
	api       apiListener
	admin     adminListener
	leaving   leaving
	settings  settings // shown by admin
	started   time.Time
	say       func(format string, args ...any)
}

// announce prints the addresses of the gateway, the page first. It prints more behind the
// address of the admin listener.
func (p *process) announce(more string) {
	if p.admin.listener != nil {
		p.say("page      %s/ (in a browser: engines, requests, where the time goes)", p.admin.url(here(p.admin.listener.Addr().String())))
	}
	p.say("gateway   %s", p.api.url(p.api.listener.Addr().String()))
	if line := p.keys.line(); line != "" {
		p.say("keys      %s", line)
	}
	if s := p.keys.shared; s != nil {
		p.say("limits    %s", sharedLine(s))
	}
	if p.peer != nil {
		p.say("peers     %s, at %s", strings.Join(p.peer.of, " "), p.peer.listener.Addr())
	}
	if p.admin.listener == nil {
		p.say("admin     off")
		return
	}
	p.say("admin     %s%s", p.admin.url(p.admin.listener.Addr().String()), more)
}

// serve runs the process until a signal or a failure stops it. During --shutdown-delay
// requests are still accepted, and /readyz is not ready. Then the process drains: new
// requests are refused, and those in flight may end within the drain time. After that time,
// or at the second signal, the rest is cut. It returns when everything has ended.
func (p *process) serve(s *signals) error {
	running, stopFleet := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	p.keys.start(p.log)
	tasks.Go(func() { p.fleet.Run(running) })
	tasks.Go(func() {
		if err := p.self.Run(running); running.Err() == nil {
			canaryEnded(p.log, err)
		}
	})
	if p.peer != nil {
		tasks.Go(func() { p.peer.run(running, p.log) })
	}
	if p.sources != nil {
		p.sources.discoveries = startDiscoveries(running, p, p.sources.given)
		tasks.Go(p.sources.discoveries.wait)
	}
	tasks.Go(func() { p.reloadOn(running, s.reload) }) // which gives the discoveries others
	tasks.Go(func() { p.watchSources(running) })

	api, serveAPI := p.api.server(p.gateway)
	type served struct {
		serve    func(net.Listener) error
		listener net.Listener
	}
	all := []served{{serveAPI, p.api.listen(p.gateway.Front())}, {api.Serve, p.gateway.Front().Returned()}}
	admin := p.adminServer(s.stopping)
	switch {
	case p.admin.listener == nil:
	case p.admin.certificate != nil:
		admin.TLSConfig = p.admin.certificate.Config()
		all = append(all, served{func(l net.Listener) error { return admin.ServeTLS(l, "", "") }, p.admin.listener})
	default:
		all = append(all, served{admin.Serve, p.admin.listener})
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
	p.keys.close()
	return p.written.finish()
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

// reload reads the certificates and the keys again, opens the files of the timeline and of
// the usage log again, and prints each.
func (p *process) reload() {
	did := false
	for _, c := range []*front.Certificate{p.api.certificate, p.admin.certificate} {
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
	if p.written.reopen(p.log, p.say) {
		did = true
	}
	if p.sources != nil && p.sources.again != nil {
		_, _ = p.reread() // which says what is wrong
		return
	}
	if !did {
		p.say("reload    nothing to read again: there is no certificate, keys file, timeline or usage log, and other flags change at a restart")
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
