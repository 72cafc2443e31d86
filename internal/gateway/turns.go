package gateway

import (
	"sync"
	"time"

	"weir/internal/fleet/cost"
	"weir/internal/trace"
)

// continuations holds the turns of continuations, by model. Each stream of a dead engine
// needs a prefill at another engine, which delays the streams that decode there. The
// streams therefore take turns, a few at a time.
type continuations struct {
	mu   sync.Mutex
	most int
	of   map[string]*turnsOf
}

// model returns the turns of a model.
func (c *continuations) model(name string) *turnsOf {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.of[name]
	if t == nil {
		if c.of == nil {
			c.of = map[string]*turnsOf{}
		}
		t = &turnsOf{free: make(chan *cost.Rank, c.most), at: map[*cost.Rank]*group{}}
		for range c.most {
			t.free <- nil
		}
		c.of[name] = t
	}
	return t
}

// turnsOf are the turns of a model.
//
// An engine computes the prompts that it has when a step begins, and all of them have their
// first output when it ends. So the turns of one step become free nearly together, and whoever
// takes them goes to the same engine (route.Choice.Before), whose next step begins soonest. At
// the others a step is under way, to whose end such a turn would be held for nothing.
//
// They are given on together too, when no stream with a turn is at that engine any more.
// Otherwise those that come first would begin a step with prompts, and those that come a
// moment later would wait for its end. From then on the engine would have the turns in two
// halves, and each of them would wait for the step of the other.
type turnsOf struct {
	// free has an element for each turn that is free: the rank where it was held last, or nil.
	free chan *cost.Rank

	mu sync.Mutex
	at map[*cost.Rank]*group
}

// group is the turns at a rank.
type group struct {
	under int         // of streams that have no output there yet
	back  int         // of streams that have had their first output, and that nobody was given yet
	timer *time.Timer // gives those that are back to others, although some are still under way
}

// longestGathering bounds how long a turn that is back is kept for others.
const longestGathering = time.Second

// turn is the turn of one stream. The zero value is none.
type turn struct {
	of   *turnsOf
	at   *cost.Rank // where the stream was handed over with it; nil: nowhere yet
	went int64      // when
}

// goes notes that the stream goes to a rank.
func (t *turn) goes(rank *cost.Rank) {
	if t.of == nil || t.at == rank {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.away()
	g := t.of.at[rank]
	if g == nil {
		g = new(group)
		t.of.at[rank] = g
	}
	g.under++
	t.at, t.went = rank, trace.Now()
}

// ends gives the turn back; first says that the stream has had its first output.
func (t *turn) ends(first bool) {
	of, at := t.of, t.at
	of.mu.Lock()
	defer of.mu.Unlock()
	if g := of.at[at]; first && g != nil {
		g.back++
		if g.timer == nil && g.under > 1 {
			// A stream that came when this one's step had begun has its own step next.
			g.timer = time.AfterFunc(min(time.Duration(trace.Now()-t.went), longestGathering), func() { of.late(at, g) })
		}
	} else {
		of.free <- nil // which has room for all turns
	}
	t.away()
	*t = turn{}
}

// away removes the stream from its rank. The lock is held.
func (t *turn) away() {
	g := t.of.at[t.at]
	if g == nil {
		return
	}
	if g.under--; g.under == 0 {
		t.of.give(t.at, g)
		delete(t.of.at, t.at)
	}
}

// give passes the returned turns on to other streams. The lock is held.
func (of *turnsOf) give(rank *cost.Rank, g *group) {
	for ; g.back > 0; g.back-- {
		of.free <- rank
	}
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
}

// late has those that are back go on, although others are not.
func (of *turnsOf) late(rank *cost.Rank, g *group) {
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.at[rank] == g {
		of.give(rank, g)
	}
}
