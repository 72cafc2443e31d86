package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Desired is the fleet that an operator wants, from all sources together. Diff returns the
// steps from the running fleet to it. An engine is not changed once it is part of one, so that an
// engine that stays may be the same in the next.
type Desired struct {
	Engines []*Wanted
	Models  []Model
}

// Wanted is an engine of a desired fleet.
type Wanted struct {
	Engine
	Spec    string // as it was given
	Origin  string // what gave it: flags, admin, file=PATH, resolve=HOST or kubernetes=WHAT
	Drained bool
	Why     string // it is drained; empty: an operator has drained it
	// Instance differs between engines that have the same name and address one after the
	// other, where their source knows that.
	Instance string
}

// Engine returns the wanted engine of a name; nil: there is none.
func (d *Desired) Engine(name string) *Wanted {
	at := slices.IndexFunc(d.Engines, func(w *Wanted) bool { return w.Name == name })
	if at < 0 {
		return nil
	}
	return d.Engines[at]
}

// Model returns the model of a name or an alias; nil: there is none.
func (d *Desired) Model(name string) *Model {
	at := slices.IndexFunc(d.Models, func(m Model) bool { return m.Name == name || slices.Contains(m.Aliases, name) })
	if at < 0 {
		return nil
	}
	return &d.Models[at]
}

// Names are the engines' names, in their order.
func (d *Desired) Names() []string {
	names := make([]string, 0, len(d.Engines))
	for _, w := range d.Engines {
		names = append(names, w.Name)
	}
	return names
}

// key identifies an engine: if it changes, the engine is another one. It includes what weir
// sends to engines about a model at their start, for engines that take it.
func (d *Desired) key(w *Wanted) string {
	e, at := w.Engine, ""
	if e.URL != nil {
		at = e.URL.String()
	}
	e.URL, e.Weight = nil, 0
	told := ""
	if e.Kind == "vllm-core" || e.Kind == "sglang-ipc" {
		if m := d.Model(e.Model); m != nil {
			told = fmt.Sprint(m.Dir, m.LoRA)
		}
	}
	return fmt.Sprintf("%+v %q %q %q", e, at, told, w.Instance)
}

// same reports whether an engine of one fleet is the one of its name in another. It compares
// keys only if the specifications do not decide, because fleets of a thousand engines are
// compared several times a second.
func same(from *Desired, was *Wanted, to *Desired, w *Wanted) bool {
	if w.Spec != "" && was.Spec == w.Spec && was.Instance == w.Instance && was.Origin == w.Origin && was.Address() == w.Address() && w.Kind != "vllm-core" && w.Kind != "sglang-ipc" {
		return true
	}
	return from.key(was) == to.key(w)
}

// ByName returns the engines by their names.
func (d *Desired) ByName() map[string]*Wanted {
	all := make(map[string]*Wanted, len(d.Engines))
	for _, w := range d.Engines {
		if all[w.Name] == nil {
			all[w.Name] = w
		}
	}
	return all
}

// Address is where the engine is: no two engines are useful there.
func (e *Engine) Address() string {
	if e.URL != nil {
		return e.URL.Host
	}
	return cmp.Or(e.Addr, e.Dir)
}

// Verb is what a step does.
type Verb string

// The verbs, in the order in which the steps of a change are.
const (
	RemoveModel Verb = "model removed"
	AddModel    Verb = "model added"
	ChangeModel Verb = "model changed"
	Remove      Verb = "removed"
	Replace     Verb = "replaced" // removed, and added as another one
	Add         Verb = "added"
	Drain       Verb = "drained"
	Resume      Verb = "resumed"
	Weigh       Verb = "weight"

	CallerRemoved Verb = "caller removed"
	CallerAdded   Verb = "caller added"
	CallerChanged Verb = "caller changed"
)

// Step is one line of a change.
type Step struct {
	Verb Verb   `json:"verb"`
	Name string `json:"name"`          // the engine's, the model's, or that of a caller's grant
	What string `json:"what,omitzero"` // details: the specification, the weight, or the changed fields
}

// String is the line.
func (s Step) String() string {
	subject, does, ok := strings.Cut(string(s.Verb), " ")
	if !ok {
		subject, does = "engine", subject
	}
	line := fmt.Sprintf("%s %s %s", subject, s.Name, does)
	if s.What != "" {
		line += ": " + s.What
	}
	return line
}

