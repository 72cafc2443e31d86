package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"weir/internal/fleet"
	"weir/internal/gateway"
	"weir/internal/integrity"
	"weir/internal/metrics"
	"weir/internal/timeline"
	"weir/internal/watch"
)

// notifyOfSignals sends the process's own SIGINT and SIGTERM to a channel.
func notifyOfSignals(signals chan<- os.Signal) (stop func()) {
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	return func() { signal.Stop(signals) }
}

// interrupt gives a context that the first signal ends, and a channel that the
// second one closes: the operator does not want to wait.
func (s *streams) interrupt() (ctx context.Context, now <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	ignore := s.notify(signals)
	second := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(second)
		for range 2 {
			select {
			case <-signals:
				cancel()
			case <-done:
				return
			}
		}
	}()
	return ctx, second, func() {
		ignore()
		cancel()
		close(done)
		<-second
	}
}

// listen binds an address; its error says which flag to change.
func listen(flag, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s is in use by another program; choose another with %s (port 0 takes a free one)", addr, flag)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, addr, err)
	}
	return l, nil
}

// process is a gateway with all it needs, ready to serve.
type process struct {
	log       *slog.Logger
	gateway   *gateway.Gateway
	fleet     *fleet.Fleet
	timeline  *timeline.Recorder
	metrics   *metrics.Metrics
	integrity *integrity.Log
	canary    *watch.Canary
	listener  net.Listener // of the API
	admin     net.Listener
	drain     time.Duration

	certificate *gateway.Certificate // nil: the API is served without TLS
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

// server gives the API's server and how it serves the API's own listener.
func (p *process) server() (api *http.Server, serve func(net.Listener) error) {
	api = p.gateway.Server()
	api.ErrorLog = slog.NewLogLogger(p.log.Handler(), slog.LevelDebug)
	if p.certificate == nil {
		api.Protocols.SetUnencryptedHTTP2(p.h2c)
		return api, api.Serve
	}
	api.TLSConfig = p.certificate.Config()
	return api, func(l net.Listener) error { return api.ServeTLS(l, "", "") }
}

// serve runs the process until stopping ends, then drains it: new requests are
// refused, those in flight may end within the drain time, and what is left
// after that, or at the second signal, is cut. It returns when everything has
// ended.
func (p *process) serve(stopping context.Context, now <-chan struct{}) error {
	running, stopFleet := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { p.fleet.Run(running) })
	tasks.Go(func() {
		if err := p.canary.Run(running); running.Err() == nil {
			p.log.Warn("no canary: "+watch.Stall+" stays empty", "error", err)
		}
	})

	api, serveAPI := p.server()
	admin := &http.Server{Handler: p.adminHandler(stopping), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 3)
	for _, s := range []struct {
		serve    func(net.Listener) error
		listener net.Listener
	}{{serveAPI, gateway.Listener(p.listener)}, {api.Serve, p.gateway.Returned()}, {admin.Serve, p.admin}} {
		tasks.Go(func() {
			if err := s.serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve %s: %w", s.listener.Addr(), err)
			}
		})
	}

	var err error
	select {
	case <-stopping.Done():
	case err = <-failed:
	}
	p.shutDown(api, now)
	admin.Close()
	stopFleet()
	tasks.Wait()
	p.gateway.Close()
	return errors.Join(err, p.timeline.Close())
}

// shutDown drains the API's server.
func (p *process) shutDown(api *http.Server, now <-chan struct{}) {
	p.gateway.Drain()
	if n := p.gateway.Live(); n > 0 {
		p.say("draining: %d requests in flight, up to %v; press Ctrl-C again to cut them", n, p.drain)
	}
	patience, cancel := context.WithTimeout(context.Background(), p.drain)
	defer cancel()
	go func() {
		select {
		case <-now:
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
