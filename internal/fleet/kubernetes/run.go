package kubernetes

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/infer"
)

// Options configure a Source.
type Options struct {
	Query     Query
	Namespace string
	Access    Access
	// Found is called with the engines and with notes on what was left out, whenever either
	// has changed. It is called by one goroutine, and not before everything was listed. An engine
	// of which nothing has changed is the same one as before; none may be changed.
	Found func(engines []*Engine, notes []string)
	// Changed is called when the API server begins to fail (err) and when it works again
	// (nil), for each kind.
	Changed func(kind Kind, err error)
	// Panicked is called for panics while the API server's answers are read, which end nothing
	// else; it may be nil.
	Panicked func(*infer.Panic)
	// Transport replaces the one that is made of Access, in tests.
	Transport http.RoundTripper
}

// Source finds the engines of a query. Its methods may be called while it runs.
type Source struct {
	opts    Options
	client  *client
	changes chan change
	engines atomic.Int64
	view    *View

	mu     sync.Mutex
	failed [kinds]error // of each kind, that it fails at present
	since  [kinds]time.Time
	last   [kinds]time.Time // when the API server was last heard
	lists  [kinds]int
	events [kinds]int
	notes  []string
}

// New makes a source, which Run runs.
func New(o Options) *Source {
	return &Source{opts: o, view: NewView(o.Query), changes: make(chan change),
		client: &client{access: o.Access, namespace: o.Namespace, transport: o.Transport, maxPage: maxPage, panicked: o.Panicked}}
}

// change is what a follower has learned: a complete list, or an event.
type change struct {
	kind    Kind
	list    []Object
	replace bool
	event   event
}

// Changes of a view are reported together: the first one soon, and then at most so often. A report
// costs as much as there are engines, whatever has changed.
const (
	reportSoon  = 20 * time.Millisecond
	reportEvery = 350 * time.Millisecond
)

// Run follows the objects until ctx ends.
func (s *Source) Run(ctx context.Context) {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The Pods of a pool can be asked for when the pool is known.
	var pods struct {
		selector Selector
		stop     context.CancelFunc
		done     chan struct{}
	}
	followPods := func() {
		selector, known := s.view.PodSelector()
		if pods.stop != nil && known && slices.Equal(selector, pods.selector) {
			return
		}
		if pods.stop != nil {
			pods.stop()
			<-pods.done
			pods.stop = nil
		}
		if !known {
			return
		}
		of, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		pods.selector, pods.stop, pods.done = selector, stop, done
		following.Go(func() {
			defer close(done)
			s.follow(of, Pods, selectors(selector, ""))
		})
	}
	for _, kind := range s.opts.Query.needs() {
		var of url.Values
		switch kind {
		case Pods:
			continue
		case Slices:
			of = selectors(Selector{"kubernetes.io/service-name=" + s.opts.Query.Service}, "")
		case Pools:
			of = selectors(nil, "metadata.name="+s.opts.Query.Pool)
		}
		following.Go(func() { s.follow(ctx, kind, of) })
	}
	followPods()

	report := time.NewTimer(time.Hour)
	report.Stop()
	var reported time.Time
	due := false
	for {
		select {
		case <-ctx.Done():
			if pods.stop != nil {
				pods.stop()
			}
			return
		case c := <-s.changes:
			s.guarded(c.kind, func() { s.apply(c) })
			if c.kind == Pools {
				followPods()
			}
			if !due && s.view.Complete() {
				due = true
				report.Reset(max(reportSoon, time.Until(reported.Add(reportEvery))))
			}
		case <-report.C:
			due, reported = false, time.Now()
			s.guarded(s.opts.Query.needs()[0], s.report)
		}
	}
}

// report tells of the engines that there are now.
func (s *Source) report() {
	engines, notes := s.view.Engines()
	s.engines.Store(int64(len(engines)))
	s.mu.Lock()
	s.notes = notes
	s.mu.Unlock()
	s.opts.Found(engines, notes)
}

// guarded does a step of Run. A panic in it is shown as a failure of a kind.
func (s *Source) guarded(kind Kind, step func()) {
	defer func() {
		if p := infer.Caught(recover(), s.opts.Panicked); p != nil {
			s.state(kind, p, false)
		}
	}()
	step()
}

// selectors are the parameters of a list in the form of the API.
func selectors(labels Selector, fields string) url.Values {
	v := url.Values{}
	if len(labels) > 0 {
		v.Set("labelSelector", labels.String())
	}
	if fields != "" {
		v.Set("fieldSelector", fields)
	}
	return v
}

