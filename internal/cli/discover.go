package cli

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"weir/internal/config"
	"weir/internal/fleet/kubernetes"
	"weir/internal/observe/metrics"
)

// discoveries are the sources of --discover. Each reports the engines that it finds to
// changes, which apply them as they apply any other change.
type discoveries struct {
	log     *slog.Logger
	say     func(format string, args ...any)
	changes *changes
	running context.Context
	metrics *metrics.Metrics
	tasks   sync.WaitGroup

	mu  sync.Mutex
	all []*discovery
}

// discovery is one of them.
type discovery struct {
	config.Discovery
	source *kubernetes.Source
	stop   context.CancelFunc
	by     *discoveries
	known  map[string]*knownEngine // of the latest result
	result int                     // the number of that result
	said   talk
	notes  []string
	refuse string // why the latest result could not be applied
}

// knownEngine is an engine as it was found, and what it is to the gateway.
type knownEngine struct {
	found  *kubernetes.Engine
	wanted *config.Wanted
	result int // the latest that it is in
}

// talk bounds the lines about changes that are printed in a minute, as pods that flap make
// many.
type talk struct {
	since time.Time
	n     int
}

// maxTalk is the most of these lines in a minute.
const maxTalk = 100

// may reports whether one more line may be printed. left is the number that was not in the
// minute before.
func (t *talk) may(now time.Time) (may bool, left int) {
	if now.Sub(t.since) >= time.Minute {
		left = max(0, t.n-maxTalk)
		*t = talk{since: now}
	}
	t.n++
	return t.n <= maxTalk, left
}

// startDiscoveries starts the discoveries that are given. They end with running.
func startDiscoveries(running context.Context, p *process, given []reached) *discoveries {
	d := &discoveries{log: p.log, say: p.say, changes: p.changes, running: running, metrics: p.metrics}
	d.set(given)
	p.metrics.Discovery(d.figures)
	return d
}

// set makes these the discoveries that run. Those that run already go on.
func (d *discoveries) set(given []reached) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var next []*discovery
	for _, of := range given {
		at := slices.IndexFunc(d.all, func(r *discovery) bool { return r.Spec == of.Spec })
		if at >= 0 {
			next = append(next, d.all[at])
			continue
		}
		if err := of.read(); err != nil {
			d.say("discover  %v", err)
			continue
		}
		one := &discovery{Discovery: of.Discovery, by: d, known: map[string]*knownEngine{}}
		namespace := cmp.Or(of.Namespace, of.access.Namespace, "default")
		one.source = kubernetes.New(kubernetes.Options{
			Query: kubernetes.Query{Service: of.Service, Pool: of.Pool, Selector: of.Selector, Prefill: of.Prefill, Decode: of.Decode,
				Ports: of.Ports, ModelFrom: of.ModelFrom, Loopback: of.Loopback},
			Namespace: namespace, Access: *of.access, Found: one.found, Changed: one.changed,
			Panicked: peerPanicked("an API server of Kubernetes", d.log, d.metrics),
		})
		ctx, stop := context.WithCancel(d.running)
		one.stop = stop
		d.tasks.Go(func() { one.source.Run(ctx) })
		d.say("discover  %s in namespace %s, from %s", of.What(), namespace, of.access.Server)
		next = append(next, one)
	}
	for _, was := range d.all {
		if !slices.Contains(next, was) {
			was.stop()
		}
	}
	d.all = next
}

// accessOf returns how a discovery reaches its API server.
func accessOf(d config.Discovery) (kubernetes.Access, error) {
	if d.Kubeconfig != "" {
		return kubernetes.Kubeconfig(d.Kubeconfig)
	}
	return kubernetes.InCluster(os.Getenv, kubernetes.ServiceAccount)
}

// wanted returns an engine that was found as a wanted one, the same as before if nothing of it has
// changed.
func (d *discovery) wanted(e *kubernetes.Engine) (*config.Wanted, error) {
	k := d.known[e.Name]
	if k == nil || k.found != e {
		w := &config.Wanted{Origin: "kubernetes=" + d.What(), Instance: e.Instance, Drained: e.Drained != "", Why: e.Drained}
		if k != nil && k.found.Undrained() == e.Undrained() {
			w.Engine, w.Spec = k.wanted.Engine, k.wanted.Spec
		} else {
			var err error
			w.Engine, w.Spec, err = d.Engine(config.Found{Name: e.Name, Address: e.Address, Model: e.Model, Role: e.Role, Weight: e.Weight, BootstrapPort: e.BootstrapPort})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", e.Name, err)
			}
		}
		k = &knownEngine{found: e, wanted: w}
		d.known[e.Name] = k
	}
	k.result = d.result
	return k.wanted, nil
}

