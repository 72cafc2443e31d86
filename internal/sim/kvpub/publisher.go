package kvpub

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"weir/internal/sim"
	"weir/internal/wire/zmtp"
)

// Options name the engine whose events are published.
type Options struct {
	Form     Form
	PageSize int
	Ranks    int
}

// Publisher publishes the events of an engine, by rank.
type Publisher struct {
	config Config
	ranks  []*rank
}

// rank is the publisher of one data-parallel rank.
type rank struct {
	config Config // with the endpoints that are bound
	bare   bool   // batches that are asked for come without their topic
	events net.Listener
	replay net.Listener // nil: none

	mu          sync.Mutex
	encoder     *encoder
	next        uint64 // number of the next batch
	kept        []numbered
	muted       bool
	subscribers map[*subscriber]bool
	conns       map[net.Conn]bool
	ended       bool
}

type numbered struct {
	seq   uint64
	batch []byte
}

// Listen binds the endpoints of every rank. With port 0 a port is taken that is free, and
// those behind it are for the other ranks.
func Listen(c Config, o Options) (*Publisher, error) {
	const tries = 50 // to find ports that follow one another
	for try := 1; ; try++ {
		p := &Publisher{config: c}
		err := p.listen(o)
		if err == nil {
			return p, nil
		}
		p.Close()
		if try == tries || o.Ranks == 1 || !(strings.HasSuffix(c.Endpoint, ":0") || c.ReplayEndpoint != nil && strings.HasSuffix(*c.ReplayEndpoint, ":0")) {
			return nil, err
		}
	}
}

func (p *Publisher) listen(o Options) error {
	// The other ranks bind relative to the port that rank 0 has bound.
	at := p.config
	for i := range o.Ranks {
		r := &rank{config: at, bare: o.Form == SGLangArrays, encoder: newEncoder(o.Form, i, o.PageSize), subscribers: map[*subscriber]bool{}, conns: map[net.Conn]bool{}}
		p.ranks = append(p.ranks, r)
		var err error
		if r.events, r.config.Endpoint, err = bind(&at, at.Endpoint, i); err != nil {
			return fmt.Errorf("endpoint: %w", err)
		}
		if at.ReplayEndpoint != nil {
			var replay string
			if r.replay, replay, err = bind(&at, *at.ReplayEndpoint, i); err != nil {
				return fmt.Errorf("replay_endpoint: %w", err)
			}
			r.config.ReplayEndpoint = &replay
		}
		if i == 0 {
			at = r.config
		}
	}
	return nil
}

// bind binds a rank's socket of an endpoint, and returns its address in the engine's
// notation.
func bind(c *Config, endpoint string, rank int) (l net.Listener, bound string, err error) {
	at, err := c.at(endpoint, rank)
	if err != nil {
		return nil, "", err
	}
	if l, err = zmtp.Listen(at); err != nil {
		return nil, "", err
	}
	if at.Network != "tcp" {
		return l, endpoint, nil
	}
	host, _, _ := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return l, "tcp://" + net.JoinHostPort(host, port), nil
}

// Sources are where each rank publishes.
func (p *Publisher) Sources() []Config {
	var all []Config
	for _, r := range p.ranks {
		all = append(all, r.config)
	}
	return all
}

// Close releases the endpoints. Serve also does this when it returns.
func (p *Publisher) Close() {
	for _, r := range p.ranks {
		r.end()
	}
}

