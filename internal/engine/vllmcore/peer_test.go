package vllmcore

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"weir/internal/engine/coreclient"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/wire/zmtp"
)

// peer is a scripted engine core. It implements enginetest.Peer, by the wire's own
// means: a request is confirmed by the answer to the call behind it, refused by an
// end without output, and of one that was aborted nothing more is said, so that the
// call behind its abort is answered once the step at hand is over.
type peer struct {
	t       testing.TB
	ctx     context.Context
	version string
	index   int
	dir     string

	panics   enginetest.Panics
	mu       enginetest.Watched
	core     *coretest.Core
	requests map[string]*peerRequest
	order    []*peerRequest
	calls    []peerCall
	hold     bool
	mute     bool // calls are not answered
	refuse   infer.Code
	waves    []int64
	aborted  map[string]int
	adds     []coretest.Request
	loads    []coretest.Adapter
	lacks    string // a path that no adapter is at
	// meets answers the half by which it is asked how halves meet; nil: it does not.
	meets func(a coretest.Request) coretest.Output
}

type peerRequest struct {
	id                         string
	total, prompt              int
	confirmed, aborted, ended_ bool
	arrival                    int64
}

// peerCall is a call that is not answered yet, and how many requests it is behind.
type peerCall struct {
	id      int64
	behind  int
	aborts  []*peerRequest
	adapter *coretest.Adapter
}

func tempDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "vc") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newPeer(t testing.TB, version string) *peer {
	ctx, cancel := context.WithTimeout(context.Background(), enginetest.Patience)
	p := &peer{t: t, ctx: ctx, version: version, dir: tempDir(t),
		requests: map[string]*peerRequest{}, aborted: map[string]int{}}
	t.Cleanup(func() { p.Cut(); cancel() })
	go p.Restore()
	return p
}

// options returns Options that the peer dials in to.
func (p *peer) options() Options {
	at := func(name string) zmtp.Endpoint { return zmtp.Endpoint{Network: "unix", Address: p.dir + "/" + name} }
	return Options{Options: coreclient.Options{Name: "e1", Model: "test", Panicked: p.panics.Tell}, EndIDs: []uint32{2, 5, 6, 7, 9}, Handshake: at("h"), Input: at("in"), Output: at("out")}
}

// Restore may fail: then the test is over, or cut the peer meanwhile.
func (p *peer) Restore() { p.connect(coretest.Options{Handshake: "ipc://" + p.dir + "/h"}) }

// connect makes a new engine the peer's. It is so before the front end can know of
// the engine and the test go on; later, it could take the place of one that came
// after it.
func (p *peer) connect(o coretest.Options) error {
	o.Version, o.Index, o.Receive = p.version, p.index, p.receive
	o.Connected = func(c *coretest.Core) { p.mu.Update(func() { p.core, p.calls = c, nil }) }
	_, err := coretest.Start(p.ctx, o)
	return err
}

func (p *peer) Cut() {
	p.mu.Lock()
	core := p.core
	p.core = nil
	p.calls = nil
	p.mu.Unlock()
	if core != nil {
		core.Close()
	}
}

// now returns the engine as it is connected now.
func (p *peer) now() *coretest.Core {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core
}

func (p *peer) receive(c *coretest.Core, m coretest.Message) {
	p.mu.Update(func() {
		if c != p.core {
			return // said to an engine that is gone
		}
		switch m.Type {
		case 0:
			p.add(m.Add)
		case 1:
			for _, id := range m.Abort {
				p.aborted[id]++
				if r := p.requests[id]; r != nil {
					r.aborted = true
				}
			}
		case 2:
			p.waves = append(p.waves, m.Wave)
		case 3:
			call := peerCall{id: m.Call, behind: len(p.order), adapter: m.Adapter}
			for _, r := range p.order {
				if r.aborted && !r.ended_ {
					call.aborts = append(call.aborts, r)
				}
			}
			p.calls = append(p.calls, call)
			p.answer()
		}
	})
}

