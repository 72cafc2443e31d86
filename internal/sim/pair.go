package sim

import "weir/internal/infer"

// Pair drives a prefill engine and a decode engine whose legs meet in a Rendezvous without
// delay. It does on virtual time what a wire does between two engines.
type Pair struct {
	prefill, decode *Core
	meet            *Rendezvous
	keys            map[Ref]string // of the decode legs
	wanting         map[Ref]bool   // those that have pages and not their KV
	pending         []pendingAction
}

// pendingAction is an action that waits until both engines have done their own work of that
// time.
type pendingAction struct {
	at int64
	Action
}

// NewPair joins two engines. Only the pair may drive them.
func NewPair(prefill, decode *Core) *Pair {
	return &Pair{prefill: prefill, decode: decode, meet: NewRendezvous(), keys: map[Ref]string{}, wanting: map[Ref]bool{}}
}

// SubmitPrefill submits the prefill leg of a key, as Core.Submit does.
func (p *Pair) SubmitPrefill(now, created int64, key string, r Request) (Ref, error) {
	ref, err := p.prefill.Submit(now, created, r)
	if err == nil {
		p.do(now, p.meet.Open(key, ref))
	}
	return ref, err
}

// SubmitDecode submits the decode leg of a key, as Core.Submit does. It is
// queued at once.
func (p *Pair) SubmitDecode(now, created int64, key string, r Request) (Ref, error) {
	ref, err := p.decode.Submit(now, created, r)
	if err == nil {
		p.keys[ref] = key
		p.decode.Meet(now, ref)
	}
	return ref, err
}

// Due returns when Advance must be called next, as Core.Due does.
func (p *Pair) Due() (int64, bool) {
	at, ok := p.due()
	if len(p.pending) > 0 && (!ok || p.pending[0].at < at) {
		return p.pending[0].at, true
	}
	return at, ok
}

func (p *Pair) due() (int64, bool) {
	at, ok := p.prefill.Due()
	if d, also := p.decode.Due(); also && (!ok || d < at) {
		return d, true
	}
	return at, ok
}

// Advance is Core.Advance of the engine that is due first. If both are due at the same
// time, the prefill engine goes first.
func (p *Pair) Advance(now int64) (*Core, *Step) {
	for {
		at, ok := p.due()
		if len(p.pending) > 0 && p.pending[0].at <= now && (!ok || p.pending[0].at < at) {
			p.apply(p.pending[0])
			p.pending = p.pending[1:]
			continue
		}
		if !ok || at > now {
			return nil, nil
		}
		c := p.decode
		if due, ok := p.prefill.Due(); ok && due == at {
			c = p.prefill
		}
		s := c.Advance(at)
		if s == nil {
			continue
		}
		if c == p.prefill {
			p.prefilled(s)
		} else {
			p.decoded(s)
		}
		return c, s
	}
}

func (p *Pair) prefilled(s *Step) {
	for _, k := range s.Kept {
		p.do(s.End, p.meet.Kept(k))
	}
	for i := range s.Done {
		p.do(s.End, p.meet.Ended(s.Done[i].Ref, whyEnded(&s.Done[i])))
	}
}

// whyEnded returns the error that the partner of an ended leg gets.
func whyEnded(d *Done) *infer.Error {
	if d.Err != nil {
		return d.Err
	}
	return infer.Errorf(infer.CodeEngine, "the other leg was aborted")
}

func (p *Pair) decoded(s *Step) {
	for _, r := range s.Reserved {
		p.wanting[r.Ref] = true
		p.do(s.End, p.meet.Want(p.keys[r.Ref], Want{Tag: uint64(r.Ref)}))
	}
	for _, ref := range s.Fetched {
		delete(p.wanting, ref)
		p.do(s.End, p.meet.Fetched(p.keys[ref], Want{Tag: uint64(ref)}))
	}
	for i := range s.Done {
		ref := s.Done[i].Ref
		if p.wanting[ref] {
			p.do(s.End, p.meet.Drop(p.keys[ref], Want{Tag: uint64(ref)}, whyEnded(&s.Done[i])))
		}
		delete(p.wanting, ref)
		delete(p.keys, ref)
	}
}

// do schedules actions for a time. They come over a wire, so they follow what the engines
// themselves do at that time.
func (p *Pair) do(now int64, actions []Action) {
	for _, a := range actions {
		p.pending = append(p.pending, pendingAction{now, a})
	}
}

func (p *Pair) apply(a pendingAction) {
	switch a.Kind {
	case ActMeet:
		p.prefill.Meet(a.at, a.Ref)
	case ActReady:
		p.decode.Offer(a.at, Ref(a.Want.Tag), Offer{Cached: a.Kept.Cached})
	case ActRelease:
		p.prefill.Release(a.at, a.Ref)
	case ActBreak:
		p.prefill.Break(a.at, a.Ref, a.Why)
	case ActLost:
		p.decode.Break(a.at, Ref(a.Want.Tag), a.Why)
	}
}
