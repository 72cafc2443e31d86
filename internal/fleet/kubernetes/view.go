package kubernetes

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Query selects engines: those behind a Service, those of an InferencePool, or Pods by their
// labels.
type Query struct {
	Service, Pool string
	// Selector narrows the Pods. Without a Service and a Pool it chooses them.
	Selector Selector
	// Prefill and Decode choose the Pods that serve halves of requests. Without Service,
	// Pool and Selector they choose the Pods as well.
	Prefill, Decode Selector
	// Ports are names or numbers. Empty: the port that the Service, the Pool or the Pod's
	// containers declare, if it is a single one; all target ports of a Pool.
	Ports []string
	// ModelFrom is label:KEY or annotation:KEY, which has the model's name; empty: none.
	ModelFrom string
	// Loopback takes addresses of this machine too.
	Loopback bool
}

// Engine is an engine that was found.
type Engine struct {
	Name    string // the pod's, with the port where it has several engines
	Address string // HOST:PORT
	// Instance differs between two engines that have the same name and address one after
	// the other: the pod's UID and how often its container was started again.
	Instance string
	// Drained is why it is to be given no requests; empty: it takes them.
	Drained string
	// The pod's labels and annotations say these; empty or 0: nothing.
	Model, Role, Weight string
	BootstrapPort       int
}

// Undrained returns the engine as it would be if it took requests.
func (e Engine) Undrained() Engine {
	e.Drained = ""
	return e
}

// Labels and annotations that are read.
const (
	modelKey     = "weir/model"
	roleKey      = "weir/role"
	weightKey    = "weir/weight"
	llmdRole     = "llm-d.ai/role"
	bootstrapKey = "sglang.ai/bootstrap-port" // as SMG reads it
)

// activePorts are annotations with the target ports that a pod serves.
var activePorts = []string{"llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"}

// roles are the values of a role's label. llm-d has words for engines that encode too.
var roles = map[string]string{
	"prefill": "prefill", "encode-prefill": "prefill",
	"decode": "decode",
	"both":   "both", "prefill-decode": "both", "encode-prefill-decode": "both",
}

// View derives engines from the objects of a cluster. It is pure: it knows no clock and no
// socket, and the times that objects carry are not read. An object may not be changed once it was
// given to a view, which derives its engines only once.
type View struct {
	query  Query
	pods   map[string]*podUnit
	byName []*podUnit // nil: pods have come or gone
	slices map[string]*sliceUnit
	pool   *InferencePool
	synced [kinds]bool
	had    map[string]*Engine // the engines of the latest result
	// The room in which a result is made. It has no meaning between results.
	all   []*candidate
	found []Engine
	at    map[string]int // indices in found by address
}

// podUnit is a Pod with what follows from it alone.
type podUnit struct {
	*Pod
	*unit // nil: it was not derived yet, or the pool is another one
}

// sliceUnit is an EndpointSlice with what follows from it and the Pods of its endpoints.
type sliceUnit struct {
	*EndpointSlice
	*unit
	of []*Pod // by endpoint, when unit was derived; nil: there was none
}

// unit is what follows from an object.
type unit struct {
	candidates []candidate
	notes      []string
}

func (u *unit) note(format string, args ...any) {
	u.notes = append(u.notes, fmt.Sprintf(format, args...))
}

// NewView makes the view of a query, without any object.
func NewView(q Query) *View {
	return &View{query: q, pods: map[string]*podUnit{}, slices: map[string]*sliceUnit{}, had: map[string]*Engine{}, at: map[string]int{}}
}

// needs returns the kinds that the query reads.
func (q *Query) needs() []Kind {
	switch {
	case q.Service != "":
		return []Kind{Slices, Pods}
	case q.Pool != "":
		return []Kind{Pools, Pods}
	}
	return []Kind{Pods}
}

// Replace makes a complete list the objects of a kind.
func (v *View) Replace(kind Kind, all []Object) {
	v.synced[kind] = true
	switch kind {
	case Pods:
		clear(v.pods)
		v.byName = nil
	case Slices:
		clear(v.slices)
	case Pools:
		v.lead(nil)
	}
	for _, o := range all {
		v.Set(o)
	}
}

// Set adds an object, or replaces the one of its name.
func (v *View) Set(o Object) {
	switch o := o.(type) {
	case *Pod:
		if had := v.pods[o.Name]; had != nil {
			*had = podUnit{Pod: o}
		} else {
			v.pods[o.Name], v.byName = &podUnit{Pod: o}, nil
		}
	case *EndpointSlice:
		v.slices[o.Name] = &sliceUnit{EndpointSlice: o}
	case *InferencePool:
		if o.Name == v.query.Pool {
			v.lead(o)
		}
	}
}

