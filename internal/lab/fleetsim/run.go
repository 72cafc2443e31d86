package fleetsim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	engineapi "weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/gateway/place"
	"weir/internal/infer"
	"weir/internal/load/slo"
	"weir/internal/sim"
	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
	"weir/internal/workload"
)

// Options define a replay: the workload and the fleet.
type Options struct {
	Plan *Plan
	// Engine holds the common options of the fleet's engines. Words may be left out.
	Engine  sim.Options
	Engines []Engine
	// Way is how the halves of requests meet, where engines have roles; 0 is by pull. Those
	// that meet by room are as SGLang's engines have them: decode engines serve no whole
	// requests, and look for no prompt in their caches. Otherwise they are as vLLM's.
	Way engineapi.Way
	// Policy is one of balance.Names, of References, or Oracle; with Queued behind it,
	// requests wait in the gateway until an engine has room.
	Policy string
	// Patience is how long a request waits in the gateway; 0 is for ever.
	Patience time.Duration
	// Speed divides the times at which sessions come; 0 is 1.
	Speed float64
	// Gateways share the sessions' requests at random; 0 is 1.
	Gateways int
	// Age is the interval at which engines report and gateways exchange their books, so
	// information is up to this old. At 0 it is always current.
	Age time.Duration
	// Stamps reports whether engines report when prefill began, and how many tokens were
	// cached.
	Stamps bool
	// Unsaid reports whether engines do not report the size of their caches.
	Unsaid bool
	// Salted reports whether engines keep the KV of each session apart, by a salt of which
	// gateways know nothing: their index is right within a session only.
	Salted bool
	Events []Event
	// Strict states that engines are given no more than they run at once, as with max-running.
	Strict bool
	// Tenant is whose the requests of a session are; nil: they are all of one tenant. A session
	// of nil is left out.
	Tenant func(session int) *tenancy.Caller
	// Seed is that of chance: of ties, of the gateways that requests come to.
	Seed uint64
	// Objectives are the objectives that the report evaluates.
	Objectives []slo.Objective
	// OnRequest, if set, is called with each request when it ends.
	OnRequest func(*Record)
}

// Record is the history of a request. Times are nanoseconds since the run began.
type Record struct {
	Session, Turn  int
	Gateway        int
	Engine         int // that it ended at, or would have; -1 none
	Prefill        int // the engine that computed its prompt, if another one did; -1: none
	Arrival        int64
	Answered       int64 // when that one had
	First, Finish  int64 // 0 where there was none
	Input, Output  int
	Cached         int // of the prompt, as the engine had it
	Elsewhere      int // tokens of the prompt that were resident at another engine, and not there
	Tries          int
	AloneMS        float64 // to the first token, on an idle engine
	Refused        error
	Failed         bool // its engine was lost after its first token, or no engine was left
	PredictedMS    float64
	PredictedNovel int
}

// TTFT is from arrival to the first token, in milliseconds.
func (r *Record) TTFT() float64 { return float64(r.First-r.Arrival) / 1e6 }

// TPOT is the mean time of a token after the first, in milliseconds; 0 where there is
// no other.
func (r *Record) TPOT() float64 {
	if r.Output < 2 {
		return 0
	}
	return float64(r.Finish-r.First) / 1e6 / float64(r.Output-1)
}

// request is one on its way.
type request struct {
	Record
	session uint64
	caller  *tenancy.Caller
	turns   []workload.Turn
	prompt  *prompt
	gateway *gateway // that it came to
	serves  *leg     // at the engine that generates
	fills   *leg     // at the one that computes the prompt, where that is another one
	ticket  place.Ticket
	need    place.Need
	charged fair.Turn // that it has taken
	came    int64     // when it came to the gateway, or came back
	handed  int64     // when its engines were chosen
	pages   bool      // the engine that generates has room for the prompt, and wants its KV

	generated int
	answer    []uint32
}

// run is the state of a replay.
type run struct {
	o        *Options
	engines  []*engine
	gateways []*gateway
	views    []view
	now      int64
	random   *rand.Rand
	timers   timers
	next     int // the session that comes next
	began    int // sessions, of a closed loop
	figures  figures
	open     int // requests on their way
}