func (p *peer) add(a coretest.Request) {
	if strings.HasPrefix(a.ID, "weir-meets-") {
		if p.meets != nil {
			p.core.Send(coretest.Batch{Outputs: []coretest.Output{p.meets(a)}})
		}
		return
	}
	r := &peerRequest{id: a.ID, prompt: len(a.Prompt), confirmed: !p.hold, arrival: trace.Now()}
	p.requests[a.ID] = r
	p.order = append(p.order, r)
	p.adds = append(p.adds, a)
	if p.refuse == 0 {
		return
	}
	out := coretest.Output{ID: a.ID, Finish: finishError}
	switch p.refuse {
	case infer.CodeInvalid:
		out.ErrorCode, out.ErrorText = "validation_error", "scripted refusal"
	case infer.CodeUnavailable:
		out.ErrorCode = "engine_paused"
		if p.version != "0.33.0" { // which has no word for it
			out = coretest.Output{ID: a.ID, Finish: finishAbort}
		}
	}
	p.refuse, r.ended_ = 0, true
	p.core.Send(coretest.Batch{Outputs: []coretest.Output{out}})
}

// answer answers the calls that can be.
func (p *peer) answer() {
	for len(p.calls) > 0 && !p.mute {
		call := p.calls[0]
		for _, r := range p.order[:call.behind] {
			if !r.confirmed && !r.ended_ {
				return
			}
		}
		for _, r := range call.aborts {
			if !r.ended_ {
				return
			}
		}
		p.calls = p.calls[1:]
		out := coretest.Batch{Call: call.id}
		if l := call.adapter; l != nil {
			p.loads = append(p.loads, *l)
			if out.Given = l.Path != p.lacks; !out.Given {
				out.Failure = "Call to add_lora method failed: no adapter found for " + l.Path
			}
		}
		p.core.Send(out)
	}
}

func (p *peer) Mute(mute bool) { p.mu.Update(func() { p.mute = mute; p.answer() }) }

func (p *peer) Fenced(ctx context.Context) error {
	return p.mu.Await(ctx, "a fence", func() bool { return len(p.calls) > 0 })
}

func (p *peer) Hold() { p.mu.Update(func() { p.hold = true }) }

func (p *peer) Confirm(id string) {
	p.mu.Update(func() {
		p.requests[id].confirmed = true
		p.answer()
	})
}

func (p *peer) Refuse(code infer.Code) { p.mu.Update(func() { p.refuse = code }) }

func (p *peer) Arrived(ctx context.Context, id string) error {
	return p.mu.Await(ctx, "request "+id, func() bool { return p.requests[id] != nil })
}

func (p *peer) Aborted(ctx context.Context, id string) error {
	return p.mu.Await(ctx, "abort of "+id, func() bool { return p.aborted[id] > 0 })
}

// Step sends output. An end by a stop needs an end id: those that the suite ends
// with are in options.
func (p *peer) Step(outs ...enginetest.Out) {
	p.mu.Update(func() {
		var b coretest.Batch
		for _, o := range outs {
			r := p.requests[o.ID]
			w := coretest.Output{ID: o.ID, IDs: o.IDs, Finish: -1}
			if l := o.Logprobs; l != nil {
				of := append(slices.Clone(o.IDs), make([]uint32, len(l.Own))...)
				w.Logprobs = &coretest.Logprobs{Of: of, Own: l.Own, TopIDs: l.TopIDs, Top: l.Top, Wide: p.version == "0.33.0"}
			}
			if r.total == 0 && len(o.IDs) > 0 {
				w.Prompt, w.Cached, w.Queued, w.Scheduled = r.prompt, 1, r.arrival+1, r.arrival+2
			}
			r.total += len(o.IDs)
			switch o.Finish {
			case infer.ReasonStop:
				w.Finish = finishStop
			case infer.ReasonLength:
				w.Finish = finishLength
			case infer.ReasonError:
				w.Finish = finishError
			}
			if o.Finish != "" {
				r.ended_ = true
			}
			if len(w.IDs) > 0 || w.Finish >= 0 {
				b.Outputs = append(b.Outputs, w)
			}
		}
		if len(b.Outputs) > 0 {
			p.core.Send(b)
		}
		p.answer()
	})
}

// Miscount breaks the one count that the wire has: the request's own limit.
func (p *peer) Miscount(id string, ids ...uint32) {
	p.mu.Update(func() {
		for len(ids) < 10 {
			ids = append(ids, 1)
		}
		p.core.Send(coretest.Batch{Outputs: []coretest.Output{{ID: id, IDs: ids, Finish: -1}}})
	})
}
