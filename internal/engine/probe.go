package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"weir/internal/infer"
	"weir/internal/trace"
)

// Prober is an Adapter that can request a sign of life from its engine's core, the part
// that computes, and not from the part that answers health checks. The probe depends on
// the adapter's wire: a fence through the engine's loop if there is one, or else a
// request for one token.
//
// Probe waits until the engine has given the sign and then returns nil. If it ends
// because of ctx, the state of the engine is unknown, and the caller judges the time
// that a probe may take. An error that wraps syscall.ECONNREFUSED means that no process
// is listening, ErrBusy that the engine has no room, and ErrNoProbe that the engine
// cannot be probed; any other error is a failure of the engine. A Probe uses a separate
// connection if the wire has one for each request.
type Prober interface {
	Adapter
	Probe(ctx context.Context, p Probe) error
	// Generates reports whether the probe makes the engine generate. A fence does not,
	// so it cannot detect an engine that fails all requests.
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
	// Computed returns how many tokens of prompts and outputs the engine had computed when it
	// gave its latest sign; 0 where it does not say.
	Computed() uint64
}

// Probe states what a sign is wanted of.
type Probe struct {
	Rank  int    // of data parallelism; -1: of all ranks
	Model string // as the engine knows it
	// Path is that of the latest request, whose kind a Relay's probe is of. Empty is a
	// chat.
	Path string
}

var (
	// ErrBusy means that the engine has no room for a probe. It counts neither for nor
	// against the engine.
	ErrBusy = errors.New("the engine has no room for the probe")
	// ErrNoProbe means that the engine does not know the probe, or refuses it.
	ErrNoProbe = errors.New("the engine cannot be probed")
)

// SampleTokens is how many tokens a Sample has an engine compute at most: its prompt's and its
// output's.
const SampleTokens = 2

// Sample makes a Tokens engine generate one token after one id, which every vocabulary has,
// and waits for it. rank is one of Facts.Ranks, or -1 if there are none. The id of the
// request shows that weir sent it. The request is aborted when ctx ends. An engine that
// serves halves gets a half without a counterpart, which its adapter makes (Alone). The
// errors are those of Prober, and context.DeadlineExceeded if the engine sent nothing until
// ctx's end.
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
