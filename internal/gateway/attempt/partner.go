package attempt

import (
	"context"
	"net/http"
	"sync"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/route"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/trace"
)

// partner is the prefill half of an attempt that two engines serve: its engine computes the
// prompt, and the engine of the attempt's leg generates the answer. The attempt owns it from
// its booking to settle. The leg's driver and the answer do not know about it.
//
// A separate goroutine (run) hands the half over, or the attempt's own if that has nothing to
// do until the prefill engine's answer. Everything else is an event, handled under
// the half's lock in the goroutine where it occurs: the half ends (ends), the decode half
// has its first output (begins), which shows that the KV cache was fetched, or either takes
// too long (late). A failure reaches the attempt by its escape, as for an engine that goes
// down. It ends the attempt wherever that waits, and has no effect once the response has
// begun.
//
// While the prefill half is under way, the decode half owes no progress: the half is
// reported to the health of its engine when the prefill engine has answered.
type partner struct {
	of       *Attempts
	target   route.Target
	rec      *record.Request
	booking  place.Booking
	expected expected
	meets    rendezvous
	leg      *trace.Leg
	wire     prefill // nil: it was not begun
	// scored is the wire if the prompt's log probabilities were requested, and nil otherwise.
	// The answer begins with them, and only the prefill engine reports them.
	scored *tokenPrefill
	handover
	whole  whole             // the attempt
	escape *escape           // likewise
	client *lifetime.Context // ends with the request

	mu    sync.Mutex
	clock clock
	prefillEnd
	decode decodeHalf
	pages  pages
}

// whole is an attempt of two halves.
type whole interface {
	// decodes returns the engine of the decode half.
	decodes() *route.Target
	// leave has the request leave one of the engines, if it may.
	leave(at *route.Target, why string)
}

// expected is what was predicted of a half when its engine was chosen. What happens is compared
// with it.
type expected struct {
	work     float64        // at the prefill engine, as workOf returns it
	lacks    int            // tokens of the prompts whose KV the decode engine fetches
	transfer *cost.Transfer // learns how long they are on their way
}

// handover is the handing over of a half, in the goroutine of run. It ends with the attempt.
type handover struct {
	ctx      context.Context
	cancel   context.CancelCauseFunc
	answered chan struct{} // closed when the half has ended, as prefillEnd states
	gone     chan struct{} // closed when run has nothing to do with the attempt any more
}

func newHandover() (h handover) {
	h.ctx, h.cancel = context.WithCancelCause(context.Background()) // the attempt may have to see it out
	h.answered, h.gone = make(chan struct{}), make(chan struct{})
	return h
}

// parts ends the hand-over, and with it the half.
func (h *handover) parts() { h.cancel(errParted) }

// ended reports whether the half has ended.
func (h *handover) ended() bool {
	select {
	case <-h.answered:
		return true
	default:
		return false
	}
}

// decodeHalf is what the prefill half knows of the decode half. The partner's lock guards it.
type decodeHalf struct {
	held  *stream.Mailbox // of its output, which waits for the prefill half's; nil: it does not
	metAt int64           // when it had its first output; 0: it has not
	due   func(now int64) // reports to the health of its engine that it owes output; nil: nothing to report
}

// owes reports that the decode half owes its first output from now on, once.
func (d *decodeHalf) owes(now int64) {
	if d.due != nil {
		d.due(now)
		d.due = nil
	}
}

// clock is the one timer of a half. It bounds in turn the hand-over, the prefill engine's
// answer, and what is waited for when that has come. The partner's lock guards it.
type clock struct {
	timer  *time.Timer
	late   func()        // called when the timer fires
	began  int64         // when the half was handed over
	submit time.Duration // bounds the hand-over until it is confirmed; 0: nothing does
	at     int64         // when it is due; 0: not any more
}

// within sets the clock to d from now.
func (c *clock) within(now int64, d time.Duration) {
	if c.at = now + int64(d); c.timer == nil {
		c.timer = time.AfterFunc(d, c.late)
	} else {
		c.timer.Reset(d)
	}
}

