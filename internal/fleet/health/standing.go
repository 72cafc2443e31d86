package health

import "time"

// Streams that stand still at a rank that works. A rank's silence shows nothing of them,
// because the rank progresses with other streams.
//
// A stream that gets no tokens may be waiting with good reason: the engine has taken its KV
// blocks for other requests, and it waits to be computed again. Its time counts only while
// that cannot be the reason: most other streams at the rank advance, and either the rank has
// begun a request of the same priority that it was given after the stream stood still, or its
// cache is known to be half empty. Engines compute again what they have put back before they
// begin what came later, or at least behind only what waited by then.
//
// A request without a first token never counts: it may wait for its prefill, for a place, or
// for its grammar.

// progress is what consecutive looks have seen of a request's tokens.
type progress struct {
	tokens   int
	known    bool  // the count was known at the latest look
	moved    bool  // it has changed since the look before
	priority int64 // in the engine's queue
	from     int64 // the look that first saw it stand still; 0: it advances
	still    int64 // for how long others went on without it
}

// begun is the latest request of a priority that the rank has begun, by when it was handed
// over.
type begun struct{ priority, at int64 }

// priorities bounds how many priorities a rank remembers the latest request of.
const priorities = 8

// begins notes that a request has had its first token.
func (r *Rank) begins(q *Request) {
	for i := range r.latest {
		if b := &r.latest[i]; b.priority == q.progress.priority {
			b.at = max(b.at, q.at)
			return
		}
	}
	if len(r.latest) == priorities {
		r.latest = r.latest[:copy(r.latest, r.latest[1:])]
	}
	r.latest = append(r.latest, begun{q.progress.priority, q.at})
}

// overtaken reports whether the rank has begun a request of the same priority that it was
// given after q stood still.
func (r *Rank) overtaken(q *Request) bool {
	for _, b := range r.latest {
		if b.priority == q.progress.priority {
			return b.at > q.progress.from
		}
	}
	return false
}

// Prioritized sets the priority that a request has in the engine's queue. It is called right
// after HandedOver.
func (q *Request) Prioritized(priority int64) { q.progress.priority = priority }

// comparison is one look at the progress of a rank's requests.
type comparison struct {
	at             int64 // when the requests had been counted
	passed         int64 // since the look before
	advance, stand int   // requests
}

// Counted reports how many tokens a request has had, for the look that Rank.Look completes. ok
// is false where that is unknown, or where the engine owes the request nothing more.
func (q *Request) Counted(tokens int, ok bool) {
	p := &q.progress
	p.moved = !p.known || tokens != p.tokens
	p.tokens, p.known = tokens, ok
	switch r := q.rank; {
	case r == nil || !q.started || !ok:
	case p.moved:
		r.counting.advance++
	default:
		r.counting.stand++
	}
}

// Look completes the count of the rank's requests. Each of them is compared with the others
// afterwards (Compare). The requests of a rank may be tens of thousands, so neither needs all of
// them at one time. A request may begin or end in between.
func (r *Rank) Look(now int64) {
	at := r.fleet.at(now)
	r.counting.at, r.counting.passed = at, at-r.compared.at
	r.compared, r.counting = r.counting, comparison{}
}

// Compare compares a request's progress with that of the others in the latest look. roomy
// reports that at least half of the rank's KV cache is free.
func (q *Request) Compare(roomy bool) {
	r, p := q.rank, &q.progress
	switch {
	case r == nil || !q.started || !p.known || p.moved:
		p.from, p.still = 0, 0
	case p.from == 0:
		p.from = r.compared.at
	case r.compared.advance >= r.compared.stand && (roomy || r.overtaken(q)):
		p.still += r.compared.passed
	}
}

// Still returns for how long a request has stood still while the rank went on with others.
func (q *Request) Still() time.Duration { return time.Duration(q.progress.still) }

// Told has the time of Still begin anew.
func (q *Request) Told() { q.progress.still = 0 }
