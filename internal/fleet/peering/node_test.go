package peering

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/test/bufconn"

	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/peers"
	"weir/internal/fleet/route"
)

// now is the clock of a bubble. trace.Now has its zero long after the bubble begins.
func now() int64 { return time.Now().UnixNano() }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is some gateways in front of the same engines, in one memory.
type cluster struct {
	t     *testing.T
	mu    sync.Mutex
	nodes map[string]*member // by address
	down  map[string]bool    // addresses that do not answer
	dns   []string
	err   error // of a look-up
	conns []net.Conn
	hangs bool // addresses that are down lose what is sent to them, and refuse nothing
}

// member is one of them.
type member struct {
	*Node
	addr     string
	snapshot atomic.Pointer[route.Snapshot]
	model    *cost.Model
	listener *bufconn.Listener
	stop     context.CancelFunc
	done     chan struct{}
}

func newCluster(t *testing.T) *cluster {
	return &cluster{t: t, nodes: map[string]*member{}, down: map[string]bool{}}
}

func (c *cluster) dial(ctx context.Context, addr string) (net.Conn, error) {
	c.mu.Lock()
	m, down, hangs := c.nodes[addr], c.down[addr], c.hangs
	c.mu.Unlock()
	switch {
	case down && hangs:
		<-ctx.Done()
		return nil, ctx.Err()
	case m == nil || down:
		return nil, errors.New("connection refused")
	}
	conn, err := m.listener.DialContext(ctx)
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

// part breaks all connections, and lets none be made.
func (c *cluster) part(hangs bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr := range c.nodes {
		c.down[addr] = true
	}
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns, c.hangs = nil, hangs
}

// heal ends part.
func (c *cluster) heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.down)
}

func (c *cluster) look(context.Context, string) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.dns), c.err
}

// start begins a gateway at an address of the name that all look up.
func (c *cluster) start(host string, engines ...string) *member {
	m := &member{addr: net.JoinHostPort(host, "7"), listener: bufconn.Listen(1 << 20), done: make(chan struct{}), model: cost.NewModel(cost.Typical)}
	m.serves(engines...)
	m.Node = New(Options{Peers: []string{"gateways:7"}, Look: c.look, LookEvery: time.Second, Snapshot: m.snapshot.Load, Dial: c.dial, Now: now})
	c.mu.Lock()
	c.nodes[m.addr] = m
	if !slices.Contains(c.dns, host) {
		c.dns = append(c.dns, host)
	}
	c.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	m.stop = sync.OnceFunc(func() { stop(); <-m.done })
	go func() {
		defer close(m.done)
		if err := m.Run(ctx, m.listener); err != nil {
			c.t.Error(err)
		}
	}()
	c.t.Cleanup(m.stop)
	return m
}

// serves publishes a snapshot with these engines.
func (m *member) serves(engines ...string) {
	s := &route.Snapshot{Index: kvindex.New(1 << 20)}
	for _, name := range engines {
		r := route.Whole(name)
		r.Books = route.NewBooks(m.model, s.Index, new(route.Shares), &engine.Facts{}, now())
		if m.Node != nil {
			r.Books.Share(m.Placed(name, -1))
		}
		s.Engines = append(s.Engines, &route.Engine{Name: name, Ranks: []*route.Rank{r}})
	}
	m.snapshot.Store(s)
}

func (m *member) books(engine string) *route.Books {
	for k, b := range booksOf(m.snapshot.Load()) {
		if k.Engine == engine {
			return b
		}
	}
	return nil
}

// theirs is how many requests others are believed to have at an engine.
func (m *member) theirs(engine string) int64 {
	return m.books(engine).Rank.Others().InFlight
}

