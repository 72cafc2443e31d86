package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"weir/internal/fleet/cost"
	"weir/internal/fleet/peers"
	"weir/internal/fleet/peers/peerspb"
	"weir/internal/fleet/route"
	"weir/internal/infer"
)

// Pauses between two attempts to follow an address. A gateway that is gone leaves the name that
// is looked up, so attempts at it are few, and one that a network has cut off must be found soon
// after that.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 400 * time.Millisecond
	longPause  = 5 * time.Second // where there is nobody else to follow
)

// connecting bounds one attempt to connect. Without a bound of its own an attempt that began
// while a network lost everything would last for 20 s, whatever the network does by then.
const connecting = 2 * time.Second

// mostUpdate is the largest update that is read.
const mostUpdate = 64 << 20

// find looks up the addresses of peers, and follows each of them while it is there.
func (n *Node) find(ctx context.Context) {
	var following sync.WaitGroup
	defer following.Wait()
	stops := map[string]context.CancelFunc{}
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	tick := time.NewTicker(n.opts.LookEvery)
	defer tick.Stop()
	sweep := time.NewTicker(time.Second)
	defer sweep.Stop()
	for {
		wanted, failed := n.addresses(ctx)
		for addr, host := range wanted {
			if stops[addr] == nil {
				one, stop := context.WithCancel(ctx)
				stops[addr] = stop
				following.Go(func() { n.follow(one, addr, host) })
			}
		}
		for addr, stop := range stops {
			if _, there := wanted[addr]; !there && !failed { // what cannot be looked up may still be there
				stop()
				delete(stops, addr)
			}
		}
		for looked := false; !looked; {
			select {
			case <-tick.C:
				looked = true
			case <-sweep.C:
				n.sweep()
			case <-ctx.Done():
				return
			}
		}
	}
}

// addresses looks up all peers. It returns the host of each address, which the certificate
// there must be for. failed is set if some host could not be looked up.
func (n *Node) addresses(ctx context.Context) (hosts map[string]string, failed bool) {
	hosts = map[string]string{}
	for _, p := range n.opts.Peers {
		host, port, err := net.SplitHostPort(p)
		if err != nil {
			continue // the flags were checked
		}
		found, err := n.opts.Look(ctx, host)
		if err != nil {
			failed = true
			if ctx.Err() == nil {
				n.opts.Log.Warn("the addresses of other gateways cannot be looked up; those that are known stay", "host", host, "error", err)
			}
			continue
		}
		for _, a := range found {
			hosts[net.JoinHostPort(a, port)] = host
		}
	}
	return hosts, failed
}

// follow follows one address of a host until ctx ends.
func (n *Node) follow(ctx context.Context, addr, host string) {
	link := &Link{Address: addr}
	n.heard.set(func() { n.heard.links[addr] = link })
	defer n.lost(link)
	for pause := firstPause; ; {
		heard, err := n.once(ctx, host, link)
		if ctx.Err() != nil {
			return
		}
		if heard {
			pause = firstPause
		}
		news := false
		n.heard.set(func() { news = link.Err == nil || heard; link.Err = err })
		switch {
		case errors.Is(err, errSelf) || errors.Is(err, errTwice):
			pause = longPause
		case !news:
		case link.Instance == "":
			n.opts.Log.Info("another gateway is not there yet", "address", addr, "error", err)
		case errors.Is(err, errLeft):
			n.opts.Log.Info("another gateway has ended", "address", addr)
		default:
			n.opts.Log.Warn("another gateway is not followed; its requests count as they were last known, for a while", "address", addr, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, mostPause)
	}
}

// set changes what was heard, by change.
func (h *heard) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// lost ends a link whose address is gone. Nothing of its gateway counts any more.
func (n *Node) lost(link *Link) {
	h := &n.heard
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.links, link.Address)
	for _, other := range h.links {
		if other.Instance == link.Instance {
			return // it is there by another address
		}
	}
	n.forget(n.opts.Now(), link.Instance)
}

// forget forgets a gateway that has ended, or is another one by now. The lock is held.
func (n *Node) forget(now int64, instance string) {
	n.apply(now, n.heard.view.Forget(instance))
	n.ended(now, instance)
}

// ended has no rank count on requests of a gateway. The lock is held.
func (n *Node) ended(now int64, instance string) {
	for _, b := range n.heard.books {
		b.Rank.Hear(instance, []cost.Entry{{Kind: cost.Left, At: now}})
	}
}

// errSelf is why this gateway does not follow itself, and errTwice why it follows no gateway
// twice.
var (
	errSelf  = errors.New("this address is this gateway's own")
	errTwice = errors.New("the gateway is followed at another address")
	errLeft  = errors.New("the gateway has ended")
)

