package kvsub

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
	"go.uber.org/goleak"

	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/kvindex"
	"weir/internal/infer"
	"weir/internal/wire/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// publisher is one at its two sockets.
type publisher struct {
	t              *testing.T
	events, replay net.Listener
	joined         chan *zmtp.Conn // connections that have subscribed
	topics         chan string
	asked          chan uint64
	done           sync.WaitGroup

	mu    sync.Mutex
	log   [][]byte
	conns []*zmtp.Conn
	more  bool // replays never end
	bare  bool // they have no topic
}

func newPublisher(t *testing.T) *publisher {
	t.Helper()
	p := &publisher{t: t, joined: make(chan *zmtp.Conn, 100), topics: make(chan string, 100), asked: make(chan uint64, 100)}
	listen := func(serve func(net.Conn)) net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p.done.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				p.done.Go(func() { serve(c) })
			}
		})
		return l
	}
	p.events, p.replay = listen(p.subscriber), listen(p.answer)
	t.Cleanup(func() {
		p.events.Close()
		p.replay.Close()
		p.cut()
		p.done.Wait()
	})
	return p
}

func (p *publisher) keep(c *zmtp.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
}

// cut ends all connections.
func (p *publisher) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func (p *publisher) subscriber(conn net.Conn) {
	c, err := zmtp.Handshake(conn, zmtp.Config{Type: zmtp.Pub})
	if err != nil {
		return
	}
	p.keep(c)
	for {
		frames, err := c.Recv()
		if err != nil {
			return
		}
		if topic, on, ok := zmtp.Subscription(frames); ok && on {
			p.topics <- topic
			p.joined <- c
		}
	}
}

func (p *publisher) answer(conn net.Conn) {
	c, err := zmtp.Handshake(conn, zmtp.Config{Type: zmtp.Router})
	if err != nil {
		return
	}
	p.keep(c)
	frames, err := c.Recv()
	if err != nil || len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
		p.t.Errorf("%d frames ask for a replay, %v", len(frames), err)
		return
	}
	from := binary.BigEndian.Uint64(frames[1])
	p.asked <- from
	p.mu.Lock()
	log, more, bare := p.log, p.more, p.bare
	p.mu.Unlock()
	send := func(topic string, seq uint64, batch []byte) error {
		number := binary.BigEndian.AppendUint64(nil, seq)
		if bare {
			return c.Send(nil, number, batch)
		}
		return c.Send(nil, []byte(topic), number, batch)
	}
	for seq := from; seq < uint64(len(log)) && err == nil; seq++ {
		err = send("kv@m", seq, log[seq])
	}
	for more && err == nil {
		err = send("kv@m", from, make([]byte, 1<<20))
	}
	_ = send("", math.MaxUint64, nil)
	_, _ = c.Recv()
}

// publish sends a batch to a subscriber, or only keeps it.
func (p *publisher) publish(to *zmtp.Conn, batch []byte) {
	p.mu.Lock()
	seq := uint64(len(p.log))
	p.log = append(p.log, batch)
	p.mu.Unlock()
	if to != nil {
		p.send(to, seq, batch)
	}
}

func (p *publisher) send(to *zmtp.Conn, seq uint64, batch []byte) {
	if err := to.Send([]byte("kv@m"), binary.BigEndian.AppendUint64(nil, seq), batch); err != nil {
		p.t.Errorf("send: %v", err)
	}
}

// stored is the batch of a prompt of one block, which is all of one id.
func stored(id uint32) []byte {
	b := msgp.AppendArrayHeader(nil, 2)
	b = msgp.AppendFloat64(b, float64(id))
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendMapHeader(b, 5)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
	b = msgp.AppendUint64(msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), 1), uint64(id))
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), 16)
	for range 16 {
		b = msgp.AppendUint32(b, id)
	}
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), 16)
	return msgp.AppendNil(msgp.AppendArrayHeader(msgp.AppendString(b, "extra_keys"), 1))
}

func newRank(replays bool) *kvevents.Rank {
	return kvevents.New(kvevents.Options{IndexTokens: 16, Replays: replays, Budget: kvevents.NewBudget(1 << 20),
		Root: func(_, _ string) kvindex.Block { return kvindex.Root(0) }})
}

