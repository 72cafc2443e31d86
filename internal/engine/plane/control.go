package plane

import (
	"time"

	"weir/internal/engine/plane/planepb"
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
			s.meters.aborts.Add(uint64(len(aborts)))
		}
	}
}

// readControl is the control reader: it takes the answers to pings.
func (s *session) readControl() {
	var c clock
	for {
		reply, err := s.control.Recv()
		if err != nil {
			s.endRecv(err, s.control)
			return
		}
		now := trace.Now()
		s.heard.Add(1)
		sent := int64(reply.GetGatewayTime())
		if !c.add(sent, int64(reply.GetEngineTime()), now) {
			continue // not an answer to a ping of ours
		}
		s.meters.pinged(now - sent)
		best := c.best(now)
		s.clockSeen.Store(&best)
	}
}

// A clock that is not ours is first sounded by a few pings in a row, so that
// the first requests have stamps.
const (
	soundings        = 8
	soundingInterval = 10 * time.Millisecond
)

// keep is the keeper: it has a ping sent at each tick and gives the engine up
// when the watchdog says so.
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
	dog := watchdog{interval: every, bound: s.opts.PingTimeout}
	last := time.Now()
	for {
		select {
		case <-s.ctx.Done():
			return
		case now := <-tick.C:
			if dog.tick(s.heard.Load(), now.Sub(last)) {
				s.end(LossSilent, nil)
				return
			}
			last = now
			s.out.askPing()
			if left > 0 {
				if left--; left == 0 {
					tick.Reset(every)
				}
			}
		}
	}
}
