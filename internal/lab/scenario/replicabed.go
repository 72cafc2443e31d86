//go:build linux

package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/ports"
)

// replica is one of several gateways.
type replica struct {
	args       []string
	url, admin string
	process    *lab.Process
}

func (g *replica) address() string { return strings.TrimPrefix(g.url, "http://") }

// replicaBed is several gateways in front of the same engines.
type replicaBed struct {
	bed
	environment []string
	replicas    []*replica
	known       int // gateways that each of them has to follow
}

func (b *replicaBed) stop() {
	for _, g := range b.replicas {
		if g.process != nil {
			g.process.Stop()
		}
	}
	b.bed.stop()
}

// replicaBedding describes the parts of a replicaBed.
type replicaBedding struct {
	kind     faultKind
	engines  int
	engine   []string // flags of the engines
	options  string   // of each --engine
	gateways int
	alone    bool     // gateways do not know of each other
	serve    []string // of weir serve, besides
}

// startReplicas starts engines and gateways. On failure the result contains what was started.
func (r *runner) startReplicas(ctx context.Context, of replicaBedding) (*replicaBed, error) {
	b := &replicaBed{environment: r.environment}
	at, err := r.startEngines(ctx, &b.bed, of.kind.wire, of.engines, of.engine)
	if err != nil {
		return b, err
	}
	var addrs [][3]string // for callers, administrators and peers
	var peers []string
	for range of.gateways {
		var a [3]string
		for i := range a {
			if a[i], err = ports.Free(); err != nil {
				return b, err
			}
		}
		addrs, peers = append(addrs, a), append(peers, a[2])
	}
	if !of.alone {
		b.known = of.gateways - 1
	}
	for _, a := range addrs {
		g := &replica{url: "http://" + a[0], admin: "http://" + a[1]}
		g.args = append([]string{r.options.Binary, "serve", "--listen", a[0], "--admin-listen", a[1], "--log-level", "error"}, of.serve...)
		if b.known > 0 {
			g.args = append(g.args, "--peers", strings.Join(peers, ","), "--peer-listen", a[2])
		}
		for i, addr := range at {
			g.args = append(g.args, "--engine", fmt.Sprintf(of.kind.spec, addr)+of.options+",name="+engineName(i))
		}
		b.replicas = append(b.replicas, g)
		if err := b.begin(g); err != nil {
			return b, err
		}
	}
	for _, g := range b.replicas {
		if err := b.inStep(ctx, g); err != nil {
			return b, err
		}
	}
	return b, nil
}

// begin starts a gateway, anew if it was there before.
func (b *replicaBed) begin(g *replica) (err error) {
	g.process, err = lab.Start(g.args, b.environment)
	return err
}

// inStep waits until a gateway asks every engine and follows the others.
func (b *replicaBed) inStep(ctx context.Context, g *replica) error {
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := g.process.AwaitHTTP(within, g.admin+"/readyz"); err != nil {
		return err
	}
	for {
		n, err := readyEngines(within, g.admin+"/metrics")
		followed := 0
		if err == nil {
			followed, err = g.followed(within)
		}
		if err == nil && n == len(b.engines) && followed >= b.known {
			return nil
		}
		if lab.Sleep(within, 20*time.Millisecond) != nil {
			return fmt.Errorf("a gateway asks %d of %d engines and follows %d of %d others: %w", n, len(b.engines), followed, b.known, cmp.Or(ctx.Err(), err, within.Err()))
		}
	}
}

// followed returns how many other gateways a gateway follows.
func (g *replica) followed(ctx context.Context) (n int, err error) {
	families, err := lab.Scrape(ctx, g.admin+"/metrics")
	if err != nil {
		return 0, err
	}
	for _, m := range families["weir_peers"].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "state" && label.GetValue() == "followed" {
				n += int(m.GetGauge().GetValue())
			}
		}
	}
	return n, nil
}

