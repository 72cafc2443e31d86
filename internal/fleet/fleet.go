// Package fleet owns the connections to the engines and publishes, as an immutable
// snapshot, which engine serves which model. The control side is one goroutine that
// handles the reports of all adapters in order. The data side reads the latest snapshot
// through an atomic pointer and never waits.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/retry"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// Member is one engine to connect to. Adapter must also implement either
// engine.Tokens or engine.Relay, or engine.Stand.
type Member struct {
	Name  string // unique, in metrics and records
	Kind  string
	Model string // the name to serve it under; empty: the engine's own names
	// LoRA are the names of the adapters that it is configured to load. They are known
	// before it has answered.
	LoRA []string
	// MaxRunning is the most requests that the engine gets at once; 0 is the number that
	// it reports.
	MaxRunning int
	Adapter    engine.Adapter
	// KVEvents is the address of the engine's KV events and overrides the address that it
	// reports. NoKVEvents disables them.
	KVEvents   engine.KVEvents
	NoKVEvents bool
	// Halves is its part if prefill and decode run on two engines.
	Halves Halves
	// Setting is the part of its configuration that may change while it is a member.
	Setting Setting
}

// Options configure a Fleet. Members and the configuration of models are those of the
// start: Change changes them.
type Options struct {
	Members []Member
	// Folders maps each model name that has a model folder to its aliases. A
	// token engine can only serve these.
	Folders map[string][]string
	// Aliases are the aliases of models without a folder, by the names of the models.
	Aliases map[string][]string
	// Loaded are the folders of models that were added since the gateway's start.
	Loaded map[string]*route.Loaded
	// Policy is the name of the policy that chooses engines; the default is
	// DefaultPolicy. Policies are the exceptions, by model.
	Policy   string
	Policies map[string]string
	// Isolation states whose requests for a model share its engines' caches. Isolations are
	// the exceptions, by model.
	Isolation  tenancy.Isolation
	Isolations map[string]tenancy.Isolation
	// Lenient lets engines that read no salt serve models without an isolation of their own,
	// unsalted. If no engine of a model reads a salt, its callers share.
	Lenient bool
	// OwnLateness is that of judge.Options.
	OwnLateness time.Duration
	// NoGeneration forbids probes and samples that make an engine generate.
	NoGeneration bool
	// Stall is how long a stream may stand still while its engine continues others; 0 is
	// for ever.
	Stall time.Duration
	// Retries bound the retries of each model's requests.
	Retries retry.Limits
	// IndexBytes bounds the memory of the index of the engines' caches; 0 is
	// DefaultIndexBytes.
	IndexBytes int64
	// Lost, if set, is called with the reason whenever an adapter reports that its
	// engine is not ready. It is called from the adapters' goroutines and must not
	// block.
	Lost func(m Member, err error)
	// Left, if set, is called when an engine that was ready no longer is, or when a
	// rank of a ready engine is not; rank -1 is the whole engine. It must not block.
	Left func(m Member, rank int, err error)
	// Absent, if set, is called with the reason why an engine has not been ready yet, once for
	// each reason. Came is called for an engine that is ready after a call of Absent or Left.
	// Ready is called whenever an engine has become ready. They must not block.
	Absent func(m Member, err error)
	Came   func(m Member, e *route.Engine)
	Ready  func(e *route.Engine)
	// Judged, if set, is called when the health of an engine rank becomes suspect or down,
	// or it takes requests again, with the id of its latest request. It must not block.
	Judged func(m health.Member, v health.View, request string)
	// Events, if set, is called when the KV events of an engine begin to arrive, and with a
	// reason when they cease. It must not block.
	Events func(m Member, err error)
	// Placed, if set, returns a function that is called with each prompt that is sent to a rank
	// of an engine.
	Placed func(engine string, rank int) func(blocks []kvindex.Block, ready int64)
	// Panicked is called when an adapter's Run has ended by a panic, which ends the
	// service of its engine; it may be nil.
	Panicked func(m Member, p *infer.Panic)
	// Emptied is called with the result of an engine's drain; it may be nil. It must not
	// block.
	Emptied func(m Member, e Emptied)
}

// Defaults of the options.
const (
	DefaultPolicy     = "cost"
	DefaultIndexBytes = 256 << 20
)

