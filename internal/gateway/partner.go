package gateway

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"weir/internal/cost"
	"weir/internal/engine"
	"weir/internal/health"
	"weir/internal/infer"
	"weir/internal/judge"
	"weir/internal/route"
	"weir/internal/trace"
)

// partner is the prefill half of an attempt that two engines serve: its engine computes
// the prompt, and the engine of the attempt's leg generates what the client gets. The
// attempt owns it from its booking to settle. Neither the leg's driver nor the answer knows
// of it.
//
// A goroutine of its own (run) hands the half over, waits for the prefill engine's answer,
// and then for the first output of the decode half, which says that the KV was fetched. It
// alone touches the half until it has ended, and settle waits for that. The attempt learns
// of a failure as it does of an engine that goes down, by its escape: so a failure ends the
// attempt wherever it waits, and changes nothing once the response has begun.
//
// While the prefill half is under way the decode half owes nothing: its engine's health is
// told of it when the prefill engine has answered.
type partner struct {
	g        *Gateway
	target   route.Target
	booked   booked
	work     float64   // what it was predicted to be at the target, as workOf says
	resident int       // of the prompts, as was believed
	id       string    // the request's, for logs
	meetings []meeting // by choice
	fetched
	leg  *trace.Leg
	wire prefill // nil: it was not begun
	over bool    // settled

	ctx      context.Context
	cancel   context.CancelCauseFunc
	escape   *escape       // of the attempt
	answered chan struct{} // closed when the half has ended, as prefillEnd says
	prefillEnd
	decoding
	gone chan struct{} // closed when run has returned

	mu  sync.Mutex
	due func(now int64) // tells the decode engine's health; nil: nothing is to be told
}

// fetched is the KV that the decode engine fetches.
type fetched struct {
	transfer *cost.Transfer // learns how long it is on its way
	lacks    int            // tokens of the prompts that it is of
}

// decoding is the first output of the decode half.
type decoding struct {
	met   chan struct{} // closed when it came; metAt stands from then on
	metAt int64
}

// prefillEnd is how a prefill half has ended.
type prefillEnd struct {
	err   *infer.Error // why it has failed; nil: it is whole
	at    int64        // when
	quit  bool         // the engine itself has ended it with a failure
	usage infer.Usage  // as the prefill engine tells it; CachedTokens -1: it does not
}

// newPartner books a request's prefill half at the rank that was chosen for it.
func newPartner(g *Gateway, at *route.Target, c *route.Choice, now int64, r *request, m *route.Model) *partner {
	chosen := c.Prefill.Choice()
	p := &partner{g: g, target: *at, fetched: fetched{m.Transfer, c.Decision.Choice().Work.New}, work: r.footprint.workOf(chosen), resident: c.Request.Length - chosen.Work.New}
	p.booked.enter(at.Books, chosen, c, now, r, 0)
	p.booked.queue = g.held
	return p
}

// prefill is a prefill half on its wire. There are two kinds, as there are of legs.
type prefill interface {
	// serve hands the half over and returns once the engine has ended it, or ctx has. It
	// leaves nothing under way.
	serve(ctx context.Context, p *partner) error
}

// errParted ends a prefill half whose decode half has ended.
var errParted = infer.Errorf(infer.CodeCancelled, "the decode half has ended")

// errBereft ends a decode half whose prefill half has failed.
var errBereft = infer.Errorf(infer.CodeCancelled, "the prefill half has failed")

// lastWord is how long the half that has failed waits for the other one's word, where it
// may only have seen that one's failure, and how long a prefill half may take to end whose
// decode half is whole.
const lastWord = 500 * time.Millisecond

// first says that the prefill engine answers before the decode half is made.
func (p *partner) first() bool { return p.target.Meets.Way == engine.ByPull }

// begin has the half served. It is called once.
func (p *partner) begin(x *exchange) {
	attempt := &x.rec.Attempts[len(x.rec.Attempts)-1]
	p.leg, p.escape, p.id = &attempt.Legs[0], &x.booked.escape, x.rec.RequestID
	p.ctx, p.cancel = context.WithCancelCause(x.ctx)
	p.answered, p.met, p.gone = make(chan struct{}), make(chan struct{}), make(chan struct{})
	p.usage.CachedTokens = -1
	probe := engine.Probe{Model: p.target.Model}
	if x.relayed {
		p.meet(1)
		p.meetings[0].id = relayID(x.id, len(x.rec.Attempts))
		p.wire, probe.Path = newRelayPrefill(p, &x.request, x.response.r), x.response.r.URL.Path
	} else {
		p.meet(x.count())
		p.wire = newTokenPrefill(p, &x.request)
	}
	p.leg.Handed = trace.Now()
	p.target.Health.HandOver(&p.booked.health, p.leg.Handed, p.work, p.id, probe, p)
	go p.run()
}

