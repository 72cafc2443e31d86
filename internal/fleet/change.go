package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/route"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// Setting holds the properties of a member that an operator may change while it serves.
type Setting struct {
	// Drained stops new requests to the engine; the requests that it has continue. Why is
	// the reason, if it is not an operator.
	Drained bool
	Why     string
	// Patience is the time after which an unfinished drain is reported; 0 means
	// DefaultPatience.
	Patience time.Duration
	// Weight is the share of its models' requests that the engine may receive, above 0 and
	// below 1; 0 means all.
	Weight float64
}

// DefaultPatience is the default time for requests to end at an engine that is removed.
const DefaultPatience = 5 * time.Minute

func (s Setting) why() string { return cmp.Or(s.Why, "an operator has drained it") }

// Models configures models independently of their engines; see Options.
type Models struct {
	Folders    map[string][]string
	Aliases    map[string][]string
	Loaded     map[string]*route.Loaded
	Policies   map[string]string
	Isolations map[string]tenancy.Isolation
}

// Removal takes an engine out of the fleet. Its requests may end within Patience, where 0
// means DefaultPatience; the rest is cut off then.
type Removal struct {
	Name     string
	Patience time.Duration
}

// Change is an atomic change of a fleet: one snapshot has none of it, and the next all. An
// engine that is both removed and added starts without state from before.
type Change struct {
	Remove []Removal
	Add    []Member
	// Set has settings by the names of their members.
	Set map[string]Setting
	// Models replaces the configuration of models; nil leaves it unchanged.
	Models *Models
	// Order lists the names of all members after the change. If it is nil, the members keep
	// their order, and new ones are the last.
	Order []string
}

// change is a Change that waits for Run.
type change struct {
	Change
	done chan error
}

// ErrEnded is returned when the fleet no longer runs.
var ErrEnded = errors.New("the gateway ends")

// Change applies all of c to the running fleet, or nothing if it returns an error. In that
// case the adapters of new members have not been run.
func (f *Fleet) Change(c Change) error {
	waits := change{c, make(chan error, 1)}
	select {
	case f.changes <- waits:
		return <-waits.done
	case <-f.over:
		return ErrEnded
	}
}

// change implements Change in Run's goroutine. It calls start to run a member's
// adapter.
func (f *Fleet) change(c Change, start func(*member)) error {
	left := slices.Clone(f.members)
	var gone []*member
	for _, r := range c.Remove {
		at := named(left, r.Name)
		if at < 0 {
			return fmt.Errorf("fleet: there is no engine %q", r.Name)
		}
		gone = append(gone, left[at])
		left = slices.Delete(left, at, at+1)
	}
	for name := range c.Set {
		if named(left, name) < 0 {
			return fmt.Errorf("fleet: there is no engine %q", name)
		}
	}
	if err := check(left, c.Add); err != nil {
		return err
	}
	if c.Models != nil {
		if err := checkPolicies("", c.Models.Policies); err != nil {
			return err
		}
	}

	now := trace.Now()
	for i, m := range gone {
		patience := c.Remove[i].Patience
		m.drain = &drain{since: now, until: now + int64(patienceOf(patience)), removed: true}
		for _, r := range m.ranks {
			r.health.Drain("it was removed")
		}
		f.leaving = append(f.leaving, m)
	}
	for name, s := range c.Set {
		left[named(left, name)].set(s, now)
	}
	f.members = left
	var joined []*member
	for _, m := range c.Add {
		joined = append(joined, f.join(m))
	}
	f.members = append(f.members, joined...)
	if c.Models != nil {
		f.know(c.Models)
	}
	if c.Order != nil {
		f.order(c.Order)
	}
	f.publish()
	f.forget()
	for _, m := range joined {
		start(m)
	}
	return nil
}

// order puts the members in the order of their names, and those without one first.
func (f *Fleet) order(names []string) {
	if slices.EqualFunc(f.members, names, func(m *member, name string) bool { return m.Name == name }) {
		return
	}
	place := make(map[string]int, len(names))
	for i, name := range names {
		place[name] = i + 1
	}
	slices.SortStableFunc(f.members, func(a, b *member) int { return place[a.Name] - place[b.Name] })
}

// named returns the index of the member with a name, or -1.
func named(among []*member, name string) int {
	return slices.IndexFunc(among, func(m *member) bool { return m.Name == name })
}

func patienceOf(d time.Duration) time.Duration {
	if d <= 0 {
		return DefaultPatience
	}
	return d
}