// has reports whether the rank believes that the prompt of an id is there.
func has(r *kvevents.Rank, id uint32) bool {
	ids := make([]uint32, 16)
	for i := range ids {
		ids[i] = id
	}
	return r.Resident(kvindex.AppendChain(nil, kvindex.Root(0), ids, 16), 17) == 1
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// follow follows a publisher until the test ends, and gives what it is told.
func follow(t *testing.T, p *publisher, replays bool) (*kvevents.Rank, chan error) {
	t.Helper()
	r, told := newRank(replays), make(chan error, 1000)
	followAs(t, p, r, Options{Replays: replays, Told: func(err error) { told <- err }})
	return r, told
}

// followAs follows a publisher into a rank until the test ends, with some options given.
func followAs(t *testing.T, p *publisher, r *kvevents.Rank, o Options) {
	t.Helper()
	o.Events, o.Replay, o.Topic, o.Rank, o.ReplayPause = zmtp.EndpointOf(p.events), zmtp.EndpointOf(p.replay), "kv@", r, time.Millisecond
	o.Panicked = func(p *infer.Panic) { t.Errorf("%v\n%s", p, p.Stack) }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Follow(ctx, o)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if s := r.Stats(); r.Knowledge() != kvevents.Unknown || s.Blocks != 0 {
			t.Errorf("after the end %v, %+v", r.Knowledge(), s)
		}
	})
}

func next[T any](t *testing.T, from chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("no %T came", v)
	}
	return v
}

// Events from before, events from now on, and events that are lost on the way are all known. A
// connection that breaks costs nothing, and a publisher that begins anew is known from its
// beginning.
func TestFollow(t *testing.T) {
	for _, bare := range []bool{false, true} {
		p := newPublisher(t)
		p.bare = bare
		p.publish(nil, stored(1))
		r, _ := follow(t, p, true)
		c := next(t, p.joined)
		if topic := next(t, p.topics); topic != "kv@" {
			t.Errorf("topic %q", topic)
		}
		if from := next(t, p.asked); from != 0 {
			t.Errorf("asks for %d", from)
		}
		eventually(t, "the first", func() bool { return has(r, 1) })
		p.publish(c, stored(2))
		eventually(t, "the second", func() bool { return has(r, 2) })
		p.publish(nil, stored(3))
		p.publish(c, stored(4))
		eventually(t, "the one that was lost", func() bool { return has(r, 3) && has(r, 4) && r.Knowledge() == kvevents.Known })
		if from := next(t, p.asked); from != 1 {
			t.Errorf("asks for %d", from)
		}
		p.cut()
		c = next(t, p.joined)
		if from := next(t, p.asked); from != 3 {
			t.Errorf("asks for %d", from)
		}
		p.publish(c, stored(5))
		eventually(t, "what came after the cut", func() bool { return has(r, 5) && has(r, 1) && r.Knowledge() == kvevents.Known })
		if s := r.Stats(); s.Gaps != 1 || s.Rebuilds != 0 || s.Replays != 3 {
			t.Errorf("%+v", s)
		}
		p.mu.Lock()
		p.log = nil
		p.mu.Unlock()
		for id := uint32(11); id < 20; id++ {
			p.publish(nil, stored(id))
		}
		p.cut()
		eventually(t, "the new one", func() bool { return has(r, 11) && has(r, 19) && !has(r, 1) && r.Knowledge() == kvevents.Known })
	}
}

// Without replays nothing is known of what came before.
func TestFollowWithoutReplays(t *testing.T) {
	p := newPublisher(t)
	p.publish(nil, stored(1))
	r, _ := follow(t, p, false)
	c := next(t, p.joined)
	p.publish(c, stored(2))
	eventually(t, "the second", func() bool { return has(r, 2) })
	if has(r, 1) || r.Knowledge() != kvevents.Partial {
		t.Errorf("%v", r.Knowledge())
	}
	p.cut()
	eventually(t, "the loss", func() bool { return !has(r, 2) })
	p.publish(next(t, p.joined), stored(3))
	eventually(t, "the third", func() bool { return has(r, 3) })
	if has(r, 2) {
		t.Error("what it had before the loss is believed")
	}
}

