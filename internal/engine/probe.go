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

// Reachable is a Prober whose Probe generates, and that can also check without generating
// that the engine answers. Reach has the errors of Probe.
type Reachable interface {
	Prober
	Reach(ctx context.Context) error
}

// Counting is a Prober whose signs state how much the engine has computed, for all
// requests.
type Counting interface {
	Prober
	// Computed returns how many tokens of prompts and outputs the engine had computed at its
	// latest sign, 0 if not reported.
	Computed() uint64
}

// Probe selects the part of an engine that is probed.
type Probe struct {
	Rank  int    // data-parallel rank; -1: all ranks
	Model string // as the engine knows it
	// Path is the path of the latest request. A Relay's probe is a request of the same
	// kind, and a chat if Path is empty.
	Path string
}

var (
	// ErrBusy means that the engine has no room for a probe. It counts neither for nor
	// against the engine.
	ErrBusy = errors.New("the engine has no room for the probe")
	// ErrNoProbe means that the engine does not know the probe, or refuses it.
	ErrNoProbe = errors.New("the engine cannot be probed")
)

// SampleTokens is how many tokens of prompt and output an engine computes for a Sample at
// most.
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
