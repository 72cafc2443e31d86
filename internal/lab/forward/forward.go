// Package forward is a network between two processes that delays, loses, holds or resets
// what passes. It needs no root.
package forward

import (
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Forwarder stands between a client and a server, and treats what passes as a network
// does: late, not at all, or by a reset. Its connections look alive all the while.
type Forwarder struct {
	Addr string // host:port to connect to

	listener net.Listener
	target   string
	tasks    sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed when the fields below change
	held    [2]bool       // by direction: nothing passes
	delay   time.Duration
	loss    float64
	refuse  bool
	ended   bool
	conns   map[net.Conn]bool
	carried [2]int
}

// Direction is one of the two through a Forwarder.
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
)

// To forwards connections to target until Close.
func To(target string) (*Forwarder, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &Forwarder{Addr: l.Addr().String(), listener: l, target: target, changed: make(chan struct{}), conns: map[net.Conn]bool{}}
	f.tasks.Go(f.accept)
	return f, nil
}

// Close ends all connections, and returns when nothing of the Forwarder runs any more.
func (f *Forwarder) Close() {
	f.set(func() { f.ended = true })
	f.listener.Close()
	f.Cut()
	f.tasks.Wait()
}

// Hold stops the traffic in these directions. Connections are still accepted and read, and
// the data read passes when Heal is called, as after a partition.
func (f *Forwarder) Hold(directions ...Direction) {
	f.set(func() {
		for _, d := range directions {
			f.held[d] = true
		}
	})
}

// Delay has everything pass d later, in both directions.
func (f *Forwarder) Delay(d time.Duration) { f.set(func() { f.delay = d }) }

// Lose delays a share of the data as packet loss does: by TCP's retransmission after 200
// ms, or 600 ms if that was lost, too.
func (f *Forwarder) Lose(share float64) { f.set(func() { f.loss = share }) }

// Refuse has new connections reset as soon as they are accepted.
func (f *Forwarder) Refuse() { f.set(func() { f.refuse = true }) }

// Cut resets the current connections. Data under way is lost.
func (f *Forwarder) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			// An error means that it is gone already.
			_ = tcp.SetLinger(0)
		}
		c.Close()
	}
}

// Heal ends all that Hold, Delay, Lose and Refuse have done.
func (f *Forwarder) Heal() {
	f.set(func() { f.held, f.delay, f.loss, f.refuse = [2]bool{}, 0, 0, false })
}

// Carried returns how many bytes were passed on in a direction.
func (f *Forwarder) Carried(d Direction) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.carried[d]
}

// set changes the fields, and wakes whoever waits for them.
func (f *Forwarder) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *Forwarder) accept() {
	for {
		c, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		refuse := f.refuse
		f.mu.Unlock()
		if refuse {
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
			continue
		}
		f.tasks.Go(func() { f.serve(c) })
	}
}

// own records a connection, which Cut and the end of the test close. It returns false if
// that has already happened.
func (f *Forwarder) own(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns[c] = true
	return !f.ended
}

func (f *Forwarder) disown(c net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
}

// serve forwards one connection to its end.
func (f *Forwarder) serve(client net.Conn) {
	defer client.Close()
	defer f.disown(client)
	if !f.own(client) || !f.open(ToServer) {
		return
	}
	server, err := net.Dial("tcp", f.target)
	if err != nil {
		_ = client.(*net.TCPConn).SetLinger(0)
		return
	}
	defer server.Close()
	defer f.disown(server)
	if !f.own(server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { f.pump(ToServer, server, client) })
	both.Go(func() { f.pump(ToClient, client, server) })
	both.Wait()
}

// TCP's retransmission timeouts: the first one, and the longest.
const (
	firstAgain = 200 * time.Millisecond
	lastAgain  = 400 * time.Millisecond
)

// parcel is some bytes on their way, and when they were read. Without any it is the
// end.
type parcel struct {
	bytes []byte
	at    time.Time
}

// pump forwards one direction: one goroutine reads, this one writes.
func (f *Forwarder) pump(d Direction, to, from net.Conn) {
	parcels := make(chan parcel, 1024)
	f.tasks.Go(func() {
		defer close(parcels)
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			if n > 0 {
				parcels <- parcel{b[:n], time.Now()}
			}
			if err != nil {
				return
			}
		}
	})
	broken := false
	for p := range parcels {
		if broken || !f.open(d) {
			continue
		}
		f.mu.Lock()
		due := p.at.Add(f.delay)
		for again := firstAgain; again <= lastAgain && rand.Float64() < f.loss; again *= 2 {
			due = due.Add(again)
		}
		wait := time.Until(due)
		f.mu.Unlock()
		time.Sleep(wait)
		f.mu.Lock()
		f.carried[d] += len(p.bytes)
		f.mu.Unlock()
		if _, err := to.Write(p.bytes); err != nil {
			broken = true
			from.Close() // nobody reads what it would send
		}
	}
	if tcp, ok := to.(*net.TCPConn); ok && f.open(d) {
		tcp.CloseWrite()
	}
}

// open waits until a direction is. It is false when the test ends.
func (f *Forwarder) open(d Direction) bool {
	for {
		f.mu.Lock()
		held, ended, changed := f.held[d], f.ended, f.changed
		f.mu.Unlock()
		if ended {
			return false
		}
		if !held {
			return true
		}
		<-changed
	}
}
