package fleetsim

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/gateway/footprint"
	"weir/internal/sim"
	"weir/internal/workload"
)

// Plan is the load of a fleet: sessions, whose prompts are made when they are needed for
// the first time and kept, so that another run need not digest them again. A plan serves
// one run at a time, of one kind of engine.
type Plan struct {
	// Name is the workload's name in reports.
	Name string

	users    int
	think    time.Duration
	until    time.Duration // a closed loop begins no request after that
	arrivals []time.Duration
	sessions *workload.Sessions
	trace    []traced
	parts    []workload.Part // of the trace's requests
	prompts  [][]*prompt     // by session and turn
	made     sim.Options     // of the engine that the prompts were made for
	salted   bool            // and whether these keep sessions apart
}

// traced is a request of a trace.
type traced struct {
	from, to int // of its parts
	output   int
	session  uint64
}

// prompt is a request as engines and gateways take it.
type prompt struct {
	request   sim.Request
	footprint footprint.Footprint
	ids       []uint32 // while turns that follow on it are to be made
	input     int
	refused   error
}

// mostSessions bounds a closed loop's plan, whose sessions have no arrivals.
const mostSessions = 1 << 22

// NewSessions makes a plan of a synthetic workload.
func NewSessions(settings string, seed uint64) (*Plan, error) {
	s, err := workload.NewSessions(settings, seed)
	if err != nil {
		return nil, err
	}
	p := &Plan{Name: "synthetic:" + settings, sessions: s, users: s.Users(), think: s.Think(), until: s.For}
	if p.users > 0 {
		return p, nil
	}
	for s.Requests == 0 || len(p.arrivals) < s.Requests {
		at, more := s.Next()
		if !more {
			break
		}
		p.arrivals = append(p.arrivals, at)
	}
	if len(p.arrivals) == 0 {
		return nil, errors.New("nothing arrives within the workload's bounds")
	}
	return p, nil
}

// NewTrace makes a plan of a trace. Requests that begin with all but the last block of
// an earlier one count as its session, as a client that names sessions would have it.
func NewTrace(w *workload.Workload, name string) (*Plan, error) {
	if w.Closed != nil {
		return nil, fmt.Errorf("%s is a closed loop, not a trace", name)
	}
	p := &Plan{Name: name}
	ends := map[uint64]uint64{} // the session that has gone as far as a block
	var r workload.Request
	for {
		err := w.Next(&r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if r.IDs != nil || r.Text != "" {
			return nil, fmt.Errorf("%s has texts; a fleet is asked by lengths", name)
		}
		n := len(p.trace)
		t := traced{from: len(p.parts), output: r.Output, session: uint64(n + 1)}
		p.parts = append(p.parts, r.Parts...)
		t.to = len(p.parts)
		for _, part := range slices.Backward(r.Parts) {
			if s, ok := ends[part.Key]; ok {
				t.session = s
				break
			}
		}
		if n := len(r.Parts); n > 1 {
			ends[r.Parts[n-2].Key] = t.session
		}
		p.trace = append(p.trace, t)
		p.arrivals = append(p.arrivals, r.At)
	}
	if len(p.trace) == 0 {
		return nil, fmt.Errorf("%s has no request", name)
	}
	return p, nil
}

// Span is from the first arrival to the last one.
func (p *Plan) Span() time.Duration {
	if len(p.arrivals) == 0 {
		return p.until
	}
	return p.arrivals[len(p.arrivals)-1]
}

// Open reports whether sessions come at their times, and not when others have ended.
func (p *Plan) Open() bool { return p.users == 0 }

// turns returns those of the n-th session.
func (p *Plan) turns(n int) []workload.Turn {
	if p.sessions != nil {
		return p.sessions.Session(n)
	}
	t := &p.trace[n]
	return []workload.Turn{{Parts: p.parts[t.from:t.to], Output: t.output, After: -1}}
}

// session returns the name that a client would give to the n-th session.
func (p *Plan) session(n int) uint64 {
	if p.sessions != nil {
		return uint64(n + 1)
	}
	return p.trace[n].session
}

// use readies the plan for engines of these options.
func (p *Plan) use(o *sim.Options, salted bool) {
	if p.salted != salted || p.made.PageSize != o.PageSize || p.made.KVTokens == 0 != (o.KVTokens == 0) || p.made.ContextLength != o.ContextLength || p.made.Words != o.Words {
		p.prompts = nil
	}
	p.made, p.salted = *o, salted
}

// prompt returns the prompt of a turn. before is the previous turn's prompt, with its
// answer.
func (p *Plan) prompt(session, turn int, turns []workload.Turn, before *prompt, answer []uint32) *prompt {
	for len(p.prompts) <= session {
		p.prompts = append(p.prompts, nil)
	}
	if p.prompts[session] == nil {
		p.prompts[session] = make([]*prompt, len(turns))
	}
	if q := p.prompts[session][turn]; q != nil {
		return q
	}
	t := &turns[turn]
	r := workload.Request{Parts: t.Parts}
	q := &prompt{input: r.Input()}
	p.prompts[session][turn] = q
	if before != nil {
		q.input += before.input + len(answer)
	}
	switch {
	case t.Output == 0:
		q.refused = errors.New("the trace gives it no output")
		return q
	case q.input+t.Output > p.made.ContextLength:
		q.refused = fmt.Errorf("%d tokens of prompt and %d of output; the engine's context is %d", q.input, t.Output, p.made.ContextLength)
		return q
	}
	ids := make([]uint32, 0, q.input)
	if before != nil {
		ids = append(append(ids, before.ids...), answer...)
	}
	ids = r.AppendPrompt(ids, vocabulary)
	keyed := ids
	if p.salted && len(ids) > 0 {
		keyed = slices.Clone(ids)
		keyed[0] = vocabulary + uint32(p.session(session))
	}
	prepared, err := p.made.Prepare(sim.Params{Prompt: keyed, MaxTokens: t.Output, IgnoreEOS: true})
	if err != nil {
		q.refused = err
		return q
	}
	q.request = prepared
	q.footprint = footprint.Footprint{Root: root, BlockTokens: route.BlockTokens, Width: 1, Limit: p.made.ContextLength, ByIDs: true}
	e := footprint.ExtentOf(root, ids)
	e.Rest = slices.Clone(e.Rest)
	q.footprint.Add(e)
	for i := turn + 1; i < len(turns); i++ {
		if turns[i].After == turn {
			q.ids = ids
			break
		}
	}
	return q
}

// root is where the chains of all prompts begin: there is one model.
const root kvindex.Block = 1

// vocabulary is the number of ids that prompts are made of.
const vocabulary = 1 << 20