// end closes a rank's sockets.
func (r *rank) end() {
	for _, l := range []net.Listener{r.events, r.replay} {
		if l != nil {
			l.Close()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for c := range r.conns {
		c.Close()
	}
}

// Serve serves subscribers until ctx ends.
func (p *Publisher) Serve(ctx context.Context) {
	var tasks sync.WaitGroup
	for _, r := range p.ranks {
		tasks.Go(func() { r.accept(&tasks, r.events, zmtp.Pub, r.subscribe) })
		if r.replay != nil {
			tasks.Go(func() { r.accept(&tasks, r.replay, zmtp.Router, r.answer) })
		}
	}
	<-ctx.Done()
	p.Close()
	tasks.Wait()
}

// Publish publishes a rank's events, as one batch, at a time.
func (p *Publisher) Publish(now time.Time, rank int, events []sim.KVEvent) {
	if len(events) > 0 {
		p.ranks[rank].publish(float64(now.UnixNano())/1e9, events)
	}
}

// Mute has batches lost on their way to those who listen, until it is called again. Who
// asks for them has them.
func (p *Publisher) Mute(on bool) {
	for _, r := range p.ranks {
		r.mu.Lock()
		r.muted = on
		r.mu.Unlock()
	}
}

// Offload has each page that is stored announced once more by a placeholder in the same batch, until
// it is called again: vLLM's CPU offloading announces so, at its defaults, what it has copied.
func (p *Publisher) Offload(on bool) {
	for _, r := range p.ranks {
		r.mu.Lock()
		r.encoder.placeholders = on
		r.mu.Unlock()
	}
}

// Restart begins anew, as another process at the same endpoints would.
func (p *Publisher) Restart() {
	for _, r := range p.ranks {
		r.mu.Lock()
		r.next, r.kept = 0, nil
		clear(r.encoder.pages)
		for c := range r.conns {
			c.Close()
		}
		r.mu.Unlock()
	}
}

func (r *rank) publish(now float64, events []sim.KVEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := numbered{r.next, r.encoder.batch(now, events)}
	r.next++
	if r.replay != nil {
		if r.kept = append(r.kept, b); len(r.kept) > r.config.BufferSteps {
			r.kept = r.kept[len(r.kept)-r.config.BufferSteps:]
		}
	}
	if r.muted || len(r.subscribers) == 0 {
		return
	}
	wire := zmtp.AppendMessage(nil, []byte(r.config.Topic), binary.BigEndian.AppendUint64(nil, b.seq), b.batch)
	for s := range r.subscribers {
		s.offer(r.config.Topic, wire, r.config.HWM)
	}
}

// accept takes connections until the listener is closed, and serves each until it ends.
func (r *rank) accept(tasks *sync.WaitGroup, l net.Listener, as zmtp.Type, serve func(*zmtp.Conn)) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors
			continue
		}
		if !r.keep(conn) {
			conn.Close()
			return
		}
		tasks.Go(func() {
			defer r.forget(conn)
			// A subscriber that does not read, even for a long time, loses batches but not
			// its connection.
			c, err := zmtp.Handshake(conn, zmtp.Config{Type: as, MaxMessage: 1 << 16, WriteTimeout: 24 * time.Hour})
			if err == nil {
				serve(c)
			}
		})
	}
}

// keep keeps a connection, so that it can be ended. It is false once all have.
func (r *rank) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[c] = true
	return !r.ended
}

func (r *rank) forget(c net.Conn) {
	c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// subscriber is one who listens.
type subscriber struct {
	mu     sync.Mutex
	topics map[string]int // subscriptions
	queue  [][]byte
	wake   chan struct{} // of capacity 1
}

// offer gives a message to a subscriber, unless it has not asked for it, or has too many
// that it did not take.
func (s *subscriber) offer(topic string, wire []byte, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.topics {
		if strings.HasPrefix(topic, t) && len(s.queue) < most {
			s.queue = append(s.queue, wire)
			select {
			case s.wake <- struct{}{}:
			default:
			}
			return
		}
	}
}

func (s *subscriber) take(spare [][]byte) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.queue
	s.queue = spare[:0]
	return queue
}

// subscribe serves one who listens.
func (r *rank) subscribe(c *zmtp.Conn) {
	s := &subscriber{topics: map[string]int{}, wake: make(chan struct{}, 1)}
	r.mu.Lock()
	r.subscribers[s] = true
	r.mu.Unlock()
	var writer sync.WaitGroup
	left := make(chan struct{})
	writer.Go(func() {
		var queue [][]byte
		for {
			select {
			case <-s.wake:
			case <-left:
				return
			}
			queue = s.take(queue)
			for i, wire := range queue {
				if c.Write(wire) != nil {
					return
				}
				queue[i] = nil
			}
		}
	})
	for {
		frames, err := c.Recv()
		if err != nil {
			break
		}
		if topic, on, ok := zmtp.Subscription(frames); ok {
			s.mu.Lock()
			if on {
				s.topics[topic]++
			} else if s.topics[topic]--; s.topics[topic] <= 0 {
				delete(s.topics, topic)
			}
			s.mu.Unlock()
		}
	}
	r.mu.Lock()
	delete(r.subscribers, s)
	r.mu.Unlock()
	close(left)
	c.NetConn().Close() // a write that waits ends
	writer.Wait()
}

// answer serves one who asks for batches again: those from a number on that are kept, and
// a mark behind them.
func (r *rank) answer(c *zmtp.Conn) {
	for {
		frames, err := c.Recv()
		if err != nil {
			return
		}
		if len(frames) != 2 || len(frames[1]) > 8 {
			continue
		}
		from := binary.BigEndian.Uint64(append(make([]byte, 8-len(frames[1])), frames[1]...))
		r.mu.Lock()
		kept := r.kept
		r.mu.Unlock()
		send := func(topic string, seq uint64, batch []byte) error {
			number := binary.BigEndian.AppendUint64(nil, seq)
			if r.bare {
				return c.Send(nil, number, batch)
			}
			return c.Send(nil, []byte(topic), number, batch)
		}
		for _, b := range kept {
			if b.seq >= from && err == nil {
				err = send(r.config.Topic, b.seq, b.batch)
			}
		}
		if err == nil {
			err = send("", 1<<64-1, nil)
		}
		if err != nil {
			return
		}
	}
}
