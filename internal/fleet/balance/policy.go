// Package balance chooses the engine rank for a request, by its cost on each rank
// (package cost) and by the part of its prompt that is resident there (package
// kvindex).
//
// Policies are pure: the time and random numbers are arguments. They are called
// concurrently, take no lock and allocate nothing.
package balance

import (
	"fmt"
	"slices"
	"strings"

	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
	"weir/internal/infer/spell"
)

// Request is the part of a request that a policy sees.
type Request struct {
	Now    int64 // on the clock of the books
	Length int   // of the prompt, in tokens
	// Output is the expected number of output tokens.
	Output float64
	// Session identifies the caller and the session that it names; 0 is none.
	Session uint64
	// Matches are the parts of the prompt in caches, in blocks of BlockTokens. There
	// are none if the prompt's blocks are unknown.
	Matches     kvindex.Matches
	BlockTokens int
	// Tried are the ranks at which the request has failed. They are not chosen again.
	// The choice then takes no turn.
	Tried []*cost.Rank
	// Dry is set if the choice is only for display: it takes no turn and changes no
	// state.
	Dry bool
	// Random is the source for ties, and for policies that draw.
	Random uint64
	// Answers is the number of a rank's running requests that it takes (n choices take n).
	// Among equal ranks, one with room for them is preferred. 0 ignores room.
	Answers int
	// Claims is set if other requests wait for ranks and their claims count
	// (cost.Rank.Claim). First is the rank where the request goes before those, or nil.
	Claims bool
	First  *cost.Rank
	// Halves describe how the request may be divided; nil if all engines of the model serve
	// requests whole.
	Halves *Halves
}

// Halves describe how a request may be divided: a prefill rank computes its prompt, and a
// decode rank fetches the result and generates. The prefill rank is chosen first, because its
// cost does not depend on the decode rank. Then the rank that generates is chosen, either
// with that prefill rank or for the whole request.
type Halves struct {
	// Asks is set if the choice is that of the prefill rank.
	Asks bool
	// Partner is set if a prefill rank was chosen. Ready is then the time in milliseconds
	// until the prompt is computed there, and Delays is the sum of the delays of other
	// requests. The transfer of the KV takes Fixed, and PerToken for each token that is
	// fetched.
	Partner         bool
	Ready, Delays   float64
	Fixed, PerToken float64
}

// Candidate is a rank that can take the request.
type Candidate struct {
	Rank  *cost.Rank
	Cache uint32 // its cache's ID in the index
	Does  Does
	KV    int64 // capacity of its cache in tokens, 0 if unknown
}

// Does is the part of a request that a candidate can serve.
type Does uint8

// The parts.
const (
	All    Does = iota // all of it
	Either             // all of it, or only what follows the prompt
	Decode             // only what follows the prompt
)

// Policy chooses among candidates.
type Policy interface {
	// Name returns the policy's name in a configuration.
	Name() string
	// Pick returns the index of the chosen candidate, or -1 if all were tried. It
	// records in d how the choice was made.
	Pick(q *Request, candidates []Candidate, d *Decision) int
}

// Decision records how a choice was made. It may be reused for another choice.
type Decision struct {
	Chosen int // -1: none
	Of     int // number of candidates
	Why    Why
	// Best are the candidates of the least cost, in ascending order. For a policy
	// without costs it has only the chosen one.
	Best  [4]Option
	N     int // of Best
	costs []float64
	fresh []int32 // tokens of the prompt that each would compute
}

// Option is a candidate as a decision saw it.
type Option struct {
	Index int
	Work  cost.Work
	cost.Estimate
}

// Why states what decided.
type Why uint8

// The reasons for a choice.
const (
	NoneLeft  Why = iota // all were tried
	Only                 // there was one
	LeastCost            // lowest cost by more than the uncertainty
	LeastKV              // among those of about the lowest cost, the least to compute or the smallest share of its KV in use
	Turn                 // it was its turn
	Chance
	FewestRequests
	FreedTurn // a continuation has just begun there (Decision.Follow)
)

// String names it as the timeline does.
func (w Why) String() string {
	return [...]string{"none left", "only one", "least cost", "least KV in use", "turn", "chance", "fewest requests", "freed turn"}[w]
}

// Patient reports whether a policy knows the cost of waiting for a full rank, so that full
// ranks may be among the candidates.
func Patient(p Policy) bool {
	switch p := p.(type) {
	case *Cost, *Session:
		return true
	case interface{ Patient() bool }:
		return p.Patient()
	}
	return false
}

// policies are all that there are, by name.
var policies = map[string]func() Policy{
	"cost":         func() Policy { return new(Cost) },
	"round-robin":  func() Policy { return new(RoundRobin) },
	"random":       func() Policy { return Random{} },
	"least-load":   func() Policy { return LeastLoad{} },
	"power-of-two": func() Policy { return PowerOfTwo{} },
	"session":      func() Policy { return NewSession() },
}