// answer waits for the prefill engine's answer.
func (p *partner) answer(ctx context.Context) error {
	woken, cancel := context.WithCancel(ctx)
	defer cancel()
	p.escape.by(cancel, nil, nil)
	select {
	case <-p.answered:
	case <-woken.Done():
	}
	switch {
	case p.ended() && p.err != nil:
		return p.err
	case p.ended():
		return nil
	case ctx.Err() != nil:
		return gone(ctx)
	}
	return p.escape.left()
}

// run serves the half to its end.
func (p *partner) run() {
	defer close(p.gone)
	err := p.serve()
	p.at = trace.Now()
	p.leg.Answered = p.at
	p.answers(err)
	p.err = err
	close(p.answered)
	if err == nil {
		p.owes(p.at)
		if err = p.handover(); err == nil { // nothing is kept any more
			p.booked.close(trace.Now(), health.Done, true)
		}
	} else if err.Handover {
		p.wait(lastWord) // the decode half may know better
	}
	if err != nil && p.ctx.Err() == nil {
		p.escape.fail(err)
	}
}

// serve is the half within its bound.
func (p *partner) serve() (e *infer.Error) {
	defer func() {
		if v := recover(); v != nil {
			e = p.g.panicError(p.id, v)
		}
	}()
	bound := p.g.opts.PrefillTimeout
	ctx, cancel := context.WithTimeoutCause(p.ctx, bound, &infer.Error{Code: infer.CodeDeadline, Engine: p.target.Name, Retryable: true,
		Message: "the prefill engine did not answer within " + bound.String() + " (--prefill-timeout)"})
	defer cancel()
	// A half that waits for its decode engine shows as little as one that hangs. Late in
	// its time both are looked at.
	both := time.AfterFunc(bound/2, func() { p.owes(trace.Now()) })
	defer both.Stop()
	err := p.wire.serve(ctx, p)
	if err != nil && ctx.Err() != nil {
		return infer.AsError(context.Cause(ctx)) // whatever the adapter makes of that
	}
	if e = infer.AsError(err); e != nil {
		switch e.Code {
		case infer.CodeDeadline, infer.CodeUnavailable, infer.CodeInternal: // it may be at it
		default:
			p.quit = true
		}
	}
	return e
}

// answers tells the books and the engine's health how the half has ended. Of one that is
// whole the KV is kept until it is fetched, which is no unfinished work.
func (p *partner) answers(e *infer.Error) {
	b := &p.booked
	if e != nil {
		b.close(p.at, p.outcome(e), false)
		return
	}
	for i := range b.generations {
		b.generations[i].first, b.due = p.at, true
		if p.usage.CachedTokens >= 0 && len(b.generations) == 1 {
			b.generations[i].cached = p.usage.CachedTokens
		}
	}
	b.tell(new(tally))
	b.health.End(p.at, health.Done)
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

// handover waits until the decode half has had its first output.
func (p *partner) handover() *infer.Error {
	bound := p.g.opts.TransferTimeout
	unseen := p.booked.of.whole || p.first() && p.meetings[0].params == nil // its answer comes whole, or nothing is handed over
	if unseen {
		bound = math.MaxInt64
	}
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-p.met:
		if took := p.metAt - p.at; took >= 0 && !unseen {
			p.transfer.Add(p.lacks, float64(took)/1e6)
		}
	case <-p.ctx.Done():
	case <-t.C:
		return &infer.Error{Code: infer.CodeDeadline, Engine: p.escape.x.target.Name, Retryable: true, Handover: true,
			Message: "the decode engine sent nothing within " + bound.String() + " after the prefill engine's answer (--transfer-timeout)"}
	}
	return nil
}

// wait waits for the end of the attempt, for at most d.
func (p *partner) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.ctx.Done():
	case <-t.C:
	}
}

// awaits has tell called when the decode half owes its first output.
func (p *partner) awaits(tell func(now int64)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due = tell; p.ended() {
		p.tell(p.at)
	}
}

// tell tells, once. The lock is held.
func (p *partner) tell(now int64) {
	if p.due != nil {
		p.due(now)
		p.due = nil
	}
}

// owes says that the decode half owes its first output from now on.
func (p *partner) owes(now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell(now)
}

// begins says that the decode half has had its first output.
func (p *partner) begins(at int64) {
	if p != nil {
		p.owes(at)
		p.metAt = at
		close(p.met)
	}
}

// ended says that the half has ended.
func (p *partner) ended() bool {
	select {
	case <-p.answered:
		return true
	default:
		return false
	}
}

// Down implements judge.Waiting.
func (p *partner) Down(why string) { p.escape.down(&p.target, why) }

