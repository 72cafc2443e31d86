// Package route chooses the engine for a request. It is pure: it reads an immutable
// snapshot of the fleet, published by package fleet. It takes no lock, does no I/O and
// never waits.
package route

import (
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/retry"
	"weir/internal/infer"
	models "weir/internal/model"
	"weir/internal/tenancy"
)

// Engine is one engine as the data side sees it. Exactly one of Tokens and
// Relay is set; neither while it is not known what the engine is.
type Engine struct {
	Name   string
	Kind   string // as in --engine KIND=URL; for auto, the detected kind
	Tokens engine.Tokens
	Relay  engine.Relay
	// Load reports how busy the engine is; nil where its wire does not.
	Load func() (engine.Load, bool)
	// Metrics are the adapter's own; nil where it has none.
	Metrics func() []engine.Metric
	Ready   bool
	Facts   engine.Facts
	Err     error // why it is not ready
	// Note is what the operator should know although nothing is wrong.
	Note string
	// Left is when it was ready last; 0: it is, or never was.
	Left int64
	// Ranks are its data-parallel ranks by its latest report. There is at least one.
	Ranks []*Rank
	// Role is its part in requests, by the operator's word or its own, and Meets how its
	// halves of requests meet the others. Where a prefill engine is met is all there.
	Role  infer.Role
	Meets engine.Meets
	// Generation distinguishes it from earlier and later engines of the same name.
	Generation uint64
	// Drained is set if an operator has stopped new requests to it. Weight is the share of its
	// models' requests that it may receive, above 0; 0 means all, like 1.
	Drained bool
	Weight  float64
}

// Rank is one data-parallel rank of an engine; of an engine whose wire names none, the
// whole of it.
type Rank struct {
	Number int // -1: the wire names none
	// Label is the engine's name, and behind a slash the rank's number if it has one.
	Label string
	// There is set if the rank can be reached.
	There bool
	// Health states which requests it takes; nil is all.
	Health *judge.Rank
	// Books are kept of it from when it was ready first; nil before.
	Books *Books
	// Without are the engine's LoRA adapters that this rank cannot use.
	Without []string
}

// Whole returns what stands for an engine that names no ranks.
func Whole(name string) *Rank { return &Rank{Number: -1, Label: name} }

// Condition returns the health of an engine that is ready: that of its best rank, but with
// the longest silence of any, and the requests of all. ok is false if it is not judged.
func (e *Engine) Condition() (v health.View, ok bool) {
	for _, r := range e.Ranks {
		if !e.Ready || !r.There || r.Health == nil {
			continue
		}
		of := r.Health.View()
		switch {
		case !ok:
			v, ok = of, true
			continue
		case of.State < v.State:
			of, v = v, of
		}
		v.Open += of.Open
		v.Silence, v.Ejections = max(v.Silence, of.Silence), v.Ejections+of.Ejections
	}
	return v, ok
}

// AllBooks returns those of the engine's ranks that have been ready at some time.
func (e *Engine) AllBooks() (of []*Books) {
	for _, r := range e.Ranks {
		if r.Books != nil {
			of = append(of, r.Books)
		}
	}
	return of
}

// Events are those of the KV caches of the engine's ranks that publish any.
func (e *Engine) Events() (of []*Events) {
	for _, b := range e.AllBooks() {
		if events := b.Events(); events != nil {
			of = append(of, events)
		}
	}
	return of
}

// Known reports whether the engine has been ready at some time.
func (e *Engine) Known() bool {
	return slices.ContainsFunc(e.Ranks, func(r *Rank) bool { return r.Books != nil })
}

// Carries is what a request for the engine may need. A relayed engine is given
// everything but what is known to be lost there.
func (e *Engine) Carries() infer.Carries {
	if e.Relay != nil {
		return infer.CarriesAnything.Without(e.Facts.Lacks)
	}
	return e.Facts.Carries
}

// SaltAt returns the fields by which a relayed body for a path carries a cache salt to the
// engine; none if it carries none.
func (e *Engine) SaltAt(path string) []string {
	if !e.Facts.Salts.Carried || e.Facts.Salts.Paths == nil {
		return nil
	}
	return e.Facts.Salts.Paths.At(path)
}

// Alone reports whether the engine serves requests whole.
func (e *Engine) Alone() bool {
	return e.Role == infer.RoleBoth || e.Role == infer.RoleDecode && e.Meets.Whole
}

// Target is an engine's rank together with the name that it knows the model by.
type Target struct {
	*Engine
	*Rank
	Model string
}