// once follows an address as long as updates come. heard reports whether any came.
func (n *Node) once(ctx context.Context, host string, link *Link) (heard bool, err error) {
	defer infer.Catch(&err, n.opts.Panicked)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(silence, func() { cancel(fmt.Errorf("nothing came for %v", silence)) })
	defer quiet.Stop()
	conn, err := n.connect(link.Address, host)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	stream, err := peerspb.NewPeersClient(conn).Follow(ctx, &peerspb.FollowRequest{Protocol: peers.Protocol, Instance: n.instance})
	for err == nil {
		var u *peerspb.Update
		if u, err = stream.Recv(); err != nil {
			break
		}
		quiet.Reset(silence)
		if err = n.hear(link, u, !heard); err == nil {
			heard = true
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return heard, err
}

// connect prepares a connection to an address. The certificate there must be for the host.
func (n *Node) connect(addr, host string) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if n.opts.Client != nil {
		config := n.opts.Client().Clone()
		config.ServerName = cmp.Or(config.ServerName, host)
		transport = credentials.NewTLS(config)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithNoProxy(), grpc.WithUserAgent("weir"), grpc.WithIdleTimeout(0),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithDisableHealthCheck(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostUpdate)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connecting}),
	}
	if n.opts.Dial != nil {
		options = append(options, grpc.WithContextDialer(n.opts.Dial))
	}
	return grpc.NewClient("passthrough:///"+addr, options...)
}

// hear takes an update from an address.
func (n *Node) hear(link *Link, u *peerspb.Update, first bool) error {
	h := &n.heard
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case u.Instance == "":
		return errors.New("the gateway does not say which it is")
	case u.Instance == n.instance:
		link.Self, link.Instance = true, u.Instance
		return errSelf
	}
	if first {
		for _, other := range h.links {
			if other != link && other.Instance == u.Instance && other.Err == nil {
				return errTwice
			}
		}
		if link.Err != nil || link.Instance == "" {
			n.opts.Log.Info("another gateway is followed", "address", link.Address)
		}
		if link.Instance != "" && link.Instance != u.Instance { // it has restarted
			n.forget(n.opts.Now(), link.Instance)
		}
		link.Instance, link.Self, link.Err = u.Instance, false, nil
	}
	n.meters.received.Add(1)
	now := n.opts.Now()
	if u.Leaving {
		n.forget(now, u.Instance)
		return errLeft
	}
	changed, news, err := h.view.Hear(now, u.Instance, u)
	if err != nil {
		return err
	}
	n.apply(now, changed)
	for i := range news {
		b := h.books[news[i].Of]
		if b == nil {
			continue // as below
		}
		b.Rank.Hear(u.Instance, news[i].Entries)
		if c := news[i].Learned; c != nil {
			b.Rank.Advise(now, *c)
		}
	}
	for _, p := range u.Placements {
		b := h.books[peers.Key{Engine: p.Engine, Rank: int(p.Rank)}]
		if b == nil {
			continue // an engine that is not known here, or not yet
		}
		h.blocks = peers.Blocks(h.blocks[:0], p)
		ready := int64(0)
		if p.ReadyNs > 0 {
			ready = now + int64(p.ReadyNs)
		}
		b.Cache.Place(h.blocks, ready)
		n.meters.placed.Add(1)
	}
	return nil
}

// sweep forgets peers that have been silent for long, and has new ranks know of all.
func (n *Node) sweep() {
	defer func() { infer.Caught(recover(), n.opts.Panicked) }()
	h := &n.heard
	h.mu.Lock()
	defer h.mu.Unlock()
	now := n.opts.Now()
	changed, forgotten := h.view.Silent(now)
	if len(forgotten) > 0 {
		n.opts.Log.Warn("what other gateways have told no longer counts: they have been silent for "+peers.ForgetAfter.String(), "gateways", len(forgotten))
	}
	n.apply(now, changed)
	for _, instance := range forgotten {
		n.ended(now, instance)
	}
}

// apply gives the books of ranks the sums of all peers. In a new snapshot ranks may be new, so all
// ranks get them then. The lock is held.
func (n *Node) apply(now int64, changed []peers.Key) {
	h := &n.heard
	if s := n.opts.Snapshot(); s != h.of {
		h.of, h.books = s, map[peers.Key]*route.Books{}
		for k, b := range booksOf(s) {
			h.books[k] = b
		}
		changed = append(changed, h.view.Keys()...)
	}
	slices.SortFunc(changed, func(a, b peers.Key) int { return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Rank, b.Rank)) })
	for _, k := range slices.Compact(changed) {
		if b := h.books[k]; b != nil {
			b.Rank.SetPeers(h.view.Sum(now, k))
		}
	}
}
