package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// world is engines and gateways in virtual time. Its engines are honest models: steps,
// a queue, one token for each running request and step. What they do wrong they are told.
type world struct {
	now      int64
	engines  []*simEngine
	gateways []*simGateway
	log      func(string)
}

// grain is how finely the world's time moves on.
const grain = int64(10 * time.Millisecond)

// budget is how much prefill a step takes up.
const budget = 500 * time.Millisecond

type simEngine struct {
	world         *world
	name          string
	ranks         []*simRank
	step, prefill time.Duration
	predict       float64 // milliseconds; negative: unknown
	generates     bool
	samples       bool
	sampled       int  // so often
	counted       bool // gateways read how much it has made, of one that is fenced by its fence
	serves        []string
	answersEvery  int // probes: every n-th
	probed        int
	dead, failing bool
	overloaded    bool
	partitioned   bool
	held          []func() // by the partition
}

type simRank struct {
	of      *simEngine
	n       int
	hung    bool
	mute    bool // no requests are computed, and probes are answered
	samples bool // and samples are, of one that is mute
	noStart bool // none is begun
	slow    float64
	queue   []*simRequest
	running []*simRequest
	begun   []*simRequest // by the step under way
	until   int64         // it ends
	working bool
	made    int // prompts and tokens, for anybody
}

type simRequest struct {
	gateway *simGateway
	rank    *simRank
	judged  *Rank
	health  Request
	tokens  int
	probe   bool
	sample  bool
	beside  bool
	until   int64 // its client, or its probe, gives up
	gone    bool
}

type simGateway struct {
	name     string
	world    *world
	fleet    *Fleet
	ranks    []*Rank
	of       map[*Rank]*simRank
	made     map[*Rank]int // as the latest fence said
	ticked   int64
	paused   int64 // until
	inbox    []message
	behind   time.Duration // how late its readers are
	every    time.Duration // between requests
	next     int64
	tokens   int
	patience time.Duration
	model    string
	turn     int
	open     []*simRequest
	sent     map[string]int
	failed   map[string]int
	nobody   int
}

type message struct {
	at   int64
	take func(now int64)
}

func (w *world) gateway(name string, limits Limits) *simGateway {
	g := &simGateway{
		name: name, world: w, fleet: NewFleet(limits, w.now), of: map[*Rank]*simRank{}, made: map[*Rank]int{}, ticked: w.now,
		sent: map[string]int{}, failed: map[string]int{}, patience: time.Minute, tokens: 20,
	}
	w.gateways = append(w.gateways, g)
	for _, e := range w.engines {
		g.meet(e)
	}
	return g
}

func (w *world) engine(e *simEngine, ranks int) *simEngine {
	for i := range ranks {
		e.ranks = append(e.ranks, &simRank{of: e, n: i, slow: 1})
	}
	e.world = w
	w.engines = append(w.engines, e)
	for _, g := range w.gateways {
		g.meet(e)
	}
	return e
}

func (g *simGateway) meet(e *simEngine) {
	for i, x := range e.ranks {
		m := Member{Engine: e.name, Rank: i, Serves: e.serves, Generates: e.generates, Samples: e.samples}
		if len(e.ranks) == 1 {
			m.Rank = -1
		}
		r := g.fleet.Add(m)
		r.Joined(g.world.now, true)
		g.ranks = append(g.ranks, r)
		g.of[r] = x
	}
}

// run moves the time on.
func (w *world) run(d time.Duration) {
	for end := w.now + int64(d); w.now < end; {
		w.now += grain
		for _, e := range w.engines {
			for _, x := range e.ranks {
				x.work(w.now)
			}
		}
		for _, g := range w.gateways {
			g.work(w.now)
		}
	}
}

// tell brings what an engine says to a gateway.
func (e *simEngine) tell(now int64, g *simGateway, take func(now int64)) {
	deliver := func() { g.inbox = append(g.inbox, message{g.world.now, take}) }
	if e.partitioned {
		e.held = append(e.held, deliver)
		return
	}
	deliver()
}

