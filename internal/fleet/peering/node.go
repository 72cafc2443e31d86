package peering

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"iter"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/peers"
	"weir/internal/fleet/peers/peerspb"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Intervals of a node.
const (
	// tellEvery is the longest time until a change of the books is sent.
	tellEvery = 10 * time.Millisecond
	// fullEvery is the time from one full update to the next.
	fullEvery = time.Second
	// sayEvery is the time after which an update is sent that says nothing but that nothing has
	// changed. Peers learn from what has happened by then.
	sayEvery = 100 * time.Millisecond
	// silence ends a stream on which nothing came: of a full update each second, several are
	// missing.
	silence = 5 * time.Second
	// buffered is how many updates a slow follower may be behind.
	buffered = 64
	// mostConnections is how many connections others may have to this gateway, each of which needs
	// one. One that has not finished its handshake, or follows nothing, ends after silence.
	mostConnections = 256
	// farewell is how long followers have to read the last update.
	farewell = 500 * time.Millisecond
)

// Options configure a Node. All but TLS, Client, Log, Panicked, Dial and Now are needed.
type Options struct {
	// TLS is the configuration with which other gateways follow this one; nil is no TLS.
	TLS *tls.Config
	// Client returns the configuration with which the next connection to another gateway is made;
	// nil is no TLS.
	Client func() *tls.Config
	// Peers are the addresses of the gateways, HOST:PORT. A host may have several addresses,
	// and this gateway's own may be among them.
	Peers []string
	// Look looks up the addresses of a host, each LookEvery.
	Look      func(ctx context.Context, host string) ([]string, error)
	LookEvery time.Duration
	// Snapshot is the fleet as it is.
	Snapshot func() *route.Snapshot
	Log      *slog.Logger
	// Panicked is called for panics while another gateway's messages are read, which end a stream
	// or a step only; it may be nil.
	Panicked func(*infer.Panic)
	// Dial replaces the dialer of TCP, in tests.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Now is the clock of the books; nil is trace.Now.
	Now func() int64
}

// Node is one gateway among several.
type Node struct {
	peerspb.UnimplementedPeersServer
	opts     Options
	instance string
	ledger   peers.Ledger
	server   *grpc.Server
	meters   meters

	mu        sync.Mutex
	followers map[*follower]struct{}
	leaving   bool
	joined    chan struct{} // has one if there are new followers

	heard heard
}

// follower is a gateway that follows this one.
type follower struct {
	updates chan *peerspb.Update
	behind  bool // it has missed an update, and is sent nothing before a full one
}

// heard is the content of other gateways' updates, and the addresses of these gateways.
type heard struct {
	mu     sync.Mutex
	view   peers.View
	of     *route.Snapshot // from which books are
	books  map[peers.Key]*route.Books
	blocks []kvindex.Block // of one placement
	links  map[string]*Link
}

// New makes a node. It serves nothing before Run.
func New(o Options) *Node {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = trace.Now
	}
	n := &Node{opts: o, instance: rand.Text(), followers: map[*follower]struct{}{}, joined: make(chan struct{}, 1)}
	n.heard.links = map[string]*Link{}
	options := []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: silence, Timeout: silence, MaxConnectionIdle: silence}),
		grpc.ConnectionTimeout(silence),
		grpc.MaxConcurrentStreams(4), // a peer follows by one; a later version may ask for more
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second}),
		grpc.MaxRecvMsgSize(64 << 10), // a follower says no more than who it is
		grpc.StreamInterceptor(func(service any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
			defer infer.Catch(&err, o.Panicked)
			return handle(service, s)
		}),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	n.server = grpc.NewServer(options...)
	peerspb.RegisterPeersServer(n.server, n)
	return n
}

// Placed returns a function to call with each prompt that is sent to a rank (route.Books.Share).
func (n *Node) Placed(engine string, rank int) func(blocks []kvindex.Block, ready int64) {
	of := peers.Key{Engine: engine, Rank: rank}
	return func(blocks []kvindex.Block, ready int64) { n.ledger.Place(of, blocks, ready) }
}

// Run serves others at l, and follows them, until ctx ends. It reports to its followers that this
// gateway leaves, and returns when all has ended.
func (n *Node) Run(ctx context.Context, l net.Listener) error {
	var tasks sync.WaitGroup
	failed := make(chan error, 1)
	tasks.Go(func() { failed <- n.server.Serve(netutil.LimitListener(l, mostConnections)) })
	tasks.Go(func() { n.tell(ctx) })
	tasks.Go(func() { n.find(ctx) })
	var err error
	select {
	case <-ctx.Done():
		over := time.AfterFunc(farewell, n.server.Stop)
		n.server.GracefulStop()
		over.Stop()
	case err = <-failed:
	}
	tasks.Wait()
	return err
}