// Run replays the plan to its end, or until ctx ends.
func Run(ctx context.Context, o Options) (*Report, error) {
	r, err := newRun(&o)
	if err != nil {
		return nil, err
	}
	if err := r.loop(ctx); err != nil {
		return nil, err
	}
	return r.close(), nil
}

// newRun prepares a run. It fills in defaults of the options.
func newRun(o *Options) (*run, error) {
	if o.Speed == 0 {
		o.Speed = 1
	}
	if o.Gateways == 0 {
		o.Gateways = 1
	}
	r := &run{o: o, random: rand.New(rand.NewPCG(o.Seed, 0x666c656574))}
	if len(o.Engines) == 0 {
		return nil, errors.New("a fleet of no engines")
	}
	if o.Way == engineapi.Nowhere {
		o.Way = engineapi.ByPull
	}
	if err := o.serves(); err != nil {
		return nil, err
	}
	if o.Engine.Words == nil {
		w, err := words()
		if err != nil {
			return nil, err
		}
		o.Engine.Words = w
	}
	for i, e := range o.Engines {
		g, err := newEngine(o.Engine, e)
		if err != nil {
			return nil, fmt.Errorf("engine %d: %w", i+1, err)
		}
		r.engines = append(r.engines, g)
	}
	o.Engine = r.engines[0].o
	o.Plan.use(&o.Engine, o.Salted)
	for range o.Gateways {
		g, err := newGateway(r, o.Policy)
		if err != nil {
			return nil, err
		}
		r.gateways = append(r.gateways, g)
	}
	for i := range o.Events {
		if e := &o.Events[i]; e.Engine < 0 || e.Engine >= len(r.engines) {
			return nil, fmt.Errorf("an event of engine %d; there are %d", e.Engine+1, len(r.engines))
		}
		r.timers.add(int64(o.Events[i].At), timer{event: &o.Events[i]})
	}
	r.figures.sides = r.sides()
	r.views = make([]view, len(r.engines))
	if o.Age > 0 {
		r.timers.add(0, timer{tick: true})
	}
	for range o.Plan.users {
		r.timers.add(0, timer{user: true})
	}
	r.figures.truth = Truth(r.engines[0].pace.CostModel)
	return r, nil
}

// eventsPerCheck is how many events pass between looks at the context.
const eventsPerCheck = 4096

func (r *run) loop(ctx context.Context) error {
	for n := 1; ; n++ {
		if n%eventsPerCheck == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at, arrives := r.arrival()
		if t, ok := r.timers.first(); ok && (!arrives || t <= at) {
			if !arrives && r.open == 0 && r.timers.idle() {
				return nil // only looks are left
			}
			at, arrives = t, false
		} else if !arrives {
			at = -1
		}
		e, due := r.due()
		switch {
		case at >= 0 && (e == nil || at <= due):
			// A request that arrives when a step ends is present when the next one begins.
			r.now = at
			if arrives {
				r.begin(r.next)
				r.next++
				continue
			}
			if err := r.fire(r.timers.take()); err != nil {
				return err
			}
		case e != nil:
			r.now = due
			for step := e.core.Advance(due); step != nil; step = e.core.Advance(due) {
				r.step(e, step)
			}
			r.turn()
		default:
			return nil
		}
	}
}

// arrival returns when the next session comes.
func (r *run) arrival() (int64, bool) {
	if r.next >= len(r.o.Plan.arrivals) {
		return 0, false
	}
	return int64(float64(r.o.Plan.arrivals[r.next]) / r.o.Speed), true
}

// due returns the engine whose step ends next.
func (r *run) due() (next *engine, at int64) {
	for _, e := range r.engines {
		if !e.up {
			continue
		}
		if due, busy := e.core.Due(); busy && (next == nil || due < at) {
			next, at = e, due
		}
	}
	return next, at
}