// The others know the bookings of a gateway within two intervals. A new gateway knows at once what
// was booked before, and the bookings of a gateway that has left do not count.
func TestGatewaysKnowOfEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a", "e", "f"), c.start("b", "e", "f")
		time.Sleep(3 * time.Second) // both have found each other
		t.Logf("%+v %+v", a.Links(), b.Links())
		booking := a.books("e").Rank.Book(now(), cost.Work{Length: 100, New: 100, Output: 10})
		a.books("e").Rank.Book(now(), cost.Work{Length: 100, New: 100, Output: 10})
		time.Sleep(2 * tellEvery)
		if got := b.theirs("e"); got != 2 || b.theirs("f") != 0 || a.theirs("e") != 0 {
			t.Errorf("b believes %d requests of others at e, and %d at f; a %d", got, b.theirs("f"), a.theirs("e"))
		}
		joiner := c.start("c", "e", "f")
		time.Sleep(2 * time.Second)
		if got := joiner.theirs("e"); got != 2 {
			t.Errorf("a joiner believes %d requests at e", got)
		}
		booking.End(now(), 0)
		time.Sleep(2 * tellEvery)
		if b.theirs("e") != 1 || joiner.theirs("e") != 1 {
			t.Errorf("one has ended, and b believes %d, the joiner %d", b.theirs("e"), joiner.theirs("e"))
		}
		b.serves("f", "e") // its engines are new ranks
		time.Sleep(2 * time.Second)
		if got := b.theirs("e"); got != 1 {
			t.Errorf("new ranks believe %d requests of others", got)
		}
		a.stop()
		time.Sleep(2 * tellEvery)
		if b.theirs("e") != 0 || joiner.theirs("e") != 0 {
			t.Errorf("a has left, and b believes %d, the joiner %d", b.theirs("e"), joiner.theirs("e"))
		}
	})
}

// A prompt that one gateway places is found by the other, when it is computed.
func TestPlacementsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a", "e"), c.start("b", "e")
		a.serves("e")
		time.Sleep(3 * time.Second)
		prompt := []kvindex.Block{1, 2, 3}
		a.books("e").Place(prompt, now()+int64(time.Second))
		time.Sleep(2 * tellEvery)
		has := func() kvindex.Match {
			return b.snapshot.Load().Index.Match(nil, prompt, now()).Of(b.books("e").Cache.ID)
		}
		if m := has(); m.Resident != 0 || m.Soon != 3 {
			t.Errorf("while it is computed: %+v", m)
		}
		time.Sleep(time.Second)
		if m := has(); m.Resident != 3 {
			t.Errorf("when it is: %+v", m)
		}
	})
}

// A gateway that vanishes counts by its last word until it is forgotten; one that comes back
// sooner is believed at once. A name server that fails changes nothing.
func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a", "e"), c.start("b", "e")
		time.Sleep(3 * time.Second)
		a.books("e").Rank.Book(now(), cost.Work{Length: 100, New: 100, Output: 10})
		time.Sleep(2 * tellEvery)
		cut := func(is bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.down[a.addr] = is
			if c.err = nil; is {
				c.err = errors.New("no name server")
			}
		}
		cut(true)
		a.server.Stop() // its connections break, and it lives on
		time.Sleep(peers.ForgetAfter - time.Second)
		if got := b.theirs("e"); got != 1 {
			t.Errorf("its last word counts no more: %d", got)
		}
		time.Sleep(3 * time.Second)
		if got := b.theirs("e"); got != 0 {
			t.Errorf("it is still believed: %d", got)
		}
		for _, l := range b.Links() {
			if l.Address == a.addr && l.Err == nil {
				t.Errorf("%+v has no error", l)
			}
		}
		cut(false)
	})
}

// However long gateways were cut off from each other, they agree soon after it: within a second
// where connections were refused, and an attempt later where nothing came back at all.
func TestPartitionHeals(t *testing.T) {
	for name, within := range map[string]time.Duration{"refused": time.Second, "lost": connecting + time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				a, b := c.start("a", "e"), c.start("b", "e")
				time.Sleep(3 * time.Second)
				for _, lasts := range []time.Duration{time.Second, 7 * time.Second, 61300 * time.Millisecond} {
					c.part(name == "lost")
					time.Sleep(lasts)
					booked := a.books("e").Rank.Book(now(), cost.Work{Length: 100, New: 100, Output: 10})
					other := b.books("e").Rank.Book(now(), cost.Work{Length: 100, New: 100, Output: 10})
					time.Sleep(100 * time.Millisecond)
					if a.theirs("e") != 0 || b.theirs("e") != 0 {
						t.Errorf("they know of each other while they are parted")
					}
					c.heal()
					time.Sleep(within)
					if a.theirs("e") != 1 || b.theirs("e") != 1 {
						t.Errorf("%v after a partition of %v they believe in %d and %d requests of each other, want 1", within, lasts, a.theirs("e"), b.theirs("e"))
					}
					booked.End(now(), 0)
					other.End(now(), 0)
					time.Sleep(5 * time.Second)
				}
			})
		})
	}
}

