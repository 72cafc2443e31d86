package upstream

import "time"

// keeping decides whether the connection over which a watched engine was read (Watch) is kept for
// its next reading.
//
// Readings are rare: nearly every one would make a connection, which costs more than the rest of
// it, on both sides. A reading changes nothing, so it is sent again over a new connection if the
// engine closes the kept one meanwhile (Client.Do). The kept connection may therefore be idle for
// longer than those of requests, and no failure of it is a failure of the engine.
//
// A reading over a kept connection shows that the process which was reached before still answers.
// It does not show that the engine accepts connections: a server may have ceased to, and continue
// those that it has. It does not find the engine behind an address that now leads elsewhere
// either. So a connection serves maxReadings readings at most. A process that ends closes its
// connections, and the next reading is then refused as it would have been without a kept one. The
// probes of package health have connections of their own.
type keeping struct {
	interval time.Duration // between readings; 0: the engine is not watched
	readings int           // over the present connection
	lost     int           // kept connections in a row that the engine had closed
	without  int           // readings until a connection is kept again
}

// maxReadings is how many readings use one connection.
const maxReadings = 3

// mostWithout bounds the readings until a connection is kept again, where the engine closes each
// before the next reading, as servers in Python do.
const mostWithout = 64

// begin begins a reading. anew reports that it must be over a new connection.
func (k *keeping) begin(interval time.Duration) (anew bool) {
	k.interval = interval
	k.without = max(0, k.without-1)
	if k.readings++; k.readings > maxReadings {
		k.readings = 1
		return true
	}
	return false
}

// closed notes that the engine has closed the kept connection.
func (k *keeping) closed() {
	k.lost++
	k.without, k.readings = min(1<<min(k.lost, 10), mostWithout), 1
}

// open notes that the engine has kept it.
func (k *keeping) open() { k.lost = 0 }

// keeps reports whether a connection is kept, which the engine says to keep for so long; 0: it
// does not say.
func (k *keeping) keeps(said time.Duration) bool {
	return k.interval > 0 && k.without == 0 && (said == 0 || said > k.interval)
}

// read begins a reading of the engine.
func (p *pool) read(interval time.Duration) {
	p.mu.Lock()
	anew := p.keeping.begin(interval)
	gone := p.kept
	if anew {
		p.kept = nil
	}
	p.mu.Unlock()
	if anew && gone != nil {
		gone.close()
	}
}

// takeKept returns the connection that was kept for readings, if the engine still holds it open,
// or nil.
func (p *pool) takeKept() *conn {
	p.mu.Lock()
	c := p.kept
	p.kept = nil
	p.mu.Unlock()
	if c == nil {
		return nil
	}
	c.rested = time.Since(c.idle)
	open := c.usable()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !open {
		p.keeping.closed()
		c.abort()
		return nil
	}
	p.keeping.open()
	return c
}

// keepsFor keeps a connection for the next reading, if there is none and it is worth while. The
// lock is held.
func (p *pool) keepsFor(c *conn) bool {
	if !c.reading || p.kept != nil || !p.keeping.keeps(c.keep) {
		return false
	}
	p.kept = c
	return true
}