// Needs are the capabilities that a request needs: IDs from a token engine, and Bytes from
// a relay engine, which receives the caller's own bytes. For a form that the request does
// not have, it needs infer.AnotherForm.
type Needs struct{ IDs, Bytes infer.Carries }

// HasIDs reports whether the request can be sent to a token engine, and HasBytes whether to
// a relay engine.
func (n Needs) HasIDs() bool   { return n.IDs&infer.AnotherForm == 0 }
func (n Needs) HasBytes() bool { return n.Bytes&infer.AnotherForm == 0 }

// Of returns what the request needs of an engine.
func (n Needs) Of(e *Engine) infer.Carries {
	if e.Relay != nil {
		return n.Bytes
	}
	return n.IDs
}

// String lists what is needed in the forms that the request has.
func (n Needs) String() string {
	var all infer.Carries
	if n.HasIDs() {
		all |= n.IDs
	}
	if n.HasBytes() {
		all |= n.Bytes
	}
	return all.String()
}

// Side is what the engines of a model have in common that take requests in one form.
type Side struct {
	// Kind is that of one of them, empty while none is known.
	Kind string
	// Carries is the set of capabilities beyond those of every wire that some engine of the
	// model has. For an engine that is not ready, its latest report counts. An engine that
	// was never ready counts as having all capabilities, and so does a model without a ready
	// engine.
	Carries infer.Carries
}

// Model is the set of engines that serve one model name.
type Model struct {
	Name string
	// Base is the model whose folder it has, where that is another: of a LoRA
	// adapter's.
	Base string
	// Targets are the ranks that serve callers: whole requests, or what follows a prompt that
	// one of the Prefills has computed. Both lists have ready ranks only. All ranks that
	// serve halves meet in one way, Way.
	Targets, Prefills []Target
	Way               engine.Way
	// Serves is set if some of its engines, ready or not, serve callers, and Whole if
	// some serve whole requests.
	Serves, Whole bool
	// Candidates are the targets in their order, as policies see them; see Add.
	Candidates, PrefillCandidates []balance.Candidate
	// Policy chooses among the targets, and Prefill among the Prefills.
	Policy, Prefill balance.Policy
	// Lengths are those of the model's answers.
	Lengths *cost.Lengths
	// Ratio is that of its prompts where engines are relayed.
	Ratio *cost.Ratio
	// Transfer is that of its prompts' KV from one engine to another.
	Transfer *cost.Transfer
	// Retries are what of its requests may be repeated; nil is all.
	Retries *retry.Budget
	// ByIDs are its engines that take ids, and Relayed those that take the caller's own
	// bytes. There may be both.
	ByIDs, Relayed Side
	// Awaited is set if some engine of the model is not ready. Settled is set if each of
	// them has been ready, so that none is starting.
	Awaited, Settled bool
	// Left is when the latest of them left that are not ready but have been; 0: none.
	Left int64
	// ContextLength is the smallest that any engine states, 0 when none does.
	ContextLength int
	// Fault states why the model cannot be served, whatever the engines' state.
	Fault string
	// Isolation states whose requests share the engines' caches. Unless everybody's do, all
	// targets carry a cache salt.
	Isolation tenancy.Isolation
	// Lenient is set if nobody has asked for the isolation: an engine that reads no salt is given
	// requests without one.
	Lenient bool
	// Loaded has the model's folder and limits if these were added or changed since
	// the start; nil: as at the start.
	Loaded *Loaded
	// Turns counts the requests where an engine may be given a share of them only.
	Turns *atomic.Uint64

	halves  bool // some target is a decode engine's
	weighed bool // some target may be given a share of the requests only
}

// Loaded is the configuration of a model that was added or changed while the gateway
// runs.
type Loaded struct {
	Folder *models.Folder // nil: it has none
	// MaxTokens and MaxN bound its requests; 0 is no bound.
	MaxTokens, MaxN int
}

// Snapshot is the fleet at one moment. It is never changed after publication;
// Changed is closed when a newer one replaced it, which wakes every waiter.
type Snapshot struct {
	Models  map[string]*Model
	Engines []*Engine
	// Leaving are engines that were removed and have requests left. Names may be those of
	// others that are there now.
	Leaving []*Engine
	// Index states what the engines' caches are believed to hold.
	Index   *kvindex.Index
	Changed <-chan struct{}
}

