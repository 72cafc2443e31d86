package place

import (
	"slices"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/gateway/footprint"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
)

// Booking is what an attempt has in the books of its engine, from the pick to its end: the work of
// each generation there, and the blocks of its prompts. The zero value is nothing booked.
//
// Outputs cost the output path one atomic addition that streams share: a token engine's
// one for each wake-up of a worker, a relay's one for each event. A first token takes a
// lock, and may have coefficients learned, so it is booked when it has been sent on.
// Fields that each delta looks at stand together, and it looks at nothing else: among
// thousands of streams every cache line is a miss.
type Booking struct {
	Books       *route.Books // nil: nothing is booked
	due         bool         // the books or the metrics have something to learn
	generations []generation
	only        [1]generation // is generations, for most requests
	Of          *footprint.Footprint
	had         kvindex.Had // of the first prompt, before it was placed
	Ready       int64       // when the prompts are predicted to be in the cache
	Health      judge.Attempt
	held        []kvindex.Block  // of the prompts, in the engine's cache
	few         [4]kvindex.Block // is held, for most requests
	resident    int32            // of the first prompt's tokens, as predicted
	beside      int32            // requests that decoded there when it was booked
}

// generation is one answer to a prompt.
type generation struct {
	began  bool // its first token was reported
	ended  bool // and its end
	filled uint8
	tokens int                       // that came, as far as it is known whose they are
	tail   [route.BlockTokens]uint32 // the first filled are ids that are in no block yet

	blocks  []kvindex.Block // of what was generated
	booking *cost.Booking
	cached  int   // cached prompt tokens that the engine reported; -1: none reported
	prefill int64 // when the engine began to compute its prompt; 0: not reported
	first   int64 // when its first ids came; 0: they have not
	last    int64 // when its end came
}

// Enter opens the booking of a request of footprint f at a rank. chosen describes the request's
// work there, and each answer is expected to have output tokens.
func (b *Booking) Enter(books *route.Books, chosen *balance.Option, c *route.Choice, now int64, f *footprint.Footprint, output float64) {
	*b = Booking{Books: books, Of: f, Ready: now + int64(chosen.TTFT()*1e6), beside: int32(chosen.Decoders)}
	b.resident = int32(Resident(c))
	b.held = b.few[:0]
	if b.generations = b.only[:]; f.Answers() > 1 {
		b.generations = make([]generation, f.Answers())
	}
	resident := c.Request.Length - chosen.Work.New
	w := cost.Work{Output: output, Unseen: f.Whole && chosen.Work.Part != cost.PrefillPart, Part: chosen.Work.Part, After: chosen.Work.After}
	for i := range b.generations {
		g, p := &b.generations[i], &f.Prompts[i/f.Width]
		w.Length = p.Tokens
		switch {
		case i == 0:
			w.New = p.Tokens - resident
		case i%f.Width == 0:
			w.New = p.Tokens - f.Shared(i/f.Width)
		default: // it finds what the first answer to its prompt leaves behind
			w.New = p.Tokens - len(p.Blocks)*f.BlockTokens
		}
		w.New = max(w.New, 1)
		g.cached = -1
		g.filled = uint8(copy(g.tail[:], p.Rest)) // a block of both follows the prompt's
		g.booking = b.Books.Rank.Book(now, w)
	}
	if f.Relayed {
		b.Books.SizeBlocks(f.BlockTokens)
	}
	if m := c.Request.Matches.Of(b.Books.Cache.ID); m.Stale { // by events, which are of ids
		b.Books.Cache.Truncate(f.Prompts[0].Blocks, int(m.Resident))
	}
	for i := range f.Prompts {
		if had := b.Books.Place(f.Prompts[i].Blocks, b.Ready); i == 0 {
			b.had = had
		}
		b.held = b.Books.Hold(b.held, f.Prompts[i].Blocks)
	}
}

// Took records the output of generations, and adds to t the counts for their rank's
// books.
func (b *Booking) Took(cells []stream.Cell, t *Tally) {
	if b.Books == nil {
		return
	}
	for i := range cells {
		c := &cells[i]
		g := &b.generations[c.Choice]
		if c.Stamps != nil {
			g.prefill = c.Stamps.PrefillStart
		}
		if c.CachedKnown {
			g.cached = c.CachedTokens
		}
		if n := len(c.IDs); n > 0 {
			g.tokens += n
			b.chain(int(c.Choice), c.IDs)
			if g.began {
				t.add(b.Books.Rank, c.Received, n)
			} else if b.due = true; g.first == 0 {
				g.first = c.Received
			}
		}
		if f := c.Finish; f != nil {
			if g.last, b.due = c.Received, true; f.CachedTokens >= 0 {
				g.cached = f.CachedTokens
			}
		}
	}
}

// chain appends generated ids to the blocks of their prompt. A block is computed with the
// id that follows it.
func (b *Booking) chain(choice int, ids []uint32) {
	g := &b.generations[choice]
	for len(ids) > 0 {
		if int(g.filled) == len(g.tail) {
			g.blocks = kvindex.AppendChain(g.blocks, b.latest(choice), g.tail[:], len(g.tail))
			g.filled = 0
		}
		n := copy(g.tail[g.filled:], ids)
		g.filled += uint8(n)
		ids = ids[n:]
	}
}

// latest is the block that the next one of a generation follows.
func (b *Booking) latest(choice int) kvindex.Block {
	if blocks := b.generations[choice].blocks; len(blocks) > 0 {
		return blocks[len(blocks)-1]
	}
	if blocks := b.Of.Prompts[choice/b.Of.Width].Blocks; len(blocks) > 0 {
		return blocks[len(blocks)-1]
	}
	return b.Of.Root
}