// lead makes a pool the one that chooses the pods.
func (v *View) lead(pool *InferencePool) {
	v.pool = pool
	for _, p := range v.pods {
		p.unit = nil
	}
}

// Delete removes an object.
func (v *View) Delete(o Object) {
	switch o := o.(type) {
	case *Pod:
		delete(v.pods, o.Name)
		v.byName = nil
	case *EndpointSlice:
		delete(v.slices, o.Name)
	case *InferencePool:
		if o.Name == v.query.Pool {
			v.lead(nil)
		}
	}
}

// Complete reports whether every kind has been listed.
func (v *View) Complete() bool {
	for _, k := range v.query.needs() {
		if !v.synced[k] {
			return false
		}
	}
	return true
}

// PodSelector is the selector by which the Pods are to be listed. ok is false while it is
// not known, because there is no pool.
func (v *View) PodSelector() (s Selector, ok bool) {
	if v.query.Pool == "" {
		return v.query.Selector, true
	}
	if v.pool == nil {
		return nil, false
	}
	labels := v.pool.Spec.Selector.MatchLabels
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		s = append(s, key+"="+labels[key])
	}
	return append(s, v.query.Selector...), len(labels) > 0
}

// candidate is an engine that may be.
type candidate struct {
	pod         *Pod // nil: the endpoint has none
	name        string
	addr        string
	port        int
	ready       bool
	terminating string // why; empty: it is not
	gone        bool   // its pod is gone, and it is the engine that it was

	engine Engine // that follows from it
	err    error  // names the pod and what is wrong
}

// Engines returns the engines that follow from the objects, sorted by name, and notes on
// those that are left out although they might be meant. An engine of which nothing has changed is
// the same one as in the result before, and a caller may not change it.
//
// An engine joins when it is ready for the first time. Afterwards it is drained while it is
// not ready or terminates, and leaves when its pod or endpoint does. If no engine of a role
// is ready, those that are not terminating take requests all the same: a readiness probe
// that fails everywhere, as busy engines make it, would otherwise stop the service. The
// gateway's own checks decide then.
func (v *View) Engines() (engines []*Engine, notes []string) {
	note := func(text string) {
		if !slices.Contains(notes, text) && len(notes) < maxNotes {
			notes = append(notes, text)
		}
	}
	v.candidates(note)
	unready := map[string][]int{}
	ready := map[string]bool{}
	for _, c := range v.all {
		e := c.engine
		had := v.had[c.name]
		if c.gone && had != nil {
			e = *had
			e.Drained = c.terminating
		}
		known := had != nil && sameObject(had.Instance, e.Instance)
		if c.err != nil {
			note(c.err.Error())
			if !known {
				continue
			}
			e = *had // as long as the label is wrong
			e.Drained = c.engine.Drained
		}
		switch {
		case c.terminating != "":
			e.Drained = c.terminating
		case !c.ready:
			e.Drained = "its pod is not ready"
			if known {
				e.Instance = had.Instance // it is another one once it is ready again
			}
		}
		if e.Drained != "" && !known {
			continue // it has never taken requests
		}
		if i, twice := v.at[e.Address]; twice { // of another address family, or of a pod that has just left
			if v.found[i].Drained != "" && e.Drained == "" {
				v.found[i] = e
				ready[e.Role] = true
			}
			continue
		}
		v.at[e.Address] = len(v.found)
		switch {
		case e.Drained == "":
			ready[e.Role] = true
		case c.terminating == "":
			unready[e.Role] = append(unready[e.Role], len(v.found))
		}
		v.found = append(v.found, e)
	}
	for role, those := range unready {
		if ready[role] {
			continue
		}
		for _, i := range those {
			v.found[i].Drained = ""
		}
		what := "pods"
		if role != "" {
			what = role + " pods"
		}
		note(fmt.Sprintf("none of the %s is ready: the %d that were take requests all the same", what, len(those)))
	}
	return v.share(), notes
}