// begin begins a session.
func (r *run) begin(n int) {
	caller := tenancy.Anyone
	if r.o.Tenant != nil {
		if caller = r.o.Tenant(n); caller == nil {
			return
		}
	}
	turns := r.o.Plan.turns(n)
	r.ask(&request{Record: Record{Session: n}, caller: caller, session: r.o.Plan.session(n), turns: turns, prompt: r.o.Plan.prompt(n, 0, turns, nil, nil)})
}

// user has a user of a closed loop begin a session.
func (r *run) user() {
	if r.began >= mostSessions {
		return
	}
	n := r.began
	r.began++
	r.begin(n)
}

// enough reports whether a closed loop has begun all its requests.
func (r *run) enough() bool {
	p := r.o.Plan
	return p.users > 0 && (p.until > 0 && r.now >= int64(p.until) || p.sessions.Requests > 0 && r.figures.requests >= p.sessions.Requests)
}

// ask has a request come to a gateway.
func (r *run) ask(q *request) {
	q.Arrival, q.Input, q.Engine, q.Prefill = r.now, q.prompt.input, -1, -1
	r.open++
	r.figures.arrive(r, q.Turn == 0)
	if q.prompt.refused != nil {
		q.Refused = q.prompt.refused
		r.over(q)
		return
	}
	t := r.figures.truth
	n := float64(q.Input)
	q.AloneMS = t.Of(cost.Prefill(n, n, float64(r.o.Engine.StepTokens)))
	if len(r.gateways) > 1 {
		q.Gateway = r.random.IntN(len(r.gateways))
	}
	r.send(q)
}

// send gives a request to an engine, and again where it cannot be taken.
func (r *run) send(q *request) {
	if r.o.Age == 0 {
		r.look()
	}
	q.came = r.now
	q.gateway = r.gateways[q.Gateway]
	q.gateway.ask(q)
}

// turn has those decide that wait in gateways.
func (r *run) turn() {
	for _, g := range r.gateways {
		g.turn()
	}
}

// hand hands a request to the engines where it was booked.
func (r *run) hand(q *request) {
	computes := q.serves
	if q.fills != nil {
		computes = q.fills
		q.Prefill = computes.engine
	} else {
		q.Prefill = -1
	}
	q.Engine, q.Tries, q.Answered, q.pages = q.serves.engine, q.Tries+1, 0, false
	q.PredictedMS, q.PredictedNovel = float64(q.serves.booking.Ready-q.came)/1e6, computes.fresh
	here, best := 0, 0
	for j, o := range r.engines {
		if o.up {
			n := o.core.Resident(0, &q.prompt.request)
			if best = max(best, n); j == computes.engine {
				here = n
			}
		}
	}
	q.Elsewhere = best - here
	r.views[computes.engine].given(q)
	err := r.engines[computes.engine].submit(r.now, computes, r.asked(computes))
	if err == nil && q.fills != nil && r.o.Way != engineapi.ByPull {
		err = r.fetch(q)
	}
	if err != nil {
		r.drop(q, computes)
		q.Refused = err
		r.over(q)
	}
}

// asked returns the request that an engine gets.
func (r *run) asked(l *leg) sim.Request {
	room := r.o.Way == engineapi.ByRoom
	switch l.kind {
	case sim.LegPrefill:
		return l.of.prompt.request.Half(l.kind, room, false)
	case sim.LegDecode:
		return l.of.prompt.request.Half(l.kind, false, room)
	}
	return l.of.prompt.request
}

// fetch has the engine that is to generate fetch the KV of the prompt.
func (r *run) fetch(q *request) error {
	return r.engines[q.serves.engine].submit(r.now, q.serves, r.asked(q.serves))
}

// drop has all forget a request that an engine does not serve to its end.
func (r *run) drop(q *request, by *leg) {
	for _, l := range []*leg{q.serves, q.fills} {
		if l != nil {
			r.engines[l.engine].abort(r.now, l)
		}
	}
	q.gateway.lost(q, by)
}