// ask brings a request or a probe to an engine.
func (x *simRank) ask(now int64, q *simRequest) {
	e, g := x.of, q.gateway
	if e.partitioned {
		e.held = append(e.held, func() { x.ask(g.world.now, q) })
		return
	}
	if q.probe && !q.sample {
		e.probed++
	}
	end := func(how End) {
		e.tell(now, g, func(now int64) {
			g.failed[e.name]++
			q.gone = true
			q.health.Ended(now, how)
		})
	}
	result := func(r Result, why string) {
		e.tell(now, g, func(now int64) { g.probed(now, q, r, why) })
	}
	switch {
	case q.gone:
	case e.dead && q.probe:
		result(Nobody, "connection refused")
	case e.dead:
		end(Refused)
	case q.probe && e.answersEvery > 0 && e.probed%e.answersEvery != 0:
	case q.probe && x.mute && (!q.sample || x.samples):
		result(Answered, "")
	case x.mute:
	case e.overloaded && q.probe && e.generates:
		result(Busy, "")
	case e.overloaded && !q.probe:
		end(Overload)
	case e.failing && q.probe && e.generates:
		result(Failed, "500")
	case e.failing && !q.probe:
		end(Fault)
	default:
		x.queue = append(x.queue, q)
	}
}

func (g *simGateway) probed(now int64, q *simRequest, r Result, why string) {
	if !q.gone {
		q.gone = true
		if q.sample {
			q.judged.Sampled(now, r)
			return
		}
		q.judged.Probed(now, r, why)
	}
}

// fenced takes what a fence says, which may be that the engine has made tokens.
func (g *simGateway) fenced(now int64, q *simRequest, made int) {
	if last, ok := g.made[q.judged]; ok && last != made && q.rank.of.counted && !q.gone {
		q.judged.Alive(now)
	}
	g.made[q.judged] = made
	g.probed(now, q, Answered, "")
}

// work is an engine's loop.
func (x *simRank) work(now int64) {
	if x.hung || x.of.dead || now < x.until {
		return
	}
	if x.working {
		x.give(now)
	}
	x.working = false
	// Fences are answered between steps.
	x.queue = slices.DeleteFunc(x.queue, func(q *simRequest) bool {
		if q.probe && !q.sample && !x.of.generates && !q.gone {
			made := x.made
			x.of.tell(now, q.gateway, func(now int64) { q.gateway.fenced(now, q, made) })
			return true
		}
		return q.gone && q.probe // what clients gave up is computed all the same
	})
	d := time.Duration(0)
	if !x.noStart {
		// As many as a step has room for, and one at least.
		for len(x.queue) > 0 && (len(x.begun) == 0 || d+x.of.prefill <= budget) {
			if !x.queue[0].probe {
				d += x.of.prefill
			}
			x.begun, x.queue = append(x.begun, x.queue[0]), x.queue[1:]
		}
	}
	if len(x.begun)+len(x.running) > 0 {
		x.working = true
		x.until = now + int64(x.slow*float64(d+x.of.step))
	}
}

// give is what a step has made.
func (x *simRank) give(now int64) {
	firsts := x.begun
	x.made += len(firsts)
	x.running, x.begun = append(x.running, x.begun...), nil
	tokens := map[*simGateway]int{}
	ended := []*simRequest{}
	x.running = slices.DeleteFunc(x.running, func(q *simRequest) bool {
		if q.gone {
			return true
		}
		x.made++
		if !q.sample {
			tokens[q.gateway]++
		}
		if q.tokens--; q.tokens > 0 {
			return false
		}
		ended = append(ended, q)
		return true
	})
	for _, g := range x.of.world.gateways {
		x.of.tell(now, g, func(now int64) {
			for _, q := range firsts {
				if q.gateway == g && !q.probe {
					q.health.Started(now)
				}
			}
			r := g.judge(x)
			if x.of.counted && x.of.generates {
				r.Alive(now)
			}
			if tokens[g] > 0 {
				r.Progressed(now, tokens[g], g.left(r))
			}
			for _, q := range ended {
				switch {
				case q.gateway != g || q.gone:
				case q.probe:
					g.probed(now, q, Answered, "")
				default:
					q.gone = true
					q.health.Ended(now, Done)
				}
			}
		})
	}
}

func (g *simGateway) judge(x *simRank) *Rank {
	for r, y := range g.of {
		if x == y {
			return r
		}
	}
	return nil
}

// left is the predicted work of what has not begun.
func (g *simGateway) left(r *Rank) float64 {
	predict := g.of[r].of.predict
	if predict < 0 {
		return -1
	}
	return float64(r.firsts.n) * predict
}

// kill ends an engine's process.
func (e *simEngine) kill(now int64) {
	e.dead = true
	for _, x := range e.ranks {
		for _, q := range slices.Concat(x.queue, x.running, x.begun) {
			if q.gone {
				continue
			}
			e.tell(now, q.gateway, func(now int64) {
				if q.probe {
					q.gateway.probed(now, q, Failed, "connection reset")
					return
				}
				q.gone = true
				q.gateway.failed[e.name]++
				q.health.Ended(now, Cut)
			})
		}
		*x = simRank{of: e, n: x.n, slow: 1, made: x.made}
	}
}

