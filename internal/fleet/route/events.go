package route

import (
	"cmp"
	"sync/atomic"

	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/kvindex"
)

// Root is where the blocks of prompts for a model begin, for an adapter of it and with a cache
// salt; either is empty where there is none. Prompts of different salts have no block in
// common.
func Root(base, lora, salt string) kvindex.Block {
	root := kvindex.Root(0, base, lora)
	if salt != "" {
		root = kvindex.Root(uint64(root), salt)
	}
	return root
}

// Events are what an engine publishes of its KV cache during one life.
type Events struct {
	Rank *kvevents.Rank
	base string // of the prompts that it tells of
	told atomic.Pointer[error]
}

// NewEvents returns the events of an engine of a base model. blockTokens is the size
// of the engine's blocks, 0 if it does not report it.
func NewEvents(base string, blockTokens int, replays bool, budget *kvevents.Budget) *Events {
	return &Events{base: base, Rank: kvevents.New(kvevents.Options{
		IndexTokens: BlockTokens, BlockTokens: blockTokens, Replays: replays, Budget: budget,
		Root: func(lora, salt string) kvindex.Block { return Root(base, lora, salt) },
	})}
}

// Tell records the error that keeps the events from arriving, or nil if they arrive,
// and reports whether that is a change.
func (e *Events) Tell(err error) (news bool) {
	was := e.told.Swap(&err)
	return was == nil || (*was == nil) != (err == nil)
}

// Err is what keeps the events from coming.
func (e *Events) Err() error {
	if err := e.told.Load(); err != nil {
		return *err
	}
	return nil
}

// Follow has an engine's events correct what its cache is believed to hold; nil ends that.
func (b *Books) Follow(e *Events) { b.events.Store(e) }

// Events returns the events that Follow was given last, or nil.
func (b *Books) Events() *Events { return b.events.Load() }

// Prompt is one as caches see it.
type Prompt struct {
	Blocks []kvindex.Block
	Length int // in tokens
	// ByIDs is set if the blocks depend only on the prompt's ids, as do the blocks in
	// engines' events.
	ByIDs bool
	// Text are the blocks of the prompt's text, for relayed engines, if Blocks are those of
	// its ids. Each has about TextTokens tokens. The two kinds of blocks are unrelated.
	Text       []kvindex.Block
	TextTokens float64
}

// Match sets in a choice what the targets' caches have of a prompt, in blocks of BlockTokens
// if the prompt is ids. An engine that keeps no prompts has nothing.
func (m *Model) Match(x *kvindex.Index, c *Choice, p *Prompt, now int64) {
	dst := x.Match(c.Request.Matches, p.Blocks, now)
	if p.Text != nil {
		dst = m.matchTexts(x, dst, c, p, now)
	}
	base := cmp.Or(m.Base, m.Name)
	for t := range m.all() {
		if t.Books.forgets.Load() {
			if int(t.Books.Cache.ID) < len(dst) {
				dst[t.Books.Cache.ID] = kvindex.Match{}
			}
			continue
		}
		if !p.ByIDs || t.Relay != nil {
			continue
		}
		e := t.Books.events.Load()
		if e == nil || e.base != base || e.Rank.Knowledge() == kvevents.Unknown {
			continue
		}
		dst = reach(dst, t.Books.Cache.ID)
		e.correct(&dst[t.Books.Cache.ID], p, now)
	}
	c.Request.Matches = dst
}

// matchTexts puts what relayed targets have of a prompt's text in the place of what they have
// of its ids, in blocks of ids, rounded down.
func (m *Model) matchTexts(x *kvindex.Index, dst kvindex.Matches, c *Choice, p *Prompt, now int64) kvindex.Matches {
	c.texts = x.Match(c.texts, p.Text, now)
	blocks := func(texts int32) int32 {
		return int32(min(float64(texts)*p.TextTokens, float64(p.Length)) / BlockTokens)
	}
	for t := range m.all() {
		if t.Relay == nil {
			continue
		}
		dst = reach(dst, t.Books.Cache.ID)
		of := c.texts.Of(t.Books.Cache.ID)
		of.Resident, of.Soon = blocks(of.Resident), blocks(of.Soon)
		dst[t.Books.Cache.ID] = of
	}
	return dst
}

// reach returns matches that have a place for a cache.
func reach(m kvindex.Matches, id uint32) kvindex.Matches {
	for int(id) >= len(m) {
		m = append(m, kvindex.Match{})
	}
	return m
}

// lag is how long after blocks should be there an engine's word of it may take.
const lag = 500e6

// late reports whether the engine's events may lag behind the blocks that should be
// there since placed, after so many blocks: since then it has removed none of them, and
// its cache was not empty.
func (e *Events) late(p *Prompt, there int, placed, now int64) bool {
	if placed == 0 || now-placed >= lag || placed < e.Rank.Empty() {
		return false
	}
	at, removed := e.Rank.Removed(p.Blocks, there)
	return !removed || at < placed-lag // placed is a prediction
}

// correct replaces the believed content of a cache by the content that its engine has
// published. Blocks of requests under way stay believed, because the engine has not
// published them yet.
func (e *Events) correct(m *kvindex.Match, p *Prompt, now int64) {
	unit := e.Rank.Unit()
	whole := func(blocks int32) int32 {
		return int32(kvevents.Whole(int(blocks), unit, p.Length, BlockTokens))
	}
	there := int32(e.Rank.Resident(p.Blocks, p.Length))
	flying := m.Soon > m.Resident
	believed, soon := whole(m.Resident), whole(m.Soon)
	switch {
	case there >= believed:
		m.Resident = there
	case e.Rank.Knowledge() == kvevents.Partial, e.late(p, int(there), m.Placed, now):
		m.Resident = believed
	default:
		m.Resident, m.Stale = there, true
	}
	if m.Soon = m.Resident; flying {
		m.Soon = max(m.Resident, soon)
	}
}