// Fleet is the set of engines.
type Fleet struct {
	opts     Options
	aliases  map[string]string // to the names of models
	snapshot atomic.Pointer[route.Snapshot]
	reports  chan report
	changes  chan change
	ended    chan *member  // of adapters
	over     chan struct{} // closed when Run has ended
	changed  chan struct{} // of the published snapshot
	news     news
	judge    *judge.Judge
	follow   following
	memory
}

// memory is what is kept over snapshots.
type memory struct {
	index  *kvindex.Index
	served map[string]*served     // models by name
	costs  map[string]*cost.Model // by the name of a base model
	// members are the engines that may receive requests, in their order. leaving are the
	// removed engines that still have requests, or whose adapters have not ended yet.
	members, leaving []*member
	generation       uint64         // of the member that joined last
	drafts           []route.Engine // publish's, empty between its calls
}

// member is an engine with what is kept of it from when it joins the fleet to its end.
type member struct {
	Member
	life
	state      engine.State
	generation uint64
	stop       context.CancelFunc // ends its adapter; nil before Run
	drain      *drain             // nil: it takes requests
	told       told
	prepared
}

// served is a model that is served by a name.
type served struct {
	base     string // the model that it is a LoRA adapter's of
	policy   balance.Policy
	prefill  balance.Policy // among those that compute prompts
	lengths  cost.Lengths
	ratio    cost.Ratio
	transfer cost.Transfer
	retries  *retry.Budget
	turns    atomic.Uint64
}

// life is an engine's present one, or its latest.
type life struct {
	ready bool
	left  int64        // when it was ready last; 0: it is, or never was
	said  engine.State // when it was ready last
	base  string
	role  infer.Role
	// relayed is set if what is known of its caches is by the text of prompts. In another form
	// nothing is known of them.
	relayed bool
	shares  route.Shares // of all of its lives
	ranks   []*rank      // never none
}

// rank is one data-parallel rank of an engine; of one that names none, the whole.
type rank struct {
	number   int // -1: the whole
	health   *judge.Rank
	books    *route.Books // nil: it has had none
	there    bool
	instance string          // empty: it does not say
	events   engine.KVEvents // that are followed
	unfollow func()          // ends that
}

// report is what an adapter says of its engine.
type report struct {
	of        *member
	state     engine.State
	published chan struct{} // closed once a snapshot has it
}

// New checks the members and publishes a first snapshot in which none is
// ready.
func New(opts Options) (*Fleet, error) {
	if opts.IndexBytes == 0 {
		opts.IndexBytes = DefaultIndexBytes
	}
	f := &Fleet{opts: opts, reports: make(chan report), changes: make(chan change), ended: make(chan *member), over: make(chan struct{}), memory: memory{
		index: kvindex.New(opts.IndexBytes), served: map[string]*served{}, costs: map[string]*cost.Model{},
	}}
	if err := checkPolicies(opts.Policy, opts.Policies); err != nil {
		return nil, err
	}
	f.follow = following{budget: kvevents.NewBudget(opts.IndexBytes), opts: &f.opts}
	f.judge = judge.New(judge.Options{Changed: opts.Judged, NoGeneration: opts.NoGeneration, Stall: opts.Stall, OwnLateness: opts.OwnLateness})
	f.aliases = aliasesOf(opts.Folders, opts.Aliases)
	if err := check(nil, opts.Members); err != nil {
		return nil, err
	}
	for _, m := range opts.Members {
		f.members = append(f.members, f.join(m))
	}
	f.opts.Members = nil
	f.publish()
	return f, nil
}

// checkPolicies returns which of the policies there is none of.
func checkPolicies(of string, single map[string]string) error {
	for _, name := range append(slices.Collect(maps.Values(single)), of) {
		if _, err := balance.New(cmp.Or(name, DefaultPolicy)); err != nil {
			return fmt.Errorf("fleet: %w", err)
		}
	}
	return nil
}

// policy is that of a model, or of a LoRA adapter of a base.
func (o *Options) policy(name, base string) string {
	return cmp.Or(o.Policies[name], o.Policies[base], o.Policy, DefaultPolicy)
}

