package place

import (
	"context"
	"errors"
	"sync"
	"time"

	"weir/internal/fleet/cost"
	"weir/internal/trace"
)

// Turns are the turns of continuations, by model. Each stream of a dead engine
// needs a prefill at another engine, which delays the streams that decode there. The
// streams therefore take turns, a few at a time.
type Turns struct {
	Most int // of a model

	mu sync.Mutex
	of map[string]*turnsOf
}

// ErrNoTurn is the error of a stream that others have left no turn in time.
var ErrNoTurn = errors.New("others had their turn")

// Take waits until a stream of a model may continue, for as long as patience, and returns where it
// goes if the policy does not mind; nil: anywhere. First come, first served.
func (c *Turns) Take(ctx context.Context, t *Turn, model string, patience time.Duration) (before *cost.Rank, err error) {
	of := c.model(model)
	bound := time.NewTimer(patience)
	defer bound.Stop()
	select {
	case before = <-of.free:
		*t = Turn{of: of}
		return before, nil
	case <-bound.C:
		return nil, ErrNoTurn
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *Turns) model(name string) *turnsOf {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.of[name]
	if t == nil {
		if c.of == nil {
			c.of = map[string]*turnsOf{}
		}
		t = &turnsOf{free: make(chan *cost.Rank, c.Most), at: map[*cost.Rank]*group{}}
		for range c.Most {
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

// Turn is the turn of one stream. The zero value is none.
type Turn struct {
	of   *turnsOf
	at   *cost.Rank // where the stream was handed over with it; nil: nowhere yet
	went int64      // when
}

// Taken reports whether the stream has one.
func (t *Turn) Taken() bool { return t.of != nil }

// Goes notes that the stream goes to a rank.
func (t *Turn) Goes(rank *cost.Rank) {
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

// Ends gives the turn back; first says that the stream has had its first output.
func (t *Turn) Ends(first bool) {
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
	*t = Turn{}
}

// away removes the stream from its rank. The lock is held.
func (t *Turn) away() {
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
