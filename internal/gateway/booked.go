package gateway

import (
	"math/rand/v2"
	"net/http"
	"slices"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/gateway/footprint"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/tenancy/fair"
	"weir/internal/trace"
)

// booked is what an attempt has in the books of its engine: a booking for each
// generation, from the pick to its end.
//
// Outputs cost the output path one atomic addition that streams share: a token engine's
// one for each wake-up of a worker, a relay's one for each event. A first token takes a
// lock, and may have coefficients learned, so it is booked when it has been sent on.
// Fields that each delta looks at stand together, and it looks at nothing else: among
// thousands of streams every cache line is a miss.
type booked struct {
	books       *route.Books // nil: nothing is booked
	due         bool         // the books or the metrics have something to learn
	generations []generation
	only        [1]generation // is generations, for most requests
	of          *footprint.Footprint
	had         kvindex.Had // of the first prompt, before it was placed
	ready       int64       // when the prompts are predicted to be in the cache
	health      judge.Attempt
	held        []kvindex.Block  // of the prompts, in the engine's cache
	few         [4]kvindex.Block // is held, for most requests
	queue       *holding         // learns that there is room
	turn        fair.Turn        // that the request has taken
	resident    int32            // of the first prompt's tokens, as predicted
	beside      int32            // requests that decoded there when it was booked
	escape      escape
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

// pick chooses the engine for a request of this footprint and session, whose answers are
// expected to have output tokens each, and where it is served in two halves the partner's.
func (r *routing) pick(c *route.Choice, now int64, f *footprint.Footprint, session uint64, output float64) (target route.Target, partner *route.Target, ok bool) {
	q := &c.Request
	q.Now, q.Length, q.BlockTokens, q.Session, q.Random = now, f.Length(), f.BlockTokens, session, rand.Uint64()
	q.Output = output * float64(f.Answers())
	c.Unknown = len(f.Prompts[0].Blocks) == 0
	prompt := f.Prompt()
	r.to.Model.Match(r.to.Fleet.Index, c, &prompt, now)
	c.Before, c.Spare = r.before, int64(r.spare)
	return r.to.Model.Pick(r.to.Needs, r.tried, c)
}

// ended returns how the attempt ended for the engine. A relay's refusal or failure is
// passed on as an answer. Halves that failed between them say nothing of either engine.
func (a *attempt) ended(e *infer.Error) health.End {
	if e != nil && e.Handover {
		return health.GaveUp
	}
	if l, ok := a.leg.(*relayLeg); ok && e == nil && l.response != nil {
		switch status := l.response.Status; {
		case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
			return health.Overload
		case status >= 500 && a.partner != nil:
			return health.GaveUp
		case status >= 500:
			return health.Fault
		case status >= 400:
			return health.Rejected
		}
	}
	return judge.Of(e)
}

// book enters a request into the books of the engine that was chosen. Each of its answers
// is expected to have output tokens.
func (a *attempt) book(c *route.Choice, now int64, r *prepare.Prepared, output float64) {
	chosen := c.Decision.Choice()
	f := r.Footprint.At(a.target.Engine)
	a.work = f.WorkOf(chosen)
	a.booked.enter(a.target.Books, chosen, c, now, f, output)
}

// enter opens the bookings of a request at a rank. chosen describes the request's
// work there.
func (b *booked) enter(books *route.Books, chosen *balance.Option, c *route.Choice, now int64, f *footprint.Footprint, output float64) {
	*b = booked{books: books, of: f, ready: now + int64(chosen.TTFT()*1e6), beside: int32(chosen.Decoders)}
	b.resident = int32(resident(c))
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
		g.booking = b.books.Rank.Book(now, w)
	}
	if f.Relayed {
		b.books.SizeBlocks(f.BlockTokens)
	}
	if m := c.Request.Matches.Of(b.books.Cache.ID); m.Stale { // by events, which are of ids
		b.books.Cache.Truncate(f.Prompts[0].Blocks, int(m.Resident))
	}
	for i := range f.Prompts {
		if had := b.books.Place(f.Prompts[i].Blocks, b.ready); i == 0 {
			b.had = had
		}
		b.held = b.books.Hold(b.held, f.Prompts[i].Blocks)
	}
}

