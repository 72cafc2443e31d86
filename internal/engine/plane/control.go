package plane

import (
	"fmt"
	"sync/atomic"
	"time"

	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/engine/remote"
	"weir/internal/trace"
)

// writeControl is the control writer. It may wait for an engine that does not
// read; then aborts gather in the outbox, at most one per generation, and the
// keeper finds out.
func (s *session) writeControl() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.out.wake:
		}
		for {
			aborts, ping := s.out.take()
			if len(aborts) == 0 && !ping {
				break
			}
			req := &planepb.ControlRequest{Session: s.id, Abort: aborts}
			if ping {
				req.Ping = &planepb.Ping{GatewayTime: uint64(trace.Now())}
			}
			if err := s.control.Send(req); err != nil {
				// The reader of the stream has the real error; this is its echo.
				return
			}
			s.meters.Aborts.Add(uint64(len(aborts)))
		}
	}
}

// readControl is the control reader: it takes the answers to pings.
func (s *session) readControl() {
	var c remote.Clock
	for {
		reply, err := s.control.Recv()
		if err != nil {
			s.endRecv(err)
			return
		}
		now := trace.Now()
		s.heard.messages.Add(1)
		sent := int64(reply.GetGatewayTime())
		if !c.Add(sent, int64(reply.GetEngineTime()), now) {
			continue // not an answer to a ping of ours
		}
		s.meters.pinged(now - sent)
		best := c.Best(now)
		s.clockSeen.Store(&best)
	}
}

// A clock that is not ours is first sounded by a few pings in a row, so that
// the first requests have stamps.
const (
	soundings        = 8
	soundingInterval = 10 * time.Millisecond
)

// keep is the keeper: it requests a ping at each tick and gives the engine up when a
// watchdog expires. There are three watchdogs, for the engine and for each connection.
// A session with only one live connection would accept requests that never end.
//
// A sign of life is requested on a connection that is merely quiet. The connection of
// the steps uses HTTP/2's own means (see stepStream.probe). grpc-go offers no such
// means that its servers tolerate, so the other connection uses a call of Describe.
// That call needs no session, so an engine whose control handler starves is not taken
// for a broken connection.
func (s *session) keep() {
	s.out.askPing()
	every := s.opts.PingInterval
	tick := time.NewTicker(every)
	defer tick.Stop()
	left := 0
	if !s.oneClock && soundingInterval < every {
		left = soundings - 1
		tick.Reset(soundingInterval)
	}
	dog := remote.Watchdog{Interval: every, Bound: s.opts.PingTimeout}
	engine, calls, steps := dog, dog, dog
	var asking atomic.Bool
	last := time.Now()
	for {
		select {
		case <-s.ctx.Done():
			return
		case now := <-tick.C:
			elapsed := now.Sub(last)
			last = now
			// All of them get every tick, even after one has reported a loss.
			mute := engine.Tick(s.heard.messages.Load(), elapsed)
			cut := calls.Tick(s.heard.calls.Load(), elapsed)
			lost := steps.Tick(s.heard.steps.Load(), elapsed)
			if what := silent(mute, cut, lost); what != "" {
				s.end(mux.LossSilent, fmt.Errorf("nothing was heard %s for %v", what, s.opts.PingTimeout))
				return
			}
			s.out.askPing()
			if calls.Silent >= s.opts.PingTimeout/2 && !asking.Swap(true) {
				s.tasks.Go(func() {
					defer asking.Store(false)
					// The content of the answer does not matter: any answer is a sign of life.
					_, _ = s.client.Describe(s.ctx, &planepb.DescribeRequest{})
				})
			}
			if steps.Silent >= every/2 {
				s.steps.probe()
			}
			if left > 0 {
				if left--; left == 0 {
					tick.Reset(every)
				}
			}
		}
	}
}

// silent names the connection that has become silent, for messages.
func silent(engine, calls, steps bool) string {
	switch {
	case calls && steps:
		return "on either connection"
	case calls:
		return "on the connection of the calls"
	case steps:
		return "on the connection of the steps"
	case engine:
		return "of the engine, whose connections exist,"
	}
	return ""
}