func (s *Source) apply(c change) {
	switch {
	case c.replace:
		s.view.Replace(c.kind, c.list)
	case c.event.kind == "DELETED":
		s.view.Delete(c.event.object)
	default:
		s.view.Set(c.event.object)
	}
}

// send hands a change to Run's goroutine, which may be stopping this follower.
func (s *Source) send(ctx context.Context, c change) error {
	select {
	case s.changes <- c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow keeps the objects of a kind up to date.
func (s *Source) follow(ctx context.Context, kind Kind, selectors url.Values) {
	var f follower
	behind := false // each version that is watched is lost, and lists alone keep up
	for ctx.Err() == nil {
		switch step := f.step(); step.verb {
		case wait:
			select {
			case <-time.After(step.duration):
			case <-ctx.Done():
			}
			f.waited(time.Now())
		case list:
			page, err := s.client.list(ctx, kind, selectors, step.limit, step.token)
			if ctx.Err() != nil {
				return
			}
			var all []Object
			use := false
			if err == nil {
				all, use, err = f.listed(time.Now(), page.objects, page.token, page.version)
			}
			switch {
			case err != nil:
				s.state(kind, err, true)
				f.failed(gone(err), after(err))
			case use:
				if s.send(ctx, change{kind: kind, list: all, replace: true}) != nil {
					return
				}
				if !behind {
					s.state(kind, nil, true)
				}
			case f.doubtful():
				s.state(kind, errEmpty, true)
			}
		case watch:
			// A watch that stays open works, though nothing changes.
			var open *time.Timer
			opened := func() {
				if !behind {
					open = time.AfterFunc(openFor, func() { s.state(kind, nil, false) })
				}
			}
			err := s.client.watch(ctx, kind, selectors, step.version, opened, func(e event) error {
				f.watched(e.version, map[string]int{"ADDED": 1, "DELETED": -1}[e.kind])
				behind = false
				s.state(kind, nil, false)
				if e.kind == "BOOKMARK" {
					return nil
				}
				return s.send(ctx, change{kind: kind, event: e})
			})
			if open != nil {
				open.Stop()
			}
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				behind = false
				f.ended(time.Now())
			default:
				// That a server has lost a version is ordinary; that it loses each, is not.
				if behind = gone(err) && f.failures >= lostOften; behind || !gone(err) {
					s.state(kind, err, false)
				}
				f.failed(gone(err), after(err))
			}
		}
	}
}

// openFor is for how long a watch must be open, until the API server is taken to work.
const openFor = 2 * time.Second

// lostOften is after how many lost versions in a row weir reports that.
const lostOften = 3

// errEmpty is the state in which lists are empty that were not before.
var errEmpty = errors.New("the list is empty, and had objects before: the engines stay until it has been empty for 30 s")

// state notes how the API server answers, and reports where that has changed.
func (s *Source) state(kind Kind, err error, listed bool) {
	s.mu.Lock()
	before := s.failed[kind]
	s.failed[kind] = err
	now := time.Now()
	switch {
	case err != nil && before == nil:
		s.since[kind] = now
	case err == nil:
		s.last[kind] = now
	}
	switch {
	case err == nil && listed:
		s.lists[kind]++
	case err == nil:
		s.events[kind]++
	}
	s.mu.Unlock()
	if (err == nil) != (before == nil) || err != nil && err.Error() != before.Error() {
		s.opts.Changed(kind, err)
	}
}

// Status is how a source fares.
type Status struct {
	Engines int
	// Complete reports whether everything was listed once.
	Complete bool
	// Err is why the view may be old, and Since when that began; nil: it is current.
	Err   error
	Since time.Time
	// Heard is when the API server last answered, for the kind that it is longest ago.
	Heard         time.Time
	Lists, Events int
	Notes         []string
}

// Status returns how the source fares.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Engines: int(s.engines.Load()), Complete: true, Notes: slices.Clone(s.notes)}
	for i, kind := range s.opts.Query.needs() {
		if err := s.failed[kind]; err != nil && st.Err == nil {
			st.Err, st.Since = err, s.since[kind]
		}
		if i == 0 || s.last[kind].Before(st.Heard) {
			st.Heard = s.last[kind]
		}
		st.Complete = st.Complete && s.lists[kind] > 0
		st.Lists += s.lists[kind]
		st.Events += s.events[kind]
	}
	return st
}
