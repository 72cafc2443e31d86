package place

import "weir/internal/fleet/cost"

// Tally is what has come of the requests on a token engine's rank, and was not told to its
// books yet. One worker gives a stream all its turns, so it has what the books lack of the
// stream when it ends.
type Tally struct {
	rank   *cost.Rank
	at     int64 // when the latest came
	tokens int
}

// add notes tokens. Streams of one rank mostly follow each other.
func (t *Tally) add(r *cost.Rank, at int64, tokens int) {
	if t.rank != r {
		t.Tell()
		t.rank = r
	}
	t.at = at
	t.tokens += tokens
}

// Tell passes the tally to the books. It is called before a worker waits, and before the
// end of a request is reported, so that the books then have all of its tokens.
func (t *Tally) Tell() {
	if t.tokens > 0 {
		t.rank.Tokens(t.at, t.tokens)
	}
	*t = Tally{}
}