// heal makes it well again; what it had is still there.
func (e *simEngine) heal() {
	e.dead, e.failing, e.overloaded, e.partitioned, e.answersEvery = false, false, false, false, 0
	for _, x := range e.ranks {
		x.hung, x.mute, x.samples, x.noStart, x.slow = false, false, false, false, 1
	}
	held := e.held
	e.held = nil
	for _, f := range held {
		f()
	}
}

// work is a gateway's loop: what arrived, a tick, new requests.
func (g *simGateway) work(now int64) {
	if now < g.paused {
		return
	}
	if now-g.ticked >= int64(g.fleet.limits.Tick) {
		var late time.Duration
		if len(g.inbox) > 0 && g.behind > 0 {
			late = time.Duration(now - g.ticked)
		}
		// The worst order: after a pause the tick comes first.
		g.tick(now, late)
	}
	for len(g.inbox) > 0 && now >= g.inbox[0].at+int64(g.behind) {
		m := g.inbox[0]
		g.inbox = g.inbox[1:]
		m.take(now)
	}
	g.open = slices.DeleteFunc(g.open, func(q *simRequest) bool {
		if !q.gone && now >= q.until {
			q.gone = true
			if !q.probe {
				q.health.Ended(now, GaveUp)
				g.failed[q.rank.of.name]++
			}
		}
		return q.gone
	})
	for g.every > 0 && now >= g.next {
		g.next = max(g.next+int64(g.every), now)
		g.request(now)
	}
	g.report()
}

func (g *simGateway) tick(now int64, late time.Duration) {
	g.ticked = now
	for _, r := range g.ranks {
		if e := g.of[r].of; e.predict >= 0 {
			r.Ahead(now, e.predict+float64((budget+e.step).Milliseconds()))
		}
	}
	for _, p := range g.fleet.Tick(now, late) {
		for _, q := range g.open { // a new sample takes the place of the one before
			q.gone = q.gone || q.sample && p.Sample && q.judged == p.Rank && q.beside == p.Beside
		}
		q := &simRequest{gateway: g, rank: g.of[p.Rank], judged: p.Rank, probe: true, sample: p.Sample, beside: p.Beside, tokens: 1, until: now + int64(p.Patience) + 1}
		if p.Sample {
			q.rank.of.sampled++
		}
		g.open = append(g.open, q)
		q.rank.ask(now, q)
	}
}

func (g *simGateway) report() {
	for _, c := range g.fleet.Changes() {
		if c.To == Up {
			delete(g.made, c.Rank)
		}
		name := ""
		if len(g.world.gateways) > 1 {
			name = g.name + ": "
		}
		if g.world.log != nil {
			g.world.log(fmt.Sprintf("%6.1fs %s%v", time.Duration(c.Now).Seconds(), name, c))
		}
	}
}

// request hands over one, to the ranks in turn.
func (g *simGateway) request(now int64) {
	for _, want := range []Takes{Freely, Otherwise, AtLast} {
		for i := range g.ranks {
			r := g.ranks[(g.turn+i)%len(g.ranks)]
			if g.model != "" && !r.serves(g.model) || r.Takes() != want {
				continue
			}
			g.turn += i + 1
			x := g.of[r]
			q := &simRequest{gateway: g, rank: x, judged: r, tokens: g.tokens, until: now + int64(g.patience)}
			g.sent[r.String()]++
			g.open = append(g.open, q)
			r.HandedOver(&q.health, now, x.of.predict)
			x.ask(now, q)
			return
		}
	}
	g.nobody++
}

// tally says what became of requests since the last one.
func (g *simGateway) tally() string {
	names := func(m map[string]int) string {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(m)) {
			parts = append(parts, fmt.Sprintf("%s %d", name, m[name]))
		}
		return cmp.Or(strings.Join(parts, ", "), "none")
	}
	line := "sent " + names(g.sent)
	for _, e := range g.world.engines {
		if e.sampled > 0 {
			line += fmt.Sprintf("; sampled %s %d", e.name, e.sampled)
			e.sampled = 0
		}
	}
	if len(g.failed) > 0 {
		line += "; failed " + names(g.failed)
	}
	if g.nobody > 0 {
		line += fmt.Sprintf("; nobody took %d", g.nobody)
	}
	g.sent, g.failed, g.nobody = map[string]int{}, map[string]int{}, 0
	return line
}

// stateOf is an engine's state, which is that of its best rank: it is down when all are.
func stateOf(f *Fleet, engine string) State {
	state := Down
	for _, r := range f.ranks {
		if r.Member.Engine == engine {
			state = min(state, r.state)
		}
	}
	return state
}
