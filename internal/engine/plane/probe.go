package plane

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine"
	"weir/internal/engine/plane/planepb"
)

// Probe implements engine.Prober by a fence over a separate connection. It applies to
// all ranks, since the plane does not name ranks.
func (e *Engine) Probe(ctx context.Context, _ engine.Probe) error {
	dialing, cancel := context.WithTimeout(ctx, e.opts.ConnectTimeout)
	defer cancel()
	conn, err := e.dial(dialing)
	if err != nil {
		return fmt.Errorf("plane: probe %s: %w", e.opts.Name, err)
	}
	client, err := e.clientOver(func(context.Context) (net.Conn, error) { return conn, nil })
	if err != nil {
		conn.Close()
		return fmt.Errorf("plane: probe %s: %w", e.opts.Name, err)
	}
	defer client.Close()
	reply, err := planepb.NewPlaneClient(client).Fence(ctx, &planepb.FenceRequest{})
	switch {
	case err == nil:
		e.computed.Store(reply.GetComputed())
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		// The engine's server knows the bound of the call, and may end it a moment before
		// ctx does.
		return fmt.Errorf("plane: probe %s: %w: %w", e.opts.Name, context.DeadlineExceeded, err)
	case codes.Unimplemented, codes.Unauthenticated, codes.PermissionDenied:
		return fmt.Errorf("plane: probe %s: %w: %w", e.opts.Name, engine.ErrNoProbe, advised(err, e.opts.Access))
	case codes.ResourceExhausted:
		return fmt.Errorf("plane: probe %s: %w: %w", e.opts.Name, engine.ErrBusy, err)
	}
	return fmt.Errorf("plane: probe %s: %w", e.opts.Name, err)
}

// Computed implements engine.Counting.
func (e *Engine) Computed() uint64 { return e.computed.Load() }

// Generates implements engine.Prober.
func (*Engine) Generates() bool { return false }
