package upstream

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"weir/internal/engine"
	"weir/internal/trace"
)

// Reading keeps the latest answer of one of an engine's pages that could be read. Silence is not an
// answer: what cannot be read now stays as it was, and is old. The zero value has read nothing.
type Reading[T any] struct {
	value T
	at    int64  // when it was read; 0: nothing was
	life  uint64 // of the engine, then
	why   error  // why it could not be read since; nil: it could
}

// Take takes the result of an attempt to read the page, and returns what is known of it. An error is
// returned only while nothing is known: nothing was ever read, or the engine has restarted since and
// answers that it has no such page.
func (r *Reading[T]) Take(c *Client, v T, err error) (T, error) {
	switch {
	case err == nil:
		*r = Reading[T]{value: v, at: trace.Now(), life: c.life.Load()}
	case r.at == 0 || absent(err) && r.life != c.life.Load():
		*r = Reading[T]{}
		return r.value, err
	case r.why == nil:
		r.why = err
	}
	return r.value, nil
}

// Known returns what the present process of the engine has said last; ok is false if it has not said
// anything. An answer that lacks a part of that is not a whole one.
func (r *Reading[T]) Known(c *Client) (v T, ok bool) {
	return r.value, r.at != 0 && r.life == c.life.Load()
}

// Old adds the page to those that could not be read lately, if it is one.
func (r *Reading[T]) Old(to []engine.Old, page string) []engine.Old {
	if r.why == nil {
		return to
	}
	return append(to, engine.Old{Page: page, Since: r.at, Why: r.why.Error()})
}

// absent reports whether a server says that it does not have what was asked for.
func absent(err error) bool {
	var refused *StatusError
	return errors.As(err, &refused) && slices.Contains([]int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented}, refused.Status)
}

// ErrHalf is the error of an answer that lacks what the same process has said before.
var ErrHalf = errors.New("the answer lacks what the engine has said before")

// Process tells the processes apart that answer at an engine's address one after the other, by a
// word that each of them keeps to: when it has started, or how long that took. A word that is another
// one at each reading is none.
type Process struct {
	now     string
	life    uint64 // of the engine, when it said so
	before  []string
	reads   int // of the present word
	brief   int // words in a row that were read once
	several bool
}

// Is takes the word of the process that answers, which is empty if it could not be read, and returns
// the engine's instance. A word that comes again after another one is not of a restart: several
// processes answer in turn, and nothing tells which of them has the requests.
func (p *Process) Is(c *Client, said string) string {
	const most = 8
	life := c.life.Load()
	switch {
	case said == "" && p.life != life: // it may be another one by now
		return ""
	case said == "" || p.several:
	case said != p.now && p.reads == 1 && p.brief >= 2:
		p.several = true
	case slices.Contains(p.before, said):
		p.several = true
	case said != p.now:
		if p.brief++; p.reads != 1 {
			p.brief = 0
		}
		p.reads = 1
		if p.now != "" {
			p.before = append(p.before[max(0, len(p.before)+1-most):], p.now)
			if p.life == life {
				life = c.life.Add(1)
			}
		}
		p.now, p.life = said, life
	default:
		p.life = life
		p.reads++
	}
	return p.now
}

// List is an engine's model list, and what it says of the engine.
type List struct {
	Facts engine.Facts
	Cards []Card
}

// ReadModels reads the model list into a Reading. That nothing answers is an error in any case, by
// which Watch notices that the engine is gone.
func (c *Client) ReadModels(ctx context.Context, r *Reading[List]) (List, error) {
	facts, cards, err := c.Models(ctx)
	var refused *StatusError
	if err != nil && !errors.As(err, &refused) && !errors.Is(err, errNoModels) && !errors.Is(err, errNoList) {
		return List{}, err
	}
	if had, ok := r.Known(c); err == nil && ok && (facts.ContextLength == 0 && had.Facts.ContextLength > 0 || Owner(cards) == "" && Owner(had.Cards) != "") {
		err = ErrHalf
	}
	return r.Take(c, List{facts, cards}, err)
}
