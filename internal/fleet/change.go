package fleet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/route"
	"weir/internal/trace"
)

// Setting is what an operator sets of an engine while it is a member.
type Setting struct {
	// Drained has the engine be given no new requests; those that it has go on.
	Drained bool
	// Patience is after how long a drain is reported that has not ended; 0 is DefaultPatience.
	Patience time.Duration
	// Weight is the share of its models' requests that the engine may be given, above 0 and
	// below 1; 0 is all.
	Weight float64
}

// DefaultPatience is how long requests get to end at an engine that was removed.
const DefaultPatience = 5 * time.Minute

func (Setting) why() string { return "an operator has drained it" }

// Models are what is known of models beside their engines; see Options.
type Models struct {
	Folders  map[string][]string
	Aliases  map[string][]string
	Loaded   map[string]*route.Loaded
	Policies map[string]string
}

// Removal takes an engine out of the fleet. Its requests may end within Patience, which 0 is
// DefaultPatience of, and are cut then.
type Removal struct {
	Name     string
	Patience time.Duration
}

// Change is what becomes of a fleet at once: one snapshot has none of it, and the next all.
// An engine that is removed and added begins anew, whatever it was before.
type Change struct {
	Remove []Removal
	Add    []Member
	// Set are settings of members, by their names.
	Set map[string]Setting
	// Models are those from now on; nil: they stay as they are.
	Models *Models
	// Order are the names of all members then, in their order; nil: they stay in theirs, and
	// those that join are the last.
	Order []string
}

// change is one that waits for Run.
type change struct {
	Change
	done chan error
}

// ErrEnded says that the fleet does not run any more.
var ErrEnded = errors.New("the gateway ends")

// Change changes the fleet while it runs: all of c, or nothing where there is an error. The
// adapters of members that were not taken have not been run.
func (f *Fleet) Change(c Change) error {
	waits := change{c, make(chan error, 1)}
	select {
	case f.changes <- waits:
		return <-waits.done
	case <-f.over:
		return ErrEnded
	}
}

// change is Change, in Run's goroutine. start runs a member's adapter.
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
		slices.SortStableFunc(f.members, func(a, b *member) int { return slices.Index(c.Order, a.Name) - slices.Index(c.Order, b.Name) })
	}
	f.publish()
	f.forget()
	for _, m := range joined {
		start(m)
	}
	return nil
}

// named gives the place of the member of a name, -1 if there is none.
func named(among []*member, name string) int {
	return slices.IndexFunc(among, func(m *member) bool { return m.Name == name })
}

func patienceOf(d time.Duration) time.Duration {
	if d <= 0 {
		return DefaultPatience
	}
	return d
}

// know takes what is known of models from now on. A model whose policy stays keeps it.
func (f *Fleet) know(m *Models) {
	was := f.opts
	f.opts.Folders, f.opts.Aliases, f.opts.Loaded, f.opts.Policies = m.Folders, m.Aliases, m.Loaded, m.Policies
	f.aliases = aliasesOf(m.Folders, m.Aliases)
	for name, kept := range f.served {
		if before, after := was.policy(name, kept.base), f.opts.policy(name, kept.base); before != after {
			kept.policy, _ = balance.New(after) // change has checked all
			kept.prefill, _ = balance.New(after)
		}
	}
}

// forget drops what is kept of models that are served no more and that no engine is of.
func (f *Fleet) forget() {
	models := f.snapshot.Load().Models
	maps.DeleteFunc(f.served, func(name string, _ *served) bool { return models[name] == nil })
	bases := map[string]bool{}
	for _, m := range slices.Concat(f.members, f.leaving) {
		bases[m.base] = true
	}
	maps.DeleteFunc(f.costs, func(base string, _ *cost.Model) bool { return !bases[base] && models[base] == nil })
}

// drain is an engine's way to having no requests.
type drain struct {
	since, until int64
	removed      bool
	empty        bool // it was, at the look before
	told         bool // how it has come out
}

// drainLook is how often engines that are drained are looked at. Between two looks a request
// that had chosen the engine before has come there.
const drainLook = 50 * time.Millisecond

// Emptied says how the drain of an engine has come out.
type Emptied struct {
	Left    int // the requests that it still has; 0: it is empty
	Took    time.Duration
	Removed bool // it was removed, and what is left is cut
	// Generation is the engine's, which another one of its name does not have.
	Generation uint64
}

// set gives a member a setting.
func (m *member) set(s Setting, now int64) {
	m.Setting = s
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
			r.health.Undrain("an operator has resumed it")
		}
	}
}

// open is how many requests an engine has that may still end.
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

// drains says whether there is a drain that has not come out.
func (f *Fleet) drains() bool {
	waits := func(m *member) bool { return m.drain != nil && !m.drain.told }
	return slices.ContainsFunc(f.leaving, waits) || slices.ContainsFunc(f.members, waits)
}

// drained looks at the engines that are drained.
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

// departing is a member that leaves, as operators see it.
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

// leave ends the membership of one whose adapter has ended.
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
	f.publish()
	f.forget()
}