// rests stops the clock.
func (c *clock) rests() {
	c.at = 0
	c.timer.Stop()
}

// bound sets the clock to the next of the half's own bounds: that of the hand-over, half of
// that of the answer, or that of the answer.
func (c *clock) bound(now int64, answer time.Duration) {
	passed, next := time.Duration(now-c.began), answer
	for _, d := range [...]time.Duration{answer / 2, c.submit} {
		if d > passed {
			next = min(next, d)
		}
	}
	c.within(now, next-passed)
}

// prefillEnd is how a prefill half has ended.
type prefillEnd struct {
	err   *infer.Error // why it has failed; nil: it is whole
	at    int64        // when
	quit  bool         // the engine itself has ended it with a failure
	over  bool         // it is settled
	usage infer.Usage  // as the prefill engine tells it; CachedTokens -1: it does not
}

// newPartner books a request's prefill half at the rank that was chosen for it.
func newPartner(of *Attempts, a whole, s *escape, at *route.Target, c *route.Choice, now int64, r *prepare.Prepared, m *route.Model) *partner {
	chosen, f := c.Prefill.Choice(), r.Footprint.At(at.Engine)
	p := &partner{of: of, whole: a, escape: s, target: *at, expected: expected{f.WorkOf(chosen), c.Decision.Choice().Work.New, m.Transfer}}
	p.meets.Meets, p.meets.rank, p.clock.late = &at.Engine.Meets, at.Number, p.late
	p.booking.Enter(at.Books, chosen, c, now, f, 0)
	return p
}

// prefill is a prefill half on its wire. There are two kinds, as there are of legs.
type prefill interface {
	// serve hands the half over. ends is called when the engine has ended the half, which may
	// be later and from another goroutine. An error of serve also ends the half.
	serve(ctx context.Context) error
	// read reads the engine's output, if that is left to run's goroutine.
	read()
	// abort ends the engine's work on what has not ended.
	abort()
}

// errParted ends a prefill half whose decode half has ended.
var errParted = infer.Errorf(infer.CodeCancelled, "the decode half has ended")

// errBereft ends a decode half whose prefill half has failed.
var errBereft = infer.Errorf(infer.CodeCancelled, "the prefill half has failed")

// LastWord is the time that a failed half waits for the other half's end, if the failure
// may be a consequence of the other's. It is also the time that a prefill half has to end
// after its decode half was successful.
const LastWord = 500 * time.Millisecond

// alone reports whether the attempt's goroutine hands the half over: the answer is all that it
// waits for, and a relayed half is read to its end by then.
func (p *partner) alone() bool { return p.meets.first() && p.target.Relay != nil }

// begin starts serving the half. It is called once. client is the context of the request q, which r
// is with a relay engine.
func (p *partner) begin(client *lifetime.Context, rec *record.Request, q *prepare.Prepared, r *http.Request) {
	attempt := &rec.Attempts[len(rec.Attempts)-1]
	p.leg, p.rec, p.client = &attempt.Legs[0], rec, client
	p.handover = newHandover()
	p.usage.CachedTokens = -1
	probe := engine.Probe{Model: p.target.Model}
	if p.target.Relay != nil {
		p.meets.prepare(1, p.of.id)
		p.meets.choices[0].id = relayID(rec.ID, len(rec.Attempts))
		p.wire, probe.Path = newRelayPrefill(p, q, r), r.URL.Path
	} else {
		p.meets.prepare(q.Count(), p.of.id)
		p.clock.submit = p.of.opts.SubmitTimeout
		wire := newTokenPrefill(p, q)
		if p.wire = wire; q.Request.LogprobsFrom != nil {
			p.scored = wire
		}
	}
	p.leg.Handed = trace.Now()
	p.target.Health.HandOver(&p.booking.Health, p.leg.Handed, p.expected.work, p.rec.RequestID, probe, p)
	p.mu.Lock()
	p.clock.began = p.leg.Handed
	p.clock.bound(p.leg.Handed, p.of.opts.PrefillTimeout)
	p.mu.Unlock()
	if !p.alone() {
		go p.run()
	}
}

