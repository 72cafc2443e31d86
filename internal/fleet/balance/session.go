package balance

import "sync/atomic"

// Session is like Cost, for sessions whose prompts cannot be matched. The session's
// last prompt counts as resident at its rank until as much has been placed there as the
// cache holds. This makes staying cheaper but does not pin sessions: if waiting costs
// more than computing the prompt elsewhere, the session moves.
//
// It remembers the latest of about sessionSlots sessions.
type Session struct{ slots []sessionSlot }

const sessionSlots = 1 << 16

// sessionSlot is where a session was last. A slot whose words belong to two writers
// misleads one choice.
type sessionSlot struct {
	where  atomic.Uint64 // of the session's hash, the cache and the tokens
	placed atomic.Uint64 // tokens placed on the rank by then, with a part of the hash
}

// A word has as many bits of the session's hash, the cache's ID and the tokens; they
// are limits of what is remembered.
const (
	tokenBits = 24
	cacheBits = 20
	hashBits  = 64 - tokenBits - cacheBits
)

// NewSession returns a Session that remembers no session yet.
func NewSession() *Session { return &Session{slots: make([]sessionSlot, sessionSlots)} }

// Name implements Policy.
func (*Session) Name() string { return "session" }

// Pick implements Policy.
func (p *Session) Pick(q *Request, candidates []Candidate, d *Decision) int {
	if q.Session == 0 {
		return d.leastCost(q, candidates, nil)
	}
	hash := draw(q.Session)
	slot := &p.slots[hash%sessionSlots]
	last := slot.read(hash)
	i := d.leastCost(q, candidates, &last)
	if i >= 0 && !q.Dry {
		c := &candidates[i]
		slot.write(hash, stay{cache: c.Cache, tokens: q.Length, placed: c.Rank.Placed()})
	}
	return i
}

// stay is where a session was, and how much of its prompt is there.
type stay struct {
	cache  uint32
	tokens int // 0: nowhere
	placed int64
}

// known is how many tokens of the session's prompt the candidate has.
func (s *stay) known(q *Request, c *Candidate) int {
	if s.tokens == 0 || s.cache != c.Cache || c.KV > 0 && c.Rank.Placed()-s.placed > c.KV {
		return 0
	}
	return min(s.tokens, q.Length-1)
}

func (s *sessionSlot) read(hash uint64) stay {
	where, placed := s.where.Load(), s.placed.Load()
	tag := hash >> (64 - hashBits)
	if where>>(tokenBits+cacheBits) != tag || placed>>(64-hashBits) != tag {
		return stay{}
	}
	return stay{
		cache:  uint32(where >> tokenBits & (1<<cacheBits - 1)),
		tokens: int(where & (1<<tokenBits - 1)),
		placed: int64(placed & (1<<(64-hashBits) - 1)),
	}
}

func (s *sessionSlot) write(hash uint64, to stay) {
	if to.cache >= 1<<cacheBits {
		return
	}
	tag := hash >> (64 - hashBits)
	s.where.Store(tag<<(tokenBits+cacheBits) | uint64(to.cache)<<tokenBits | uint64(min(to.tokens, 1<<tokenBits-1)))
	s.placed.Store(tag<<(64-hashBits) | uint64(to.placed)&(1<<(64-hashBits)-1))
}