// A cache that was cleared, or is another process's, is said to be empty: what was
// believed of it besides is no more.
func TestEmptied(t *testing.T) {
	p := newPublisher(t)
	r, emptied := newRank(true), make(chan bool, 100)
	followAs(t, p, r, Options{Replays: true, Emptied: func() { emptied <- r.Knowledge() == kvevents.Known }})
	c := next(t, p.joined)
	if !next(t, emptied) {
		t.Error("one that has published nothing is not known")
	}
	p.publish(c, stored(1))
	eventually(t, "the first", func() bool { return has(r, 1) })
	p.publish(c, cleared())
	next(t, emptied)
	p.publish(c, stored(2))
	eventually(t, "what follows", func() bool { return has(r, 2) && !has(r, 1) })
	p.cut() // which it outlives
	c = next(t, p.joined)
	p.publish(c, stored(3))
	eventually(t, "what comes after the cut", func() bool { return has(r, 3) })
	if len(emptied) > 0 {
		t.Error("emptied by a cut")
	}
	p.mu.Lock()
	p.log = [][]byte{stored(11)}
	p.mu.Unlock()
	p.cut()
	next(t, emptied)
	eventually(t, "another one's", func() bool { return has(r, 11) && !has(r, 3) })
}

// cleared is the batch that says that nothing is left.
func cleared() []byte {
	b := msgp.AppendArrayHeader(nil, 2)
	b = msgp.AppendFloat64(b, 1)
	b = msgp.AppendMapHeader(msgp.AppendArrayHeader(b, 1), 1)
	return msgp.AppendString(msgp.AppendString(b, "type"), "AllBlocksCleared")
}

// Bytes that are no message of a publisher end the connection, and the next one is tried. Bytes
// that are no message of a replay end the replay.
func TestGarbage(t *testing.T) {
	p := newPublisher(t)
	r, told := follow(t, p, true)
	for _, frames := range [][][]byte{{{1}}, {nil, {1, 2, 3}, nil}, {nil, nil, nil, nil}} {
		c := next(t, p.joined)
		if err := c.Send(frames...); err != nil {
			t.Fatal(err)
		}
		for err := error(nil); !errors.Is(err, errForm); {
			err = next(t, told)
		}
	}
	c := next(t, p.joined)
	p.publish(c, []byte("garbage"))
	p.publish(c, stored(2))
	eventually(t, "what follows", func() bool { return has(r, 2) })
	if s := r.Stats(); s.Bad != 1 || r.Knowledge() != kvevents.Partial {
		t.Errorf("%+v, %v", s, r.Knowledge())
	}
}

// A replay without an end is given up, and takes no memory meanwhile. (It is cut here by
// the connection.)
func TestReplayWithoutEnd(t *testing.T) {
	p := newPublisher(t)
	p.more = true
	r, _ := follow(t, p, true)
	next(t, p.asked)
	if r.Knowledge() == kvevents.Known {
		t.Error("known by a replay without an end")
	}
	p.mu.Lock()
	p.more = false
	p.mu.Unlock()
	p.publish(nil, stored(1))
	p.cut()
	eventually(t, "it comes back", func() bool { return has(r, 1) })
}

// An endpoint that is the engine's own word leads to the engine and nowhere else.
func TestLocate(t *testing.T) {
	for _, test := range []struct{ endpoint, host, want string }{
		{"tcp://*:5557", "10.0.0.5", "tcp://10.0.0.5:5557"},
		{"tcp://*:5557", "", "tcp://127.0.0.1:5557"},
		{"tcp://0.0.0.0:5557", "gpu-1", "tcp://gpu-1:5557"},
		{"tcp://[::]:5557", "::1", "tcp://[::1]:5557"},
		{"tcp://10.0.0.5:5557", "10.0.0.5", "tcp://10.0.0.5:5557"},
		{"tcp://127.0.0.1:5557", "localhost", "tcp://127.0.0.1:5557"},
		{"tcp://10.0.0.5:5557", "", "tcp://10.0.0.5:5557"},
		{"ipc:///run/events", "10.0.0.5", "ipc:///run/events"},
		{"tcp://10.0.0.6:5557", "10.0.0.5", ""},
		{"tcp://127.0.0.1:5557", "10.0.0.5", ""},
		{"inproc://events", "10.0.0.5", ""},
	} {
		at, err := Locate(test.endpoint, test.host)
		if (err == nil) != (test.want != "") || err == nil && at.String() != test.want {
			t.Errorf("%s of %s: %v, %v", test.endpoint, test.host, at, err)
		}
	}
}