// answer waits for the prefill engine's answer.
func (p *partner) answer() error {
	ctx := p.client
	if p.alone() {
		stop := context.AfterFunc(ctx, p.parts)
		p.escape.by(p.parts, nil, nil)
		p.run()
		stop()
	} else {
		woken, cancel := context.WithCancel(ctx)
		defer cancel()
		p.escape.by(cancel, nil, nil)
		select {
		case <-p.answered:
		case <-woken.Done():
		}
	}
	if ctx.Err() != nil {
		return infer.AsError(context.Cause(ctx))
	}
	if left := p.escape.left(); left != nil {
		return left
	}
	if p.err != nil {
		return p.err
	}
	return nil
}

// run hands the half over, and receives its output if the wire has no other goroutine for that.
func (p *partner) run() {
	if err := p.serve(); err != nil {
		p.mu.Lock()
		p.ends(err)
		p.mu.Unlock()
	}
	if p.ended() { // perhaps for other reasons than the engine's
		p.wire.abort()
	}
	close(p.gone)
	p.wire.read()
}

// serve is the hand-over.
func (p *partner) serve() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = p.of.recorder.Panic(p.rec.RequestID, v)
		}
	}()
	if err = p.wire.serve(p.ctx); err != nil && p.ctx.Err() != nil {
		return context.Cause(p.ctx) // whatever the adapter makes of that
	}
	return err
}

// ends records the end of the half: whole, or by an error. Only the first call counts.
// The lock is held.
func (p *partner) ends(err error) {
	if p.ended() {
		return
	}
	p.err, p.at = infer.AsError(err), trace.Now()
	if p.leg.Answered = p.at; p.err == nil && p.target.Meets.Way == engine.ByRoom {
		p.leg.Fetched = p.at
	}
	if p.err != nil {
		switch p.err.Code {
		case infer.CodeDeadline, infer.CodeUnavailable, infer.CodeInternal, infer.CodeCancelled: // it may be at it
		default:
			p.quit = true
		}
	}
	p.answers(p.err)
	close(p.answered)
	if m := p.decode.held; m != nil && p.err == nil {
		m.Release()
	}
	switch {
	case p.err == nil:
		p.decode.owes(p.at)
		if p.decode.metAt != 0 {
			p.fetches()
		} else if !p.unseen() {
			p.clock.within(p.at, p.of.opts.TransferTimeout)
		} else {
			p.clock.rests()
		}
	case p.err.Handover:
		p.clock.within(p.at, LastWord) // the decode half may know better
	default:
		p.fails(p.err)
	}
}

// fails ends the attempt. The lock is held.
func (p *partner) fails(e *infer.Error) {
	p.clock.rests()
	if !p.over {
		p.escape.fail(e)
	}
}

// unseen reports whether nothing shows when the KV was fetched: the decode half's answer comes
// whole, or nothing was handed over.
func (p *partner) unseen() bool {
	return p.booking.Of.Whole || p.meets.first() && p.meets.choices[0].params == nil
}

// fetches notes that the KV was fetched, and the prefill engine keeps nothing any more. The
// lock is held.
func (p *partner) fetches() {
	p.clock.rests()
	if took := p.decode.metAt - p.at; took >= 0 && !p.unseen() {
		p.expected.transfer.Add(p.expected.lacks, float64(took)/1e6)
	}
	p.of.room.Close(&p.booking, trace.Now(), health.Done, true)
}

