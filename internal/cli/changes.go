package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/config"
	"weir/internal/engine"
	"weir/internal/fleet"
	"weir/internal/fleet/route"
)

// changes applies changes to the fleet of a running gateway. A change by the configuration
// file, a list of engines, a name's addresses or an operator over the admin listener
// changes the wanted fleet. The wanted fleet as a whole is compared with the running one,
// and the difference is applied at once, or not at all.
type changes struct {
	fleet *fleet.Fleet
	// members makes adapters of engines; models are all that are served then.
	members func(engines []config.Engine, models servedModels) ([]fleet.Member, error)
	say     func(format string, args ...any)
	bound   time.Duration // of drains that name none
	// check refuses settings of models that do not go with those of the gateway.
	check func([]config.Model) error

	mu      sync.Mutex
	wishes  wishes
	desired config.Desired
	models  servedModels // that have a folder
	removed []string     // engines removed lately, the latest last

	generation atomic.Uint64 // counts changes
}

// wishes is the wanted fleet, by source.
type wishes struct {
	fixed  []*config.Wanted // engines that no specification says, of weir up
	flags  []string         // specifications of --engine, by flag or file
	models []config.Model   // of --model
	lists  map[string][]string
	names  map[string][]netip.Addr
	// discover are the specifications of --discover, and found what each has found.
	discover []string
	found    map[string][]*config.Wanted

	// Changes by an operator. They last until the process ends, or until no source gives
	// the name any more.
	added   []*config.Wanted
	gone    map[string]string // engines that are given and were removed: their specifications
	drained map[string]bool
	weights map[string]float64
	more    []config.Model
	less    map[string]bool // models that are given and were removed
	// How long drains and removals that come of this change may take, by engine.
	patience map[string]time.Duration
}

func (w *wishes) clone() wishes {
	c := *w
	c.lists, c.names, c.found = maps.Clone(w.lists), maps.Clone(w.names), maps.Clone(w.found)
	c.added, c.more = slices.Clone(w.added), slices.Clone(w.more)
	c.gone, c.drained, c.weights, c.less, c.patience = maps.Clone(w.gone), maps.Clone(w.drained), maps.Clone(w.weights), maps.Clone(w.less), map[string]time.Duration{}
	for _, m := range []*map[string]bool{&c.drained, &c.less} {
		if *m == nil {
			*m = map[string]bool{}
		}
	}
	if c.gone == nil {
		c.gone = map[string]string{}
	}
	if c.weights == nil {
		c.weights = map[string]float64{}
	}
	if c.lists == nil {
		c.lists = map[string][]string{}
	}
	if c.names == nil {
		c.names = map[string][]netip.Addr{}
	}
	if c.found == nil {
		c.found = map[string][]*config.Wanted{}
	}
	return c
}