// step takes the results of an engine's step.
func (r *run) step(e *engine, s *sim.Step) {
	e.worked(s.Start, s.End)
	if e.role == infer.RolePrefill {
		r.computed(e, s)
		return
	}
	for _, v := range s.Reserved {
		if l := e.live[v.Ref]; l != nil {
			r.wants(l.of)
		}
	}
	for _, ref := range s.Fetched {
		if l := e.live[ref]; l != nil {
			r.fetched(l.of)
		}
	}
	for i := range s.First {
		if l := e.live[s.First[i].Ref]; l != nil {
			l.told = &s.First[i]
		}
	}
	for i := range s.Done {
		if l := e.live[s.Done[i].Ref]; l != nil {
			l.ends = true
		}
	}
	for i, ref := range s.Ref {
		l := e.live[ref]
		if l == nil {
			continue
		}
		q := l.of
		if l.told != nil {
			q.First = r.now
			if q.fills == nil {
				q.Cached = l.told.Cached
			}
			e.begins(l)
		}
		q.generated++
		q.answer = append(q.answer, s.ID[i])
		q.gateway.takes(l, s.ID[i:i+1], l.told)
		l.told = nil
		if l.ends && (i+1 == len(s.Ref) || s.Ref[i+1] != ref) {
			e.decoding--
			e.finished++
			e.live[ref] = nil
			q.gateway.end(q)
			q.Finish, q.Output = r.now, q.generated
			r.over(q)
		}
	}
	for _, g := range r.gateways {
		g.tally.Tell()
	}
}

// computed takes the results of a step of an engine that computes prompts for others.
func (r *run) computed(e *engine, s *sim.Step) {
	for i := range s.First {
		if l := e.live[s.First[i].Ref]; l != nil {
			l.told = &s.First[i]
		}
	}
	for i := range s.Kept {
		l := e.live[s.Kept[i].Ref]
		if l == nil {
			continue
		}
		q := l.of
		q.Answered, q.Cached = r.now, s.Kept[i].Cached
		e.begins(l)
		e.finished++
		q.gateway.computed(l, l.told)
		l.told = nil
		switch d := r.engines[q.serves.engine]; {
		case r.o.Way != engineapi.ByPull:
			r.offer(q)
		case !d.up || d.life != q.serves.life: // it is lost, which only shows now
			r.drop(q, q.serves)
			r.send(q)
		default:
			if err := r.fetch(q); err != nil {
				r.drop(q, q.serves)
				q.Refused = err
				r.over(q)
			}
		}
	}
}

// wants has a request's prompt be computed, or its KV be fetched, when the engine that is to
// generate has room for it.
func (r *run) wants(q *request) {
	q.pages = true
	r.engines[q.fills.engine].core.Meet(r.now, q.fills.ref)
	r.offer(q)
}

// offer has the KV of a prompt be fetched, where it is there and there is room for it.
func (r *run) offer(q *request) {
	if q.pages && q.fills.begun {
		r.engines[q.serves.engine].core.Offer(r.now, q.serves.ref, sim.Offer{Cached: q.Cached})
	}
}

// fetched has the engine that has computed a request's prompt keep its KV no more.
func (r *run) fetched(q *request) {
	e := r.engines[q.fills.engine]
	if !e.up || q.fills.life != e.life || e.live[q.fills.ref] != q.fills {
		return
	}
	e.core.Release(r.now, q.fills.ref)
	e.live[q.fills.ref] = nil
}

// over books a request's end, and has what follows on it come.
func (r *run) over(q *request) {
	r.open--
	r.figures.take(&q.Record)
	if r.o.OnRequest != nil {
		r.o.OnRequest(&q.Record)
	}
	follows := false
	if q.Finish > 0 {
		for i := q.Turn + 1; i < len(q.turns); i++ {
			if q.turns[i].After != q.Turn {
				continue
			}
			follows = true
			r.timers.add(r.now+int64(r.o.Plan.think), timer{after: q, turn: i})
		}
	}
	if !follows && r.o.Plan.users > 0 && q.trunk() {
		r.timers.add(r.now+max(int64(r.o.Plan.think), 1e6), timer{user: true})
	}
}