// isolation returns whose requests for a model share its engines' caches. A LoRA adapter has
// the isolation of its base, if it was given none.
func (o *Options) isolation(name, base string) tenancy.Isolation {
	for _, of := range [...]string{name, base} {
		if is, ok := o.Isolations[of]; ok {
			return is
		}
	}
	return o.Isolation
}

// lenient reports whether nobody has asked for the isolation of a model.
func (o *Options) lenient(name, base string) bool {
	_, its := o.Isolations[name]
	_, ofBase := o.Isolations[base]
	return o.Lenient && !its && !ofBase && o.Isolation != tenancy.Shared
}

// aliasesOf returns the names of models by their aliases.
func aliasesOf(of ...map[string][]string) map[string]string {
	names := map[string]string{}
	for _, all := range of {
		for name, aliases := range all {
			for _, alias := range aliases {
				names[alias] = name
			}
		}
	}
	return names
}

// check returns why members cannot join those that are there.
func check(there []*member, joining []Member) error {
	seen := map[string]bool{}
	for _, m := range there {
		seen[m.Name] = true
	}
	for _, m := range joining {
		if seen[m.Name] {
			return fmt.Errorf("fleet: two engines are named %q", m.Name)
		}
		seen[m.Name] = true
		_, tokens := m.Adapter.(engine.Tokens)
		_, relay := m.Adapter.(engine.Relay)
		if _, stand := m.Adapter.(engine.Stand); tokens == relay && (tokens || !stand) {
			return fmt.Errorf("fleet: engine %q must be either a token engine or a relay", m.Name)
		}
	}
	return nil
}

// join makes a member of the fleet's, which has no life before.
func (f *Fleet) join(of Member) *member {
	f.generation++
	m := &member{Member: of, generation: f.generation}
	m.ranks = []*rank{f.newRank(&m.Member, -1)}
	m.set(of.Setting, trace.Now())
	return m
}

// Snapshot returns the fleet as it is now.
func (f *Fleet) Snapshot() *route.Snapshot { return f.snapshot.Load() }

// Late reports that the gateway stood still for d. It may be called from any
// goroutine.
func (f *Fleet) Late(d time.Duration) { f.judge.Late(d) }

// Missed returns for how long the gateway has stood still so far. This time counts
// against no engine.
func (f *Fleet) Missed() time.Duration { return f.judge.Missed() }

// Run serves the engines until ctx ends, and returns when every adapter has
// returned.
func (f *Fleet) Run(ctx context.Context) {
	var adapters sync.WaitGroup
	f.follow.ctx = ctx
	defer close(f.over)
	defer f.follow.done.Wait()
	start := func(m *member) {
		running, stop := context.WithCancel(ctx)
		m.stop = stop
		of := m.Member // as it joins: its setting is Run's to change
		adapters.Go(func() {
			defer stop()
			f.serve(running, m, of)
			select {
			case f.ended <- m:
			case <-ctx.Done():
			}
		})
	}
	for _, m := range f.members {
		start(m)
	}
	adapters.Go(func() { f.judge.Run(ctx) })
	look := time.NewTicker(drainLook)
	defer look.Stop()
	for {
		var looks <-chan time.Time // while something is drained
		if f.drains() {
			looks = look.C
		}
		select {
		case r := <-f.reports:
			f.news.reports = append(f.news.reports, r)
			f.andOthers()
			f.soon(ctx)
		case c := <-f.changes:
			f.tellNews(ctx) // which came before
			c.done <- f.change(c.Change, start)
		case m := <-f.ended:
			f.leave(m)
			f.soon(ctx)
		case <-f.news.due:
			f.tellNews(ctx)
		case <-looks:
			f.drained(trace.Now())
		case <-ctx.Done():
			f.tellNews(ctx) // for which adapters wait
			adapters.Wait()
			return
		}
	}
}

// serve runs a member's adapter until ctx ends.
func (f *Fleet) serve(ctx context.Context, m *member, of Member) {
	tell := func(s engine.State) {
		if s.Err != nil && f.opts.Lost != nil && ctx.Err() == nil {
			f.opts.Lost(of, s.Err)
		}
		// The adapter continues after the snapshot has changed: requests that it then
		// ends look for another engine.
		r := report{m, s, make(chan struct{})}
		select {
		case f.reports <- r:
			<-r.published
		case <-ctx.Done():
		}
	}
	// An adapter's readers catch their own panics; this one keeps the other engines going.
	defer func() {
		if p := infer.Caught(recover(), func(p *infer.Panic) { f.panicked(of, p) }); p != nil {
			tell(engine.State{Err: fmt.Errorf("its adapter has ended, restart weir: %w", p)})
			<-ctx.Done()
		}
	}()
	of.Adapter.Run(ctx, tell)
}