// late is called by the clock.
func (p *partner) late() {
	p.mu.Lock()
	now := trace.Now()
	if p.clock.at == 0 || now < p.clock.at { // it was set anew meanwhile
		p.mu.Unlock()
		return
	}
	bound, passed := p.of.opts.PrefillTimeout, time.Duration(now-p.clock.began)
	switch {
	case p.ended() && p.err != nil:
		p.fails(p.err)
	case p.ended():
		p.fails(&infer.Error{Code: infer.CodeDeadline, Engine: p.whole.decodes().Name, Retryable: true, Handover: true,
			Message: "the decode engine sent nothing within " + p.of.opts.TransferTimeout.String() + " after the prefill engine's answer (--transfer-timeout)"})
	case passed >= bound:
		p.giveUp("did not answer within " + bound.String() + " (--prefill-timeout)")
	case p.clock.submit > 0 && passed >= p.clock.submit:
		p.giveUp("did not confirm the request within " + p.clock.submit.String() + " (--submit-timeout)")
	default:
		if passed >= bound/2 {
			// A half that waits for its decode engine cannot be distinguished from one that
			// hangs. Both engines are checked late in its time.
			p.decode.owes(now)
		}
		p.clock.bound(now, bound)
	}
	stop := p.ended() && p.err != nil
	p.mu.Unlock()
	if stop {
		p.wire.abort()
	}
}

// giveUp ends the half because its engine missed a bound. The lock is held.
func (p *partner) giveUp(because string) {
	e := &infer.Error{Code: infer.CodeDeadline, Engine: p.target.Name, Retryable: true, Message: "the prefill engine " + because}
	p.ends(e)
	p.cancel(e)
}

// answers reports the end of the half to the books and to the engine's health. After a
// successful half the engine keeps the KV cache until it is fetched, which does not
// count as unfinished work.
func (p *partner) answers(e *infer.Error) {
	if e != nil {
		p.of.room.Close(&p.booking, p.at, p.outcome(e), false)
		return
	}
	p.booking.Computed(p.at, p.usage.CachedTokens, p.leg.Stamps.PrefillStart)
	p.of.room.Tell(&p.booking, new(place.Tally))
	p.booking.Health.End(p.at, health.Done)
}

// outcome is how the half ended for its engine.
func (p *partner) outcome(e *infer.Error) health.End {
	if e == nil {
		return health.Done
	}
	if e.Handover {
		return health.GaveUp
	}
	return judge.Of(e)
}

// lastWordOf waits until either channel is closed, for at most LastWord. A nil one never is.
func lastWordOf(a, b <-chan struct{}) {
	t := time.NewTimer(LastWord)
	defer t.Stop()
	select {
	case <-a:
	case <-b:
	case <-t.C:
	}
}

// awaits arranges for tell to be called when the decode half owes its first output.
func (p *partner) awaits(tell func(now int64)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.decode.due = tell; p.ended() {
		p.decode.owes(p.at)
	}
}

// owes reports that the decode half owes its first output from now on.
func (p *partner) owes(now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decode.owes(now)
}

// begins reports that the decode half has had its first output.
func (p *partner) begins(at int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decode.owes(at)
	if p.decode.metAt = at; p.ended() && p.err == nil {
		p.fetches()
	}
}

// holds delays the decode half's output until the prefill half has returned the beginning of
// the answer, if it is to return one. The bounds of the prefill half apply meanwhile, and its
// failure ends the attempt.
func (p *partner) holds(m *stream.Mailbox) {
	if p == nil || p.scored == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended() {
		m.Hold()
		p.decode.held = m
	}
}

// scores adds the log probabilities from the prefill half to the decode half's output.
func (p *partner) scores(cells []stream.Cell) {
	if p == nil || p.scored == nil {
		return
	}
	for i := range cells {
		if l := cells[i].Logprobs; l != nil {
			l.Prompt = p.scored.choices[cells[i].Choice].scores
		}
	}
}

// Down implements judge.Waiting.
func (p *partner) Down(why string) { p.whole.leave(&p.target, isDown+why) }

// Had implements judge.Waiting: a prefill half has no tokens that could stand still.
func (p *partner) Had() (tokens int, ok bool) { return 0, false }

// Stalled implements judge.Waiting.
func (p *partner) Stalled(time.Duration) {}

// word returns the error of an attempt whose decode half has failed by e before any
// output. If e may be a consequence of the prefill half's failure, it is the prefill
// half's error.
func (p *partner) word(e *infer.Error) *infer.Error {
	if p == nil || p.wire == nil || e == nil || !e.Handover {
		return e
	}
	if lastWordOf(p.answered, p.client.Done()); p.ended() && p.err != nil && !p.err.Handover {
		return p.err
	}
	return e
}