// Names lists the models in alphabetical order.
func (s *Snapshot) Names() []string {
	names := make([]string, 0, len(s.Models))
	for name := range s.Models {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Known reports whether some engine is known to serve the model.
func (m *Model) Known() bool { return m.ByIDs.Kind != "" || m.Relayed.Kind != "" }

// Add adds a target that is ready, and has books.
func (m *Model) Add(t Target) {
	c := balance.Candidate{Rank: t.Books.Rank, Cache: t.Books.Cache.ID, KV: t.Books.KV(), Does: t.does()}
	if t.Role == infer.RolePrefill {
		m.Prefills, m.PrefillCandidates = append(m.Prefills, t), append(m.PrefillCandidates, c)
		m.weighed = m.weighed || t.partial()
		return
	}
	m.Targets, m.Candidates = append(m.Targets, t), append(m.Candidates, c)
	m.halves = m.halves || c.Does != balance.All
	m.weighed = m.weighed || t.partial()
}

// MakeRoom makes room for as many targets as the model had before, which may be nil.
func (m *Model) MakeRoom(before *Model) {
	if before == nil {
		return
	}
	m.Targets, m.Candidates = make([]Target, 0, len(before.Targets)), make([]balance.Candidate, 0, len(before.Targets))
	if n := len(before.Prefills); n > 0 {
		m.Prefills, m.PrefillCandidates = make([]Target, 0, n), make([]balance.Candidate, 0, n)
	}
}

// does is what a target can do of a request.
func (t *Target) does() balance.Does {
	switch {
	case t.Role != infer.RoleDecode:
		return balance.All
	case t.Meets.Whole:
		return balance.Either
	}
	return balance.Decode
}

// Choice is what a policy is asked, and how it chose. One that is used again allocates
// nothing.
type Choice struct {
	Request  balance.Request
	Decision balance.Decision // its places are those of the model's targets
	// Unknown is set if the request's prompt has no blocks, so that the part of it in
	// engines' caches is unknown.
	Unknown bool
	// Roomy restricts the choice to targets with room for the request's answers.
	// Otherwise a policy that knows the cost of waiting may choose one without room.
	Roomy bool

	// Before is the rank where another request has just had its first output, so that its next
	// step begins soonest; nil: none. A policy without costs chooses it if it has at most Spare
	// more requests than the policy's own choice.
	Before *cost.Rank
	Spare  int64

	// Regret is the predicted cost of the request at the chosen target, minus the cost at the
	// cheapest possible target, in milliseconds.
	Regret float64

	// Prefill is how the rank was chosen that computes the prompt, where another one than the
	// target does. Its places are those of the model's Prefills.
	Prefill balance.Decision

	turn   uint64 // of the model's requests, where some targets may be given a share of them only
	some   subset // of the targets, those that the policy was asked about, where not all
	first  subset // of the Prefills
	halves balance.Halves
	texts  kvindex.Matches
}

// subset are some of a model's targets.
type subset struct {
	fit    []balance.Candidate
	places []int // theirs among all
}

// whole puts the places of all into a decision that was made among the subset.
func (s *subset) whole(d *balance.Decision) {
	d.Chosen = s.places[d.Chosen]
	for k := range d.Best[:d.N] {
		d.Best[k].Index = s.places[d.Best[k].Index]
	}
}

// Available is how much of the prompt some target is believed to have, the most of any, in
// tokens.
func (c *Choice) Available() int {
	most := int32(0)
	for i := range c.Request.Matches {
		most = max(most, c.Request.Matches[i].Resident)
	}
	return max(min(int(most)*c.Request.BlockTokens, c.Request.Length-1), 0)
}

// Has reports whether there is a ready target that carries what a request needs and is
// not among the tried ones. Unlike Pick it is no turn of the policy.
func (m *Model) Has(needs Needs, tried []Target) bool {
	return m.takes(needs, tried) != health.Never
}

// takes returns how freely any target takes a request.
func (m *Model) takes(needs Needs, tried []Target) (most health.Takes) {
	var halves [numForms]health.Takes
	for i := range m.Targets {
		if t := &m.Targets[i]; t.fits(needs, tried) {
			if takes := t.Health.Takes(); t.does() == balance.Decode {
				halves[t.form()] = max(halves[t.form()], takes)
			} else {
				most = max(most, takes)
			}
		}
	}
	for f, takes := range halves {
		if takes > most {
			most = max(most, min(takes, m.fills(form(f), needs, tried)))
		}
	}
	return most
}

// form is how an engine takes requests. The two halves of one are in the same.
type form uint8

const (
	byIDs form = iota
	relayed
	numForms
)

func (e *Engine) form() form {
	if e.Relay != nil {
		return relayed
	}
	return byIDs
}

// fills returns how freely any of the Prefills takes a request in a form.
func (m *Model) fills(f form, needs Needs, tried []Target) (most health.Takes) {
	for i := range m.Prefills {
		if t := &m.Prefills[i]; t.form() == f && t.fits(needs, tried) {
			most = max(most, t.Health.Takes())
		}
	}
	return most
}

// all returns those that callers are served by, and then those that compute prompts for
// them.
func (m *Model) all() iter.Seq[*Target] {
	return func(yield func(*Target) bool) {
		for _, side := range [...][]Target{m.Targets, m.Prefills} {
			for i := range side {
				if !yield(&side[i]) {
					return
				}
			}
		}
	}
}

// Rests returns the time until the first untried target accepts requests again, if none
// does now and some only because they have asked to get no requests for a while.
// Otherwise it returns 0.
func (m *Model) Rests(needs Needs, tried []Target, now int64) (least time.Duration) {
	if m.Has(needs, tried) {
		return 0
	}
	for t := range m.all() {
		if d := t.Health.Rests(now); d > 0 && t.fits(needs, tried) && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}

// Back returns the time until the first untried target may take a request again, if
// none takes any now: the time until its next probe. It is 0 if unknown.
func (m *Model) Back(needs Needs, tried []Target) (least time.Duration) {
	for t := range m.all() {
		if t.Health == nil || !t.fits(needs, tried) {
			continue
		}
		if d := t.Health.View().Next; d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}

// Room reports whether some target that Pick might choose has room for a request of n
// answers: one that serves it whole, or one with a partner that computes its prompt.
func (m *Model) Room(needs Needs, tried []Target, n int, now int64) bool {
	takes := m.takes(needs, tried)
	if takes == health.Never {
		return false
	}
	var fills [numForms]bool
	for i := range m.Prefills {
		t := &m.Prefills[i]
		fills[t.form()] = fills[t.form()] || t.fits(needs, tried) && t.Health.Takes() >= takes && t.Books.Rank.Fits(now, n)
	}
	for i := range m.Targets {
		t := &m.Targets[i]
		if t.fits(needs, tried) && t.Health.Takes() >= takes && t.Books.Rank.Fits(now, n) && (fills[t.form()] || t.does() != balance.Decode) {
			return true
		}
	}
	return false
}

// Takes reports whether Pick might choose the rank, whether it has room or not.
func (m *Model) Takes(needs Needs, tried []Target, rank *cost.Rank) bool {
	for t := range m.all() {
		if t.Books.Rank == rank {
			return t.fits(needs, tried) && t.Health.Takes() != health.Never && t.Health.Takes() >= m.takes(needs, tried)
		}
	}
	return false
}

// Frees is when the first of the targets that can be given a request is predicted to have
// room, 0 where that is not predicted.
func (m *Model) Frees(needs Needs, tried []Target, now int64) (first int64) {
	for t := range m.all() {
		if !t.fits(needs, tried) {
			continue
		}
		if at := t.Books.Rank.Frees(now); at != 0 && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}

// Pick chooses, for c.Request, a ready target that carries what the request needs and is not
// among the tried ones. If all were tried, it returns none: a target that has just failed is
// not tried again. Other ranks of an engine that was tried are chosen only if no other
// engine takes the request as freely, because the failure may be one rank's or a shared one.
//
// If another rank computes the prompt, partner is that rank, chosen from Prefills by the
// same rules. A target that does not serve whole requests is chosen only with a partner.
func (m *Model) Pick(needs Needs, tried []Target, c *Choice) (target Target, partner *Target, ok bool) {
	q := &c.Request
	q.Tried, q.Halves = q.Tried[:0], nil
	for i := range tried {
		q.Tried = append(q.Tried, tried[i].Books.Rank)
	}
	candidates, all := m.Candidates, len(tried) == 0 && !m.halves && !m.weighed
	if m.weighed {
		c.turn = m.Turns.Add(1)
	}
	for i := 0; all && i < len(m.Targets); i++ {
		t := &m.Targets[i]
		all = t.fits(needs, nil) && t.Health.Takes() == health.Freely && (!c.Roomy || t.Books.Rank.Fits(q.Now, q.Answers))
	}
	if !all {
		// Those that take it freely, where there are any. They may cease to meanwhile.
		for takes := health.Freely; takes > health.Never; takes-- {
			if c.first.fit = c.first.fit[:0]; m.halves && !m.narrow(&c.first, m.Prefills, m.PrefillCandidates, needs, tried, takes, c, true) {
				m.narrow(&c.first, m.Prefills, m.PrefillCandidates, needs, tried, takes, c, false)
			}
			if m.narrow(&c.some, m.Targets, m.Candidates, needs, tried, takes, c, true) ||
				m.narrow(&c.some, m.Targets, m.Candidates, needs, tried, takes, c, false) {
				break
			}
		}
		candidates = c.some.fit
	}
	if len(candidates) == 0 {
		return Target{}, nil, false
	}
	if m.halves {
		m.pair(c)
		partner = m.partner(c)
		m.paired(c, partner)
		candidates = c.some.fit
	}
	d := &c.Decision
	i := m.Policy.Pick(q, candidates, d)
	if i < 0 {
		return Target{}, nil, false
	}
	if partner == nil {
		i = d.Follow(q, candidates, c.Before, c.Spare)
	}
	c.Regret = d.Regret(m.Policy, q, candidates)
	if !all {
		i = c.some.places[i]
		c.some.whole(d)
	}
	if partner != nil && d.Choice().Work.Part != cost.DecodePart {
		partner = nil
	}
	return m.Targets[i], partner, true
}

// pair leaves of those that would compute the prompt the ones whose form some target takes that
// would go on from there.
func (m *Model) pair(c *Choice) {
	var goesOn [numForms]bool
	for k, i := range c.some.places {
		goesOn[m.Targets[i].form()] = goesOn[m.Targets[i].form()] || c.some.fit[k].Does != balance.All
	}
	c.first.keep(func(k int) bool { return goesOn[m.Prefills[c.first.places[k]].form()] })
}

// paired leaves of the targets those that can have the partner, and those that need none.
func (m *Model) paired(c *Choice, partner *Target) {
	if partner != nil {
		c.some.keep(func(k int) bool {
			return c.some.fit[k].Does == balance.All || m.Targets[c.some.places[k]].form() == partner.form()
		})
	}
}

// keep leaves those that are kept, by their place among them.
func (s *subset) keep(kept func(k int) bool) {
	n := 0
	for k := range s.fit {
		if kept(k) {
			s.fit[n], s.places[n] = s.fit[k], s.places[k]
			n++
		}
	}
	s.fit, s.places = s.fit[:n], s.places[:n]
}

// partner chooses the rank to compute the prompt among those that can, and stores its cost
// there in the request. It returns nil if there is none.
func (m *Model) partner(c *Choice) *Target {
	q, h := &c.Request, &c.halves
	*h = balance.Halves{Asks: true}
	q.Halves = h
	if len(c.first.fit) == 0 {
		*h = balance.Halves{}
		return nil
	}
	i := m.Prefill.Pick(q, c.first.fit, &c.Prefill)
	*h = balance.Halves{}
	if i < 0 {
		return nil
	}
	c.first.whole(&c.Prefill)
	e := &c.Prefill.Choice().Estimate
	h.Partner, h.Ready, h.Delays = true, e.TTFT(), e.Others+e.Evicts
	h.Fixed, h.PerToken = m.Transfer.Expect()
	return &m.Prefills[c.Prefill.Chosen]
}

// narrow restricts a choice to the targets of a side that can serve the request and take it
// at least as freely as takes, and reports whether there are any. With others, it excludes
// all ranks of engines that were tried. If c.Roomy is set, it leaves out targets without
// room, which still count as existing. It excludes decode targets if no target is there to
// compute the prompt.
func (m *Model) narrow(s *subset, side []Target, candidates []balance.Candidate, needs Needs, tried []Target, takes health.Takes, c *Choice, others bool) (any bool) {
	s.fit, s.places = s.fit[:0], s.places[:0]
	for i := range side {
		t := &side[i]
		if !t.fits(needs, tried) || t.takes(c.turn) < takes || others && t.among(tried, false) || candidates[i].Does == balance.Decode && !m.computes(t.form(), c) {
			continue
		}
		if any = true; !c.Roomy || t.Books.Rank.Fits(c.Request.Now, c.Request.Answers) {
			s.fit, s.places = append(s.fit, candidates[i]), append(s.places, i)
		}
	}
	return any
}

// partial reports whether the target may be given a share of the requests only.
func (t *Target) partial() bool { return t.Weight > 0 && t.Weight < 1 }

// takes returns how freely the target takes a request. A request beyond the target's share
// goes to others, as long as one of them takes it. The turns within its share are
// pseudorandom, so that they do not correlate with a policy's pattern.
func (t *Target) takes(turn uint64) health.Takes {
	takes := t.Health.Takes()
	if takes == health.Freely && t.partial() && float64(scattered(turn)>>11)/(1<<53) >= t.Weight {
		return health.Otherwise
	}
	return takes
}

// scattered is the finalizer of SplitMix64 over its sequence.
func scattered(turn uint64) uint64 {
	z := turn * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// computes reports whether a target that can compute the prompt takes it in a form.
func (m *Model) computes(f form, c *Choice) bool {
	for k := range c.first.fit {
		if m.Prefills[c.first.places[k]].form() == f {
			return true
		}
	}
	return false
}

// Class distinguishes requests that only some targets can serve. It is the set of their
// needs, in either form, that some target does not carry.
func (m *Model) Class(needs Needs) Class {
	common := infer.CarriesAnything
	if !m.halves {
		common |= infer.Undivided
	}
	ids, bytes := common, common
	for t := range m.all() {
		if t.Relay != nil {
			bytes &= t.Carries()
		} else {
			ids &= t.Carries()
		}
	}
	return Class(needs.IDs&^ids) | Class(needs.Bytes&^bytes)<<32
}

// Class distinguishes requests that different targets can serve. It has 63 bits.
type Class uint64

// fits reports whether a target can be given a request that was tried elsewhere.
func (t *Target) fits(needs Needs, tried []Target) bool {
	return t.carries(needs) && !t.among(tried, true)
}

// carries reports whether a target can be given what a request needs.
func (t *Target) carries(needs Needs) bool {
	of := needs.Of(t.Engine)
	if of&infer.Undivided != 0 {
		return t.Alone() && of&^infer.Undivided&^t.Carries() == 0
	}
	return of&^t.Carries() == 0
}

// among reports whether a target, or with rank false another rank of its engine, is one
// of those that were tried, which may be of an earlier snapshot.
func (t *Target) among(tried []Target, rank bool) bool {
	for i := range tried {
		if tried[i].Name == t.Name && (!rank || tried[i].Number == t.Number) {
			return true
		}
	}
	return false
}

// Alone reports whether some engine carries all that a request needs by itself, where each
// of it is carried by some (Carries). It is true while engines are not ready, so that they
// are waited for.
func (m *Model) Alone(needs Needs) bool {
	return m.Awaited || len(m.Targets) == 0 || slices.ContainsFunc(m.Targets, func(t Target) bool { return t.carries(needs) })
}

// Missing returns what the model's engines that are ready cannot serve a request without,
// empty where that is not why none does.
func (m *Model) Missing(needs Needs, tried []Target) string {
	switch {
	case m.halves && needs.Bytes&infer.Undivided != 0 && !slices.ContainsFunc(m.Targets, func(t Target) bool { return t.Alone() }):
		return "its engines serve halves of requests, and this one cannot be divided"
	case !m.halves || m.fills(byIDs, needs, tried) != health.Never || m.fills(relayed, needs, tried) != health.Never:
		return ""
	case !slices.ContainsFunc(m.Targets, func(t Target) bool { return t.does() == balance.Decode && t.fits(needs, tried) }):
		return ""
	case len(m.Prefills) > 0:
		return "its decode engines serve no whole requests, and no prefill engine that is left takes the request"
	}
	return "its decode engines serve no whole requests, and no prefill engine is ready"
}

// Unsalted returns a relayed engine of the model to which a body for a path carries no cache
// salt; nil if there is none.
func (m *Model) Unsalted(path string) *Engine {
	for t := range m.all() {
		if t.Relay != nil && t.SaltAt(path) == nil {
			return t.Engine
		}
	}
	return nil
}

// Salted reports whether an engine of the model reads a cache salt.
func (m *Model) Salted() bool {
	for t := range m.all() {
		if t.Facts.Salts.Carried {
			return true
		}
	}
	return false
}

// Why returns the reasons for which engines do not carry something, each once.
func (m *Model) Why(lacks infer.Carries) (reasons []string) {
	for t := range m.all() {
		for _, l := range t.Facts.Lacks {
			if l.What&lacks != 0 && !slices.Contains(reasons, l.Why) {
				reasons = append(reasons, l.Why)
			}
		}
	}
	return reasons
}
