package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"weir/internal/observe/metrics"
)

// This file shows the part of the configuration that is wanted and not in force: flags that
// wait for a restart, files that could not be read again, and engines that are not yet, or
// still, there.

// reading is the latest attempt to read the configuration again.
type reading struct {
	at     time.Time // zero if there was none
	result string    // metrics.Applied, metrics.Unchanged or metrics.Failed
	err    error
	// restart has the flags that only a restart changes, by the latest reading that did not
	// fail.
	restart []waiting
}

// done records how an attempt ended.
func (r *reading) done(out outcome, err error, at time.Time) {
	r.at, r.err = at, err
	switch {
	case err != nil:
		r.result = metrics.Failed
	case len(out.Steps) == 0:
		r.result = metrics.Unchanged
	default:
		r.result = metrics.Applied
	}
}

// waiting is a flag whose value would change at a restart.
type waiting struct {
	Name    string `json:"name"`
	InForce string `json:"in_force"`
	Wanted  string `json:"wanted"`
	// Hidden reports whether the values may hold a secret and are left out.
	Hidden bool `json:"hidden,omitzero"`
}

// needRestart compares the settings of the start with those that were read since, and returns
// the flags that a running process does not change.
func needRestart(began, next settings) (all []waiting) {
	for i, f := range next.Flags {
		if f.Name == "engine" || f.Name == "model" || f.Name == "discover" || f.Name == "config" || i >= len(began.Flags) {
			continue
		}
		was := began.Flags[i]
		if was.Name != f.Name || was.Value == f.Value && was.secret == f.secret {
			continue
		}
		w := waiting{Name: f.Name, InForce: was.Value, Wanted: f.Value}
		if was.Hidden || f.Hidden {
			w = waiting{Name: f.Name, Hidden: true}
		}
		all = append(all, w)
	}
	return all
}

// String returns the line that a reading prints.
func (w *waiting) String() string {
	if w.Hidden {
		return fmt.Sprintf("--%s changes at a restart", w.Name)
	}
	return fmt.Sprintf("--%s changes at a restart: it is %q, and would be %q", w.Name, w.InForce, w.Wanted)
}

// unread has the errors of keys files that could not be read again, by flag. The keys that
// such a file had before stay in force.
type unread struct {
	mu     sync.Mutex
	errors map[string]keysFailure
}

type keysFailure struct {
	Flag  string    `json:"flag"`
	Since time.Time `json:"since"`
	Error string    `json:"error"`
}

// note records how the reading of a flag's file ended.
func (u *unread) note(flag string, err error, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil {
		delete(u.errors, flag)
		return
	}
	if u.errors == nil {
		u.errors = map[string]keysFailure{}
	}
	since := at
	if had, ok := u.errors[flag]; ok {
		since = had.Since
	}
	u.errors[flag] = keysFailure{Flag: flag, Since: since, Error: err.Error()}
}

func (u *unread) list() []keysFailure {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.SortedFunc(maps.Values(u.errors), func(a, b keysFailure) int { return cmp.Compare(a.Flag, b.Flag) })
}

// pendingView is the answer of /admin/pending.
type pendingView struct {
	Generation uint64 `json:"generation"`
	// Reading is the latest attempt to read the configuration again, if there was one.
	Reading *readingView `json:"reading,omitzero"`
	Restart []waiting    `json:"restart"`
	// Engines are wanted and not ready, being drained, or leaving.
	Engines []wantedView `json:"engines"`
	// Names are host names of engines that cannot be looked up. Their engines stay.
	Names []string      `json:"names"`
	Keys  []keysFailure `json:"keys"`
}

type readingView struct {
	At     time.Time `json:"at"`
	Result string    `json:"result"`
	Error  string    `json:"error,omitzero"`
}

// pending returns what is wanted and not in force.
func (p *process) pending() pendingView {
	fleet := p.views()
	v := pendingView{Generation: fleet.Generation, Restart: []waiting{}, Engines: []wantedView{}, Names: []string{}, Keys: []keysFailure{}}
	for _, e := range slices.Concat(fleet.Engines, fleet.Leaving) {
		if e.State != "ready" && e.State != "drained" {
			v.Engines = append(v.Engines, e)
		}
	}
	if p.keys != nil {
		v.Keys = append(v.Keys, p.keys.unread.list()...)
	}
	if p.sources != nil {
		p.sources.showPending(&v)
	}
	return v
}

// showPending adds what the sources have to a view.
func (s *sources) showPending(v *pendingView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := &s.last; !last.at.IsZero() {
		v.Reading = &readingView{At: last.at.UTC(), Result: last.result}
		if last.err != nil {
			v.Reading.Error = withoutUsers(last.err.Error())
		}
	}
	v.Restart = append(v.Restart, s.last.restart...)
	for name, failing := range s.failing {
		if failing {
			v.Names = append(v.Names, name)
		}
	}
	slices.Sort(v.Names)
}

func (p *process) pendingPage(w http.ResponseWriter, _ *http.Request) { writeView(w, p.pending()) }
