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

	mu    sync.Mutex
	idle  []*conn // oldest first
	timer *time.Timer
	armed bool // the timer will run evict
}

// take gives an idle connection that the engine still holds open, or nil.
func (p *pool) take() *conn {
	for {
		c := p.pop()
		if c == nil || (c.keep == 0 || time.Since(c.idle) < c.keep) && c.usable() {
			return c
		}
		c.abort()
	}
}

func (p *pool) pop() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 {
		return nil
	}
	c := p.idle[last]
	p.idle[last] = nil
	p.idle = p.idle[:last]
	if time.Since(c.idle) >= p.keep {
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
	p.idle = nil
	if p.timer != nil && p.timer.Stop() {
		p.armed = false
	}
	p.mu.Unlock()
	for _, c := range gone {
		c.close()
	}
}