// share makes what was found the result.
func (v *View) share() []*Engine {
	byName := func(a, b Engine) int { return cmp.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(v.found, byName) {
		slices.SortStableFunc(v.found, byName)
	}
	v.found = slices.CompactFunc(v.found, func(a, b Engine) bool { return a.Name == b.Name })
	engines := make([]*Engine, len(v.found))
	for i := range v.found {
		e := &v.found[i]
		had := v.had[e.Name]
		if had == nil || *had != *e {
			had = new(*e)
			v.had[e.Name] = had
		}
		engines[i] = had
	}
	if len(v.had) > len(engines) { // some have left
		clear(v.had)
		for _, e := range engines {
			v.had[e.Name] = e
		}
	}
	v.all, v.found = v.all[:0], v.found[:0]
	clear(v.at)
	return engines
}

// maxNotes bounds the notes of a view.
const maxNotes = 20

// sameObject reports whether two instances are the same pod, started again or not.
func sameObject(a, b string) bool {
	a, _, _ = strings.Cut(a, "/")
	b, _, _ = strings.Cut(b, "/")
	return a == b
}

// candidates puts all candidates into v.all. It derives those of the objects that have changed.
func (v *View) candidates(note func(string)) {
	take := func(u *unit) {
		for _, text := range u.notes {
			note(text)
		}
		for i := range u.candidates {
			v.all = append(v.all, &u.candidates[i])
		}
	}
	if v.query.Service != "" {
		for _, name := range slices.Sorted(maps.Keys(v.slices)) {
			s := v.slices[name]
			v.deriveSlice(s)
			take(s.unit)
		}
		return
	}
	if v.query.Pool != "" && v.pool == nil {
		note(fmt.Sprintf("there is no InferencePool %q", v.query.Pool))
		return
	}
	selector, ok := v.PodSelector()
	if !ok {
		note(fmt.Sprintf("the InferencePool %q has no selector", v.query.Pool))
		return
	}
	if v.byName == nil {
		v.byName = slices.SortedFunc(maps.Values(v.pods), func(a, b *podUnit) int { return cmp.Compare(a.Name, b.Name) })
	}
	for _, p := range v.byName {
		if p.unit == nil {
			p.unit = v.derivePod(p.Pod, selector)
		}
		take(p.unit)
	}
}

// derivePod returns what follows from a pod.
func (v *View) derivePod(p *Pod, selector Selector) *unit {
	u := new(unit)
	if !selector.Matches(p.Labels) || !v.halves(p) || p.ended() || p.Status.PodIP == "" {
		return u
	}
	ports, err := v.podPorts(p)
	if err != nil {
		u.note("%v", err)
		return u
	}
	for _, port := range ports {
		c := candidate{pod: p, name: portName(p.Name, port, len(ports)), addr: p.Status.PodIP, port: port, ready: p.ready()}
		if p.DeletionTimestamp != "" {
			c.terminating = "its pod is terminating"
		}
		c.engine, c.err = v.engine(&c)
		u.candidates = append(u.candidates, c)
	}
	return u
}

// halves reports whether a pod is one of the query, where selectors of halves choose the
// pods.
func (v *View) halves(p *Pod) bool {
	q := &v.query
	if q.Pool != "" || q.Service != "" || len(q.Selector) > 0 {
		return true
	}
	return len(q.Prefill) > 0 && q.Prefill.Matches(p.Labels) || len(q.Decode) > 0 && q.Decode.Matches(p.Labels)
}

// portName names the engine at one port of a pod with this number of ports.
func portName(pod string, port, of int) string {
	if of == 1 {
		return pod
	}
	return pod + ":" + strconv.Itoa(port)
}

// podPorts returns the ports of a pod's engines.
func (v *View) podPorts(p *Pod) (ports []int, err error) {
	switch {
	case len(v.query.Ports) > 0:
		for _, want := range v.query.Ports {
			n, err := strconv.Atoi(want)
			if err != nil {
				if n = p.declared(want); n == 0 {
					return nil, fmt.Errorf("pod %s has no port named %q", p.Name, want)
				}
			}
			ports = append(ports, n)
		}
	case v.pool != nil:
		for _, t := range v.pool.Spec.TargetPorts {
			ports = append(ports, t.Number)
		}
	default:
		for _, number := range p.declares {
			ports = append(ports, number)
		}
		slices.Sort(ports)
		if ports = slices.Compact(ports); len(ports) != 1 {
			return nil, fmt.Errorf("pod %s declares %d ports: add port=NAME or port=NUMBER", p.Name, len(ports))
		}
	}
	return active(p, ports)
}

// declares yields the TCP ports that a pod's containers declare, with their names.
func (p *Pod) declares(yield func(name string, number int) bool) {
	for _, containers := range [...][]Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range containers {
			for _, d := range containers[i].Ports {
				if (d.Protocol == "" || d.Protocol == "TCP") && !yield(d.Name, d.ContainerPort) {
					return
				}
			}
		}
	}
}