// found makes the engines that were found the wanted ones of this source.
func (d *discovery) found(engines []*kubernetes.Engine, notes []string) {
	d.result++
	all := make([]*config.Wanted, 0, len(engines))
	for _, e := range engines {
		w, err := d.wanted(e)
		if err != nil {
			notes = append(notes, err.Error())
			continue
		}
		all = append(all, w)
	}
	if len(d.known) > len(all) { // some have left
		maps.DeleteFunc(d.known, func(_ string, k *knownEngine) bool { return k.result != d.result })
	}
	out, err := d.by.changes.changeAnd(func(w *wishes, _ *config.Desired) error {
		if !slices.Contains(w.discover, d.Spec) {
			return nil // it was given up in the meantime
		}
		w.found[d.Spec] = all
		return nil
	}, d.step)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != d.refuse {
		d.by.say("discover  %s: what was found cannot be applied, and the engines stay as they are: %v", d.What(), err)
		d.by.log.Error("the engines that were found cannot be applied", "source", d.Spec, "error", err)
	}
	d.refuse = text
	for _, note := range append(notes, out.Notes...) {
		if !slices.Contains(d.notes, note) {
			if may, _ := d.said.may(time.Now()); may {
				d.by.say("discover  %s: %s", d.What(), note)
			}
		}
	}
	d.notes = append(notes, out.Notes...)
}

// step prints a step of a change that the source has made.
func (d *discovery) step(s config.Step) {
	may, left := d.said.may(time.Now())
	if left > 0 {
		d.by.say("change    %d more changes in the last minute, of %s", left, d.What())
	}
	if may {
		d.by.say("change    %s", s)
	}
}

// changed reports that the API server begins to fail, or works again.
func (d *discovery) changed(kind kubernetes.Kind, err error) {
	if err != nil {
		d.by.log.Warn("discovery fails, the engines stay as they were last seen", "source", d.Spec, "resource", kind.String(), "error", err)
		return
	}
	d.by.log.Info("discovery works", "source", d.Spec, "resource", kind.String())
}

// wait waits until none runs any more.
func (d *discoveries) wait() {
	if d != nil {
		d.tasks.Wait()
	}
}

// discoveryView is the state of a discovery.
type discoveryView struct {
	Source   string   `json:"source"`
	Engines  int      `json:"engines"`
	Complete bool     `json:"complete"`             // everything was listed once
	Error    string   `json:"error,omitzero"`       // why the view may be old
	Failing  float64  `json:"for_seconds,omitzero"` // since then
	Notes    []string `json:"notes,omitzero"`
}

// views returns the state of all discoveries.
func (d *discoveries) views() (views []discoveryView) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, of := range d.all {
		s := of.source.Status()
		v := discoveryView{Source: of.Spec, Engines: s.Engines, Complete: s.Complete, Notes: s.Notes}
		if s.Err != nil {
			v.Error, v.Failing = s.Err.Error(), time.Since(s.Since).Seconds()
		}
		views = append(views, v)
	}
	return views
}

// figures returns the figures of all discoveries.
func (d *discoveries) figures() (all []metrics.Discovery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, of := range d.all {
		s := of.source.Status()
		all = append(all, metrics.Discovery{Source: of.Spec, Engines: s.Engines, Current: s.Complete && s.Err == nil, Heard: s.Heard, Lists: s.Lists, Events: s.Events})
	}
	return all
}

// reached is a discovery with its access to the API server; nil: it is the one that a pod is given,
// and was not read yet.
type reached struct {
	config.Discovery
	access *kubernetes.Access
}

// reach reads the specifications of --discover, and the kubeconfigs that they name. The access that
// a pod is given can be judged in the pod alone.
func reach(specs []string) ([]reached, error) {
	given, err := config.ParseDiscoveries(specs)
	if err != nil {
		return nil, wrongf("--discover: %w", err)
	}
	all := make([]reached, len(given))
	for i, d := range given {
		if all[i].Discovery = d; d.Kubeconfig == "" {
			continue
		}
		if err := all[i].read(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// read reads the access, unless it was read before.
func (r *reached) read() error {
	if r.access != nil {
		return nil
	}
	access, err := accessOf(r.Discovery)
	if err != nil {
		return wrongf("--discover %s: %w", r.Spec, err)
	}
	r.access = &access
	return nil
}

// discovered returns the state of the process's discoveries.
func (p *process) discovered() []discoveryView {
	if p.sources == nil {
		return nil
	}
	return p.sources.discoveries.views()
}