// news is what the published snapshot does not have yet.
type news struct {
	reports []report         // each of another engine, whose adapter waits
	left    bool             // members have, with requests that they had when they were removed
	due     <-chan time.Time // when a snapshot has them; nil: there are none
	last    time.Time        // when the latest snapshot was published
}

// A snapshot costs as much as there are engines, and of a thousand some may change at any time.
// Among many members, snapshots are therefore apart by a time for each member, and each has all
// that was reported meanwhile. The first report after a quiet time does not wait, nor does one
// among few.
const (
	manyMembers = 100
	apart       = 50 * time.Microsecond // for each member
	mostApart   = 50 * time.Millisecond
)

// soon publishes the news, at once or when the next snapshot is due.
func (f *Fleet) soon(ctx context.Context) {
	wait := time.Duration(0)
	if n := len(f.members); n >= manyMembers {
		wait = min(apart*time.Duration(n), mostApart) - time.Since(f.news.last)
	}
	switch {
	case wait <= 0:
		f.tellNews(ctx)
	case f.news.due == nil:
		f.news.due = time.After(wait)
	}
}

// andOthers adds the reports that wait: a thousand engines may become ready together.
func (f *Fleet) andOthers() {
	for {
		select {
		case r := <-f.reports:
			f.news.reports = append(f.news.reports, r)
		default:
			return
		}
	}
}

// tellNews publishes a snapshot with the news, if there are any.
func (f *Fleet) tellNews(ctx context.Context) {
	n := f.news
	f.news = news{last: n.last}
	if len(n.reports) == 0 && !n.left {
		return
	}
	for _, r := range n.reports {
		r.of.says(r.state)
		defer close(r.published)
	}
	f.publish()
	if n.left {
		f.forget()
	}
	if len(n.reports) > 0 && ctx.Err() == nil {
		f.tell()
	}
}

// panicked reports a panic of a member's adapter.
func (f *Fleet) panicked(m Member, p *infer.Panic) {
	if f.opts.Panicked != nil {
		f.opts.Panicked(m, p)
	}
}

// told is the latest report about an engine.
type told struct {
	ready bool
	came  bool   // it was ready once
	gone  bool   // that it is not ready was reported
	why   string // it has not come, but for the numbers in it
}

// tell reports the engines that became ready, left, or are not ready, according to the
// snapshot.
func (f *Fleet) tell() {
	for i, e := range f.Snapshot().Engines {
		t, m := &f.members[i].told, &f.members[i].Member
		switch {
		case e.Ready:
			if t.gone && f.opts.Came != nil {
				f.opts.Came(*m, e)
			}
			if !t.ready && f.opts.Ready != nil {
				f.opts.Ready(e)
			}
			*t = told{ready: true, came: true}
		case t.ready:
			if f.opts.Left != nil {
				f.opts.Left(*m, -1, e.Err)
			}
			t.ready, t.gone = false, true
		case !t.came && e.Err != nil && t.why != withoutNumbers(e.Err):
			if f.opts.Absent != nil {
				f.opts.Absent(*m, e.Err)
			}
			t.why, t.gone = withoutNumbers(e.Err), true
		}
	}
}

// withoutNumbers is an error's text but for its digits, as those of ports, which differ at
// each attempt.
func withoutNumbers(err error) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, err.Error())
}

// latest returns an engine's state. If the engine is gone, its models are those that it
// last reported.
func (l *life) latest(s engine.State) (_ engine.State, recalled bool) {
	if s.Ready {
		l.said = s
	}
	if s.Ready || !l.said.Ready || len(s.Facts.Models) > 0 {
		return s, false
	}
	s.Facts = l.said.Facts
	if s.Via == nil {
		s.Via, s.Kind = l.said.Via, l.said.Kind
	}
	return s, true
}

