package fleet

import (
	"cmp"
	"slices"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/tenancy"
)

// prepared is what snapshots show of a member until something of it changes.
type prepared struct {
	plain    *route.Engine // before it is entered under its models; nil: it has changed
	shown    *route.Engine // in the latest snapshot, made of plain; nil: in none yet
	recalled bool          // it is gone, and its models are those that it last reported
	fault    error         // that its half of requests has
	adapter  engine.Adapter
	fresh    []int // ranks whose lives the next snapshot begins
}

// forget has the member prepared anew.
func (p *prepared) forget() { *p = prepared{} }

// says notes an adapter's report.
func (m *member) says(s engine.State) {
	m.state = s
	m.forget()
}

// prepare makes what does not depend on other members.
func (f *Fleet) prepare(of *member) {
	m := &of.Member
	s, recalled := of.latest(of.state)
	e := &route.Engine{Name: m.Name, Kind: m.Kind, Ready: s.Ready, Facts: s.Facts, Err: s.Err, Note: s.Note,
		Generation: of.generation, Weight: m.Setting.Weight, Drained: m.Setting.Drained}
	adapter := m.Adapter
	if s.Via != nil {
		adapter, e.Kind = s.Via, s.Kind
	}
	e.Tokens, _ = adapter.(engine.Tokens)
	e.Relay, _ = adapter.(engine.Relay)
	if l, ok := adapter.(engine.Loaded); ok {
		e.Load = l.Load
	}
	if m, ok := adapter.(engine.Metered); ok {
		e.Metrics = m.Metrics
	}
	fault := m.Halves.part(e)
	fresh := f.live(of, e)
	of.prepared = prepared{plain: e, recalled: recalled, fault: fault, adapter: adapter, fresh: fresh}
}

// publish builds the snapshot for the members' states and swaps it in. Engines are entered under
// their models as drafts, because they may come to have faults and notes there. An engine of
// which that changes nothing is the same in the next snapshot, so that a snapshot of a thousand
// engines allocates little else than what has changed.
func (f *Fleet) publish() {
	f.news.last = time.Now()
	changed := make(chan struct{})
	snap := &route.Snapshot{Models: map[string]*route.Model{}, Index: f.index, Changed: changed, Engines: make([]*route.Engine, 0, len(f.members))}
	for name := range f.opts.Folders {
		f.model(snap, name, "")
	}
	f.drafts = slices.Grow(f.drafts, len(f.members))[:len(f.members)]
	met := meetings{}
	for i, of := range f.members {
		if of.plain == nil {
			f.prepare(of)
		}
		e := &f.drafts[i]
		*e = *of.plain
		met.join(e, of.fault)
		snap.Engines = append(snap.Engines, e)
		if !of.recalled {
			f.place(snap, &of.Member, e)
		}
	}
	for i, of := range f.members { // behind those that are there, whatever they have become
		if of.recalled {
			f.place(snap, &of.Member, &f.drafts[i])
		}
	}
	starting := slices.ContainsFunc(snap.Engines, func(e *route.Engine) bool {
		return !e.Known() && len(e.Facts.Models) == 0 // and of which model it is nobody knows
	})
	for _, model := range snap.Models {
		model.Loaded = f.opts.Loaded[cmp.Or(model.Base, model.Name)]
		if model.Known() {
			model.Fault = "" // other engines serve it
		}
		if model.Known() && !model.Serves && !starting {
			model.Fault = promptsOnly
		}
		lonely(model)
		if model.Lenient && model.Known() && !model.Salted() {
			model.Isolation, model.Lenient = tenancy.Shared, false
		}
		model.Settled = model.Settled && !starting
		if len(model.Targets) == 0 {
			model.ByIDs.Carries, model.Relayed.Carries = infer.CarriesAnything, infer.CarriesAnything
		}
	}
	f.show(snap)
	for alias, name := range f.aliases {
		if model := snap.Models[name]; model != nil { // one without a folder may be nobody's yet
			snap.Models[alias] = model
		}
	}
	for _, of := range f.leaving {
		snap.Leaving = append(snap.Leaving, of.departing())
	}
	f.snapshot.Store(snap)
	if f.changed != nil {
		close(f.changed)
	}
	f.changed = changed
}

// show puts engines in the place of the drafts of a snapshot, and tells the judge of those that
// have changed.
func (f *Fleet) show(snap *route.Snapshot) {
	for i, of := range f.members {
		draft := snap.Engines[i]
		e := of.shown
		switch {
		case e != nil && alike(e, draft):
			snap.Engines[i] = e
			continue
		case alike(of.plain, draft):
			e = of.plain
		default:
			e = new(*draft)
		}
		snap.Engines[i], of.shown = e, e
		of.present()
	}
	for _, m := range snap.Models {
		for _, side := range [...][]route.Target{m.Targets, m.Prefills} {
			i := 0
			for k := range side { // which are in the order of the members
				for side[k].Engine != &f.drafts[i] {
					i++
				}
				side[k].Engine = snap.Engines[i]
			}
		}
	}
	clear(f.drafts)
	f.drafts = f.drafts[:0]
}

// alike reports whether an engine is what has become of a draft that was made as it was.
func alike(e, draft *route.Engine) bool {
	return e.Ready == draft.Ready && e.Note == draft.Note && e.Meets == draft.Meets && (e.Err == nil) == (draft.Err == nil) &&
		(e.Err == nil || e.Err.Error() == draft.Err.Error())
}

// present tells the judge of a member's ranks as they are shown.
func (m *member) present() {
	e := m.shown
	prober, _ := m.adapter.(engine.Prober)
	serves := e.Facts.Models
	if m.Model != "" {
		serves = []string{m.Model}
	}
	for _, r := range e.Ranks {
		p := judge.Presence{Ready: e.Ready && r.There, Fresh: slices.Contains(m.fresh, r.Number), Serves: serves, Prober: prober, Tokens: e.Tokens, Several: r.Number < 0 && e.Facts.SideBySide > 1}
		if r.Books != nil {
			p.Books = r.Books.Rank
		}
		r.Health.Is(p)
	}
	m.fresh = nil
}
