package sglangipc

import (
	"context"
	"os"
	"testing"

	"weir/internal/engine/coreclient"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/infer"
)

// peer is a scripted scheduler with its launcher. It implements enginetest.Peer, by
// the wire's own means: a request is confirmed by the answer to the fence behind it,
// refused by an end without output, in a step or outside of one.
type peer struct {
	t     testing.TB
	ctx   context.Context
	dir   string
	ranks int

	panics   enginetest.Panics
	mu       enginetest.Watched
	sched    *schedtest.Scheduler
	requests map[string]*peerRequest
	order    []*peerRequest
	fences   []peerFence
	hold     bool
	mute     bool // nothing is answered
	refuse   infer.Code
	aborted  map[string]int
	all      int // aborts of all
	adds     []schedtest.Message
}

type peerRequest struct {
	id               string
	total, prompt    int
	confirmed, ended bool
}

// peerFence is a fence that is not answered yet, and how many requests it is behind.
type peerFence struct {
	m      schedtest.Message
	behind int
}

func tempDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "si") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newPeer(t testing.TB, ranks int) *peer {
	return newPeerSaying(t, map[string]any{"dp_size": ranks})
}

// newPeerSaying makes one whose launcher's word has some fields set.
func newPeerSaying(t testing.TB, set map[string]any) *peer {
	ranks := set["dp_size"].(int)
	ctx, cancel := context.WithTimeout(context.Background(), enginetest.Patience)
	p := &peer{t: t, ctx: ctx, dir: tempDir(t), ranks: ranks, requests: map[string]*peerRequest{}, aborted: map[string]int{}}
	if err := schedtest.Write(p.dir, schedtest.Manifest(set)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Cut(); cancel() })
	go p.Restore()
	return p
}

func (p *peer) options() Options {
	return Options{Options: coreclient.Options{Name: "e1", Model: "test", Panicked: p.panics.Tell}, Dir: p.dir}
}

// Restore may fail: then the test is over, or cut the peer meanwhile.
func (p *peer) Restore() { p.connect(schedtest.Options{}) }

func (p *peer) connect(o schedtest.Options) error {
	o.Dir, o.Ranks, o.Receive = p.dir, p.ranks, p.receive
	o.Connected = func(s *schedtest.Scheduler) { p.mu.Update(func() { p.sched, p.fences = s, nil }) }
	_, err := schedtest.Start(p.ctx, o)
	return err
}

func (p *peer) Cut() {
	p.mu.Lock()
	sched := p.sched
	p.sched, p.fences = nil, nil
	p.mu.Unlock()
	if sched != nil {
		sched.Close()
	}
}

// now returns the scheduler as it is connected now.
func (p *peer) now() *schedtest.Scheduler {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sched
}

func (p *peer) receive(s *schedtest.Scheduler, m schedtest.Message) {
	p.mu.Update(func() {
		if s != p.sched {
			return // said to a scheduler that is gone
		}
		switch m.Tag {
		case tagRequest:
			p.add(m)
		case tagAbort:
			if m.Fields["abort_all"].(bool) {
				p.all++
				for _, r := range p.order {
					r.ended = true
				}
				return
			}
			p.aborted[m.ID()]++
		case tagState:
			if !p.mute {
				p.sched.State(48)
			}
		case tagFence:
			p.fences = append(p.fences, peerFence{m, len(p.order)})
			p.answer()
		default:
			p.t.Errorf("the front end said %s", m.Tag)
		}
	})
}

func (p *peer) add(m schedtest.Message) {
	r := &peerRequest{id: m.ID(), prompt: len(m.Prompt()), confirmed: !p.hold}
	p.requests[r.id] = r
	p.order = append(p.order, r)
	p.adds = append(p.adds, m)
	switch p.refuse {
	case 0:
		return
	case infer.CodeInvalid: // a prompt of one id stands in for its own
		p.sched.Step(0, schedtest.Output{ID: r.id, IDs: []uint32{5}, Count: 1, Prompt: 1, Finish: abortReason(400)})
	case infer.CodeOverloaded:
		p.sched.Echo(r.id, abortReason(503))
	}
	p.refuse, r.ended = 0, true
}

func abortReason(status any) map[string]any {
	return map[string]any{"type": "abort", "message": "scripted", "status_code": status, "err_type": nil}
}

// answer answers the fences that can be.
func (p *peer) answer() {
	for len(p.fences) > 0 && !p.mute {
		f := p.fences[0]
		for _, r := range p.order[:f.behind] {
			if !r.confirmed && !r.ended {
				return
			}
		}
		p.fences = p.fences[1:]
		p.sched.Answer(f.m)
	}
}

func (p *peer) Mute(mute bool) { p.mu.Update(func() { p.mute = mute; p.answer() }) }

func (p *peer) Fenced(ctx context.Context) error {
	return p.mu.Await(ctx, "a fence", func() bool { return len(p.fences) > 0 })
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

// Step sends output, each rank's share over its own connection, with the first
// request on the first rank.
func (p *peer) Step(outs ...enginetest.Out) {
	p.mu.Update(func() {
		of := make([][]schedtest.Output, p.ranks)
		for _, o := range outs {
			r := p.requests[o.ID]
			r.total += len(o.IDs)
			w := schedtest.Output{ID: o.ID, IDs: o.IDs, Count: r.total, Prompt: r.prompt, Cached: 1, Logprobs: o.Logprobs}
			switch o.Finish {
			case infer.ReasonStop:
				w.Finish = map[string]any{"type": "stop", "matched": 0}
				if n := len(o.IDs); n > 0 {
					w.Finish["matched"] = o.IDs[n-1]
				}
			case infer.ReasonLength:
				w.Finish = map[string]any{"type": "length", "length": r.total}
			case infer.ReasonAbort:
				w.Finish = abortReason(nil)
			case infer.ReasonError:
				w.Finish = abortReason(500)
			}
			r.ended = o.Finish != ""
			rank := 0
			for i := range p.order {
				if p.order[i] == r {
					rank = i % p.ranks
				}
			}
			of[rank] = append(of[rank], w)
		}
		for rank, outs := range of {
			if len(outs) > 0 {
				p.sched.Step(rank, outs...)
			}
		}
		p.answer()
	})
}

func (p *peer) Miscount(id string, ids ...uint32) {
	p.mu.Update(func() {
		r := p.requests[id]
		r.total += len(ids)
		p.sched.Step(0, schedtest.Output{ID: id, IDs: ids, Count: r.total + 1, Prompt: r.prompt})
	})
}
