package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/internal/config"
	"weir/internal/disk"
	"weir/internal/observe/metrics"
)

// sources holds the sources of the set of engines other than the admin listener: flags, the
// configuration file, lists of engines and host names with several addresses. All of them
// are read again while weir runs.
type sources struct {
	// again reads the command line, the environment and the file anew. It is nil if they do
	// not determine the engines.
	again  func() (*serveCommand, settings, error)
	path   string        // of the configuration file; empty if there is none
	every  time.Duration // interval between look-ups of a name
	look   func(ctx context.Context, host string) ([]netip.Addr, error)
	given  []reached // the discoveries at the start
	inFile int       // keys of the configuration file
	// discoveries run from the process's start on; nil: it has not begun to serve.
	discoveries *discoveries

	mu      sync.Mutex
	watch   disk.Watch      // of the files
	failing map[string]bool // names that could not be looked up
	began   settings        // settings at the start, in force until a restart
	last    reading
}

const (
	lookUpBound = 5 * time.Second // of one look-up
)

// listPaths returns the lists of engines that are named in specs.
func listPaths(specs []string) (paths []string) {
	for _, spec := range specs {
		if path, ok := strings.CutPrefix(spec, "file="); ok {
			paths = append(paths, path)
		}
	}
	return paths
}

// readLists reads the lists of engines that are named in specs. One without engines in whose place
// had has some must say so: its writer may have come no further yet, or its disk be full.
func readLists(specs []string, had map[string][]string) (map[string][]string, error) {
	lists := map[string][]string{}
	for _, path := range listPaths(specs) {
		data, err := disk.Read(path, disk.MaxList)
		if err != nil {
			return nil, wrongf("--engine file=%s: %w", path, errors.Unwrap(err))
		}
		if lists[path], err = config.ParseList(string(data)); err != nil {
			return nil, wrongf("--engine file=%s: %w", path, err)
		}
		if n := len(had[path]); n > 0 && lists[path] == nil {
			return nil, wrongf("--engine file=%s: it has no engine any more, and there were %d: write the line \"none\" if there are to be none", path, n)
		}
	}
	return lists, nil
}

