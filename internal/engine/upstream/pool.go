package upstream

import (
	"slices"
	"sync"
	"time"
)

// pool keeps the idle connections to one engine. The last one given back is
// the first one taken, so that in quiet times the others grow old and are
// closed; that happens by a timer, which runs only while there are any.
type pool struct {
	max  int           // connections kept
	keep time.Duration // how long

	mu       sync.Mutex
	idle     []*conn // oldest first
	patience patience
	kept     *conn // for readings of the engine; nil: there is none
	keeping  keeping
	timer    *time.Timer
	armed    bool // the timer will run evict
}

// next returns an idle connection that the engine still holds open, and is not about to close, or
// nil. It leaves it to conn.ask to find whether the connection is open, as long as this engine was
// not seen to close any.
func (p *pool) next() *conn {
	for c := p.pop(); c != nil; c = p.pop() {
		if c.unseen = c.unseen && !c.secure && c.inTime(); c.unseen || p.usable(c) {
			return c
		}
	}
	return nil
}

// inTime reports whether the connection has rested for less than the engine keeps it.
func (c *conn) inTime() bool { return c.keep == 0 || c.rested < c.keep }

// usable reports whether a connection can be used, and closes it otherwise.
func (p *pool) usable(c *conn) bool {
	c.unseen = false
	switch open := c.usable(); {
	case !open:
		p.closed(c.rested)
	case p.trusts(c.rested) && c.inTime():
		return true
	}
	c.abort()
	return false
}

// closed notes that the engine closed a connection which had been idle for so long.
func (p *pool) closed(rested time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.patience.closed(rested)
}

// trusts reports whether a connection that is open after so long is given a request.
func (p *pool) trusts(rested time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.patience.open(rested)
}

// patience learns how long an engine keeps idle connections. A request that is sent
// while the engine closes its connection is lost if the engine's kernel received some of
// it, because it is then unknown whether the engine had begun the request. A connection
// is therefore not reused if it was idle for half as long as another one that the engine
// had closed.
type patience struct {
	least time.Duration // for which one was idle that was closed, and about none much longer was open; 0: none was
}

// closed learns from a connection that was found closed.
func (p *patience) closed(rested time.Duration) {
	if p.least == 0 || rested < p.least {
		p.least = max(rested, 1)
	}
}

// open learns from a connection that was found open, and reports whether to use it. If
// it was idle for more than twice as long as another one that was closed, the engine
// closed that one for another reason, or the gateway measured its idle time too short.
func (p *patience) open(rested time.Duration) bool {
	if p.least == 0 {
		return true
	}
	if rested > 2*p.least {
		p.least = rested
	}
	return rested < p.least/2
}

// pop takes the latest idle connection. unseen is set in it if no connection was found closed yet.
func (p *pool) pop() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 {
		c := p.kept
		if c == nil {
			return nil
		}
		if c.rested = time.Since(c.idle); c.rested >= p.keep {
			return nil
		}
		p.kept, c.unseen = nil, p.patience.least == 0
		return c
	}
	c := p.idle[last]
	p.idle[last] = nil
	p.idle = p.idle[:last]
	c.unseen = p.patience.least == 0
	if c.rested = time.Since(c.idle); c.rested >= p.keep {
		// All others are older still; the timer is on its way to them.
		c.abort()
		return nil
	}
	return c
}

// give keeps a connection for the next exchange, or closes it when enough are
// kept.
func (p *pool) give(c *conn) {
	c.idle = time.Now()
	p.mu.Lock()
	if p.keepsFor(c) {
		p.mu.Unlock()
		return
	}
	if len(p.idle) >= p.max {
		p.mu.Unlock()
		c.close()
		return
	}
	p.idle = append(p.idle, c)
	p.arm(p.keep)
	p.mu.Unlock()
}

func (p *pool) arm(d time.Duration) {
	switch {
	case p.armed:
		return
	case p.timer == nil:
		p.timer = time.AfterFunc(d, p.evict)
	default:
		p.timer.Reset(d)
	}
	p.armed = true
}

// evict closes what has been idle for too long.
func (p *pool) evict() {
	p.mu.Lock()
	now, old := time.Now(), 0
	for old < len(p.idle) && now.Sub(p.idle[old].idle) >= p.keep {
		old++
	}
	gone := slices.Clone(p.idle[:old])
	p.idle = slices.Delete(p.idle, 0, old)
	p.armed = false
	if len(p.idle) > 0 {
		p.arm(p.keep - now.Sub(p.idle[0].idle))
	}
	p.mu.Unlock()
	for _, c := range gone {
		c.close()
	}
}

// closeIdle closes every idle connection.
func (p *pool) closeIdle() {
	p.mu.Lock()
	gone := p.idle
	if p.kept != nil {
		gone = append(gone, p.kept)
	}
	p.idle, p.kept, p.keeping = nil, nil, keeping{}
	if p.timer != nil && p.timer.Stop() {
		p.armed = false
	}
	p.mu.Unlock()
	for _, c := range gone {
		c.close()
	}
}
