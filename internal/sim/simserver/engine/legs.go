package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/trace"
)

// LegsOptions say how an engine takes part in pairs.
type LegsOptions struct {
	// BootstrapTimeout is how long a prefill leg of SGLang's waits for its partner
	// (SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT). WaitingTimeout is how long a decode leg
	// waits for its KV (SGLANG_DISAGGREGATION_WAITING_TIMEOUT). Default 300 s.
	BootstrapTimeout, WaitingTimeout time.Duration
	// HeartbeatTimeout is how long a decode engine of SGLang's takes to find out
	// that a prefill engine is lost. Default 10 s: two heartbeats of 5 s.
	HeartbeatTimeout time.Duration
	// BootstrapPort is that of the registry of bootstrap addresses.
	BootstrapPort int
	// EngineID is the name of a vLLM prefill engine in kv_transfer_params.
	EngineID string
	// RadixCache lets SGLang's decode legs use the prefix cache
	// (--disaggregation-decode-enable-radix-cache).
	RadixCache bool
	// Dial makes the connections to prefill engines. Default: the system's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (o *LegsOptions) setDefaults() {
	o.BootstrapTimeout = cmp.Or(o.BootstrapTimeout, 300*time.Second)
	o.WaitingTimeout = cmp.Or(o.WaitingTimeout, 300*time.Second)
	o.HeartbeatTimeout = cmp.Or(o.HeartbeatTimeout, 10*time.Second)
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
}

// Leg is a job's part of a pair.
type Leg struct {
	// Key belongs to a prefill leg.
	Key     string
	request sim.Request // Run's, as the rest
	Fault   sim.Fault   // what strikes it, if faulty
	Faulty  bool
	aborted bool // of a prefill leg of SGLang's; its partner is not told

	// A decode leg has the address of the prefill engine and the key that it wants there.
	Addr   string
	Engine string                  // the prefill engine's id, if it must be that one
	KeyOf  func(dpSize int) string // of the prefill engine
	Manner Manner
	link   *link
	tag    uint64
	wants  bool // it has its pages, and not its KV
	ready  bool // its KV can be had
	got    bool // it has its KV
}

// Manner is how an engine's decode legs look for their partner.
type Manner struct {
	Tries int           // to reach it
	Every time.Duration // between them
	Loss  time.Duration // from a lost connection to the end of the leg; negative: never noticed
	Pull  bool          // KV is read from where it was, whether anybody keeps it or not
	Frees bool          // the prefill leg is not broken by the end of the decode leg, only let go
	Renew time.Duration // between renewals of the lease; 0: it has none
	// Recompute computes what did not come, in place of failing.
	Recompute bool
	Gone      string // what is said when it cannot be reached
}

// leased reports whether a prefill leg is vLLM's: its KV has a lease, and it does not
// depend on its partner.
func (g *Leg) leased() bool { return leasedKey(g.Key) }

func leasedKey(key string) bool {
	return strings.HasPrefix(key, "pull/") || strings.HasPrefix(key, "push/")
}

// struck reports whether a fault applies to a leg.
func (g *Leg) struck(kind sim.FaultKind) bool { return g.Faulty && g.Fault.Kind == kind }

// dies ends the engine if a fault demands it when a leg reaches a stage. After that the
// engine sends nothing more.
func (l *legs) dies(g *Leg, stage string) bool {
	if !g.struck(sim.Die) || g.Fault.Stage != stage {
		return false
	}
	l.cancel()
	l.e.crash(fmt.Errorf("killed by fault, in stage %s of a request", stage))
	return true
}

// crash ends the engine as the end of its process does: its connections are reset.
func (e *Engine) crash(why error) {
	e.resetAll()
	e.Die(why)
}

// legs is the state that Run keeps about pairs.
type legs struct {
	e       *Engine
	ctx     context.Context // of the connections
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
	meet    *sim.Rendezvous
	peers   map[uint64]*linkPeer // decode engines that are connected here
	links   map[string]*link     // to prefill engines, by address
	byTag   map[uint64]*Job      // decode legs
	owed    map[uint64]owedLeg   // decode legs that have ended, and whose KV comes yet
	lastTag uint64
	mute    map[string]bool // keys of prefill legs that a fault keeps from being met
	past    []pastLeg       // prefill legs that are over, the latest last
}

// owedLeg is a decode leg that has ended, and whose KV is written into its pages all the same.
type owedLeg struct {
	*Leg
	name int // the core's for the pages; 0: they are not kept
}

// pastLeg is a prefill leg whose KV is no longer kept.
type pastLeg struct {
	key     string
	request sim.Request
	rank    int
	evicted bool // by a fault
}

// keepPast is the number of past legs that are remembered.
const keepPast = 1024