// know replaces the configuration of models. A model whose policy has not changed keeps
// its state.
func (f *Fleet) know(m *Models) {
	was := f.opts
	f.opts.Folders, f.opts.Aliases, f.opts.Loaded, f.opts.Policies, f.opts.Isolations = m.Folders, m.Aliases, m.Loaded, m.Policies, m.Isolations
	f.aliases = aliasesOf(m.Folders, m.Aliases)
	for _, of := range f.members {
		of.forget()
	}
	for name, kept := range f.served {
		if before, after := was.policy(name, kept.base), f.opts.policy(name, kept.base); before != after {
			kept.policy, _ = balance.New(after) // change has checked it
			kept.prefill, _ = balance.New(after)
		}
	}
}

// forget drops the state of models that are no longer served and have no engine.
func (f *Fleet) forget() {
	models := f.snapshot.Load().Models
	maps.DeleteFunc(f.served, func(name string, _ *served) bool { return models[name] == nil })
	bases := map[string]bool{}
	for _, m := range slices.Concat(f.members, f.leaving) {
		bases[m.base] = true
	}
	maps.DeleteFunc(f.costs, func(base string, _ *cost.Model) bool { return !bases[base] && models[base] == nil })
}

// drain is the progress of an engine that is being drained.
type drain struct {
	since, until int64
	removed      bool
	empty        bool // it was at the previous look
	told         bool // the outcome was reported
}

// drainLook is the interval between looks at engines that are being drained. It is long
// enough for a request that had already chosen the engine to arrive there.
const drainLook = 50 * time.Millisecond

// Emptied is the result of an engine's drain.
type Emptied struct {
	Left    int // requests that it still has; 0 if it is empty
	Took    time.Duration
	Removed bool // it was removed, and the requests left are cut off
	// Generation distinguishes the engine from others that had or will have its name.
	Generation uint64
}

// set applies a setting to a member.
func (m *member) set(s Setting, now int64) {
	m.Setting = s
	m.forget()
	switch {
	case !s.Drained:
		m.drain = nil
	case m.drain == nil:
		m.drain = &drain{since: now, until: now + int64(patienceOf(s.Patience))}
	default:
		m.drain.until = m.drain.since + int64(patienceOf(s.Patience))
	}
	for _, r := range m.ranks {
		if s.Drained {
			r.health.Drain(s.why())
		} else {
			r.health.Undrain("it is no longer drained")
		}
	}
}

// open returns the number of unfinished requests at an engine.
func (m *member) open() (n int) {
	for _, r := range m.ranks {
		open := r.health.View().Open
		if r.books != nil {
			open = max(open, int(r.books.Rank.InFlight()))
		}
		n += open
	}
	return n
}

// drains reports whether some drain is unfinished.
func (f *Fleet) drains() bool {
	waits := func(m *member) bool { return m.drain != nil && !m.drain.told }
	return slices.ContainsFunc(f.leaving, waits) || slices.ContainsFunc(f.members, waits)
}

// drained checks the engines that are being drained and reports those that are done.
func (f *Fleet) drained(now int64) {
	for _, m := range slices.Concat(f.leaving, f.members) {
		d := m.drain
		if d == nil || d.told {
			continue
		}
		left := m.open()
		was := d.empty
		d.empty = left == 0
		if was && left == 0 || now >= d.until {
			d.told = true
			if f.opts.Emptied != nil {
				f.opts.Emptied(m.Member, Emptied{Left: left, Took: time.Duration(now - d.since), Removed: d.removed, Generation: m.generation})
			}
			if d.removed {
				m.stop()
			}
		}
	}
}

// departing returns the operators' view of a member that leaves.
func (m *member) departing() *route.Engine {
	e := &route.Engine{Name: m.Name, Kind: m.Kind, Generation: m.generation, Drained: true}
	if m.state.Kind != "" {
		e.Kind = m.state.Kind
	}
	for _, r := range m.ranks {
		e.Ranks = append(e.Ranks, &route.Rank{Number: r.number, Label: m.Name, There: r.there, Health: r.health, Books: r.books})
	}
	return e
}

// leave ends the membership of a member whose adapter has ended. The next snapshot has that.
func (f *Fleet) leave(m *member) {
	at := slices.Index(f.leaving, m)
	if at < 0 {
		return // Run ends
	}
	for _, r := range m.ranks {
		r.health.Remove()
		r.close()
	}
	f.leaving = slices.Delete(f.leaving, at, at+1)
	f.news.left = true
}