// took records the output of generations, and adds to t the counts for their rank's
// books.
func (b *booked) took(cells []stream.Cell, t *tally) {
	if b.books == nil {
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
				t.add(b.books.Rank, c.Received, n)
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
func (b *booked) chain(choice int, ids []uint32) {
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
func (b *booked) latest(choice int) kvindex.Block {
	if blocks := b.generations[choice].blocks; len(blocks) > 0 {
		return blocks[len(blocks)-1]
	}
	if blocks := b.of.Prompts[choice/b.of.Width].Blocks; len(blocks) > 0 {
		return blocks[len(blocks)-1]
	}
	return b.of.Root
}

// read records that a relayed answer has more output. tokens is the number of tokens
// counted in the output so far. With several generations it is unknown which tokens
// belong to which.
func (b *booked) read(now int64, tokens int) {
	if b.books == nil || b.of.Whole {
		return
	}
	for i := range b.generations {
		switch g := &b.generations[i]; {
		case !g.began:
			if b.due = true; g.first == 0 {
				g.first = now
			}
		case len(b.generations) == 1 && tokens > g.tokens:
			b.books.Rank.Tokens(now, tokens-g.tokens)
			g.tokens = tokens
		}
	}
}

// tell passes on to the books the notes that take longer. The tally t has what
// precedes them.
func (b *booked) tell(t *tally) {
	if !b.due {
		return
	}
	b.due = false
	t.tell()
	for i := range b.generations {
		g := &b.generations[i]
		if g.first != 0 && !g.began {
			g.began = true
			b.health.Start(g.first) // before the books learn from a wait that was no work
			g.booking.First(g.first, g.cached, g.prefill)
			if g.tokens > 0 {
				b.books.Rank.Tokens(g.first, g.tokens)
			}
			b.books.Place(b.of.Prompts[i/b.of.Width].Blocks, 0)
		}
		if g.last != 0 {
			g.end(g.last)
		}
	}
	b.queue.room()
}

func (g *generation) end(now int64) {
	if !g.ended {
		g.ended = true
		g.booking.End(now, g.tokens)
	}
}

// stopped notes that a generation's end was asked for.
func (b *booked) stopped(choice uint32, now int64) {
	if b.books != nil && b.generations[choice].last == 0 {
		b.generations[choice].last, b.due = now, true
	}
}

// unbook ends what the attempt has in the books, once, however it has ended: e is nil
// where it is whole.
func (x *exchange) unbook(e *infer.Error) {
	if x.booked.books == nil {
		return
	}
	own := x.own(e)
	how := x.ended(own)
	x.guarded(func() {
		if x.partner != nil && (how == health.Refused || how == health.Cut || how == health.Fault) {
			x.partner.owes(trace.Now()) // a decode engine fails although its half owed nothing yet
		}
		x.partner.close(e)
	})
	books := x.booked.close(trace.Now(), how, own == nil)
	x.guarded(func() { x.settles(books.Rank, how) })
	x.guarded(func() {
		x.learn(x.to.Model, books, &x.rec.Attempts[len(x.rec.Attempts)-1], x.prepared.Sent, own)
	})
}

// settles has the request's turn cost what the attempt has taken of the engine: the prompt,
// unless that was never computed because the engine failed, and what was generated.
func (a *attempt) settles(rank *cost.Rank, how health.End) {
	b := &a.booked
	if b.turn.Tenant() == nil {
		return
	}
	tokens, began, resident := 0, false, int(b.resident)
	for i := range b.generations {
		g := &b.generations[i]
		tokens += g.tokens
		began = began || g.began
		if i == 0 && g.cached >= 0 {
			resident = g.cached
		}
	}
	if a.answer != nil {
		if u, known := a.answer.Usage(); known {
			tokens, began = max(tokens, u.CompletionTokens), true
		}
	}
	ms := 0.0
	if began || how != health.Refused && how != health.Cut && how != health.Fault && how != health.Overload {
		ms = b.of.Charge(rank, resident, int(b.beside), float64(tokens)/float64(b.of.Answers()))
	}
	b.queue.settle(&b.turn, ms)
}

// close ends the bookings, once, and gives whose books they were in; nil where they have
// ended before, or there were none.
func (b *booked) close(now int64, how health.End, whole bool) *route.Books {
	books := b.books
	if books == nil {
		return nil
	}
	b.tell(new(tally)) // its worker has reported its own tally
	b.health.End(now, how)
	for i := range b.generations {
		b.generations[i].end(now)
	}
	b.books = nil
	books.Release(b.held)
	b.queue.room()
	for i := range b.generations {
		b.leave(books, i, whole)
	}
	return books
}

// leave places what a generation leaves in the cache.
func (b *booked) leave(books *route.Books, i int, whole bool) {
	g, p := &b.generations[i], &b.of.Prompts[i/b.of.Width]
	switch {
	case !g.began && b.of.Whole && whole:
		books.Place(p.Blocks, 0)
	case !g.began:
		books.Cache.Cancel(p.Blocks, b.ready)
	default: // what it has used is the newest now
		books.Place(slices.Concat(p.Blocks, g.blocks), 0)
	}
}

// learn learns from the outcome of an attempt. record is the attempt's record, and sent
// the number of ids of the answer from attempts before it.
func (a *attempt) learn(m *route.Model, books *route.Books, record *trace.Attempt, sent int, e *infer.Error) {
	b, f := &a.booked, a.booked.of
	u, known := infer.Usage{CachedTokens: -1}, false
	if a.answer != nil && e == nil {
		u, known = a.answer.Usage()
	}
	switch {
	case !known:
		u.CachedTokens = -1
	case sent > 0: // the answer's is its first engine's
		u.PromptTokens, u.CachedTokens = f.Length(), b.generations[0].cached
	}
	if a.partner == nil {
		b.reported(books, record.Resident(), u)
	} else {
		u.CachedTokens = a.partner.learn(u)
	}
	if u.CachedTokens >= 0 {
		record.Choice.Cached = int32(u.CachedTokens)
	}
	if known && f.Text > 0 {
		m.Ratio.Add(f.Text, u.PromptTokens)
	}
	if e != nil || f.Computed {
		return
	}
	if f.Relayed {
		if known && u.CompletionTokens > 0 {
			m.Lengths.Add(u.CompletionTokens / f.Answers())
		}
		return
	}
	for i := range b.generations {
		m.Lengths.Add(b.generations[i].tokens + sent)
	}
}

// reported learns from the number of cached prompt tokens that the rank reported, if any.
// predicted is the expected number.
func (b *booked) reported(books *route.Books, predicted int, u infer.Usage) {
	s := books.Shares
	s.Given.Add(int64(b.of.Length()))
	s.Predicted.Add(int64(predicted))
	if u.CachedTokens < 0 {
		return
	}
	s.Told.Add(int64(u.PromptTokens))
	s.Reported.Add(int64(min(u.CachedTokens, u.PromptTokens))) // whatever it claims
	if b.of.Answers() == 1 {
		books.Reported(b.had, u.PromptTokens, u.CachedTokens)
	}
}

// chosen returns the record of an attempt that begins with a choice.
func (r *routing) chosen(c *route.Choice) (a trace.Attempt) {
	a.Choice = decided(c, &c.Decision, r.to.Model.Targets)
	if c.Decision.Choice().Work.Part == cost.DecodePart {
		first := decided(c, &c.Prefill, r.to.Model.Prefills)
		a.Prefill = &first
	}
	a.Choice.Available, a.Choice.Unknown, a.Choice.Regret = max(int32(c.Available()), int32(a.Resident())), c.Unknown, float32(c.Regret)
	return a
}

// decided returns the record of a decision among some of the model's targets.
func decided(c *route.Choice, d *balance.Decision, among []route.Target) trace.Choice {
	out := trace.Choice{Why: d.Why.String(), Of: int32(d.Of), Length: int32(c.Request.Length), Cached: -1, Best: make([]trace.Option, d.N)}
	for i := range d.Best[:d.N] {
		o := &d.Best[i]
		if o.Index == d.Chosen {
			out.Chosen = int8(i)
		}
		out.Best[i] = trace.Option{
			Engine: among[o.Index].Label, Resident: int32(c.Request.Length - o.Work.New), Decoders: int32(o.Decoders), Cold: o.Cold, Half: o.Work.Part != cost.Whole,
			Wait: float32(o.Wait), Room: float32(o.Room), Prefill: float32(o.Prefill), Decode: float32(o.Decode), Others: float32(o.Others),
		}
	}
	return out
}