// live updates the ranks of an engine. It returns the numbers of those that begin a life:
// ready ranks that may be another process than before.
func (f *Fleet) live(of *member, e *route.Engine) (fresh []int) {
	m, l := &of.Member, &of.life
	was := l.ready
	l.ready = e.Ready
	if e.Ready {
		l.left = 0
		fresh = f.settle(l, m, e)
	} else {
		if was {
			l.left = trace.Now()
		}
		for _, r := range l.ranks {
			r.there = false
		}
	}
	e.Left = l.left
	e.Ranks = make([]*route.Rank, 0, len(l.ranks))
	for _, r := range l.ranks {
		label := m.Name
		if r.number >= 0 {
			label += "/" + strconv.Itoa(r.number)
		}
		e.Ranks = append(e.Ranks, &route.Rank{Number: r.number, Label: label, There: r.there, Health: r.health, Books: r.books})
	}
	for _, said := range e.Facts.Ranks {
		for _, r := range e.Ranks {
			if r.Number == said.Number {
				r.Without = said.Without
			}
		}
	}
	return fresh
}

// settle returns the life of an engine that is ready the ranks that it names, and each the
// books of its present life. A rank that begins one has an empty cache.
func (f *Fleet) settle(l *life, m *Member, e *route.Engine) (fresh []int) {
	base := m.Model
	if base == "" && len(e.Facts.Models) > 0 {
		base = e.Facts.Models[0]
	}
	if canonical, ok := f.aliases[base]; ok {
		base = canonical
	}
	named := e.Facts.Ranks
	if len(named) == 0 {
		named = []engine.Rank{{Number: -1, Ready: true, Instance: e.Facts.Instance, KVTokens: e.Facts.KVTokens, MaxRunning: e.Facts.MaxRunning}}
	}
	l.ranks = slices.DeleteFunc(l.ranks, func(r *rank) bool {
		gone := !slices.ContainsFunc(named, func(n engine.Rank) bool { return n.Number == r.number })
		if gone {
			r.health.Remove()
			r.close()
		}
		return gone
	})
	for _, n := range named {
		at := slices.IndexFunc(l.ranks, func(r *rank) bool { return r.number >= n.Number })
		if at < 0 {
			at = len(l.ranks)
		}
		if at == len(l.ranks) || l.ranks[at].number != n.Number {
			l.ranks = slices.Insert(l.ranks, at, f.newRank(m, n.Number))
		}
		r := l.ranks[at]
		was := r.there
		if r.there = n.Ready; !r.there {
			if was && f.opts.Left != nil {
				f.opts.Left(*m, r.number, errors.New("its connection has ended"))
			}
			continue
		}
		told := n.Instance == r.instance || was && r.instance == "" // it did not say before
		if same := told && (was || n.Instance != "") && base == l.base && e.Role == l.role && (e.Relay != nil) == l.relayed; !same {
			r.close()
		}
		facts := engine.Facts{KVTokens: n.KVTokens, MaxRunning: n.MaxRunning, StepTokens: e.Facts.StepTokens, Forgets: e.Facts.Forgets}
		if n.Number < 0 {
			facts.SideBySide = e.Facts.SideBySide
		}
		if r.instance = n.Instance; r.books == nil {
			r.books = route.NewBooks(f.cost(base, e.Role), f.index, &l.shares, &facts, trace.Now())
			if f.opts.Placed != nil {
				r.books.Share(f.opts.Placed(m.Name, r.number))
			}
			fresh = append(fresh, r.number)
		}
		r.books.Says(&facts)
		r.books.Limit((m.MaxRunning+len(named)-1)/len(named), &facts)
	}
	l.base, l.role, l.relayed = base, e.Role, e.Relay != nil
	if e.Tokens != nil {
		f.follow.events(m, l, e)
	}
	return fresh
}

// newRank makes a rank of a member that is not there yet.
func (f *Fleet) newRank(m *Member, number int) *rank {
	of := *m
	r := &rank{number: number, health: f.judge.Add(m.Name, number, func(p *infer.Panic) { f.panicked(of, p) })}
	if m.Setting.Drained {
		r.health.Drain(m.Setting.why())
	}
	return r
}

// close ends a rank's books with its life.
func (r *rank) close() {
	r.cease()
	if r.books != nil {
		r.books.Close()
		r.books = nil
	}
}