// given returns the engines that flags, file, lists, names and discoveries give. notes explain which are
// left out and why.
func (w *wishes) given() (engines []*config.Wanted, notes []error, err error) {
	found := 0
	for _, spec := range w.discover {
		found += len(w.found[spec])
	}
	engines = append(make([]*config.Wanted, 0, len(w.fixed)+len(w.flags)+found), w.fixed...)
	add := func(spec, origin string) error {
		e, err := config.ParseEngine(spec)
		if err != nil {
			return err
		}
		wanted := &config.Wanted{Engine: e, Spec: spec, Origin: origin}
		if e.Resolve == "" {
			engines = append(engines, wanted)
			return nil
		}
		each, err := wanted.Resolved(w.names[wanted.Host()])
		if err != nil {
			notes = append(notes, err)
		}
		engines = append(engines, each...)
		return nil
	}
	for _, spec := range w.flags {
		path, list := strings.CutPrefix(spec, "file=")
		if !list {
			if err := add(spec, "flags"); err != nil {
				return nil, nil, wrongf("--engine: %w", err)
			}
			continue
		}
		for _, spec := range w.lists[path] {
			if err := add(spec, "file="+path); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	taken := make(map[string]*config.Wanted, len(engines)+found)
	if len(w.discover) > 0 {
		for _, e := range engines {
			taken[e.Address()] = e
		}
	}
	for _, spec := range w.discover {
		for _, e := range w.found[spec] {
			if by := taken[e.Address()]; by != nil {
				notes = append(notes, fmt.Errorf("%s is at %s, and so is %s (%s): it is left out", e.Name, e.Address(), by.Name, by.Origin))
				continue
			}
			taken[e.Address()] = e
			engines = append(engines, e)
		}
	}
	config.Unique(len(engines), func(i int) string { return engines[i].Name }, func(i int, to string) {
		engines[i] = new(*engines[i])
		engines[i].Name = to
	})
	return engines, notes, nil
}

// desired combines the wishes. It drops an operator's changes to engines and models that no
// source gives any more.
func (w *wishes) desired() (d config.Desired, notes []error, err error) {
	given, notes, err := w.given()
	if err != nil {
		return d, nil, err
	}
	there := map[string]bool{} // those given, if that matters to any
	d.Engines = make([]*config.Wanted, 0, len(given)+len(w.added))
	for _, e := range given {
		if len(w.gone) > 0 {
			there[e.Name] = true
		}
		if spec, gone := w.gone[e.Name]; gone && spec == e.Spec {
			continue
		}
		delete(w.gone, e.Name) // it is given anew, as another one
		if slices.ContainsFunc(w.added, func(a *config.Wanted) bool { return a.Name == e.Name }) {
			continue // which replaces it
		}
		d.Engines = append(d.Engines, e)
	}
	maps.DeleteFunc(w.gone, func(name, _ string) bool { return !there[name] })
	d.Engines = append(d.Engines, w.added...)
	for i, e := range d.Engines {
		weight, weighed := w.weights[e.Name]
		drained := w.drained[e.Name]
		if !weighed && !drained {
			continue
		}
		e = new(*e)
		if d.Engines[i] = e; drained {
			e.Drained, e.Why = true, ""
		}
		if weighed {
			e.Weight = weight
		}
	}
	maps.DeleteFunc(w.drained, func(name string, _ bool) bool { return d.Engine(name) == nil })
	maps.DeleteFunc(w.weights, func(name string, _ float64) bool { return d.Engine(name) == nil })

	names := map[string]bool{}
	for _, m := range w.models {
		names[m.Name] = true
		if !w.less[m.Name] && !slices.ContainsFunc(w.more, func(o config.Model) bool { return o.Name == m.Name }) {
			d.Models = append(d.Models, m)
		}
	}
	maps.DeleteFunc(w.less, func(name string, _ bool) bool { return !names[name] })
	d.Models = append(d.Models, w.more...)
	if err := agree(d.Engines, d.Models); err != nil {
		return d, nil, err
	}
	return d, notes, nil
}

// outcome is the result of a change.
type outcome struct {
	Generation uint64        `json:"generation"`
	Steps      []config.Step `json:"changes"`
	Notes      []string      `json:"notes,omitzero"`
}

// change applies an edit to the wanted fleet, and prints its steps. Changes are serialized.
func (c *changes) change(edit func(w *wishes, now *config.Desired) error) (outcome, error) {
	return c.changeAnd(edit, func(s config.Step) { c.say("change    %s", s) })
}

// changeAnd is change with another way to report a step.
func (c *changes) changeAnd(edit func(w *wishes, now *config.Desired) error, tell func(config.Step)) (outcome, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.wishes.clone()
	if err := edit(&next, &c.desired); err != nil {
		return outcome{}, err
	}
	want, notes, err := next.desired()
	if err != nil {
		return outcome{}, err
	}
	steps := config.Diff(&c.desired, &want)
	steps = append(steps, c.readAnew(steps, &want)...)
	if len(steps) > 0 {
		if err := c.apply(steps, &want, next.patience); err != nil {
			return outcome{}, err
		}
		c.generation.Add(1)
		for _, s := range steps {
			tell(s)
		}
	}
	c.wishes, c.desired = next, want
	out := outcome{Generation: c.generation.Load(), Steps: slices.Clone(steps)}
	if out.Steps == nil {
		out.Steps = []config.Step{}
	}
	for _, note := range notes {
		out.Notes = append(out.Notes, note.Error())
	}
	return out, nil
}

// readAnew returns the engines that stay and whose adapters know the folder of a changed
// model: those that take ids. They are started again with the new folder.
func (c *changes) readAnew(steps []config.Step, want *config.Desired) (more []config.Step) {
	if !slices.ContainsFunc(steps, func(s config.Step) bool { return s.Verb == config.ChangeModel || s.Verb == config.AddModel }) {
		return nil
	}
	changed := func(model string) bool {
		return slices.ContainsFunc(steps, func(s config.Step) bool {
			if s.Verb != config.ChangeModel && s.Verb != config.AddModel {
				return false
			}
			m := want.Model(s.Name)
			return m.Name == model || slices.Contains(m.Aliases, model)
		})
	}
	for _, e := range c.fleet.Snapshot().Engines {
		w := want.Engine(e.Name)
		if w == nil || e.Kind != "sglang" && e.Kind != "vllm" || slices.ContainsFunc(steps, func(s config.Step) bool { return s.Name == e.Name && s.Verb == config.Replace }) {
			continue
		}
		if changed(cmp.Or(w.Model, "")) || slices.ContainsFunc(e.Facts.Models, changed) {
			more = append(more, config.Step{Verb: config.Replace, Name: e.Name, What: "its model's folder is another one"})
		}
	}
	return more
}

// apply turns the fleet into the wanted one.
func (c *changes) apply(steps []config.Step, want *config.Desired, patience map[string]time.Duration) error {
	loaded := maps.Clone(c.models)
	ofModels := false
	for _, s := range steps {
		switch s.Verb {
		case config.RemoveModel:
			ofModels = true
			delete(loaded, s.Name)
		case config.AddModel, config.ChangeModel:
			ofModels = true
			delete(loaded, s.Name)
			one, err := loadModels([]config.Model{*want.Model(s.Name)})
			if err != nil {
				return err
			}
			maps.Copy(loaded, one)
			noteModels(one, c.say)
		}
	}
	change := fleet.Change{Set: map[string]fleet.Setting{}, Order: want.Names()}
	if ofModels {
		models, err := c.known(want.Models, loaded)
		if err != nil {
			return err
		}
		change.Models = models
	}
	var joining []config.Engine
	var gone []string
	wanted := want.ByName()
	for _, s := range steps {
		switch s.Verb {
		case config.Remove, config.Replace:
			change.Remove = append(change.Remove, fleet.Removal{Name: s.Name, Patience: cmp.Or(patience[s.Name], c.bound)})
			gone = append(gone, s.Name)
		}
		switch s.Verb {
		case config.Add, config.Replace:
			joining = append(joining, wanted[s.Name].Engine)
		case config.Drain, config.Resume, config.Weigh:
			change.Set[s.Name] = c.setting(wanted[s.Name], patience)
		}
	}
	members, err := c.members(joining, loaded)
	if err != nil {
		return err
	}
	for i := range members {
		name := members[i].Name
		members[i].Setting = c.setting(wanted[name], patience)
		delete(change.Set, name)
	}
	change.Add = members
	if err := c.fleet.Change(change); err != nil {
		return err
	}
	c.models = loaded
	for _, name := range gone {
		if wanted[name] == nil {
			c.removed = append(slices.DeleteFunc(c.removed, func(n string) bool { return n == name }), name)
		}
	}
	c.removed = c.removed[max(0, len(c.removed)-maxRemoved):]
	return nil
}

// maxRemoved bounds the names of removed engines that are remembered, so that their removal
// may be asked for again.
const maxRemoved = 1000

func (c *changes) setting(w *config.Wanted, patience map[string]time.Duration) fleet.Setting {
	return fleet.Setting{Drained: w.Drained, Why: w.Why, Weight: w.Weight, Patience: cmp.Or(patience[w.Name], c.bound)}
}

// known returns what the fleet and the gateway must know about the models.
func (c *changes) known(models []config.Model, loaded servedModels) (*fleet.Models, error) {
	if err := c.check(models); err != nil {
		return nil, err
	}
	policies, err := policiesOf(models)
	if err != nil {
		return nil, err
	}
	known := &fleet.Models{Folders: map[string][]string{}, Aliases: aliasesOf(models), Policies: policies, Isolations: isolationsOf(models), Loaded: map[string]*route.Loaded{}}
	for _, m := range models {
		l := &route.Loaded{MaxTokens: m.MaxTokens, MaxN: m.MaxN}
		if of := loaded[m.Name]; of != nil {
			l.Folder = of.folder
			known.Folders[m.Name] = m.Aliases
		}
		known.Loaded[m.Name] = l
	}
	return known, nil
}

// refusal is why a change is refused that an operator has asked for: a code of the admin API,
// and the words.
type refusal struct {
	code string
	err  error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func refused(code, format string, args ...any) error {
	return &refusal{code, fmt.Errorf(format, args...)}
}

// Codes of refusals.
const (
	codeUnknown  = "unknown"  // there is nothing of that name
	codeInvalid  = "invalid"  // it cannot be meant
	codeConflict = "conflict" // something else has the name or the address
	codeLast     = "last"     // nothing would serve a model any more
	codeStale    = "stale"    // the fleet has changed since
)

// unknownEngine is the error for an engine name that does not exist; it names a similar
// one.
func unknownEngine(now *config.Desired, name string) error {
	all := strings.Join(now.Names(), ", ")
	if all == "" {
		all = "none"
	}
	return refused(codeUnknown, "there is no engine %q; the engines are: %s", name, all)
}

// put adds an engine, or replaces the one with its name. With unless an existing engine
// stays, and it is a conflict if it differs.
func put(name, spec string, unless bool, weight float64, drained *bool) func(*wishes, *config.Desired) error {
	return func(w *wishes, now *config.Desired) error {
		e, err := config.ParseEngine(spec)
		if err != nil {
			return &refusal{codeInvalid, err}
		}
		switch {
		case strings.HasPrefix(spec, "file=") || e.Resolve != "":
			return refused(codeInvalid, "lists of engines (file=) and names with several addresses (resolve=) belong to the flags or the configuration file, which are read again")
		case e.Name != name && slices.ContainsFunc(strings.Split(spec, ","), func(o string) bool { return strings.HasPrefix(o, "name=") }):
			return refused(codeInvalid, "the specification names the engine %q, and the request %q", e.Name, name)
		}
		e.Name = name
		if weight != 0 {
			e.Weight = weight
		}
		if err := w.knowsFiles(&e); err != nil {
			return err
		}
		for _, o := range now.Engines {
			switch {
			case o.Name == name && unless && o.Spec != spec:
				return refused(codeConflict, "there is an engine %q already, and it is another one: %s", name, o.Spec)
			case o.Name != name && o.Address() == e.Address():
				return refused(codeConflict, "engine %q is at %s already: the same engine twice would be given twice what it can do", o.Name, e.Address())
			}
		}
		if was := now.Engine(name); was == nil || was.Spec != spec {
			delete(w.drained, name) // it is another engine
		}
		delete(w.weights, name)
		if drained != nil {
			w.drained[name] = *drained
		}
		given := &config.Wanted{Engine: e, Spec: spec, Origin: "admin"}
		w.added = slices.DeleteFunc(w.added, func(o *config.Wanted) bool { return o.Name == name })
		if back, gone := w.gone[name]; gone && back == spec {
			delete(w.gone, name) // as it was given
			if weight != 0 {
				w.weights[name] = weight
			}
			return nil
		}
		if was := now.Engine(name); was != nil && was.Origin != "admin" && was.Spec == spec {
			if weight != 0 {
				w.weights[name] = weight
			}
			return nil // it is given so already
		}
		w.added = append(w.added, given)
		return nil
	}
}

// knowsFiles refuses an engine whose key or certificate is in a file that the configuration
// does not name. Otherwise a client of the admin listener could have any file sent
// anywhere.
func (w *wishes) knowsFiles(e *config.Engine) error {
	given, _, err := w.given()
	if err != nil {
		return err
	}
	for _, path := range []string{e.KeyFile, e.CA, e.Cert, e.CertKey} {
		named := func(o *config.Wanted) bool {
			return slices.Contains([]string{o.KeyFile, o.CA, o.Cert, o.CertKey}, path)
		}
		if path != "" && !slices.ContainsFunc(given, named) {
			return refused(codeInvalid, "the file %s is named by no engine of the flags or the configuration file, so that it may not be named here; add the engine to the file", path)
		}
	}
	return nil
}

// remove removes an engine. force does so though nothing would serve a model any more.
func (c *changes) remove(name string, patience time.Duration, force bool) func(*wishes, *config.Desired) error {
	return func(w *wishes, now *config.Desired) error {
		e := now.Engine(name)
		if e == nil {
			if slices.Contains(c.removed, name) {
				return nil // it is done already
			}
			return unknownEngine(now, name)
		}
		if err := c.spares(name, "remove", force); err != nil {
			return err
		}
		w.added = slices.DeleteFunc(w.added, func(o *config.Wanted) bool { return o.Name == name })
		given, _, err := w.given()
		if err != nil {
			return err
		}
		for _, g := range given {
			if g.Name == name {
				w.gone[name] = g.Spec
			}
		}
		w.patience[name] = patience
		delete(w.drained, name)
		delete(w.weights, name)
		return nil
	}
}

// spares refuses to take an engine out that is the last which serves a model, or the last of
// all.
func (c *changes) spares(name, verb string, force bool) error {
	if force {
		return nil
	}
	snap := c.fleet.Snapshot()
	takes := func(e *route.Engine) bool { return e.Ready && !e.Drained }
	self := slices.ContainsFunc(snap.Engines, func(e *route.Engine) bool { return e.Name == name && takes(e) })
	others := slices.ContainsFunc(snap.Engines, func(e *route.Engine) bool { return e.Name != name && takes(e) })
	if !others && (self || len(snap.Engines) == 1) {
		return refused(codeLast, "%s is the only engine that takes requests: to %s it would have every request refused; to do so all the same, force it", name, verb)
	}
	for _, model := range snap.Names() {
		m, last := snap.Models[model], false
		for _, t := range m.Targets {
			if last = t.Name == name || last; t.Name != name && !t.Drained {
				last = false
				break
			}
		}
		if last && m.Name == model {
			return refused(codeLast, "%s is the only engine of model %q that takes requests: to %s it would have each of them refused; to do so all the same, force it", name, model, verb)
		}
	}
	return nil
}

// drain has an engine be given no requests.
func (c *changes) drain(name string, patience time.Duration, force bool) func(*wishes, *config.Desired) error {
	return func(w *wishes, now *config.Desired) error {
		switch e := now.Engine(name); {
		case e == nil:
			return unknownEngine(now, name)
		case e.Drained:
			return nil
		}
		if err := c.spares(name, "drain", force); err != nil {
			return err
		}
		w.drained[name], w.patience[name] = true, patience
		return nil
	}
}

// resume has it be given requests again.
func resume(name string) func(*wishes, *config.Desired) error {
	return func(w *wishes, now *config.Desired) error {
		switch e := now.Engine(name); {
		case e == nil:
			return unknownEngine(now, name)
		case e.Drained && e.Why != "":
			return refused(codeConflict, "engine %q is drained by %s: %s; it takes requests again when that has changed", name, e.Origin, e.Why)
		}
		delete(w.drained, name)
		return nil
	}
}

// weigh sets which share of its models' requests an engine may be given.
func weigh(name string, weight float64) func(*wishes, *config.Desired) error {
	return func(w *wishes, now *config.Desired) error {
		if now.Engine(name) == nil {
			return unknownEngine(now, name)
		}
		if !(weight > 0 && weight <= 1) {
			_, err := config.ParseWeight(fmt.Sprint(weight))
			return &refusal{codeInvalid, fmt.Errorf("weight %v: %w", weight, err)}
		}
		w.weights[name] = weight
		return nil
	}
}

// putModel adds a model, or changes it.
func putModel(name, spec string) func(*wishes, *config.Desired) error {
	return func(w *wishes, _ *config.Desired) error {
		parsed, err := parseModels([]string{spec})
		if err != nil {
			return &refusal{codeInvalid, err}
		}
		m := parsed[0]
		if m.Name != name {
			return refused(codeInvalid, "the specification names the model %q, and the request %q", m.Name, name)
		}
		w.more = append(slices.DeleteFunc(w.more, func(o config.Model) bool { return o.Name == name }), m)
		delete(w.less, name)
		return w.distinct()
	}
}

// distinct refuses a name or alias that two models have.
func (w *wishes) distinct() error {
	taken := map[string]string{}
	for _, m := range slices.Concat(w.models, w.more) {
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			if by, ok := taken[name]; ok && by != m.Name {
				return refused(codeConflict, "the name %q is given to model %s and to model %s", name, by, m.Name)
			}
			taken[name] = m.Name
		}
	}
	return nil
}

// removeModel has a model be served no more. Engines that serve it stay.
func removeModel(name string) func(*wishes, *config.Desired) error {
	return func(w *wishes, now *config.Desired) error {
		at := slices.IndexFunc(now.Models, func(m config.Model) bool { return m.Name == name })
		if at < 0 {
			if w.less[name] {
				return nil
			}
			return refused(codeUnknown, "there is no model %q", name)
		}
		w.more = slices.DeleteFunc(w.more, func(o config.Model) bool { return o.Name == name })
		if slices.ContainsFunc(w.models, func(o config.Model) bool { return o.Name == name }) {
			w.less[name] = true
		}
		return nil
	}
}

// codeOf is the code of a refusal, and of anything else codeInvalid.
func codeOf(err error) string {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.code
	}
	return codeInvalid
}

// current has the adapters of engines see the models as they are now.
type current struct{ of atomic.Pointer[currentModels] }

type currentModels struct {
	models    servedModels
	additions func(model string) engine.Additions
}

// set returns which models there are.
func (l *current) set(models servedModels) error {
	additions, err := models.additions()
	if err != nil {
		return err
	}
	l.of.Store(&currentModels{models, additions})
	return nil
}

func (l *current) additions(model string) engine.Additions { return l.of.Load().additions(model) }

func (l *current) find(model string) *servedModel { return l.of.Load().models.find(model) }
