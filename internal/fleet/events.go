package fleet

import (
	"context"
	"strings"
	"sync"

	"weir/internal/engine"
	"weir/internal/kvevents"
	"weir/internal/kvsub"
	"weir/internal/route"
)

// following is what follows the KV events of engines: a goroutine for each life of an
// engine that publishes them.
type following struct {
	ctx    context.Context // Run's
	opts   *Options
	budget *kvevents.Budget
	done   sync.WaitGroup
}

// events has the events of an engine followed that is ready, for as long as its books are
// kept. What it cannot be is said beside the engine.
func (f *following) events(m *Member, l *life, e *route.Engine) {
	from := e.Facts.KVEvents
	if m.KVEvents.Endpoint != "" {
		from.Endpoint, from.Replay, from.Topic = m.KVEvents.Endpoint, m.KVEvents.Replay, m.KVEvents.Topic
		from.Host = "" // an address that is given says which
	}
	if from.Endpoint == "" || m.NoKVEvents || f.ctx == nil {
		return
	}
	o, err := sourceOf(from)
	if err != nil {
		from.Why = "its KV events are not used: " + err.Error() + "; say where they are with kv-events=tcp://HOST:PORT"
	}
	r := l.ranks[0]
	if r.number >= 0 && from.Why == "" {
		from.Why = "its KV events are not used: those of several ranks are not told apart yet"
	}
	if from.Why != "" {
		e.Note = strings.TrimPrefix(e.Note+"; "+from.Why, "; ")
		return
	}
	if r.unfollow != nil {
		if from == r.events {
			return
		}
		r.cease()
	}
	ctx, cancel := context.WithCancel(f.ctx)
	r.events, r.unfollow = from, cancel
	ev := route.NewEvents(l.base, from.BlockTokens, o.Replays, f.budget)
	o.Rank = ev.Rank
	o.Told = func(err error) {
		if ev.Tell(err) && f.opts.Events != nil && ctx.Err() == nil {
			f.opts.Events(*m, err)
		}
	}
	member := *m
	o.Panicked = func(p *engine.Panic) {
		if f.opts.Panicked != nil {
			f.opts.Panicked(member, p)
		}
	}
	m = &member
	r.books.Follow(ev)
	f.done.Go(func() { kvsub.Follow(ctx, o) })
}

// sourceOf says where to follow.
func sourceOf(from engine.KVEvents) (o kvsub.Options, err error) {
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
