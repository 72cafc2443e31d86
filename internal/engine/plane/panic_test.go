package plane

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"weir/internal/engine/enginetest"
	"weir/internal/engine/mux"
	"weir/internal/infer"
)

// struck is a connection whose reads panic once armed, as a defect of whoever takes
// steps out of bytes would.
type struck struct {
	net.Conn
	armed *atomic.Bool
}

func (c *struck) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.armed.Swap(false) {
		panic("a read's")
	}
	return n, err
}

// A panic of the reader is the end of its session, and the next one serves.
func TestPanicOfTheReader(t *testing.T) {
	p := newPeer(t, "tcp")
	o := p.options()
	dial := o.Dial
	var dials atomic.Int32
	var armed atomic.Bool
	o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := dial(ctx, addr)
		if err == nil && dials.Add(1) == 2 { // that of the steps; the first is gRPC's own to read
			c = &struck{c, &armed}
		}
		return c, err
	}
	b, e := start(t, p, o)
	c := b.Accept(4)
	armed.Store(true)
	p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{5}})
	f := b.WantFinish(c, infer.ReasonError)
	if f.Err.Code != infer.CodeInternal || !f.Err.Retryable {
		t.Errorf("%v", f.Err)
	}
	b.Must(p.panics.Await(b.Ctx, 1))
	for e.Figures().Sessions < 2 {
		b.WaitReady(true)
	}
	b.WaitReady(true)
	b.Barrier()
	if n := e.Figures().Lost[mux.LossPanic]; n != 1 || len(p.panics.All()) != 1 {
		t.Errorf("%d sessions lost, %d panics", n, len(p.panics.All()))
	}
}