// declared returns the port of a name, the last one of that name; 0: there is none.
func (p *Pod) declared(name string) (number int) {
	for of, n := range p.declares {
		if of == name {
			number = n
		}
	}
	return number
}

// active returns the ports that a pod's annotation leaves.
func active(p *Pod, ports []int) ([]int, error) {
	for _, key := range activePorts {
		text, there := p.Annotations[key]
		if !there {
			continue
		}
		var on []int
		for part := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(part))
			if err != nil {
				return nil, fmt.Errorf("pod %s: annotation %s=%s: want numbers of ports with commas between", p.Name, key, text)
			}
			on = append(on, n)
		}
		return slices.DeleteFunc(slices.Clone(ports), func(n int) bool { return !slices.Contains(on, n) }), nil
	}
	return ports, nil
}

// deriveSlice derives what follows from a slice, unless neither it nor a pod of its endpoints has
// changed.
func (v *View) deriveSlice(s *sliceUnit) {
	pod := func(e *Endpoint) *Pod {
		if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
			return nil
		}
		if p := v.pods[e.TargetRef.Name]; p != nil {
			return p.Pod
		}
		return nil
	}
	changed := s.unit == nil
	if s.of == nil {
		s.of = make([]*Pod, len(s.Endpoints))
	}
	for i := range s.Endpoints {
		if p := pod(&s.Endpoints[i]); p != s.of[i] {
			s.of[i], changed = p, true
		}
	}
	if changed {
		s.unit = v.behindService(s.EndpointSlice, s.of)
	}
}

// behindService returns what follows from one of the Service's slices and the pods of its
// endpoints.
func (v *View) behindService(s *EndpointSlice, pods []*Pod) *unit {
	u := new(unit)
	if s.DeletionTimestamp != "" {
		return u
	}
	if s.AddressType == "FQDN" {
		u.note("EndpointSlice %s has names instead of addresses; give an engine with resolve=each", s.Name)
		return u
	}
	ports, err := v.slicePorts(s)
	if err != nil {
		u.note("%v", err)
		return u
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		c := candidate{addr: e.Addresses[0], ready: is(e.Conditions.Ready, true)}
		of := ports
		if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
			c.name = e.TargetRef.Name
			switch p := pods[i]; {
			case p != nil && p.UID == e.TargetRef.UID:
				if c.pod = p; p.ended() || !v.query.Selector.Matches(p.Labels) {
					continue
				}
				if of, err = active(p, ports); err != nil {
					u.note("%v", err)
					continue
				}
				if p.DeletionTimestamp != "" {
					c.terminating = "its pod is terminating"
				}
			case p != nil:
				continue // of a pod that has been replaced by one of its name
			default: // not yet there, or gone: then the slice will say so too
				c.pod = &Pod{Meta: Meta{Name: c.name, UID: e.TargetRef.UID}}
				c.gone, c.terminating = true, "its pod is gone"
			}
		}
		if is(e.Conditions.Terminating, false) {
			c.gone, c.terminating = false, "its pod is terminating"
		}
		for _, port := range of {
			one := c
			if one.port = port; one.name == "" {
				one.name = net.JoinHostPort(c.addr, strconv.Itoa(port))
			} else {
				one.name = portName(c.name, port, len(of))
			}
			one.engine, one.err = v.engine(&one)
			u.candidates = append(u.candidates, one)
		}
	}
	return u
}

// is returns a condition, or its default if it is absent.
func is(condition *bool, absent bool) bool {
	if condition == nil {
		return absent
	}
	return *condition
}

// slicePorts returns the ports of a slice's engines.
func (v *View) slicePorts(s *EndpointSlice) (ports []int, err error) {
	var names []string
	for _, p := range s.Ports {
		if p.Protocol != "" && p.Protocol != "TCP" || p.Port == 0 {
			continue
		}
		names = append(names, cmp.Or(p.Name, strconv.Itoa(p.Port)))
		if len(v.query.Ports) == 0 || slices.Contains(v.query.Ports, p.Name) || slices.Contains(v.query.Ports, strconv.Itoa(p.Port)) {
			ports = append(ports, p.Port)
		}
	}
	switch {
	case len(v.query.Ports) == 0 && len(ports) > 1:
		return nil, fmt.Errorf("the Service %s has the ports %s: add port=NAME", v.query.Service, strings.Join(names, ", "))
	case len(v.query.Ports) > 0 && len(ports) == 0 && len(s.Endpoints) > 0:
		return nil, fmt.Errorf("the Service %s has no port %s; its target ports are %s", v.query.Service, strings.Join(v.query.Ports, "+"), strings.Join(names, ", "))
	}
	return ports, nil
}

