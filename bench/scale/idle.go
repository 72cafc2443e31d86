//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/proc"
)

// idleTokens is how many tokens each idle stream has had.
const idleTokens = 8

// made is how many streams begin before the first figure. Memory that a process takes once, such
// as pools and connections to the engine, is then part of both figures.
const made = 4

// Idle is the memory that a gateway holds for a stream that has begun, has had its first
// tokens, and waits for its engine. Each figure is what the process has with all streams
// less what it has with none, divided by their number. The buffers of the kernel's sockets
// are not the process's, and not in it.
type Idle struct {
	Wire, Client string
	Streams      int
	// Live is the memory that Go's runtime has in use after a collection: objects of the
	// heap, stacks of goroutines, and the runtime's own.
	Live float64
	// Objects and Stacks are the parts of Live that belong to the streams themselves.
	Objects, Stacks float64
	Goroutines      float64
	// Resident is the resident memory of the process as it stands, with the garbage that the
	// collector has not had to collect yet.
	Resident float64
}

// wires are the ways to an engine of which the memory is measured.
func wires() []string { return []string{"relay", "plane", "sglang", "vllm"} }

// kindOf returns the kind of the engines of a wire.
func kindOf(wire string) string {
	switch wire {
	case "relay":
		return "openai"
	case "plane":
		return "weir"
	}
	return wire
}

// clients are the ways in which clients ask.
func clients() []string { return []string{http11, http2} }

const (
	http11 = "HTTP/1.1"
	http2  = "HTTP/2"
	// perConnection is how many streams a client of HTTP/2 has on a connection.
	perConnection = 100
)

// measureIdle measures one row.
func (b *bencher) measureIdle(ctx context.Context, wire, client string, streams int) (*Idle, error) {
	engine, spec, err := b.startIdleEngine(ctx, wire)
	if err != nil {
		return nil, err
	}
	defer engine.Stop()
	g, err := b.startGateway(ctx, "--engine", spec, "--h2c")
	if err != nil {
		return nil, err
	}
	defer g.kill()
	asked := &askers{addr: g.addr}
	defer asked.close()
	if err := asked.ask(ctx, client, made); err != nil {
		return nil, err
	}
	if _, err := g.memory(ctx); err != nil { // the memory that asking takes counts to both, too
		return nil, err
	}
	before, err := g.memory(ctx)
	if err != nil {
		return nil, err
	}
	if err := asked.ask(ctx, client, streams); err != nil {
		return nil, err
	}
	if err := engine.said(ctx, idleTokens*(streams+made)); err != nil {
		return nil, err
	}
	if b.profile != "" {
		if err := lab.SaveProfile(ctx, g.admin+"/debug/pprof/heap?gc=1", filepath.Join(b.profile, wire+"-"+strings.ReplaceAll(client, "/", "")+".heap")); err != nil {
			return nil, err
		}
	}
	if err := lab.Sleep(ctx, 2*time.Second); err != nil { // for what the last streams began
		return nil, err
	}
	after, err := g.memory(ctx)
	if err != nil {
		return nil, err
	}
	if live := after.inFlight - before.inFlight; live != float64(streams) {
		return nil, fmt.Errorf("%s, %s: the gateway has %.0f of %d streams in flight", wire, client, live, streams)
	}
	each := func(of func(*memory) float64) float64 { return (of(after) - of(before)) / float64(streams) }
	return &Idle{Wire: wire, Client: client, Streams: streams,
		Live:       each(func(m *memory) float64 { return m.live }),
		Objects:    each(func(m *memory) float64 { return m.objects }),
		Stacks:     each(func(m *memory) float64 { return m.stacks }),
		Goroutines: each(func(m *memory) float64 { return m.goroutines }),
		Resident:   each(func(m *memory) float64 { return m.resident }),
	}, nil
}

// startIdleEngine starts a simulated engine whose streams stand still after their first tokens,
// and returns the --engine of a wire.
func (b *bencher) startIdleEngine(ctx context.Context, wire string) (e *idleEngine, spec string, err error) {
	kind := kindOf(wire)
	p, err := lab.Start([]string{b.weir, "engine", "--wire", kind + "=127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms", "--max-running-requests", "100000", "--max-queued-requests", "100000",
		"--max-total-tokens", "0", "--fault", fmt.Sprintf("stall,after=%d", idleTokens)}, lab.Environment())
	if err != nil {
		return nil, "", err
	}
	e = &idleEngine{Process: p}
	at, err := p.AwaitLine(ctx, kind+" ")
	if err == nil {
		e.admin, err = p.AwaitLine(ctx, "admin ")
	}
	if err != nil {
		p.Stop()
		return nil, "", err
	}
	return e, kind + "=" + at, nil
}

// idleEngine is a simulated engine.
type idleEngine struct {
	*lab.Process
	admin string
}