// Read records that a relayed answer has more output. tokens is the number of tokens
// counted in the output so far. With several generations it is unknown which tokens
// belong to which.
func (b *Booking) Read(now int64, tokens int) {
	if b.Books == nil || b.Of.Whole {
		return
	}
	for i := range b.generations {
		switch g := &b.generations[i]; {
		case !g.began:
			if b.due = true; g.first == 0 {
				g.first = now
			}
		case len(b.generations) == 1 && tokens > g.tokens:
			b.Books.Rank.Tokens(now, tokens-g.tokens)
			g.tokens = tokens
		}
	}
}

// Computed records that the engine has computed the prompts of a request that others answer. cached
// is the number of cached tokens that it reported, or -1, and began when it began with the prompts,
// or 0.
func (b *Booking) Computed(now int64, cached int, began int64) {
	for i := range b.generations {
		g := &b.generations[i]
		g.prefill = began
		if g.first, b.due = now, true; cached >= 0 && len(b.generations) == 1 {
			g.cached = cached
		}
	}
}

// Tell passes on to the books the notes that take longer, and reports whether an engine may have
// room now. The tally t has what precedes them.
func (b *Booking) Tell(t *Tally) (room bool) {
	if !b.due {
		return false
	}
	b.due = false
	t.Tell()
	for i := range b.generations {
		g := &b.generations[i]
		if g.first != 0 && !g.began {
			g.began = true
			b.Health.Start(g.first) // before the books learn from a wait that was no work
			g.booking.First(g.first, g.cached, g.prefill)
			if g.tokens > 0 {
				b.Books.Rank.Tokens(g.first, g.tokens)
			}
			b.Books.Place(b.Of.Prompts[i/b.Of.Width].Blocks, 0)
		}
		if g.last != 0 {
			g.end(g.last)
		}
	}
	return true
}

func (g *generation) end(now int64) {
	if !g.ended {
		g.ended = true
		g.booking.End(now, g.tokens)
	}
}

// Stopped notes that a generation's end was asked for.
func (b *Booking) Stopped(choice uint32, now int64) {
	if b.Books != nil && b.generations[choice].last == 0 {
		b.generations[choice].last, b.due = now, true
	}
}

// Close ends the booking, once. It returns the books that the booking was in, which have room now, or
// nil if it has ended before or there was none. Leave places what it leaves in the cache.
func (b *Booking) Close(now int64, how health.End) *route.Books {
	books := b.Books
	if books == nil {
		return nil
	}
	b.Tell(new(Tally)) // its worker has reported its own tally
	b.Health.End(now, how)
	for i := range b.generations {
		b.generations[i].end(now)
	}
	b.Books = nil
	books.Release(b.held)
	return books
}

// Leave places in the cache what a closed booking leaves there. whole is set if the attempt has not
// failed.
func (b *Booking) Leave(books *route.Books, whole bool) {
	for i := range b.generations {
		g, p := &b.generations[i], &b.Of.Prompts[i/b.Of.Width]
		switch {
		case !g.began && b.Of.Whole && whole:
			books.Place(p.Blocks, 0)
		case !g.began:
			books.Cache.Cancel(p.Blocks, b.Ready)
		default: // what it has used is the newest now
			books.Place(slices.Concat(p.Blocks, g.blocks), 0)
		}
	}
}

// Charge is what a closed booking has taken of its rank, in milliseconds: the prompt, unless that was
// never computed because the engine failed, and what was generated, of which the engine may have
// counted more tokens.
func (b *Booking) Charge(rank *cost.Rank, how health.End, u infer.Usage, known bool) (ms float64) {
	tokens, began, resident := b.Tokens(), known, int(b.resident)
	for i := range b.generations {
		g := &b.generations[i]
		began = began || g.began
		if i == 0 && g.cached >= 0 {
			resident = g.cached
		}
	}
	if known {
		tokens = max(tokens, u.CompletionTokens)
	}
	if !began && (how == health.Refused || how == health.Cut || how == health.Fault || how == health.Overload) {
		return 0
	}
	return b.Of.Charge(rank, resident, int(b.beside), float64(tokens)/float64(b.Of.Answers()))
}

// Tokens returns how many have come, as far as it is known whose they are.
func (b *Booking) Tokens() (n int) {
	for i := range b.generations {
		n += b.generations[i].tokens
	}
	return n
}

// Cached returns how many cached prompt tokens the engine has reported of a request with one answer;
// -1: it has not.
func (b *Booking) Cached() int {
	if len(b.generations) != 1 {
		return -1
	}
	return b.generations[0].cached
}

// Reported learns from the number of cached prompt tokens that the rank reported, if any.
func (b *Booking) Reported(books *route.Books, u infer.Usage) {
	s := books.Shares
	s.Given.Add(int64(b.Of.Length()))
	s.Predicted.Add(int64(b.resident))
	if u.CachedTokens < 0 {
		return
	}
	s.Told.Add(int64(u.PromptTokens))
	s.Reported.Add(int64(min(u.CachedTokens, u.PromptTokens))) // whatever it claims
	if b.Of.Answers() == 1 {
		books.Reported(b.had, u.PromptTokens, u.CachedTokens)
	}
}

// Learn has a model learn from answers that are whole. u is their usage, if that is known, and sent
// the number of ids of the answer from attempts before.
func (b *Booking) Learn(m *route.Model, u infer.Usage, known bool, sent int) {
	f := b.Of
	switch {
	case f.Computed:
	case f.Relayed:
		if known && u.CompletionTokens > 0 {
			m.Lengths.Add(u.CompletionTokens / f.Answers())
		}
	default:
		for i := range b.generations {
			m.Lengths.Add(b.generations[i].tokens + sent)
		}
	}
}