// Diff returns the steps from one fleet to another. An engine with the same name is kept if
// only its weight and whether it is drained have changed. There are no steps exactly if the
// fleets are equal, apart from the order of their engines.
func Diff(from, to *Desired) (steps []Step) {
	had, has := modelsOf(from), modelsOf(to)
	for _, name := range slices.Sorted(maps.Keys(had)) {
		if _, stays := has[name]; !stays {
			steps = append(steps, Step{RemoveModel, name, ""})
		}
	}
	for i := range to.Models {
		name := to.Models[i].Name
		switch was, there := had[name]; {
		case !there:
			steps = append(steps, Step{AddModel, name, to.Models[i].Dir})
		case was != has[name]:
			steps = append(steps, Step{ChangeModel, name, to.Models[i].Dir})
		}
	}
	var removed, added, set []Step
	var before map[string]*Wanted
	ordered := slices.EqualFunc(from.Engines, to.Engines, func(a, b *Wanted) bool { return a.Name == b.Name })
	if !ordered { // as they are several times a second while some of a thousand engines become ready or cease to be it
		before = from.ByName()
		after := to.ByName()
		for _, w := range from.Engines {
			if after[w.Name] == nil {
				removed = append(removed, Step{Remove, w.Name, ""})
			}
		}
	}
	for i, w := range to.Engines {
		was := before[w.Name]
		if ordered {
			was = from.Engines[i]
		}
		switch {
		case was == nil:
			added = append(added, Step{Add, w.Name, w.Spec})
			if w.Drained {
				set = append(set, Step{Drain, w.Name, w.Why})
			}
			continue
		case !same(from, was, to, w):
			added = append(added, Step{Replace, w.Name, w.Spec})
			if w.Drained {
				set = append(set, Step{Drain, w.Name, w.Why})
			}
			continue
		}
		if was.share() != w.share() {
			set = append(set, Step{Weigh, w.Name, fmt.Sprint(w.share())})
		}
		switch {
		case w.Drained && !was.Drained:
			set = append(set, Step{Drain, w.Name, w.Why})
		case was.Drained && !w.Drained:
			set = append(set, Step{Resume, w.Name, ""})
		}
	}
	return slices.Concat(steps, removed, added, set)
}

// share returns the weight; 0 means 1.
func (e *Engine) share() float64 {
	if e.Weight == 0 {
		return 1
	}
	return e.Weight
}

func modelsOf(d *Desired) map[string]string {
	of := map[string]string{}
	for _, m := range d.Models {
		of[m.Name] = fmt.Sprintf("%+v", m)
	}
	return of
}

// MaxAddresses bounds the engines behind one name.
const MaxAddresses = 256

// Resolved returns an engine for each address of a name, in the order of the addresses. The
// error names addresses that are left out because they cannot belong to an engine. Otherwise
// a name that resolves to this machine would send requests to any process that listens here.
func (w *Wanted) Resolved(addrs []netip.Addr) (engines []*Wanted, err error) {
	host, port := w.hostPort()
	addrs = slices.Clone(addrs)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap().WithZone("")
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	for _, a := range addrs {
		switch {
		case a.IsLoopback() && w.Resolve != eachOrLoopback && !IsLocalhost(strings.TrimSuffix(host, ".")):
			err = fmt.Errorf("%s has the address %s, which is this machine's own; resolve=%s takes those too", host, a, eachOrLoopback)
			continue
		case a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast():
			err = fmt.Errorf("%s has the address %s, which is no engine's", host, a)
			continue
		case len(engines) == MaxAddresses:
			return engines, fmt.Errorf("%s has more than %d addresses, and the first are taken", host, MaxAddresses)
		}
		engines = append(engines, w.at(a, host, port))
	}
	return engines, err
}

// at is the engine at one of its name's addresses.
func (w *Wanted) at(a netip.Addr, host, port string) *Wanted {
	e, at := new(*w), net.JoinHostPort(a.String(), port)
	if e.Name == net.JoinHostPort(host, port) || w.URL != nil && e.Name == w.URL.Host {
		e.Name = at
	} else {
		e.Name += "@" + at
	}
	if w.URL != nil {
		e.URL = new(url.URL)
		*e.URL = *w.URL
		e.URL.Host = at
	} else {
		e.Addr = at
	}
	if (w.URL != nil && w.URL.Scheme == "https" || w.TLS) && e.ServerName == "" {
		e.ServerName = host
	}
	e.Origin, e.Resolve = "resolve="+host, ""
	return e
}

// Host returns the name that is resolved to the engine's addresses.
func (w *Wanted) Host() string {
	host, _ := w.hostPort()
	return host
}

func (w *Wanted) hostPort() (host, port string) {
	if w.URL == nil {
		host, port, _ = net.SplitHostPort(w.Addr) // ParseEngine has seen to it
		return host, port
	}
	port = w.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[w.URL.Scheme]
	}
	return w.URL.Hostname(), port
}

// IsLocalhost reports whether a name is this machine's by definition.
func IsLocalhost(host string) bool {
	return strings.EqualFold(host, "localhost") || strings.HasSuffix(strings.ToLower(host), ".localhost")
}

// ParseList reads a list of engines, one specification a line; what begins with # is a
// comment. The line none says that there are none; otherwise a list without any is nil. Its errors
// name the line.
func ParseList(text string) (specs []string, err error) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if line == "none" && len(specs) == 0 {
			specs = []string{}
			continue
		}
		if strings.HasPrefix(line, "file=") {
			return nil, fmt.Errorf("line %d: a list names no other list", n)
		}
		if _, err := ParseEngine(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		specs = append(specs, line)
	}
	return specs, nil
}