// cost returns what is known of the ranks of a base model that have a role.
func (f *Fleet) cost(base string, role infer.Role) *cost.Model {
	m := f.costs[base]
	if m == nil {
		m = cost.NewModel(cost.Typical)
		f.costs[base] = m
	}
	if role == infer.RolePrefill {
		return m.Prefills()
	}
	return m
}

// place enters an engine under every model name it serves. An error for one name does
// not affect the others; if it can serve none, it is not ready.
func (f *Fleet) place(snap *route.Snapshot, m *Member, e *route.Engine) {
	if e.Tokens == nil && e.Relay == nil {
		return // what it is nobody knows yet
	}
	names := e.Facts.Models
	if m.Model != "" {
		// The model is known by name even before the engine has answered.
		names = []string{m.Model}
	}
	served := false
	for _, name := range names {
		if err := f.enter(snap, m, e, name); err != nil {
			e.Err = err
			continue
		}
		served = true
	}
	if len(names) > 0 && !f.adapters(snap, m, e, names[0]) && !served {
		e.Ready = false
	}
}

// adapters enters an engine under the names of its LoRA adapters, and reports whether
// it serves any. An error in one adapter does not affect the others.
func (f *Fleet) adapters(snap *route.Snapshot, m *Member, e *route.Engine, base string) (served bool) {
	if canonical, ok := f.aliases[base]; ok {
		base = canonical
	}
	for _, l := range e.Facts.LoRA {
		if err := f.adapter(snap, e, base, l); err != nil {
			note(e, fmt.Sprintf("LoRA adapter %s is not served: %v", l.Name, err))
			continue
		}
		served = true
	}
	for _, name := range m.LoRA {
		said := func(l engine.LoRA) bool { return l.Name == name }
		if model := snap.Models[name]; !slices.ContainsFunc(e.Facts.LoRA, said) && (model == nil || !model.Known()) {
			model = f.model(snap, name, base)
			model.Base = base
			sideOf(model, e).Kind = e.Kind
		}
	}
	return served
}

// adapter enters an engine under the name of one of its adapters, which has the
// folder of its base unless it was given one of its own.
func (f *Fleet) adapter(snap *route.Snapshot, e *route.Engine, base string, l engine.LoRA) error {
	if canonical, ok := f.aliases[l.Name]; ok {
		return fmt.Errorf("that is an alias of model %s", canonical)
	}
	model := f.model(snap, l.Name, base)
	if _, own := f.opts.Folders[l.Name]; own {
		base = ""
	} else if _, ok := f.opts.Folders[base]; !ok {
		err := fmt.Errorf("its base model is %q, whose folder is not known: add --model %s=DIR", base, base)
		model.Fault = "serves it as a LoRA adapter: " + err.Error()
		return err
	}
	switch {
	case l.Fault != "":
		model.Fault = "has not loaded the LoRA adapter: " + l.Fault
		return errors.New(l.Fault)
	case model.Known() && model.Base != base && (model.Base != "" || model.ByIDs.Kind != "" || !f.relayedWith(snap, base, l.Name)):
		return errAnotherModel
	}
	if err := f.enlist(model, e, l.Name); err != nil {
		return err
	}
	model.Base = base
	return nil
}

// errAnotherModel keeps an engine from serving a LoRA adapter beside those that serve another
// model by its name.
var errAnotherModel = errors.New("another engine serves another model of that name")

// relayedWith reports whether the relayed engines which list a name list the base model too. A
// relay names adapters without saying whose they are.
func (f *Fleet) relayedWith(snap *route.Snapshot, base, name string) bool {
	return !slices.ContainsFunc(snap.Engines, func(e *route.Engine) bool {
		return e.Relay != nil && slices.Contains(e.Facts.Models, name) && !f.lists(e, base)
	})
}

// lists reports whether an engine serves a model, by its name or an alias.
func (f *Fleet) lists(e *route.Engine, name string) bool {
	return slices.ContainsFunc(e.Facts.Models, func(said string) bool { return said == name || f.aliases[said] == name })
}

