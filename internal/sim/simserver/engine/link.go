package engine

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/web"
	"weir/internal/trace"
)

// The protocol between two simulated engines replaces what real ones send over ZeroMQ, NIXL
// and similar transports. It consists of lines of JSON over a connection that the decode
// engine opens to the prefill engine's bootstrap port, or side channel, by an upgrade of
// HTTP/1.1. The prefill engine begins with a hello.

// linkMessage is one line.
type linkMessage struct {
	Op  string `json:"op"`
	Key string `json:"key,omitzero"` // of the pair
	Tag uint64 `json:"tag,omitzero"` // the decode leg

	Pull    bool   `json:"pull,omitzero"`    // of want
	Lease   int64  `json:"lease,omitzero"`   // of renew, ns
	Cached  int    `json:"cached,omitzero"`  // of ready
	Spoiled bool   `json:"spoiled,omitzero"` // of ready
	Why     string `json:"why,omitzero"`     // of lost

	// Members of hello.
	Engine string `json:"engine,omitzero"`
	DPSize int    `json:"dp_size,omitzero"`
}

// The messages. The prefill engine sends hello, ready and lost, the decode engine the
// others.
const (
	opHello   = "hello"
	opWant    = "want"    // a decode leg has its pages
	opReady   = "ready"   // its KV can be had
	opRenew   = "renew"   // it will want it; the lease lasts longer
	opFetched = "fetched" // it has it
	opDrop    = "drop"    // it wants it no more, and there will be no pair
	opFree    = "free"    // nobody wants it any more, as after fetched
	opLost    = "lost"    // the prefill leg is over
)

const (
	LinkPath     = "/weir-sim/link"
	linkProtocol = "weir-sim-link"
)

// linkOut holds the messages to be written to the other engine, so that Run never waits.
type linkOut struct {
	mu   sync.Mutex
	list []linkMessage
	wake chan struct{} // of capacity 1
}

func newLinkOut() *linkOut { return &linkOut{wake: make(chan struct{}, 1)} }

func (o *linkOut) put(m linkMessage) {
	o.mu.Lock()
	o.list = append(o.list, m)
	o.mu.Unlock()
	signal(o.wake)
}

func (o *linkOut) take() []linkMessage {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.list
	o.list = nil
	return list
}

// write writes until the connection ends, or over is closed.
func (o *linkOut) write(c io.Writer, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-o.wake:
		}
		var b []byte
		for _, m := range o.take() {
			line, err := json.Marshal(&m)
			if err != nil {
				panic(err) // it is our own type
			}
			b = append(append(b, line...), '\n')
		}
		if _, err := c.Write(b); err != nil {
			return // whoever reads finds out, too
		}
	}
}

// readLink calls f for each line until the connection ends.
func readLink(r *bufio.Reader, f func(m *linkMessage)) {
	dec := jsontext.NewDecoder(r)
	for {
		var m linkMessage
		if json.UnmarshalDecode(dec, &m) != nil {
			return
		}
		f(&m)
	}
}

// linkPeer is a decode engine's connection.
type linkPeer struct {
	id  uint64
	out *linkOut
}

// ServeLink is the prefill engine's end.
func (e *Engine) ServeLink(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != linkProtocol {
		web.WriteError(w, infer.Invalid("Upgrade", "this path is for simulated engines alone"))
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		web.WriteError(w, infer.Errorf(infer.CodeInternal, "%v", err))
		return
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	unhook := context.AfterFunc(ctx, func() { c.Close() })
	defer unhook()
	if _, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+linkProtocol+"\r\n\r\n"); err != nil {
		return
	}
	p := &linkPeer{out: newLinkOut()}
	p.out.put(linkMessage{Op: opHello, Engine: e.opts.Legs.EngineID, DPSize: e.o.DPSize})
	err = e.do(ctx, func() {
		e.legs.lastTag++
		p.id = e.legs.lastTag
		e.legs.peers[p.id] = p
	})
	if err != nil {
		return
	}
	var writing sync.WaitGroup
	writing.Go(func() { p.out.write(c, ctx.Done()) })
	readLink(rw.Reader, func(m *linkMessage) { e.legs.call(func() { e.legs.asked(p, m) }) })
	e.legs.call(func() {
		delete(e.legs.peers, p.id)
		e.legs.do(trace.Now(), e.legs.meet.Gone(p.id, func(key string) *infer.Error {
			if leasedKey(key) {
				return nil
			}
			return infer.Errorf(infer.CodeEngine, "Failed to send kv chunk, the decode instance could be dead")
		}))
	})
	cancel()
	c.Close()
	writing.Wait()
}

// link is a decode engine's connection to a prefill engine.
type link struct {
	l     *legs
	addr  string
	out   *linkOut
	hello *linkMessage // Run's; nil before it stands
}

