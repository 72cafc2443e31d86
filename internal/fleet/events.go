package fleet

import (
	"context"
	"sync"

	"weir/internal/engine"
	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/kvsub"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/tenancy"
)

// following is what follows the KV events of engines: a goroutine for each life of an
// engine that publishes them.
type following struct {
	ctx    context.Context // Run's
	opts   *Options
	budget *kvevents.Budget
	done   sync.WaitGroup
}

// events subscribes to the events of each rank of a ready engine, for as long as the
// rank's books are kept. An error is shown with the engine.
func (f *following) events(m *Member, l *life, e *route.Engine) {
	if m.NoKVEvents || f.ctx == nil {
		return
	}
	for _, r := range l.ranks {
		if !r.there {
			continue
		}
		if from, o := sourceOf(m, r.number, &e.Facts); from.Why != "" {
			note(e, from.Why)
		} else if from.Endpoint != "" && e.Facts.Salts.Untold && f.opts.isolation(l.base, "") != tenancy.Shared {
			note(e, saltsUntold)
			r.cease()
		} else if from.Endpoint != "" {
			f.rank(m, r, l.base, from, o)
		}
	}
}

// saltsUntold says why the KV events of an engine whose model isolates callers are not used.
const saltsUntold = "its KV events are not used: before SGLang 0.5.18 they do not tell the blocks of isolated callers apart"

// sourceOf returns the address at which a rank publishes its events, where rank -1 is
// an engine without ranks. why is the reason if they cannot be followed.
func sourceOf(m *Member, rank int, facts *engine.Facts) (from engine.KVEvents, o kvsub.Options) {
	from = facts.KVEvents
	for i := range facts.Ranks {
		if facts.Ranks[i].Number == rank {
			from = facts.Ranks[i].KVEvents
		}
	}
	if given := m.KVEvents; given.Endpoint != "" {
		given.BlockTokens, given.Why = from.BlockTokens, facts.KVEvents.Why
		from = given.OfRank(rank) // an address that is given says which host
	}
	switch {
	case from.Endpoint == "":
		return engine.KVEvents{}, o
	case from.Why != "":
		return from, o
	}
	if rank < 0 && facts.SideBySide > 1 {
		from.Why = "its KV events are not used: it has several data-parallel ranks, and requests cannot name theirs; start each rank as an engine of its own"
		return from, o
	}
	o, err := locate(from)
	if err != nil {
		from.Why = "its KV events are not used: " + err.Error() + "; say where they are with kv-events=tcp://HOST:PORT"
	}
	return from, o
}

// rank has a rank's events followed, by o.
func (f *following) rank(m *Member, r *rank, base string, from engine.KVEvents, o kvsub.Options) {
	if r.unfollow != nil {
		if from == r.events {
			return
		}
		r.cease()
	}
	ctx, cancel := context.WithCancel(f.ctx)
	r.events, r.unfollow = from, cancel
	ev := route.NewEvents(base, from.BlockTokens, o.Replays, f.budget)
	member := *m
	o.Rank = ev.Rank
	o.Told = func(err error) {
		if ev.Tell(err) && f.opts.Events != nil && ctx.Err() == nil {
			f.opts.Events(member, err)
		}
	}
	o.Panicked = func(p *infer.Panic) {
		if f.opts.Panicked != nil {
			f.opts.Panicked(member, p)
		}
	}
	o.Emptied = r.books.Cache.Clear
	r.books.Follow(ev)
	f.done.Go(func() { kvsub.Follow(ctx, o) })
}

// locate returns where to follow.
func locate(from engine.KVEvents) (o kvsub.Options, err error) {
	o.Topic = from.Topic
	if o.Events, err = kvsub.Locate(from.Endpoint, from.Host); err != nil || from.Replay == "" {
		return o, err
	}
	o.Replays = true
	o.Replay, err = kvsub.Locate(from.Replay, from.Host)
	return o, err
}

// cease ends the following of a rank's events.
func (r *rank) cease() {
	if r.unfollow == nil {
		return
	}
	r.unfollow()
	r.unfollow, r.events = nil, engine.KVEvents{}
	if r.books != nil {
		r.books.Follow(nil)
	}
}