// enter enters an engine under one model name, which may be an alias.
func (f *Fleet) enter(snap *route.Snapshot, m *Member, e *route.Engine, upstream string) error {
	name := upstream
	if canonical, ok := f.aliases[name]; ok {
		name = canonical
	}
	model := f.model(snap, name, "")
	if m.Model != "" && len(e.Facts.Models) > 0 && !slices.Contains(e.Facts.Models, upstream) {
		if len(e.Facts.Models) > 1 {
			return fmt.Errorf("model=%s is not among the models it serves: %q", upstream, e.Facts.Models)
		}
		upstream = e.Facts.Models[0]
	}
	if model.Base != "" && e.Relay != nil && len(e.Facts.Models) > 0 && !f.lists(e, model.Base) {
		return errAnotherModel
	}
	if e.Tokens != nil {
		if _, ok := f.opts.Folders[name]; !ok {
			err := fmt.Errorf("serves model %q, whose folder is not known: add --model %s=DIR", name, name)
			model.Fault = err.Error()
			return err
		}
	}
	return f.enlist(model, e, upstream)
}

// enlist makes an engine one of a model's, which it knows as upstream.
func (f *Fleet) enlist(model *route.Model, e *route.Engine, upstream string) error {
	if err := halved(model, e); err != nil {
		return err
	}
	s := &e.Facts.Salts
	if unsalted := e.Ready && model.Isolation != tenancy.Shared && !s.Carried; unsalted && model.Lenient {
		note(e, fmt.Sprintf("tenants share its prefix cache, so that one may guess another's prompts: it %s. --isolation tenant gives it no requests; --isolation off says that this is meant", s.Why))
	} else if unsalted {
		err := fmt.Errorf("cannot keep the caches of callers apart, as isolation=%s of model %s wants: it %s. Give another engine, or --model %s=,isolation=off to let callers share the cache", model.Isolation, model.Name, s.Why, model.Name)
		model.Fault = err.Error()
		return err
	}
	model.Serves, model.Whole = model.Serves || e.Role != infer.RolePrefill, model.Whole || e.Alone()
	model.Settled = (!model.Known() || model.Settled) && e.Known()
	side := sideOf(model, e)
	side.Kind = e.Kind
	if side.Carries |= e.Carries(); !e.Ready {
		model.Awaited = true
		if e.Left != 0 && (model.Left == 0 || e.Left > model.Left) {
			model.Left = e.Left
		}
		if e.Facts.Carries == 0 && e.Facts.Lacks == nil { // it never said
			side.Carries = infer.CarriesAnything
		}
	}
	last := func(those []route.Target) bool { return len(those) > 0 && those[len(those)-1].Engine == e }
	if !e.Ready || last(model.Targets) || last(model.Prefills) { // it is entered under another name of the model
		return nil
	}
	for _, r := range e.Ranks {
		if r.There && !slices.Contains(r.Without, upstream) {
			model.Add(route.Target{Engine: e, Rank: r, Model: upstream})
		}
	}
	if n := e.Facts.ContextLength; n > 0 && (model.ContextLength == 0 || n < model.ContextLength) {
		model.ContextLength = n
	}
	return nil
}

// sideOf returns the side of a model's engines that an engine belongs to.
func sideOf(model *route.Model, e *route.Engine) *route.Side {
	if e.Relay != nil {
		return &model.Relayed
	}
	return &model.ByIDs
}

// model returns the model of a name. A LoRA adapter has the policy of its base, if it
// was given none.
func (f *Fleet) model(snap *route.Snapshot, name, base string) *route.Model {
	m := snap.Models[name]
	if m == nil {
		kept := f.served[name]
		if kept == nil {
			kept = &served{base: base, retries: retry.New(f.opts.Retries, trace.Now())}
			policy := f.opts.policy(name, base) // New has checked all
			kept.policy, _ = balance.New(policy)
			kept.prefill, _ = balance.New(policy)
			f.served[name] = kept
		}
		m = &route.Model{Name: name, Policy: kept.policy, Prefill: kept.prefill, Lengths: &kept.lengths, Ratio: &kept.ratio, Transfer: &kept.transfer, Retries: kept.retries, Turns: &kept.turns,
			Isolation: f.opts.isolation(name, cmp.Or(base, kept.base)), Lenient: f.opts.lenient(name, cmp.Or(base, kept.base))}
		if before := f.snapshot.Load(); before != nil {
			m.MakeRoom(before.Models[name])
		}
		snap.Models[name] = m
	}
	return m
}
