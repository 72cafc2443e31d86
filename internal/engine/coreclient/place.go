package coreclient

import "sync"

// Place is a slot in which one engine serves at a time. If two engines connect, the one
// that was accepted later serves, because the earlier one may be a process that died
// unnoticed. A connection with a slow handshake may reach its place after one that was
// accepted later.
type Place struct {
	serving sync.Mutex // held by the connection that serves

	mu    sync.Mutex
	nth   uint64 // arrival of the latest
	evict func() // ends its service
}

// Take waits until the place is free for the nth connection, and ends the service of
// the one before. ok is false if a later one has arrived. Otherwise the caller must
// call leave. evict is called when a later connection arrives.
func (p *Place) Take(nth uint64, evict func()) (leave func(), ok bool) {
	p.mu.Lock()
	if nth < p.nth {
		p.mu.Unlock()
		return nil, false
	}
	if p.evict != nil {
		p.evict()
	}
	p.nth, p.evict = nth, evict
	p.mu.Unlock()
	p.serving.Lock()
	return p.serving.Unlock, true
}

// Clear ends the service of connections that arrived before the nth. ok is false if a
// later one has arrived.
func (p *Place) Clear(nth uint64) (ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if nth < p.nth {
		return false
	}
	if p.evict != nil {
		p.evict()
	}
	p.evict = nil
	return true
}
