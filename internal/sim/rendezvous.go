package sim

import (
	"maps"
	"slices"

	"weir/internal/infer"
)

// Rendezvous joins the legs of pairs at the prefill engine: its own legs, and the decode
// legs that want their KV, which may come first. Legs with the same key belong together. A
// Rendezvous belongs to one goroutine. It only returns actions; the caller carries them
// out.
type Rendezvous struct {
	byKey map[string]*meeting
	byRef map[Ref]string
}

// meeting is the state of a key.
type meeting struct {
	open bool // there is a prefill leg
	ref  Ref  // its
	kept *Kept
	want *Want
}

// Want is a decode leg that has its pages.
type Want struct {
	Peer uint64 // the connection that it came by
	Tag  uint64 // the decode engine's name for it
}

// Action is something to do for a pair.
type Action struct {
	Kind ActionKind
	Ref  Ref  // of Meet, Release and Break
	Want Want // of Ready and Lost
	Kept Kept // of Ready
	Why  *infer.Error
}

// ActionKind is the kind of an Action.
type ActionKind uint8

// The kinds of actions.
const (
	ActMeet    ActionKind = iota // queue the prefill leg
	ActReady                     // tell the decode leg that its KV can be had
	ActRelease                   // the prefill leg's KV was fetched
	ActBreak                     // end the prefill leg with an error
	ActLost                      // tell the decode leg that its partner is lost
)

// NewRendezvous returns one without legs.
func NewRendezvous() *Rendezvous {
	return &Rendezvous{byKey: map[string]*meeting{}, byRef: map[Ref]string{}}
}

// Len is how many keys there are.
func (v *Rendezvous) Len() int { return len(v.byKey) }

func (v *Rendezvous) at(key string) *meeting {
	m := v.byKey[key]
	if m == nil {
		m = &meeting{}
		v.byKey[key] = m
	}
	return m
}

// settle forgets a key of which nothing is left.
func (v *Rendezvous) settle(key string) {
	if m := v.byKey[key]; m != nil && !m.open && m.want == nil {
		delete(v.byKey, key)
	}
}

// Open reports that a prefill leg was submitted. If two legs have the same key, the later
// one takes the place, and the first never meets a partner.
func (v *Rendezvous) Open(key string, ref Ref) []Action {
	m := v.at(key)
	if m.open {
		delete(v.byRef, m.ref)
	}
	m.open, m.ref, m.kept = true, ref, nil
	v.byRef[ref] = key
	if m.want != nil {
		return []Action{{Kind: ActMeet, Ref: ref}}
	}
	return nil
}

// Leg returns the prefill leg of a key, if there is one.
func (v *Rendezvous) Leg(key string) (Ref, bool) {
	if m := v.byKey[key]; m != nil && m.open {
		return m.ref, true
	}
	return 0, false
}

// Want reports that a decode leg has its pages. If two decode legs have the same key, the
// later one takes the place.
func (v *Rendezvous) Want(key string, w Want) []Action {
	m := v.at(key)
	m.want = &w
	switch {
	case !m.open:
		return nil
	case m.kept != nil:
		return []Action{{Kind: ActReady, Want: w, Kept: *m.kept}}
	}
	return []Action{{Kind: ActMeet, Ref: m.ref}}
}

// Kept reports that the KV of a prefill leg is there.
func (v *Rendezvous) Kept(kept Kept) []Action {
	m := v.byKey[v.byRef[kept.Ref]]
	if m == nil || !m.open || m.ref != kept.Ref {
		return nil
	}
	m.kept = &kept
	if m.want != nil {
		return []Action{{Kind: ActReady, Want: *m.want, Kept: kept}}
	}
	return nil
}

// Fetched reports that a decode leg has its KV.
func (v *Rendezvous) Fetched(key string, w Want) []Action {
	m := v.byKey[key]
	if m == nil || m.want == nil || *m.want != w {
		return nil
	}
	m.want = nil
	var do []Action
	if m.open && m.kept != nil {
		do = []Action{{Kind: ActRelease, Ref: m.ref}}
	}
	v.settle(key)
	return do
}

// Free reports that a decode leg ended and that its KV is no longer wanted.
func (v *Rendezvous) Free(key string, w Want) []Action {
	m := v.byKey[key]
	if m == nil {
		return nil
	}
	if m.want != nil && *m.want == w {
		m.want = nil
	}
	var do []Action
	if m.open && m.kept != nil && m.want == nil {
		do = []Action{{Kind: ActRelease, Ref: m.ref}}
	}
	v.settle(key)
	return do
}

// Drop reports that a decode leg ended before it had its KV.
func (v *Rendezvous) Drop(key string, w Want, why *infer.Error) []Action {
	m := v.byKey[key]
	if m == nil || m.want == nil || *m.want != w {
		return nil
	}
	m.want = nil
	var do []Action
	if m.open && why != nil {
		do = []Action{{Kind: ActBreak, Ref: m.ref, Why: why}}
	}
	v.settle(key)
	return do
}

// Gone reports that a connection is lost, and with it the decode legs behind it. why
// returns the error that breaks the prefill leg of a key, or nil to leave it alone.
func (v *Rendezvous) Gone(peer uint64, why func(key string) *infer.Error) (do []Action) {
	for _, key := range slices.Sorted(maps.Keys(v.byKey)) {
		if m := v.byKey[key]; m.want != nil && m.want.Peer == peer {
			do = append(do, v.Drop(key, *m.want, why(key))...)
		}
	}
	return do
}

// Ended reports that a prefill leg is over. If a decode leg still wants its KV, it gets the
// reason; without a reason it continues to wait.
func (v *Rendezvous) Ended(ref Ref, why *infer.Error) (do []Action) {
	key, ok := v.byRef[ref]
	if !ok {
		return nil
	}
	delete(v.byRef, ref)
	if m := v.byKey[key]; m.open && m.ref == ref {
		m.open, m.kept = false, nil
		if m.want != nil && why != nil {
			do = []Action{{Kind: ActLost, Want: *m.want, Why: why}}
			m.want = nil
		}
	}
	v.settle(key)
	return do
}