// said waits until the engine has said as many tokens.
func (e *idleEngine) said(ctx context.Context, tokens int) error {
	var state struct {
		Tokens int `json:"generated_tokens"`
	}
	for range 300 {
		text, err := get(e.admin + "/admin/state")
		if err == nil {
			err = json.Unmarshal(text, &state)
		}
		if err != nil || state.Tokens >= tokens {
			return err
		}
		if err := lab.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("the engine has said %d tokens of %d", state.Tokens, tokens)
}

// askers are clients with streams.
type askers struct {
	addr   string
	mu     sync.Mutex
	conns  []net.Conn
	bodies []io.Closer
}

const idleBody = `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":1000,"messages":[{"role":"user","content":"Say something, and then go on for a while."}]}`

// ask begins streams, and returns once each has had its first tokens.
func (a *askers) ask(ctx context.Context, client string, streams int) error {
	const atOnce = 64
	errs := make(chan error, streams)
	tickets := make(chan struct{}, atOnce)
	var transport *http.Transport
	for i := range streams {
		if i%perConnection == 0 {
			transport = unencrypted()
		}
		over := transport
		select {
		case tickets <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		begin := func() error {
			if client == http2 {
				return a.askHTTP2(over)
			}
			return a.askHTTP1()
		}
		if i%perConnection == 0 { // the others use its connection
			errs <- begin()
			<-tickets
			continue
		}
		go func() {
			errs <- begin()
			<-tickets
		}()
	}
	for range streams {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

func unencrypted() *http.Transport {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: &p}
}

// patience bounds the wait for a stream's first tokens.
const patience = time.Minute

func (a *askers) askHTTP1() error {
	conn, err := net.DialTimeout("tcp", a.addr, patience)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.conns = append(a.conns, conn)
	a.mu.Unlock()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", a.addr, len(idleBody), idleBody); err != nil {
		return err
	}
	return firstOutput(conn)
}

func (a *askers) askHTTP2(over *http.Transport) error {
	resp, err := over.RoundTrip(must(http.NewRequest(http.MethodPost, "http://"+a.addr+"/v1/chat/completions", strings.NewReader(idleBody))))
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.bodies = append(a.bodies, resp.Body)
	a.mu.Unlock()
	if resp.ProtoMajor != 2 {
		return fmt.Errorf("the answer is %s", resp.Proto)
	}
	return firstOutput(resp.Body)
}

func must(r *http.Request, err error) *http.Request {
	if err != nil {
		panic(err) // the URL has been dialed
	}
	r.Header.Set("Content-Type", "application/json")
	return r
}

// firstOutput reads until a stream has had its first token. Those that follow may come in one
// event together, so the engine's count says whether all have come.
func firstOutput(r io.Reader) error {
	buf := make([]byte, 4<<10)
	var text []byte
	for {
		n, err := r.Read(buf)
		text = append(text, buf[:n]...)
		if bytes.Count(text, []byte(`"content":"`)) > bytes.Count(text, []byte(`"content":""`)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("no token: %w: %.300s", err, text)
		}
	}
}

func (a *askers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.conns {
		c.Close()
	}
	for _, c := range a.bodies {
		c.Close()
	}
}

// gateway is a weir process.
type gateway struct {
	*lab.Process
	addr, admin string
}

// startGateway starts a gateway and waits until it is ready.
func (b *bencher) startGateway(ctx context.Context, flags ...string) (*gateway, error) {
	g := new(gateway)
	args := append([]string{b.weir, "serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--pprof", "--log-level", "warn"}, flags...)
	var err error
	if g.Process, err = lab.Start(args, lab.Environment()); err != nil {
		return nil, err
	}
	if g.addr, err = g.AwaitLine(ctx, "gateway "); err == nil {
		g.addr = strings.TrimPrefix(g.addr, "http://")
		if g.admin, err = g.AwaitLine(ctx, "admin "); err == nil {
			err = g.AwaitHTTP(ctx, g.admin+"/readyz")
		}
	}
	if err != nil {
		g.Stop()
		return nil, err
	}
	return g, nil
}

// kill ends the gateway at once: it would wait for its streams.
func (g *gateway) kill() {
	_ = g.Signal(syscall.SIGKILL) // if it has ended, Stop knows
	g.Stop()
}

// memory is what a gateway holds, in bytes.
type memory struct {
	live, objects, stacks, resident float64
	goroutines, inFlight            float64 // numbers
}

// memory collects garbage and reads what is left. The resident memory is read before.
func (g *gateway) memory(ctx context.Context) (*memory, error) {
	used, err := proc.Of(g.PIDs())
	if err != nil {
		return nil, err
	}
	for range 2 { // pools drop what they keep at the second collection
		if _, err := get(g.admin + "/debug/pprof/heap?gc=1&debug=0"); err != nil {
			return nil, err
		}
	}
	families, err := lab.Scrape(ctx, g.admin+"/metrics")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"go_memstats_heap_alloc_bytes", "go_memstats_stack_inuse_bytes", "go_goroutines", "weir_requests_in_flight"} {
		if families[name] == nil {
			return nil, errors.New("the gateway's metrics have no " + name)
		}
	}
	of := func(name string) float64 { return lab.Sum(families[name]) }
	m := &memory{resident: float64(used.Resident), objects: of("go_memstats_heap_alloc_bytes"), stacks: of("go_memstats_stack_inuse_bytes"),
		goroutines: of("go_goroutines"), inFlight: of("weir_requests_in_flight")}
	m.live = of("go_memstats_heap_inuse_bytes") + m.stacks + of("go_memstats_mspan_inuse_bytes") + of("go_memstats_mcache_inuse_bytes") +
		of("go_memstats_buck_hash_sys_bytes") + of("go_memstats_gc_sys_bytes") + of("go_memstats_other_sys_bytes")
	return m, nil
}

func get(url string) ([]byte, error) {
	resp, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}
