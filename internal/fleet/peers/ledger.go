package peers

import (
	"encoding/binary"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/peers/peerspb"
)

// Protocol is the version of the protocol that this package speaks.
const Protocol = 1

// Key identifies a rank of an engine, by a name of the engine that all gateways share.
// Rank -1 is an engine without ranks.
type Key struct {
	Engine string
	Rank   int
}

// MostBlocks is the most blocks of prompts that a ledger holds until they are taken. Further
// prompts are left out and counted.
const MostBlocks = 1 << 20

// Ledger collects this gateway's updates for its peers.
//
// Place is called for each request, from many goroutines. All else is called by one
// goroutine.
type Ledger struct {
	followed atomic.Bool

	mu     sync.Mutex
	placed []placement
	blocks []byte // of all that were placed, one after another
	lost   uint64

	told map[Key]cost.Peers
}

// placement is a prompt that was placed since the last Take. Its blocks end at end.
type placement struct {
	key   Key
	ready int64
	end   int
}

// SetFollowed tells the ledger whether any gateway follows. Without followers Place does nothing.
func (l *Ledger) SetFollowed(is bool) {
	l.followed.Store(is)
	if is {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.placed, l.blocks, l.lost = nil, nil, 0
}

// Place records that a prompt of these blocks was sent to a rank. The rank will have
// computed it at ready, or has computed it if ready is 0.
func (l *Ledger) Place(of Key, blocks []kvindex.Block, ready int64) {
	if len(blocks) == 0 || !l.followed.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.blocks)/8+len(blocks) > MostBlocks {
		l.lost++
		return
	}
	for _, b := range blocks {
		l.blocks = binary.LittleEndian.AppendUint64(l.blocks, uint64(b))
	}
	l.placed = append(l.placed, placement{of, ready, len(l.blocks)})
}

// Take returns the placements since the last call, and how many were left out.
func (l *Ledger) Take(now int64) (all []*peerspb.Placement, lost uint64) {
	l.mu.Lock()
	placed, blocks, lost := l.placed, l.blocks, l.lost
	l.placed, l.blocks, l.lost = nil, nil, 0 // the messages keep them
	l.mu.Unlock()
	from := 0
	for i := range placed {
		p := &placed[i]
		m := &peerspb.Placement{Engine: p.key.Engine, Rank: int32(p.key.Rank), Blocks: blocks[from:p.end]}
		if p.ready != 0 {
			m.ReadyNs = uint64(max(p.ready-now, 1))
		}
		all = append(all, m)
		from = p.end
	}
	return all, lost
}

// unchanged is the time by which the end of a rank's prompts may move without another update.
const unchanged = int64(time.Millisecond)

// Books are what this gateway has in the books of a rank: what is booked, what it has entered since
// the update before, and what it has learned, if enough was measured.
type Books struct {
	cost.Peers
	Entries []cost.Entry
	Learned *cost.Coefficients
}

// Changes returns the ranks whose books differ from the latest update, among all that this gateway
// knows. A rank that it no longer knows has nothing booked.
func (l *Ledger) Changes(now int64, books iter.Seq2[Key, Books]) (ranks []*peerspb.Rank) {
	here := make(map[Key]struct{}, len(l.told))
	for k, b := range books {
		here[k] = struct{}{}
		p, old := b.Peers, l.told[k]
		moved := max(p.Drained, now) - max(old.Drained, now)
		if p.InFlight != old.InFlight || p.Decoders != old.Decoders || p.Held != old.Held || moved > unchanged || moved < -unchanged || len(b.Entries) > 1 {
			ranks = append(ranks, rank(k, p, b.Entries, now))
			l.tell(k, p)
		}
	}
	for k := range l.told {
		if _, ok := here[k]; !ok {
			ranks = append(ranks, rank(k, cost.Peers{}, nil, now))
			delete(l.told, k)
		}
	}
	return ranks
}

// All returns every rank with something booked or learned, for a full update.
func (l *Ledger) All(now int64, books iter.Seq2[Key, Books]) (ranks []*peerspb.Rank) {
	clear(l.told)
	for k, b := range books {
		p := b.Peers
		if p.InFlight == 0 && p.Decoders == 0 && p.Held == 0 && p.Drained <= now && len(b.Entries) <= 1 && b.Learned == nil {
			continue
		}
		r := rank(k, p, b.Entries, now)
		if c := b.Learned; c != nil {
			r.Learned = &peerspb.Coefficients{Step: c.Step, Token: c.Token, Pair: c.Pair, Decode: c.Decode, Decoder: c.Decoder}
		}
		ranks = append(ranks, r)
		l.tell(k, p)
	}
	return ranks
}

func (l *Ledger) tell(k Key, p cost.Peers) {
	if l.told == nil {
		l.told = map[Key]cost.Peers{}
	}
	l.told[k] = p
}

func rank(k Key, p cost.Peers, entries []cost.Entry, now int64) *peerspb.Rank {
	r := &peerspb.Rank{Engine: k.Engine, Rank: int32(k.Rank), DrainedNs: uint64(max(p.Drained-now, 0)), InFlight: p.InFlight, Decoders: p.Decoders, HeldTokens: p.Held}
	for i := range entries {
		if e := &entries[i]; e.Kind == cost.Told {
			r.Open, r.Progress = int64(e.Open), progress(&e.Progress, now)
		} else if m := entry(e, now); m != nil {
			r.Entries = append(r.Entries, m)
		}
	}
	return r
}