// word gives what the attempt has failed by, where its decode half has failed by e before
// there was any output: where that may be what it has seen of the prefill half's failure,
// it is that.
func (p *partner) word(ctx context.Context, e *infer.Error) *infer.Error {
	if p == nil || p.wire == nil || e == nil || !e.Handover {
		return e
	}
	t := time.NewTimer(lastWord)
	defer t.Stop()
	select {
	case <-p.answered:
		if p.err != nil && !p.err.Handover {
			return p.err
		}
	case <-ctx.Done():
	case <-t.C:
	}
	return e
}

// hasQuit says that the prefill engine has ended the half without handing over, so that it
// writes no KV any more.
func (p *partner) hasQuit() bool { return p != nil && p.wire != nil && p.ended() && p.quit }

// blames says that it is the prefill half that the attempt has failed by.
func (p *partner) blames(e *infer.Error) bool {
	if p == nil || p.wire == nil || e == nil {
		return false
	}
	return e.Engine == p.target.Name || p.ended() && p.err == e
}

// close ends the half, once, with an attempt that has ended by e.
func (p *partner) close(e *infer.Error) {
	if p == nil || p.over {
		return
	}
	p.over = true
	if p.wire == nil {
		p.booked.close(trace.Now(), health.GaveUp, false)
		return
	}
	if e == nil && !p.ended() { // what it has to say is on its way
		p.lookOut()
	}
	p.awaits(nil)
	p.cancel(errParted)
	<-p.gone
	p.booked.close(trace.Now(), health.Done, true) // one that has failed has closed it
	p.leg.Outcome = infer.Finished.String()
	if p.err != nil {
		p.leg.Outcome = p.err.Code.String()
	}
}

// lookOut waits for the half's end, which must be near.
func (p *partner) lookOut() {
	t := time.NewTimer(lastWord)
	defer t.Stop()
	select {
	case <-p.answered:
	case <-t.C:
	}
}

// handed takes what the prefill engine has answered for the decode half of a choice. Where
// that is not what a decode engine can fetch by, it computes the prompt anew.
func (p *partner) handed(choice int, params []byte) {
	if !p.first() {
		return
	}
	err := engine.CheckHanded(params)
	if err == nil {
		p.meetings[choice].params = params
		return
	}
	p.g.failedAt(p.target.Name, p.id, &infer.Error{Code: infer.CodeEngine, Engine: p.target.Name, Message: "the prompt is computed once more by the decode engine", Cause: err})
}

// learn learns from how much of the prompts the prefill engine had. Where its wire does not
// say, what the decode engine tells is its word.
func (p *partner) learn(decode infer.Usage) {
	if p.err == nil && p.ended() && p.usage.CachedTokens >= 0 {
		decode = p.usage
	}
	p.booked.reported(p.target.Books, p.resident, decode)
}

// meeting is what the two halves of a choice have in common.
type meeting struct {
	id     string // of both
	at     infer.Bootstrap
	params []byte // for the decode half, where the prefill engine has answered them
}

// meet makes the meetings of n choices.
func (p *partner) meet(n int) {
	p.meetings = make([]meeting, n)
	for i := range p.meetings {
		p.meetings[i].id = p.g.ids.next()
		if m := &p.target.Meets; m.Way == engine.ByRoom {
			p.meetings[i].at = infer.Bootstrap{Host: m.Host, Port: m.Port, Room: room(p.target.Number, m.Ranks), Rank: p.target.Number}
		}
	}
}

// half is what makes a choice a half; nil where the decode half has nothing to fetch, and is
// the whole.
func (p *partner) half(choice int, role infer.Role) *infer.Half {
	m := &p.meetings[choice]
	h := &infer.Half{Role: role, Bootstrap: m.at}
	switch way := p.target.Meets.Way; {
	case way == engine.ByRoom:
	case role == infer.RolePrefill:
		h.Params = p.target.Meets.PrefillParams(m.id)
	case way == engine.ByPush:
		h.Params = p.target.Meets.DecodeParams(p.target.Number, m.id)
	case m.params == nil:
		return nil
	default:
		h.Params = m.params
	}
	return h
}

// submission is a half of a choice for the token engine at which it is served.
func (p *partner) submission(q *request, choice int, role infer.Role, at *route.Target) *infer.Request {
	req := q.submission(choice, at.Model, p.meetings[choice].id, at.Carries())
	req.Half = p.half(choice, role)
	return req
}

// room makes the number under which two halves meet at a prefill engine, which gives it to
// one of its ranks by it: to the one that was picked, if any was. The prompts of a list have
// those that follow.
func room(rank, ranks int) int64 {
	n := int64(max(ranks, 1))
	r := rand.Int64N(1 << 62)
	if rank >= 0 {
		r += int64(rank) - r%n
	}
	return r
}
