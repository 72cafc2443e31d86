package admission

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// ConnLimits bound the connections of clients; zero means no bound.
type ConnLimits struct {
	Total int
	// PerClient bounds the connections of one client address. For a client behind a
	// proxy, whose connections are shared by many clients, it bounds the requests in
	// flight.
	PerClient int
}

// restTime is the time without a request after which a connection may be closed for a new
// one. A client that sends its next request at once must not find its connection closed,
// however many others connect.
const restTime = time.Second

// Conns tracks the open connections. At the limit, inactive connections are closed to
// make room for new ones: first the one that has been idle longest between requests,
// then the one that has been open longest without a request.
type Conns struct {
	limits ConnLimits

	mu      sync.Mutex
	open    int
	idle    list // between requests, the longest idle first
	fresh   list // before their first request, the oldest first
	clients map[netip.Addr]int
	stats   ConnStats
}

// ConnStats are counts since the book was made, and current numbers.
type ConnStats struct {
	Open, Idle int
	Refused    uint64 // for a limit
	GaveWay    uint64 // closed for a new one
}

// NewConns makes a book.
func NewConns(limits ConnLimits) *Conns {
	c := &Conns{limits: limits, clients: map[netip.Addr]int{}}
	c.idle.init()
	c.fresh.init()
	return c
}

// Conn is a connection in the book. Its methods are for any goroutine.
type Conn struct {
	book   *Conns
	shut   func() // closes it; must not block
	client netip.Addr
	since  time.Time
	closed bool

	in         *list // nil while it serves a request
	prev, next *Conn
}

// list is a ring of connections with itself as its root.
type list struct {
	root Conn
	n    int
}

func (l *list) init() { l.root.prev, l.root.next = &l.root, &l.root }

func (l *list) push(c *Conn) {
	c.in, c.prev, c.next = l, l.root.prev, &l.root
	c.prev.next, l.root.prev = c, c
	l.n++
}

func (c *Conn) unlink() {
	if c.in != nil {
		c.prev.next, c.next.prev = c.next, c.prev
		c.in.n--
		c.in, c.prev, c.next = nil, nil, nil
	}
}

// Open enters a connection, which shut closes without waiting. An error is the reason
// why it must be closed at once. At the limit another connection is shut for it.
func (b *Conns) Open(now time.Time, shut func()) (*Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limits.Total > 0 && b.open >= b.limits.Total && !b.giveWay(now, restTime) {
		b.stats.Refused++
		return nil, fmt.Errorf("%d connections are open and all of them busy or just used, which is the limit (--max-connections)", b.open)
	}
	c := &Conn{book: b, shut: shut, since: now}
	b.open++
	b.fresh.push(c)
	return c, nil
}

// GiveWay shuts a connection that has been idle for a while, if there is one, because
// a new one needs its descriptor.
func (b *Conns) GiveWay(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.giveWay(now, restTime)
}

// Yield is GiveWay for a running request, which has priority over any idle
// connection.
func (b *Conns) Yield(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.giveWay(now, 0)
}

func (b *Conns) giveWay(now time.Time, rest time.Duration) bool {
	for _, l := range [...]*list{&b.idle, &b.fresh} {
		if c := l.root.next; l.n > 0 && now.Sub(c.since) >= rest {
			b.stats.GaveWay++
			b.close(c)
			c.shut()
			return true
		}
	}
	return false
}

// Of sets the client of the connection. The error is the reason why the connection must be
// closed.
func (c *Conn) Of(client netip.Addr) error {
	b := c.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.closed || c.client.IsValid() {
		return nil
	}
	if err := b.count(client); err != nil {
		return err
	}
	c.client = client
	return nil
}

func (b *Conns) count(client netip.Addr) error {
	if b.limits.PerClient == 0 {
		return nil
	}
	client = network(client)
	if n := b.clients[client]; n >= b.limits.PerClient {
		b.stats.Refused++
		return fmt.Errorf("%v has %d connections or requests, which is the limit (--max-connections-per-client)", client, n)
	}
	b.clients[client]++
	return nil
}

func (b *Conns) uncount(client netip.Addr) {
	if b.limits.PerClient == 0 || !client.IsValid() {
		return
	}
	client = network(client)
	if b.clients[client]--; b.clients[client] == 0 {
		delete(b.clients, client)
	}
}

// network is what counts as one client: an address, or with IPv6 the /64 that is given
// to one.
func network(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		p, _ := a.Prefix(64) // which a is long enough for
		return p.Addr()
	}
	return a
}

// Request counts a request of a client behind a proxy, until done is called.
func (b *Conns) Request(client netip.Addr) (done func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.count(client); err != nil {
		return nil, err
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.uncount(client)
	}, nil
}

// Idle reports that the connection waits for its next request.
func (c *Conn) Idle(now time.Time) {
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	if !c.closed {
		c.unlink()
		c.since = now
		c.book.idle.push(c)
	}
}

// Busy reports that the connection has a request. It returns false if the connection was
// shut before.
func (c *Conn) Busy() (open bool) {
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	c.unlink()
	return !c.closed
}

// Close takes the connection out of the book; only the first call counts.
func (c *Conn) Close() {
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	c.book.close(c)
}

func (b *Conns) close(c *Conn) {
	if c.closed {
		return
	}
	c.closed = true
	c.unlink()
	b.open--
	b.uncount(c.client)
}

// Fresh returns how many connections were opened since a time and have had no request.
func (b *Conns) Fresh(since time.Time) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := b.fresh.root.prev; c != &b.fresh.root && !c.since.Before(since); c = c.prev {
		n++
	}
	return n
}

// Stats returns the counts.
func (b *Conns) Stats() ConnStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Open, s.Idle = b.open, b.idle.n
	return s
}
