package load

import "weir/internal/workload"

// session is one user's conversation under way. Each turn sends the earlier ones again, as
// chat clients do.
type session struct {
	turns []workload.Turn // that are to come
}

// begin makes the exchange's next request the next turn of the session, or the
// first one of the next session.
func (r *runner) begin(x *exchange, s *session) {
	if !r.plan.sessions() {
		return
	}
	if len(s.turns) == 0 {
		r.mu.Lock()
		r.sessions++
		x.session = r.sessions
		r.mu.Unlock()
		s.turns = r.plan.Workload.Sessions.Session(x.session - 1)
		x.said, x.nth = x.said[:0], 0
	}
	x.asked = &s.turns[0]
	x.nth++
}

// end records what was said in a turn. A session ends with a turn that was not answered,
// because the next turn would lack an answer.
func (s *session) end(x *exchange) {
	if x.session == 0 {
		return
	}
	if s.turns = s.turns[1:]; len(s.turns) == 0 {
		return
	}
	if x.sample.Outcome != Complete {
		s.turns = nil
		return
	}
	// The turn's message as it went on the wire.
	x.said = append(x.said, x.storage[x.ask.from:x.ask.to]...)
	x.said = append(x.said, `,{"role":"assistant","content":`...)
	x.said = append(append(x.said, marshal(string(x.judge.answer))...), `},`...)
}
