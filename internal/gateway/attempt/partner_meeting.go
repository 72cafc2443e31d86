package attempt

import (
	"math/rand/v2"

	"weir/internal/engine"
	"weir/internal/infer"
)

// rendezvous is how and where the two halves of a request meet.
type rendezvous struct {
	*engine.Meets // of the prefill engine
	rank          int
	choices       []meeting
	only          [1]meeting // is choices, for most requests
}

// meeting is the state shared by the two halves of a choice.
type meeting struct {
	id     string // of both
	at     infer.Bootstrap
	params []byte // for the decode half, if the prefill engine has answered them
}

// first reports whether the prefill engine answers before the decode half is made.
func (r *rendezvous) first() bool { return r.Way == engine.ByPull }

// prepare makes the meetings of n choices.
func (r *rendezvous) prepare(n int, id func() string) {
	if r.choices = r.only[:]; n > 1 {
		r.choices = make([]meeting, n)
	}
	for i := range r.choices {
		r.choices[i].id = id()
		if r.Way == engine.ByRoom {
			r.choices[i].at = infer.Bootstrap{Host: r.Host, Port: r.Port, Room: room(r.rank, r.Ranks), Rank: r.rank}
		}
	}
}

// half returns what makes a choice a half. It is nil for a decode half that has nothing to
// fetch: the request is then whole.
func (r *rendezvous) half(choice int, role infer.Role) *infer.Half {
	m := &r.choices[choice]
	h := &infer.Half{Role: role, Bootstrap: m.at}
	switch {
	case r.Way == engine.ByRoom:
	case role == infer.RolePrefill:
		h.Params = r.PrefillParams(m.id)
	case r.Way == engine.ByPush:
		h.Params = r.DecodeParams(r.rank, m.id)
	case m.params == nil:
		return nil
	default:
		h.Params = m.params
	}
	return h
}

// room returns the number under which two halves meet at a prefill engine. The engine chooses
// the rank by that number, so it selects the rank that was picked, if any. The prompts of a
// list use the numbers that follow.
func room(rank, ranks int) int64 {
	n := int64(max(ranks, 1))
	r := rand.Int64N(1 << 62)
	if rank >= 0 {
		r += int64(rank) - r%n
	}
	return r
}
