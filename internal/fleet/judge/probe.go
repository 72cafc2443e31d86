package judge

import (
	"context"
	"errors"
	"os"
	"syscall"

	"weir/internal/engine"
	"weir/internal/fleet/health"
	"weir/internal/infer"
	"weir/internal/trace"
)

// probes are how a rank is probed, and those that are under way. The judge's lock guards
// them.
type probes struct {
	probe  func(context.Context, engine.Probe) error // nil: nothing is known that could be asked
	kind   ProbeKind                                 // of it
	tokens engine.Tokens                             // to sample
	counts ProbeCounts
	// counting asks the engine for the amount that it has computed. computed is its last
	// answer, if it was asked since it was last up. sampled is the number of samples that may
	// have contributed to its work after that: those under way then, which open counts, and
	// those sent since.
	counting      engine.Counting
	computed      uint64
	fenced        bool
	sampled, open int
	// ctx is that of the probes under way, which cancel ends; nil is none yet.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// samples give up those under way: that which is waited for, and the one beside it.
	samples [2]context.CancelCauseFunc
}

// errSilent is why a probe is given up by whose silence its rank was judged.
var errSilent = errors.New("the rank was silent")

// give gives up the probes that are under way.
func (p *probes) give(why error) {
	if p.cancel != nil {
		p.cancel(why)
	}
}

// advances reports whether the engine has computed something for others since the fence
// before, by its own count: more than the samples that it was sent. A fence was answered
// just now.
func (p *probes) advances() bool {
	if p.counting == nil {
		return false
	}
	was, fenced, own := p.computed, p.fenced, uint64(p.sampled)*engine.SampleTokens
	p.computed, p.fenced, p.sampled = p.counting.Computed(), true, p.open
	return fenced && p.computed-was > own
}

// giveSamples gives up the samples that are under way.
func (p *probes) giveSamples(why error) {
	for _, give := range p.samples {
		if give != nil {
			give(why)
		}
	}
}

// under returns what a probe runs under. A sample outlasts the probes that are sent
// meanwhile, and gives way to the next one of its kind.
func (p *probes) under(ctx context.Context, probe *health.Probe) context.Context {
	if probe.Sample {
		at := &p.samples[0]
		if probe.Beside {
			at = &p.samples[1]
		}
		if *at != nil {
			(*at)(errSilent)
		}
		ctx, *at = context.WithCancelCause(ctx)
		return ctx
	}
	if p.ctx == nil || p.ctx.Err() != nil {
		p.ctx, p.cancel = context.WithCancelCause(ctx)
	}
	return p.ctx
}

// ProbeKind is what a probe asks of an engine.
type ProbeKind uint8

// The kinds.
const (
	ProbePage       ProbeKind = iota // whether it is there
	ProbeFence                       // a turn of its loop
	ProbeGeneration                  // a token
	NumProbeKinds
)

// String returns the kind's word in metrics.
func (k ProbeKind) String() string { return [...]string{"page", "fence", "generation"}[k] }

// ProbeEnd is how a probe ended.
type ProbeEnd uint8

// The ends: those of health.Result, and two more.
const (
	ProbeUnanswered = ProbeEnd(health.Nobody) + 1 + iota // within its time
	ProbeDropped                                         // the rank was judged without it
	NumProbeEnds
)

// String returns the end's word in metrics.
func (e ProbeEnd) String() string {
	return [...]string{"answered", "busy", "failed", "refused", "unanswered", "dropped"}[e]
}

// ProbeCounts are how many probes ended how.
type ProbeCounts [NumProbeKinds][NumProbeEnds]int64

// Probes are how many probes of the rank have ended.
func (r *Rank) Probes() ProbeCounts {
	r.judge.mu.Lock()
	defer r.judge.mu.Unlock()
	return r.probes.counts
}

// by chooses the probe of a rank by the type of its adapter. It reports whether the probe
// makes the engine generate, and whether the rank can also be sampled.
func (p *probes) by(of *Presence, noGeneration bool) (generates, samples bool) {
	p.probe, p.tokens = nil, nil
	p.counting, _ = of.Prober.(engine.Counting)
	if of.Prober == nil {
		return false, false
	}
	p.probe, p.kind = of.Prober.Probe, ProbeFence
	if !of.Prober.Generates() {
		if of.Tokens != nil && !noGeneration {
			p.tokens = of.Tokens
		}
		return false, p.tokens != nil
	}
	p.kind = ProbeGeneration
	if noGeneration {
		p.probe, p.kind = nil, ProbePage
		if reachable, ok := of.Prober.(engine.Reachable); ok {
			p.probe = func(ctx context.Context, _ engine.Probe) error { return reachable.Reach(ctx) }
		}
		return false, false
	}
	return true, false
}

// probe sends a probe. The lock is held.
func (r *Rank) probe(ctx context.Context, p health.Probe) {
	probe, kind := r.probes.probe, r.probes.kind
	if tokens := r.probes.tokens; p.Sample {
		if tokens == nil {
			return
		}
		r.probes.sampled++
		r.probes.open++
		probe, kind = func(ctx context.Context, asked engine.Probe) error {
			return engine.Sample(ctx, tokens, asked.Model, asked.Rank)
		}, ProbeGeneration
	}
	if probe == nil {
		r.own.Probed(trace.Now(), health.Busy, "")
		return
	}
	given := r.probes.under(ctx, &p)
	ctx, end := context.WithTimeout(given, p.Patience)
	asked := r.asked
	r.judge.asking.Go(func() {
		defer end()
		err := r.ask(ctx, probe, asked)
		how, why := resultOf(ctx, err)
		if err != nil && given.Err() != nil {
			how = ProbeDropped
			if context.Cause(given) == errSilent {
				how = ProbeUnanswered
			}
		}
		r.judge.mu.Lock()
		defer r.judge.mu.Unlock()
		r.probes.counts[kind][how]++
		if p.Sample {
			r.probes.open--
		}
		if how >= ProbeUnanswered {
			return // its silence the rank notices by itself, whoever's bound it was
		}
		now := trace.Now()
		if p.Sample {
			r.own.Sampled(now, health.Result(how))
		} else {
			if err == nil && r.probes.advances() {
				r.own.Alive(now)
			}
			r.own.Probed(now, health.Result(how), why)
		}
		r.judge.publish(r)
	})
}

// resultOf returns how a probe went that ended so.
func resultOf(ctx context.Context, err error) (how ProbeEnd, why string) {
	switch {
	case err == nil:
		return ProbeEnd(health.Answered), ""
	case ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return ProbeUnanswered, ""
	case errors.Is(err, engine.ErrBusy) || errors.Is(err, engine.ErrNoProbe):
		return ProbeEnd(health.Busy), err.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		return ProbeEnd(health.Nobody), err.Error()
	}
	return ProbeEnd(health.Failed), err.Error()
}

// ask probes. A panic is a probe of which nothing is known.
func (r *Rank) ask(ctx context.Context, probe func(context.Context, engine.Probe) error, asked engine.Probe) (err error) {
	defer func() {
		if p := infer.Caught(recover(), r.panicked); p != nil {
			err = engine.ErrNoProbe
		}
	}()
	return probe(ctx, asked)
}