// Follow implements the service.
func (n *Node) Follow(q *peerspb.FollowRequest, stream grpc.ServerStreamingServer[peerspb.Update]) error {
	f := &follower{updates: make(chan *peerspb.Update, buffered), behind: true}
	if err := n.join(f); err != nil {
		return err
	}
	defer n.part(f)
	for {
		select {
		case u := <-f.updates:
			if err := stream.Send(u); err != nil {
				return err
			}
			if n.meters.sent.Add(1); u.Leaving {
				return nil
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (n *Node) join(f *follower) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leaving {
		return status.Error(codes.Unavailable, "this gateway ends")
	}
	n.followers[f] = struct{}{}
	n.ledger.SetFollowed(true)
	select {
	case n.joined <- struct{}{}:
	default: // it is known already
	}
	return nil
}

func (n *Node) part(f *follower) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.followers, f)
	if len(n.followers) == 0 {
		n.ledger.SetFollowed(false)
	}
}

// tell sends changes to the followers, until ctx ends.
func (n *Node) tell(ctx context.Context) {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	sequence, lastFull, lastSent := uint64(0), int64(0), int64(0)
	for {
		select {
		case <-n.joined:
			lastFull = 0 // the new one needs all, and the others lose nothing by it
		case <-tick.C:
		case <-ctx.Done():
		}
		now := n.opts.Now()
		if n.idle() && ctx.Err() == nil {
			for range n.booked(now) {
			}
			n.learn(now)
			continue
		}
		u := &peerspb.Update{Instance: n.instance, Protocol: peers.Protocol, Sequence: sequence, MadeNs: uint64(now)}
		switch {
		case ctx.Err() != nil:
			u.Full, u.Leaving = true, true
			n.send(u)
			return
		case lastFull == 0 || now-lastFull >= int64(fullEvery):
			u.Full, lastFull = true, now
			u.Ranks = n.ledger.All(now, n.booked(now))
		default:
			u.Ranks = n.ledger.Changes(now, n.booked(now))
		}
		var lost uint64
		u.Placements, lost = n.ledger.Take(now)
		n.meters.unsaid.Add(lost)
		if u.Full || len(u.Ranks)+len(u.Placements) > 0 || now-lastSent >= int64(sayEvery) {
			n.send(u)
			sequence++
			lastSent = now
		}
		n.learn(now)
	}
}

// learn has the ranks learn from what all gateways have done, as far as it is known of all.
func (n *Node) learn(now int64) {
	defer func() { infer.Caught(recover(), n.opts.Panicked) }()
	var until, from, to int64
	var missing bool
	n.heard.set(func() {
		until = n.heard.view.Complete(now)
		for _, k := range n.heard.view.Unknown(now) {
			if b := n.heard.books[k]; b != nil {
				b.Rank.Doubt(now, now)
			}
		}
		from, to, missing = n.heard.view.Missing()
	})
	for _, b := range booksOf(n.opts.Snapshot()) {
		if missing {
			b.Rank.Doubt(from, to)
		}
		b.Rank.Settle(until, now)
	}
}

// idle reports whether nobody follows.
func (n *Node) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.followers) == 0
}

// send gives an update to every follower that is not too far behind.
func (n *Node) send(u *peerspb.Update) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaving = n.leaving || u.Leaving
	for f := range n.followers {
		if f.behind && !u.Full {
			n.meters.missed.Add(1)
			continue
		}
		select {
		case f.updates <- u:
			f.behind = false
		default:
			f.behind = true
			n.meters.missed.Add(1)
		}
	}
}

// booked are this gateway's books of every rank.
func (n *Node) booked(now int64) iter.Seq2[peers.Key, peers.Books] {
	return func(yield func(peers.Key, peers.Books) bool) {
		for k, b := range booksOf(n.opts.Snapshot()) {
			var told peers.Books
			told.Peers, told.Entries = b.Rank.Tell(now)
			if c, _ := b.Rank.Coefficients(); !b.Rank.Cold() {
				told.Learned = &c
			}
			if !yield(k, told) {
				return
			}
		}
	}
}

// booksOf are the books of a snapshot's ranks.
func booksOf(s *route.Snapshot) iter.Seq2[peers.Key, *route.Books] {
	return func(yield func(peers.Key, *route.Books) bool) {
		for _, e := range s.Engines {
			for _, r := range e.Ranks {
				if r.Books != nil && !yield(peers.Key{Engine: e.Name, Rank: r.Number}, r.Books) {
					return
				}
			}
		}
	}
}

// meters count what a node does.
type meters struct {
	sent, received, missed, unsaid, placed atomic.Uint64
}

// Counts are sums since the node was made.
type Counts struct {
	Sent, Received uint64 // updates, over all streams
	Missed         uint64 // updates that slow followers were not sent
	Unsaid         uint64 // prompts that no follower was sent, because too many came at once
	Placed         uint64 // prompts of others that were placed
}

// Counts returns them.
func (n *Node) Counts() Counts {
	m := &n.meters
	return Counts{m.sent.Load(), m.received.Load(), m.missed.Load(), m.unsaid.Load(), m.placed.Load()}
}

// Link is an address that is followed.
type Link struct {
	Address  string
	Instance string // of the gateway there; empty: it has not answered
	Self     bool   // it is this gateway
	Err      error  // why nothing comes
	Age      time.Duration
}

// Links are the addresses that are followed, in order.
func (n *Node) Links() []Link {
	now := n.opts.Now()
	n.heard.mu.Lock()
	defer n.heard.mu.Unlock()
	var all []Link
	for _, l := range n.heard.links {
		one := *l
		one.Age = n.heard.view.Age(now, l.Instance)
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Link) int { return strings.Compare(a.Address, b.Address) })
	return all
}