// trunk reports whether a user waits for the request: whether it is on no branch.
func (r *request) trunk() bool {
	for i := r.Turn; i > 0; i = r.turns[i].After {
		if slices.IndexFunc(r.turns, func(t workload.Turn) bool { return t.After == r.turns[i].After }) != i {
			return false
		}
	}
	return true
}

// fire carries out a timer.
func (r *run) fire(t timer) error {
	switch {
	case t.look != nil:
		t.look.turn()
	case t.tick:
		r.look()
		r.timers.add(r.now+int64(r.o.Age), timer{tick: true})
	case (t.user || t.after != nil) && r.enough():
	case t.user:
		r.user()
	case t.event != nil:
		err := r.happen(t.event)
		r.turn()
		return err
	case t.after != nil:
		q := t.after
		r.ask(&request{
			Record: Record{Session: q.Session, Turn: t.turn}, caller: q.caller, session: q.session, turns: q.turns,
			prompt: r.o.Plan.prompt(q.Session, t.turn, q.turns, q.prompt, q.answer),
		})
	}
	return nil
}

// look has gateways see how engines and the other gateways are.
func (r *run) look() {
	for i, e := range r.engines {
		if e.up {
			r.views[i].look(e, r.now)
		}
	}
	if len(r.gateways) > 1 {
		r.exchange()
	}
}

// happen carries out an event.
func (r *run) happen(v *Event) error {
	e := r.engines[v.Engine]
	switch {
	case v.Kind == Slow:
		e.pace.by = e.slow * v.By
	case v.Kind == Join && !e.up:
		if err := e.start(); err != nil {
			return err
		}
		for _, g := range r.gateways {
			g.join(v.Engine)
		}
	case v.Kind == Fail && e.up:
		e.up = false
		for _, g := range r.gateways {
			g.leave(v.Engine)
		}
		live := slices.DeleteFunc(slices.Clone(e.live), func(l *leg) bool { return l == nil })
		slices.SortStableFunc(live, func(a, b *leg) int { return cmp.Compare(a.of.Arrival, b.of.Arrival) })
		for _, l := range live {
			q := l.of
			r.drop(q, l)
			if q.First > 0 {
				q.Failed = true
				r.over(q)
				continue
			}
			r.send(q)
		}
	case v.Kind == Evict && e.up:
		e.core.Evict()
	}
	return nil
}

// timer is what happens at a time: one of its fields.
type timer struct {
	tick, user bool
	look       *gateway // that has requests waiting
	event      *Event
	after      *request // a turn that follows
	turn       int

	at  int64
	seq int
}

// timers is a heap of timers by time; timers of the same time keep the order in which they
// were added.
type timers struct {
	heap  []timer
	seq   int
	looks int // of them, those that only look
}

func (t *timer) before(b *timer) bool { return t.at < b.at || t.at == b.at && t.seq < b.seq }

func (t *timers) add(at int64, x timer) {
	x.at, x.seq = at, t.seq
	t.seq++
	if x.looks() {
		t.looks++
	}
	h := append(t.heap, x)
	for i := len(h) - 1; i > 0 && h[i].before(&h[(i-1)/2]); i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
	t.heap = h
}

func (t *timers) first() (int64, bool) {
	if len(t.heap) == 0 {
		return 0, false
	}
	return t.heap[0].at, true
}

// looks reports whether nothing happens but that somebody looks how things are.
func (t *timer) looks() bool { return t.tick || t.look != nil }

// idle reports whether nothing but looks are to happen.
func (t *timers) idle() bool { return len(t.heap) == t.looks }

func (t *timers) take() timer {
	h := t.heap
	x := h[0]
	if x.looks() {
		t.looks--
	}
	n := len(h) - 1
	h[0] = h[n]
	h[n] = timer{}
	h = h[:n]
	for i := 0; ; {
		least := i
		for _, c := range [2]int{2*i + 1, 2*i + 2} {
			if c < n && h[c].before(&h[least]) {
				least = c
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	t.heap = h
	return x
}