// restart ends a gateway as Kubernetes does, waits until it has gone, and starts it again. The
// second signal ends the gateway's delay once the service has noticed, which may take a busy
// machine longer than any delay.
func (b *replicaBed) restart(ctx context.Context, g *replica, s *service) error {
	if err := g.process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := s.await(ctx, g, false); err != nil {
		return err
	}
	if err := g.process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if _, err := g.process.Wait(ctx); err != nil {
		return err
	}
	if err := b.begin(g); err != nil {
		return err
	}
	if err := b.inStep(ctx, g); err != nil {
		return err
	}
	return s.await(ctx, g, true)
}

// service gives each connection to the next gateway that is ready, as the Service of a
// cluster does. It looks at /readyz of each gateway.
type service struct {
	url      string
	listener net.Listener
	stopped  context.CancelFunc
	tasks    sync.WaitGroup

	mu      sync.Mutex
	ready   []string       // addresses
	dialled map[string]int // connections to an address that are being made
	next    int
	conns   map[net.Conn]bool
}

// looks is how often a service looks who is ready.
const looks = 50 * time.Millisecond

func startService(of []*replica) (*service, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &service{url: "http://" + l.Addr().String(), listener: l, stopped: stop, dialled: map[string]int{}, conns: map[net.Conn]bool{}}
	s.look(ctx, of)
	s.tasks.Go(func() {
		for lab.Sleep(ctx, looks) == nil {
			s.look(ctx, of)
		}
	})
	s.tasks.Go(s.accept)
	return s, nil
}

func (s *service) stop() {
	s.stopped()
	s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.tasks.Wait()
}

func (s *service) look(ctx context.Context, of []*replica) {
	client := http.Client{Timeout: 5 * time.Second}
	var ready []string
	for _, g := range of {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.admin+"/readyz", nil)
		if err != nil {
			continue
		}
		resp, err := client.Do(req)
		if err != nil {
			continue
		}
		if resp.Body.Close(); resp.StatusCode == http.StatusOK {
			ready = append(ready, g.address())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = ready
}

// await waits until a gateway gets connections, or gets no more.
func (s *service) await(ctx context.Context, g *replica, ready bool) error {
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	at := g.address()
	for {
		s.mu.Lock()
		is, dialled := slices.Contains(s.ready, at), s.dialled[at]
		s.mu.Unlock()
		if is == ready && (ready || dialled == 0) {
			return nil
		}
		if lab.Sleep(within, looks/5) != nil {
			return fmt.Errorf("a gateway of the service is ready: %v, want %v; %d connections to it are being made: %w", is, ready, dialled, cmp.Or(ctx.Err(), within.Err()))
		}
	}
}

func (s *service) accept() {
	for {
		c, err := s.listener.Accept()
		switch {
		case err == nil:
			s.tasks.Go(func() { s.carry(c) })
		case errors.Is(err, net.ErrClosed):
			return
		default: // no file is left for it; the next one may find one
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// carry carries one connection to its end.
func (s *service) carry(client net.Conn) {
	defer client.Close()
	s.mu.Lock()
	to := ""
	if len(s.ready) > 0 {
		to = s.ready[s.next%len(s.ready)]
		s.next++
		s.dialled[to]++
	}
	s.mu.Unlock()
	if to == "" {
		return
	}
	server, err := net.Dial("tcp", to)
	s.mu.Lock()
	if s.dialled[to]--; err == nil {
		s.conns[client], s.conns[server] = true, true
	}
	s.mu.Unlock()
	if err != nil {
		return
	}
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() { pass(server, client) })
	both.Go(func() { pass(client, server) })
	both.Wait()
	s.mu.Lock()
	delete(s.conns, client)
	delete(s.conns, server)
	s.mu.Unlock()
}

// pass copies one direction, and its end. The kernel's splice would take two more files for
// each direction, which thousands of streams do not have.
func pass(to, from net.Conn) {
	if _, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from}); err != nil {
		to.Close()
		return
	}
	_ = to.(*net.TCPConn).CloseWrite() // it may be gone
}
