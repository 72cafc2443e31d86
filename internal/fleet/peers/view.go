package peers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/peers/peerspb"
)

// The bounds of an update. A peer that exceeds them is broken, and is not believed.
const (
	mostDrained = uint64(time.Hour)
	mostCount   = 1 << 40
)

// ForgetAfter is how long the last update of a silent peer counts. Until then its requests
// are assumed to run on, because connections break more often than gateways. Afterwards they
// are forgotten, so that engines without requests are not avoided for ever.
const ForgetAfter = 10 * time.Second

// View holds the updates of other gateways. It is used by one goroutine at a time.
type View struct {
	peers map[string]*peer // by instance
	// missing is the time of which entries of some peer are missing.
	missing struct{ from, to int64 }
}

type peer struct {
	heard int64 // when it told something last
	clock
	next  uint64 // the sequence of the update that follows
	ranks map[Key]cost.Peers
}

// News are a peer's entries of a rank, and what it has learned there.
type News struct {
	Of      Key
	Entries []cost.Entry
	Learned *cost.Coefficients
}

// Hear processes an update of a peer at time now and returns the ranks that it changes and the
// entries in it. An update with an error is ignored as a whole.
func (v *View) Hear(now int64, instance string, u *peerspb.Update) (changed []Key, news []News, err error) {
	if err := check(u); err != nil {
		return nil, nil, err
	}
	p := v.peers[instance]
	if p == nil {
		if v.peers == nil {
			v.peers = map[string]*peer{}
		}
		p = &peer{ranks: map[Key]cost.Peers{}}
		v.peers[instance] = p
	}
	p.heard = now
	if u.MadeNs > 0 {
		before := p.made
		p.clock.hear(now, int64(u.MadeNs))
		if before != 0 && u.Sequence != p.next {
			v.missed(before, p.made)
		}
		p.next = u.Sequence + 1
	}
	told := make(map[Key]struct{}, len(u.Ranks))
	for _, r := range u.Ranks {
		k := Key{r.Engine, int(r.Rank)}
		told[k] = struct{}{}
		p.ranks[k] = cost.Peers{Drained: now + int64(r.DrainedNs), InFlight: r.InFlight, Decoders: r.Decoders, Held: r.HeldTokens}
		changed = append(changed, k)
		if u.MadeNs > 0 {
			n := News{Of: k, Entries: entries(r, p.made)}
			if c := r.Learned; c != nil {
				n.Learned = &cost.Coefficients{Step: c.Step, Token: c.Token, Pair: c.Pair, Decode: c.Decode, Decoder: c.Decoder}
			}
			news = append(news, n)
		}
	}
	if !u.Full {
		return changed, news, nil
	}
	for k := range p.ranks {
		if _, ok := told[k]; !ok {
			delete(p.ranks, k)
			changed = append(changed, k)
			news = append(news, News{Of: k, Entries: []cost.Entry{{Kind: cost.Left, At: now}}})
		}
	}
	return changed, news, nil
}

// quiet is for how long entries of others wait for those of a peer. A peer sends an update each
// second.
const quiet = int64(3 * time.Second)

// Complete returns until when the entries of all peers that send some are known, at time now.
func (v *View) Complete(now int64) int64 {
	until := now
	for _, p := range v.peers {
		if p.made != 0 && now-p.heard < quiet {
			until = min(until, p.made)
		}
	}
	return until
}

func (v *View) missed(from, to int64) {
	if m := &v.missing; m.to != 0 {
		from, to = min(from, m.from), max(to, m.to)
	}
	v.missing.from, v.missing.to = from, to
}

// Missing returns the time of which entries of some peer are missing since the last call. ok is
// false if none are.
func (v *View) Missing() (from, to int64, ok bool) {
	from, to = v.missing.from, v.missing.to
	v.missing.from, v.missing.to = 0, 0
	return from, to, to != 0
}

// Unknown returns the ranks where a peer has requests whose entries are not known at time now: it
// sends none, or it has been quiet.
func (v *View) Unknown(now int64) (all []Key) {
	for _, p := range v.peers {
		if p.made != 0 && now-p.heard < quiet {
			continue
		}
		for k, books := range p.ranks {
			if books.InFlight > 0 {
				all = append(all, k)
			}
		}
	}
	return all
}

// check returns why an update cannot be believed.
func check(u *peerspb.Update) error {
	if u.MadeNs > math.MaxInt64/2 {
		return errors.New("its clock is not possible")
	}
	most := MostEntries
	for _, r := range u.Ranks {
		if most -= len(r.Entries); most < 0 {
			return errors.New("more entries than a gateway can have")
		}
		if err := checkEntries(r); err != nil {
			return err
		}
		switch {
		case r.Engine == "" || r.Rank < -1:
			return errors.New("a rank without an engine")
		case r.DrainedNs > mostDrained || r.InFlight < 0 || r.InFlight > mostCount || r.Decoders < 0 || r.Decoders > mostCount || r.HeldTokens < 0 || r.HeldTokens > mostCount:
			return fmt.Errorf("what is booked on %s is not possible", r.Engine)
		}
	}
	for _, p := range u.Placements {
		switch {
		case p.Engine == "" || p.Rank < -1:
			return errors.New("a prompt without an engine")
		case p.ReadyNs > mostDrained || len(p.Blocks)%8 != 0 || len(p.Blocks) > 8*MostBlocks:
			return fmt.Errorf("a prompt at %s is not possible", p.Engine)
		}
	}
	return nil
}

// Sum returns what all peers together have booked on a rank, as if their prompts were
// computed one after the other.
func (v *View) Sum(now int64, of Key) cost.Peers {
	all := cost.Peers{Drained: now}
	for _, p := range v.peers {
		r, ok := p.ranks[of]
		if !ok {
			continue
		}
		all.Drained += max(r.Drained-now, 0)
		all.InFlight += r.InFlight
		all.Decoders += r.Decoders
		all.Held += r.Held
	}
	return all
}

// Keys are the ranks in the updates of any peer.
func (v *View) Keys() (all []Key) {
	for _, p := range v.peers {
		for k := range p.ranks {
			all = append(all, k)
		}
	}
	return all
}

// Silent forgets the peers without an update for ForgetAfter. It returns the ranks where they had
// bookings, and the peers.
func (v *View) Silent(now int64) (changed []Key, forgotten []string) {
	for instance, p := range v.peers {
		if now-p.heard < int64(ForgetAfter) {
			continue
		}
		changed = append(changed, v.Forget(instance)...)
		forgotten = append(forgotten, instance)
	}
	slices.Sort(forgotten)
	return changed, forgotten
}

// Forget forgets a peer that has reported its end, and returns the ranks where it had bookings.
func (v *View) Forget(instance string) (changed []Key) {
	if p := v.peers[instance]; p != nil {
		for k := range p.ranks {
			changed = append(changed, k)
		}
		delete(v.peers, instance)
	}
	return changed
}

// Age returns the time since the latest update of a peer, 0 if there was none.
func (v *View) Age(now int64, instance string) time.Duration {
	p := v.peers[instance]
	if p == nil {
		return 0
	}
	return time.Duration(now - p.heard)
}

// Blocks appends the blocks of a placement to dst.
func Blocks(dst []kvindex.Block, p *peerspb.Placement) []kvindex.Block {
	for b := p.Blocks; len(b) >= 8; b = b[8:] {
		dst = append(dst, kvindex.Block(binary.LittleEndian.Uint64(b)))
	}
	return dst
}