// Names lists the policies in alphabetical order.
func Names() []string {
	names := make([]string, 0, len(policies))
	for name := range policies {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// New returns the policy of a name, for one model.
func New(name string) (Policy, error) {
	if p, ok := policies[name]; ok {
		return p(), nil
	}
	return nil, Unknown(name, Names())
}

// Unknown returns the error of a policy name that does not exist, with the nearest name and
// all names.
func Unknown(name string, names []string) error {
	if near := spell.Nearest(name, names, 1+len(name)/3); near != "" {
		return fmt.Errorf("no policy %q; did you mean %q? The policies are %s", name, near, strings.Join(names, ", "))
	}
	return fmt.Errorf("no policy %q; the policies are %s", name, strings.Join(names, ", "))
}

// Work returns the work of the request at the candidate. If the candidate can serve all of
// it or half, it is half: a policy without costs uses engines by their roles.
func (q *Request) Work(c *Candidate) cost.Work {
	w := q.whole(c)
	if q.Halves != nil {
		q.Halves.of(&w, c)
	}
	return w
}

// whole is all of the request as the candidate would have it.
func (q *Request) whole(c *Candidate) cost.Work {
	w := cost.Work{Length: q.Length, New: q.Length, Output: q.Output}
	if m := q.Matches.Of(c.Cache); m.Soon > 0 {
		w.New = q.fresh(&m, c.Rank)
	}
	return w
}

// of makes of work the half that the candidate would have, where that is possible.
func (h *Halves) of(w *cost.Work, c *Candidate) {
	switch {
	case h.Asks:
		w.Part, w.Output = cost.PrefillPart, 0
	case h.Partner && c.Does != All:
		w.Part, w.After = cost.DecodePart, float32(h.Ready+h.Fixed+h.PerToken*float64(w.New))
	}
}

// fresh is how many tokens of the prompt are not resident when the rank has got to
// them.
func (q *Request) fresh(m *kvindex.Match, r *cost.Rank) int {
	blocks := m.Resident
	if m.Soon > blocks && float64(m.Ready-q.Now) <= (r.Wait(q.Now)+slack)*1e6 {
		blocks = m.Soon
	}
	// The last token is always computed.
	return max(q.Length-int(blocks)*q.BlockTokens, 1)
}

// slack is the time, in milliseconds, below which costs and moments are alike.
const slack = 2.0

// tried reports whether the candidate has failed the request.
func (q *Request) tried(c *Candidate) bool {
	for _, r := range q.Tried {
		if r == c.Rank {
			return true
		}
	}
	return false
}

// retry reports whether the request was given to another rank before.
func (q *Request) retry() bool { return len(q.Tried) > 0 }

// left is the number of candidates that were not tried.
func (q *Request) left(candidates []Candidate) int {
	n := len(candidates)
	if q.retry() {
		for i := range candidates {
			if q.tried(&candidates[i]) {
				n--
			}
		}
	}
	return n
}

// nth returns the place of the n-th candidate that was not tried.
func (q *Request) nth(candidates []Candidate, n int) int {
	if !q.retry() {
		return n
	}
	for i := range candidates {
		if q.tried(&candidates[i]) {
			continue
		}
		if n == 0 {
			return i
		}
		n--
	}
	return -1
}

// Note records a choice for which no costs were compared.
func (d *Decision) Note(q *Request, candidates []Candidate, i int, why Why) int {
	d.Chosen, d.Of, d.Why, d.N = i, len(candidates), why, 0
	if i >= 0 {
		d.N = 1
		d.Best[0].Index = i
		d.Best[0].Work = q.Work(&candidates[i])
		d.Best[0].Estimate = q.estimate(&candidates[i], &d.Best[0].Work)
	}
	return i
}

// Follow changes a choice that compared no costs: it takes the rank before where that is among the
// candidates, has not failed the request, and has at most spare more requests than the one that
// was chosen. It returns the candidate that is chosen now.
func (d *Decision) Follow(q *Request, candidates []Candidate, before *cost.Rank, spare int64) int {
	if before == nil || d.Chosen < 0 || d.Why == LeastCost || d.Why == LeastKV || d.Why == Only {
		return d.Chosen
	}
	for i := range candidates {
		if c := &candidates[i]; c.Rank == before && i != d.Chosen && !q.tried(c) && c.Rank.InFlight() <= candidates[d.Chosen].Rank.InFlight()+spare {
			return d.Note(q, candidates, i, FreedTurn)
		}
	}
	return d.Chosen
}

// estimate is what the work would cost at the candidate, and at its partner.
func (q *Request) estimate(c *Candidate, w *cost.Work) cost.Estimate {
	e := c.Rank.Estimate(q.Now, *w)
	if w.Part == cost.DecodePart {
		e.Others, e.Total = e.Others+q.Halves.Delays, e.Total+q.Halves.Delays
	}
	return e
}

// draw turns one random number into the next.
func draw(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// below returns a number below n of a random one.
func below(x uint64, n int) int { return int(draw(x) % uint64(n)) }