// want reports a decode leg that has its pages.
func (k *link) want(j *Job) {
	switch g := j.Leg; {
	case k.hello == nil, g.struck(sim.Unmet):
	case g.Engine != "" && g.Engine != k.hello.Engine:
		k.l.fail(j, trace.Now(), infer.Errorf(infer.CodeEngine, "Remote NIXL agent engine ID mismatch. Expected %s, received %s.", g.Engine, k.hello.Engine))
	default:
		k.out.put(linkMessage{Op: opWant, Key: j.Leg.KeyOf(k.hello.DPSize), Tag: j.Leg.tag, Pull: j.Leg.Manner.Pull})
	}
}

// met queues a leg that awaited the connection.
func (k *link) met(j *Job, now int64) {
	k.l.e.core.Meet(now, j.ref)
	if j.Leg.wants { // a leg of vLLM's, which awaits nothing
		k.want(j)
	}
	k.renew(j)
}

// renew makes the lease of a leg's KV last longer.
func (k *link) renew(j *Job) {
	if g := j.Leg; g.Manner.Renew > 0 && !g.got && k.hello != nil {
		// As in vLLM, renewals are a sixth of the lease apart, and each extends it by two
		// thirds.
		k.out.put(linkMessage{Op: opRenew, Key: g.KeyOf(k.hello.DPSize), Lease: int64(4 * g.Manner.Renew)})
	}
}

// run connects to the prefill engine and reads its messages until the connection is lost.
func (k *link) run(m Manner) {
	ctx := k.l.ctx
	for try := 1; ; try++ {
		c, r, hello, err := k.dial(ctx)
		if err == nil {
			k.converse(ctx, c, r, hello, m)
			break
		}
		if try >= m.Tries {
			k.l.call(func() { k.fail(infer.Errorf(infer.CodeEngine, "%s", m.Gone)) })
			return
		}
		if !sleep(ctx, m.Every) {
			return
		}
	}
	// Those that come from now on reach for it anew.
	k.l.call(func() {
		if k.l.links[k.addr] == k {
			delete(k.l.links, k.addr)
		}
	})
	if m.Loss >= 0 && sleep(ctx, m.Loss) {
		k.l.call(func() {
			k.fail(infer.Errorf(infer.CodeEngine, "Lost connection with prefill instance (bootstrap_addr: %s)", k.addr))
		})
	}
}

// fail ends the legs of the link that have not got their KV.
func (k *link) fail(why *infer.Error) {
	if k.l.links[k.addr] == k {
		delete(k.l.links, k.addr)
	}
	now := trace.Now()
	k.l.each(k, func(j *Job) {
		if !j.Leg.got {
			k.l.fail(j, now, why)
		}
	})
}

func (k *link) dial(ctx context.Context) (net.Conn, *bufio.Reader, *linkMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := k.l.e.opts.Legs.Dial(ctx, "tcp", k.addr)
	if err != nil {
		return nil, nil, nil, err
	}
	unhook := context.AfterFunc(ctx, func() { c.Close() })
	defer unhook()
	hello, r, err := greet(c, k.addr)
	if err != nil {
		c.Close()
		return nil, nil, nil, err
	}
	return c, r, hello, nil
}

// greet asks for the upgrade and reads the hello.
func greet(c net.Conn, addr string) (*linkMessage, *bufio.Reader, error) {
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", LinkPath, addr, linkProtocol); err != nil {
		return nil, nil, err
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body.Close()
		return nil, nil, fmt.Errorf("%s: %s", addr, resp.Status)
	}
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, nil, err
	}
	hello := &linkMessage{}
	if err := json.Unmarshal(line, hello); err != nil {
		return nil, nil, err
	}
	return hello, r, nil
}

// converse carries the conversation until the connection ends.
func (k *link) converse(ctx context.Context, c net.Conn, r *bufio.Reader, hello *linkMessage, m Manner) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unhook := context.AfterFunc(ctx, func() { c.Close() })
	defer unhook()
	k.l.call(func() {
		k.hello = hello
		now := trace.Now()
		k.l.each(k, func(j *Job) { k.met(j, now) })
		for _, tag := range slices.Sorted(maps.Keys(k.l.owed)) { // it was registered before it was given up
			if g := k.l.owed[tag]; g.link == k && !g.struck(sim.Unmet) && (g.Engine == "" || g.Engine == hello.Engine) {
				k.out.put(linkMessage{Op: opWant, Key: g.KeyOf(hello.DPSize), Tag: tag})
			}
		}
	})
	var writing sync.WaitGroup
	writing.Go(func() { k.out.write(c, ctx.Done()) })
	if m.Renew > 0 {
		writing.Go(func() {
			for sleep(ctx, m.Renew) {
				k.l.call(func() { k.l.each(k, k.renew) })
			}
		})
	}
	readLink(r, func(m *linkMessage) { k.l.call(func() { k.l.heard(m) }) })
	cancel()
	c.Close()
	writing.Wait()
}

// sleep is false where ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