func newLegs(e *Engine) *legs {
	l := &legs{e: e, meet: sim.NewRendezvous(), peers: map[uint64]*linkPeer{}, links: map[string]*link{}, byTag: map[uint64]*Job{}, owed: map[uint64]owedLeg{}, mute: map[string]bool{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// close ends all connections to prefill engines.
func (l *legs) close() {
	l.cancel()
	l.tasks.Wait()
}

// OpenLegs returns how many legs the engine knows, of requests under way.
func (e *Engine) OpenLegs(ctx context.Context) (n int, err error) {
	err = e.do(ctx, func() { n = e.legs.meet.Len() + len(e.legs.byTag) })
	return n, err
}

// call has Run call f; it does not wait.
func (l *legs) call(f func()) { l.e.inbox.put(op{call: f}) }

// opened notes a leg that the core has.
func (l *legs) opened(j *Job, request sim.Request, now int64) {
	g := j.Leg
	g.request = request
	if l.dies(g, "bootstrap") {
		return
	}
	if g.Key != "" {
		if g.struck(sim.Unmet) {
			l.mute[g.Key] = true
			g.Key += "/unmet"
		}
		if g.leased() && l.dies(g, "prefill") {
			return
		}
		l.do(now, l.meet.Open(g.Key, j.ref))
		return
	}
	l.lastTag++
	g.tag = l.lastTag
	l.byTag[g.tag] = j
	l.reach(j, now)
}

// reach looks for a decode leg's partner.
func (l *legs) reach(j *Job, now int64) {
	g := j.Leg
	if g.Addr == "" {
		return // it is never found
	}
	if g.link = l.links[g.Addr]; g.link == nil {
		g.link = &link{l: l, addr: g.Addr, out: newLinkOut()}
		l.links[g.Addr] = g.link
		l.tasks.Go(func() { g.link.run(g.Manner) })
	}
	if g.link.hello != nil {
		g.link.met(j, now)
	}
}

// step carries out what a step requires for legs, at its end.
func (l *legs) step(s *sim.Step) {
	jobs := l.e.jobs
	for _, r := range s.Reserved {
		j := jobs[r.Ref]
		if g := j.Leg; g.link != nil {
			g.wants, g.got = true, false
			g.link.want(j)
		}
	}
	for _, ref := range s.Fetched {
		if g := jobs[ref].Leg; g.wants {
			g.wants, g.got = false, true
			if l.dies(g, "decode") {
				return
			}
			g.link.out.put(linkMessage{Op: opFetched, Key: g.KeyOf(g.link.hello.DPSize), Tag: g.tag})
		}
	}
	for _, k := range s.Kept {
		g := jobs[k.Ref].Leg
		if l.dies(g, "transfer") {
			return
		}
		if !g.struck(sim.Evict) {
			l.do(s.End, l.meet.Kept(k))
		} else if g.leased() {
			l.e.core.Expire(s.End, k.Ref)
		} else {
			l.e.core.Break(s.End, k.Ref, infer.Errorf(infer.CodeEngine, "the KV cache was evicted before it was sent, by fault"))
		}
	}
	for i := range s.Done {
		d := &s.Done[i]
		switch g := jobs[d.Ref].Leg; {
		case g == nil:
		case g.Key != "":
			l.ended(jobs[d.Ref], d, s.End)
		case d.Owed != 0:
			delete(l.byTag, g.tag)
			l.owed[g.tag] = owedLeg{g, d.Owed} // it is said to nobody
		default:
			delete(l.byTag, g.tag)
			if g.link == nil || g.link.hello == nil || g.got {
				continue
			}
			if g.Manner.Frees {
				g.link.out.put(linkMessage{Op: opFree, Key: g.KeyOf(g.link.hello.DPSize), Tag: g.tag})
			} else if g.wants && d.Err == nil && !l.e.opts.TellsAborts {
				if g.ready { // it is on its way
					g.link.out.put(linkMessage{Op: opFetched, Key: g.KeyOf(g.link.hello.DPSize), Tag: g.tag})
				} else {
					l.owed[g.tag] = owedLeg{g, 0}
				}
			} else if g.wants {
				g.link.out.put(linkMessage{Op: opDrop, Key: g.KeyOf(g.link.hello.DPSize), Tag: g.tag})
			}
		}
	}
}

// ended notes that a prefill leg is over.
func (l *legs) ended(j *Job, d *sim.Done, now int64) {
	why := errPrefillLost()
	if j.Leg.leased() || j.Leg.aborted {
		why = nil // the decode engine is not told
	}
	l.do(now, l.meet.Ended(d.Ref, why))
	if len(l.past) == keepPast {
		l.past = slices.Delete(l.past, 0, keepPast/2)
	}
	l.past = append(l.past, pastLeg{j.Leg.Key, j.Leg.request, d.DPRank, j.Leg.struck(sim.Evict)})
	if key, ok := strings.CutSuffix(j.Leg.Key, "/unmet"); ok {
		delete(l.mute, key)
	}
}

// errPrefillLost is the error of an SGLang decode leg whose partner failed.
func errPrefillLost() *infer.Error {
	return infer.Errorf(infer.CodeEngine, "Failed to get kvcache from prefill instance, it might be dead")
}

// errDropped is the error of an SGLang prefill leg whose partner gave up.
func errDropped() *infer.Error {
	return infer.Errorf(infer.CodeEngine, "Aborted by AbortReq.")
}

func (l *legs) do(now int64, actions []sim.Action) {
	for _, a := range actions {
		switch a.Kind {
		case sim.ActMeet:
			if l.dies(l.e.jobs[a.Ref].Leg, "prefill") {
				return
			}
			l.e.core.Meet(now, a.Ref)
		case sim.ActReady:
			if l.e.jobs[a.Kept.Ref].Leg.struck(sim.Stuck) {
				continue
			}
			l.tell(a.Want, linkMessage{Op: opReady, Tag: a.Want.Tag, Cached: a.Kept.Cached})
		case sim.ActRelease:
			l.e.core.Release(now, a.Ref)
		case sim.ActBreak:
			l.e.core.Break(now, a.Ref, a.Why)
		case sim.ActLost:
			l.tell(a.Want, linkMessage{Op: opLost, Tag: a.Want.Tag, Why: a.Why.Message})
		}
	}
}

func (l *legs) tell(w sim.Want, m linkMessage) {
	if p := l.peers[w.Peer]; p != nil {
		p.out.put(m)
	}
}

// asked carries out a message of a decode engine.
func (l *legs) asked(p *linkPeer, m *linkMessage) {
	now, w := trace.Now(), sim.Want{Peer: p.id, Tag: m.Tag}
	switch m.Op {
	case opWant:
		if l.mute[m.Key] {
			return
		}
		if _, kept := l.meet.Leg(m.Key); m.Pull && !kept {
			p.out.put(linkMessage{Op: opReady, Tag: m.Tag, Spoiled: !l.intact(m.Key)})
			return
		}
		l.do(now, l.meet.Want(m.Key, w))
	case opRenew:
		if ref, ok := l.meet.Leg(m.Key); ok {
			l.e.core.Renew(now, ref, time.Duration(m.Lease))
		}
	case opFetched:
		l.do(now, l.meet.Fetched(m.Key, w))
	case opDrop:
		l.do(now, l.meet.Drop(m.Key, w, errDropped()))
	case opFree:
		l.do(now, l.meet.Free(m.Key, w))
	}
}

// intact reports whether the KV of a finished prefill leg is unchanged.
func (l *legs) intact(key string) bool {
	for _, p := range slices.Backward(l.past) {
		if p.key == key {
			o := l.e.o
			return !p.evicted && (o.KVTokens == 0 || l.e.core.Resident(p.rank, &p.request)/o.PageSize == (p.request.PromptTokens()-1)/o.PageSize)
		}
	}
	return false
}

// heard carries out a message of a prefill engine.
func (l *legs) heard(m *linkMessage) {
	now := trace.Now()
	if g, ok := l.owed[m.Tag]; ok {
		if m.Op != opReady || g.struck(sim.Stuck) {
			return
		}
		delete(l.owed, m.Tag)
		if g.name == 0 {
			l.e.core.Overwrite()
		} else {
			l.e.core.Written(now, g.name)
		}
		l.e.publish() // there may be no step in which anybody would see it
		g.link.out.put(linkMessage{Op: opFetched, Key: g.KeyOf(g.link.hello.DPSize), Tag: g.tag})
		return
	}
	j := l.byTag[m.Tag]
	if j == nil || !j.live {
		return
	}
	switch m.Op {
	case opReady:
		if l.dies(j.Leg, "transfer") || j.Leg.struck(sim.Stuck) {
			return
		}
		j.Leg.ready = true
		l.e.core.Offer(now, j.ref, sim.Offer{Cached: m.Cached, Spoiled: m.Spoiled})
	case opLost:
		if j.Leg.got {
			return // it is on its own
		}
		l.fail(j, now, infer.Errorf(infer.CodeEngine, "%s", m.Why))
	}
}

// fail ends a decode leg whose KV will not come, or lets this engine compute its prompt.
func (l *legs) fail(j *Job, now int64, why *infer.Error) {
	j.Leg.wants = false
	if j.Leg.Manner.Recompute {
		j.Leg.got = true
		l.e.core.Compute(now, j.ref)
		return
	}
	l.e.core.Break(now, j.ref, why)
}

// each calls f for the decode legs of a link.
func (l *legs) each(k *link, f func(j *Job)) {
	for _, tag := range slices.Sorted(maps.Keys(l.byTag)) {
		if j := l.byTag[tag]; j.Leg.link == k && j.live {
			f(j)
		}
	}
}