// serve has gateways give an engine requests that it computes in the same steps: a prompt of each
// gateway in a step, whose tokens take a time each.
func serve(r *rand.Rand, steps int, token time.Duration, gateways ...*member) {
	for range steps {
		all, bookings := 0, make([]*cost.Booking, len(gateways))
		for i, g := range gateways {
			n := 50 + r.IntN(2000)
			all += n
			bookings[i] = g.books("e").Rank.Book(now(), cost.Work{Length: n, New: n, Output: 1})
		}
		time.Sleep(5*time.Millisecond + time.Duration(all)*token)
		for _, b := range bookings {
			b.First(now(), 0, 0)
			b.Rank().Tokens(now(), 1)
		}
		for _, b := range bookings {
			b.End(now(), 1)
		}
		time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
	}
}

// Gateways learn what an engine takes for a token from the prompts of all. What they have learned
// stays while they are parted, and one that joins believes it.
func TestGatewaysLearnTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const token = 50 * time.Microsecond
		r := rand.New(rand.NewPCG(1, 2))
		c := newCluster(t)
		a, b := c.start("a", "e"), c.start("b", "e")
		a.serves("e")
		b.serves("e")
		time.Sleep(3 * time.Second)
		right := func(when string, gateways ...*member) {
			t.Helper()
			time.Sleep(2 * time.Second)
			for _, g := range gateways {
				got, seen := g.books("e").Rank.Coefficients()
				if is := got.Of(cost.Prefill(1000, 1000, 8192)); is < 48 || is > 62 || g.books("e").Rank.Cold() {
					t.Errorf("%s: gateway %s believes that 1,000 tokens take %.1f ms after %d intervals, and they take 55", when, g.addr, is, seen)
				}
			}
		}
		serve(r, 60, token, a, b)
		right("together", a, b)
		joiner := c.start("c", "e")
		joiner.serves("e")
		right("one joins", joiner)
		joiner.stop()
		c.part(true)
		_, before := a.books("e").Rank.Coefficients()
		held := b.books("e").Rank.Book(now(), cost.Work{Length: 9, New: 9, Output: 1})
		serve(r, 10, token, a, b)
		right("parted", a, b)
		c.heal()
		held.End(now(), 0)
		time.Sleep(5 * time.Second)
		serve(r, 60, token, a, b)
		right("together again", a, b)
		if _, seen := a.books("e").Rank.Coefficients(); seen < before+40 {
			t.Errorf("after the partition %d intervals were learned from, before it %d", seen, before)
		}
	})
}

// Connections that say nothing, and those that follow nothing, end soon, and there are no more than
// a bound of them: other gateways are heard meanwhile, and new ones afterwards.
func TestSilentConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a", "e"), c.start("b", "e")
		time.Sleep(3 * time.Second)
		var open atomic.Int64
		var silent sync.WaitGroup
		for i := range 2 * mostConnections {
			conn, err := a.listener.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			silent.Go(func() {
				defer conn.Close()
				if i%2 == 0 { // it has a handshake, and goes on to say that it is there
					io.WriteString(conn, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
				}
				_, err := io.ReadFull(conn, make([]byte, 9)) // the server's settings
				if err == nil {
					open.Add(1)
					_, _ = io.Copy(io.Discard, conn)
					open.Add(-1)
				}
			})
		}
		a.books("e").Rank.Book(now(), cost.Work{Length: 100, New: 100, Output: 10})
		time.Sleep(2 * tellEvery)
		if got := b.theirs("e"); got != 1 {
			t.Errorf("b knows of %d requests of a", got)
		}
		began, over := time.Now(), make(chan struct{})
		go func() {
			silent.Wait()
			close(over)
		}()
		most := int64(0)
		for ended := false; !ended; {
			synctest.Wait() // until then one whose end nobody has seen yet is counted beside the next
			most = max(most, open.Load())
			select {
			case <-over:
				ended = true
			case <-time.After(silence / 4):
			}
		}
		if took := time.Since(began); took > 8*silence {
			t.Errorf("the last silent connection ended after %v", took)
		}
		if most > mostConnections || most < mostConnections/2 {
			t.Errorf("%d silent connections at once", most)
		}
		d := c.start("d", "e")
		time.Sleep(3 * time.Second)
		if got := d.theirs("e"); got != 1 {
			t.Errorf("a new gateway knows of %d requests", got)
		}
	})
}
