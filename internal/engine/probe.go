package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"weir/internal/infer"
	"weir/internal/trace"
)

// Prober is an Adapter that can ask its engine for a sign of its core: of what
// computes, not of what answers health checks. Each kind of adapter says what that is
// on its wire: a fence through the engine's loop where there is one, else a request of
// one token.
//
// Probe waits until the engine has given the sign, and then returns nil. Its own end by
// ctx says nothing about the engine: how long one may take is the caller's to judge. An
// error that wraps syscall.ECONNREFUSED says that nobody is there, ErrBusy that the
// engine has no room, ErrNoProbe that it cannot be asked; any other one is a failure of
// the engine's. A Probe uses a connection of its own where the wire has one for each
// request.
type Prober interface {
	Adapter
	Probe(ctx context.Context, p Probe) error
	// Generates says that the probe makes the engine generate. A fence does not: it
	// says nothing about an engine that fails all that it is asked.
	Generates() bool
}

// Reachable is a Prober that generates, and has a sign that does not: it says that the engine
// is there, and no more. Reach is as Probe.
type Reachable interface {
	Prober
	Reach(ctx context.Context) error
}

// Counting is a Prober whose sign says how much its engine has computed, for whomever.
type Counting interface {
	Prober
	// Computed gives how many tokens of prompts and outputs the engine had computed when it
	// gave its latest sign; 0 where it does not say.
	Computed() uint64
}

// Probe says what a sign is wanted of.
type Probe struct {
	Rank  int    // of data parallelism; -1: of all ranks
	Model string // as the engine knows it
	// Path is that of the latest request, whose kind a Relay's probe is of. Empty is a
	// chat.
	Path string
}

var (
	// ErrBusy says that the engine has no room for a probe. It speaks neither for nor
	// against it.
	ErrBusy = errors.New("the engine has no room for the probe")
	// ErrNoProbe says that the engine does not know the probe, or refuses it.
	ErrNoProbe = errors.New("the engine cannot be probed")
)

// SampleTokens is how many tokens a Sample has an engine compute at most: its prompt's and its
// output's.
const SampleTokens = 2

// Sample has a Tokens engine generate one token after one id, which every vocabulary has, and
// waits for it. rank is one of Facts.Ranks, -1 where these name none. The request has an id
// that says whose it is, and is aborted when ctx ends. Of an engine that serves halves it is
// a half that has no other, which its adapter gives (Alone). Its errors are those of Prober,
// and context.DeadlineExceeded that nothing was heard of the engine until ctx's end.
func Sample(ctx context.Context, t Tokens, model string, rank int) error {
	end := make(sampled, 1)
	req := &infer.Request{ID: fmt.Sprintf("weir-probe-%016x", rand.Uint64()), Model: model, Prompt: []uint32{0}, MaxTokens: 1, IgnoreEOS: true}
	if h, ok := t.(interface{ Alone(rank int) *infer.Half }); ok {
		req.Half = h.Alone(rank)
	}
	g, err := t.Generate(ctx, req, 1, end, &trace.Leg{DPRank: rank})
	if err == nil {
		select {
		case err = <-end:
		case <-ctx.Done():
			g.Abort()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return nil
	}
	switch failed := infer.AsError(err); failed.Code {
	case infer.CodeOverloaded:
		return fmt.Errorf("sample: %w: %w", ErrBusy, err)
	case infer.CodeInvalid, infer.CodeUnsupported, infer.CodeContext:
		return fmt.Errorf("sample: %w: %w", ErrNoProbe, err)
	case infer.CodeDeadline:
		// An engine that knows the bound of the call may end it a moment before ctx does.
		return fmt.Errorf("sample: %w: %w", context.DeadlineExceeded, err)
	}
	return fmt.Errorf("sample: %w", err)
}

// sampled takes the end of a sample.
type sampled chan error

// Offer implements Sink.
func (c sampled) Offer(d *infer.Delta) {
	switch f := d.Finish; {
	case f == nil:
	case f.Err != nil:
		c <- f.Err
	default:
		c <- nil
	}
}