// blames reports whether the attempt has failed because of the prefill half.
func (p *partner) blames(e *infer.Error) bool {
	if p == nil || p.wire == nil || e == nil {
		return false
	}
	return e.Engine == p.target.Name || p.ended() && p.err == e
}

// owed reports whether the decode engine frees the pages of a half that was given up only
// when the KV has been written into them. vLLM's does so by push, without a bound, and an
// aborted prefill half writes none.
func (p *partner) owed() bool { return p.target.Meets.Way == engine.ByPush }

// outlives reports whether the half is served to its end although no client waits for it
// any more.
func (p *partner) outlives() bool {
	if p == nil || p.wire == nil || p.over || !p.owed() || p.client.Err() == nil {
		return false
	}
	return p.decode.metAt == 0 && !p.ended()
}

// besides returns the engine that the attempt may have failed at as well as at its
// culprit, where the halves have failed between them by e; nil: there is none.
func (p *partner) besides(e *infer.Error) *route.Target {
	switch {
	case p == nil || p.wire == nil || e == nil:
	case p.blames(e):
		// One that does not answer may wait for its decode engine.
		if e.Handover || e.Code == infer.CodeDeadline {
			return p.whole.decodes()
		}
	case e.Handover:
		return &p.target
	}
	return nil
}

// close ends the half, once, with an attempt that has ended by e. One that outlives it has until
// its own bound.
func (p *partner) close(e *infer.Error) {
	if p == nil || p.over {
		return
	}
	outlives := p.outlives()
	p.awaits(nil)
	if p.wire == nil {
		p.over = true
		p.of.room.Close(&p.booking, trace.Now(), health.GaveUp, false)
		return
	}
	switch {
	case outlives:
		_ = p.escape.answers() // whatever comes of it changes nothing
		<-p.answered
	case e == nil && !p.ended(): // what it has to say is on its way
		lastWordOf(p.answered, p.client.Done())
	}
	p.cancel(errParted)
	<-p.gone
	p.part()
	p.freed()
	p.wire.abort()
	p.leg.Outcome = infer.Finished.String()
	if p.err != nil {
		p.leg.Outcome = p.err.Code.String()
	}
}

// part ends what of the half has not ended.
func (p *partner) part() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.ends(errParted)
	p.clock.rests()
	p.of.room.Close(&p.booking, trace.Now(), health.Done, true) // one that has failed has closed it
}

// handed records the prefill engine's answer for the decode half of a choice. If a decode
// engine cannot fetch the KV by it, the decode engine computes the prompt itself.
func (p *partner) handed(choice int, params []byte) {
	if !p.meets.first() {
		return
	}
	err := engine.CheckHanded(params)
	if err == nil {
		p.meets.choices[choice].params = params
		return
	}
	p.of.recorder.Failed(p.target.Name, p.rec.RequestID, &infer.Error{Code: infer.CodeEngine, Engine: p.target.Name, Message: "the prompt is computed once more by the decode engine", Cause: err})
}

// learn learns from the number of cached prompt tokens at the prefill engine and returns it,
// or -1 if it is unknown. If the prefill engine does not report it, the number that the
// decode engine reports is used, except with ByPush, where that number refers to the decode
// engine's own cache.
func (p *partner) learn(decode infer.Usage) (cached int) {
	switch {
	case p.err == nil && p.ended() && p.usage.CachedTokens >= 0:
		decode = p.usage
	case p.target.Meets.Way == engine.ByPush:
		decode.CachedTokens = -1
	}
	p.booking.Reported(p.target.Books, decode)
	return decode.CachedTokens
}

// submission is a half of a choice for the token engine at which it is served.
func (p *partner) submission(q *prepare.Prepared, choice int, role infer.Role, at *route.Target) *infer.Request {
	req := q.Submission(choice, at, p.meets.choices[choice].id)
	req.Half = p.meets.half(choice, role)
	return req
}