// engine makes a candidate an engine. Its error names the pod and what is wrong.
func (v *View) engine(c *candidate) (e Engine, err error) {
	e = Engine{Name: c.name, Address: net.JoinHostPort(c.addr, strconv.Itoa(c.port)), Drained: c.terminating, Instance: c.addr}
	if err := v.allowed(c.addr); err != nil {
		return e, fmt.Errorf("%s has the address %s, %w", c.name, c.addr, err)
	}
	if c.port < 1 || c.port > 65535 {
		return e, fmt.Errorf("%s has the port %d, want 1 to 65535", c.name, c.port)
	}
	p := c.pod
	if p == nil {
		return e, nil
	}
	e.Instance = p.UID + "/" + strconv.Itoa(p.restarts(c.port))
	if c.gone {
		return e, nil
	}
	e.Weight = p.Annotations[weightKey]
	if e.Weight != "" {
		if w, err := strconv.ParseFloat(e.Weight, 64); err != nil || !(w > 0 && w <= 1) {
			return e, fmt.Errorf("pod %s: annotation %s=%s: want a share of the requests, above 0 and up to 1", p.Name, weightKey, e.Weight)
		}
	}
	if e.Model, err = v.model(p); err != nil {
		return e, err
	}
	if e.Role, err = v.role(p); err != nil {
		return e, err
	}
	if text, there := p.Annotations[bootstrapKey]; there && e.Role == "prefill" {
		if e.BootstrapPort, err = strconv.Atoi(text); err != nil || e.BootstrapPort < 1 || e.BootstrapPort > 65535 {
			return e, fmt.Errorf("pod %s: annotation %s=%s: want a port, 1 to 65535", p.Name, bootstrapKey, text)
		}
	}
	return e, nil
}

// allowed refuses addresses that can be no engine's. A slice may have any address, and one
// of this machine or of the link would lead requests to services that are not meant.
func (v *View) allowed(addr string) error {
	a, err := netip.ParseAddr(addr)
	switch {
	case err != nil:
		return fmt.Errorf("which is none")
	case a.Unmap().IsLoopback() && !v.query.Loopback:
		return fmt.Errorf("which is this machine's own; loopback=true takes those too")
	case a.Unmap().IsUnspecified() || a.Unmap().IsMulticast() || a.Unmap().IsLinkLocalUnicast() || a.Zone() != "":
		return fmt.Errorf("which is no engine's")
	}
	return nil
}

func (v *View) model(p *Pod) (model string, err error) {
	where, key := "label or annotation", modelKey
	if source, of, given := strings.Cut(v.query.ModelFrom, ":"); given {
		where, key = source, of
	}
	switch where {
	case "label":
		model = p.Labels[key]
	case "annotation":
		model = p.Annotations[key]
	default:
		model = p.of(key)
	}
	no := func(r rune) bool { return r == ',' || !unicode.IsPrint(r) }
	if strings.ContainsFunc(model, no) || !utf8.ValidString(model) || len(model) > maxName {
		return "", fmt.Errorf("pod %s: %s %s: want the name of a model, without a comma or a control character", p.Name, where, key)
	}
	return model, nil
}

// maxName bounds the bytes of a model's name.
const maxName = 253

func (v *View) role(p *Pod) (string, error) {
	if given := p.of(roleKey); given != "" {
		if role := roles[given]; role == given {
			return role, nil
		}
		return "", fmt.Errorf("pod %s: %s=%s: want both, prefill or decode", p.Name, roleKey, given)
	}
	switch {
	case len(v.query.Prefill) > 0 && v.query.Prefill.Matches(p.Labels):
		return "prefill", nil
	case len(v.query.Decode) > 0 && v.query.Decode.Matches(p.Labels):
		return "decode", nil
	}
	given := p.Labels[llmdRole]
	if given == "" {
		return "", nil
	}
	if role := roles[given]; role != "" {
		return role, nil
	}
	return "", fmt.Errorf("pod %s: label %s=%s: weir knows prefill, decode, prefill-decode and both, and these with encode- in front", p.Name, llmdRole, given)
}