// hosts returns the names of engines with several addresses, sorted and without
// duplicates.
func hosts(specs []string, lists map[string][]string) (names []string) {
	for _, spec := range slices.Concat(append(slices.Collect(maps.Values(lists)), specs)...) {
		if strings.HasPrefix(spec, "file=") {
			continue
		}
		if e, err := config.ParseEngine(spec); err == nil && e.Resolve != "" {
			names = append(names, (&config.Wanted{Engine: e}).Host())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// lookUp looks names up concurrently. A name keeps its addresses if the look-up fails or
// finds none, because that does not mean that its engines are gone. It calls say when such
// failures begin and when they end.
func (s *sources) lookUp(ctx context.Context, names []string, had map[string][]netip.Addr, say func(format string, args ...any)) map[string][]netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, lookUpBound)
	defer cancel()
	type answer struct {
		addrs []netip.Addr
		err   error
	}
	answers := make([]answer, len(names))
	var asking sync.WaitGroup
	for i, name := range names {
		asking.Go(func() {
			answers[i].addrs, answers[i].err = s.look(ctx, name)
			if answers[i].err == nil && len(answers[i].addrs) == 0 {
				answers[i].err = errors.New("it has no address")
			}
		})
	}
	asking.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := map[string][]netip.Addr{}
	for i, name := range names {
		now[name] = answers[i].addrs
		failed := answers[i].err != nil
		if failed {
			now[name] = had[name]
		}
		switch {
		case failed && !s.failing[name]:
			say("resolve   %s: %v; its %d engines stay", name, answers[i].err, len(had[name]))
		case !failed && s.failing[name]:
			say("resolve   %s has addresses again", name)
		}
		if s.failing == nil {
			s.failing = map[string]bool{}
		}
		s.failing[name] = failed
	}
	return now
}

// resolver looks a name up with the system's resolver.
func resolver(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// files returns the files that are read again.
func (p *process) files() (paths []string) {
	if p.sources.path != "" {
		paths = append(paths, p.sources.path)
	}
	p.changes.mu.Lock()
	defer p.changes.mu.Unlock()
	return append(paths, slices.Sorted(maps.Keys(p.changes.wishes.lists))...)
}

// watchSources reads files again when they change and looks names up, until running is
// done.
func (p *process) watchSources(running context.Context) {
	flags := p.sources != nil && p.sources.again != nil
	if !flags && len(p.keys.files()) == 0 {
		return
	}
	tick := time.NewTicker(disk.Look)
	defer tick.Stop()
	looked := time.Now()
	for {
		select {
		case <-running.Done():
			return
		case <-tick.C:
		}
		if p.keys.watch.Changed(time.Now(), p.keys.files()...) {
			p.keys.reload(p.log, p.say)
		}
		if !flags {
			continue
		}
		if p.sources.watch.Changed(time.Now(), p.files()...) {
			p.reread()
			continue
		}
		if time.Since(looked) >= p.sources.every {
			looked = time.Now()
			p.resolve(running)
		}
	}
}

// resolve looks up the names of engines at several addresses.
func (p *process) resolve(ctx context.Context) {
	c := p.changes
	c.mu.Lock()
	names, had := hosts(c.wishes.flags, c.wishes.lists), maps.Clone(c.wishes.names)
	c.mu.Unlock()
	if len(names) == 0 {
		return
	}
	now := p.sources.lookUp(ctx, names, had, p.say)
	if ctx.Err() != nil {
		return
	}
	_, err := c.change(func(w *wishes, _ *config.Desired) error {
		for name, addrs := range now {
			w.names[name] = addrs
		}
		return nil
	})
	if err != nil {
		p.say("resolve   %v", err)
	}
}

// reread reads all sources again and changes the fleet accordingly. If one of them has an
// error, nothing changes.
func (p *process) reread() (outcome, error) {
	out, err := p.rereads()
	now := time.Now()
	p.sources.mu.Lock()
	p.sources.last.done(out, err, now)
	result := p.sources.last.result
	p.sources.mu.Unlock()
	switch result {
	case metrics.Failed:
		p.log.Error("the configuration cannot be read again, the old one stays", "error", err)
		p.say("reload    the old configuration stays: %v", err)
	case metrics.Unchanged:
		p.say("reload    configuration read again, the engines and models are the same")
	default:
		p.say("reload    configuration read again, %d changes", len(out.Steps))
	}
	for _, note := range out.Notes {
		p.say("reload    %s", note)
	}
	p.metrics.Reloaded(result, now)
	return out, err
}

func (p *process) rereads() (outcome, error) {
	s := p.sources
	s.watch.Took(p.files()...)
	next, flags, err := s.again()
	if err != nil {
		return outcome{}, err
	}
	if s.inFile > 0 && flags.inFile == 0 {
		return outcome{}, fmt.Errorf("config %s: it has no keys any more, and there were %d: write {} if there are to be none", s.path, s.inFile)
	}
	p.changes.mu.Lock()
	hadLists := p.changes.wishes.lists
	p.changes.mu.Unlock()
	s.watch.Took(listPaths(next.Engine)...)
	lists, err := readLists(next.Engine, hadLists)
	if err != nil {
		return outcome{}, err
	}
	models, err := parseModels(next.Model)
	if err != nil {
		return outcome{}, err
	}
	p.changes.mu.Lock()
	had := maps.Clone(p.changes.wishes.names)
	p.changes.mu.Unlock()
	names := s.lookUp(context.Background(), hosts(next.Engine, lists), had, p.say)
	out, err := p.changes.change(func(w *wishes, _ *config.Desired) error {
		w.flags, w.models, w.lists, w.names, w.discover = next.Engine, models, lists, names, next.Discover
		maps.DeleteFunc(w.found, func(spec string, _ []*config.Wanted) bool { return !slices.Contains(next.Discover, spec) })
		return w.distinct()
	})
	if err != nil {
		return outcome{}, err
	}
	if s.discoveries != nil {
		s.discoveries.set(next.discoveries)
	}
	s.mu.Lock()
	s.inFile = flags.inFile
	defer s.mu.Unlock()
	s.last.restart = needRestart(s.began, flags)
	for i := range s.last.restart {
		out.Notes = append(out.Notes, s.last.restart[i].String())
	}
	return out, nil
}

// inForce returns the flags in force, with the settings in the file that need a restart.
func (p *process) inForce() settings {
	s := p.settings
	if p.changes == nil {
		return s
	}
	s.Flags = slices.Clone(s.Flags)
	p.changes.mu.Lock()
	engines, models := []string{}, []string{}
	for _, e := range p.changes.desired.Engines {
		engines = append(engines, e.Spec)
	}
	for _, m := range p.changes.desired.Models {
		if m.Dir != "" {
			models = append(models, m.Name+"="+m.Dir)
		}
	}
	p.changes.mu.Unlock()
	s.Generation = p.changes.generation.Load()
	for i := range s.Flags {
		f := &s.Flags[i]
		switch {
		case s.Generation == 0:
		case f.Name == "engine":
			f.Value = withoutUsers(strings.Join(engines, "; "))
		case f.Name == "model":
			f.Value = withoutUsers(strings.Join(models, "; "))
		}
	}
	if p.sources == nil {
		return s
	}
	p.sources.mu.Lock()
	defer p.sources.mu.Unlock()
	for _, f := range p.sources.last.restart {
		at := slices.IndexFunc(s.Flags, func(of setting) bool { return of.Name == f.Name })
		if at >= 0 && !f.Hidden {
			s.Flags[at].Pending = f.Wanted
		}
	}
	return s
}
