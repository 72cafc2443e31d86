package coreclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"weir/internal/engine/mux"
	"weir/internal/engine/remote"
	"weir/internal/trace"
	"weir/internal/wire/zmtp"
)

// Write sends the content of the Outbox over a connection until ctx ends. It requests a
// sign of life from a silent engine. If none arrives, it gives the engine up and
// returns how the session was lost. heard counts the engine's signs of life. tick, if
// not nil, is called once per interval.
func (o *Outbox) Write(ctx context.Context, c *zmtp.Conn, p *Options, heard *atomic.Uint64, m *Meters, tick func(now int64)) (mux.Loss, error) {
	every := time.NewTicker(p.ProbeInterval)
	defer every.Stop()
	dog := remote.Watchdog{Interval: p.ProbeInterval, Bound: p.ProbeTimeout}
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return mux.LossClosed, nil
		case <-o.wake:
			if err := o.flush(c, m); err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					return mux.LossSilent, fmt.Errorf("it has not read what was written for %v", p.WriteTimeout)
				}
				return mux.LossConnection, err
			}
		case now := <-every.C:
			elapsed := now.Sub(last)
			last = now
			if dog.Tick(heard.Load(), elapsed) {
				return mux.LossSilent, fmt.Errorf("nothing was heard of it for %v", p.ProbeTimeout)
			}
			if dog.Silent > 0 {
				o.Ask()
			}
			if tick != nil {
				tick(trace.Now())
			}
		}
	}
}

// flush writes what there is.
func (o *Outbox) flush(c *zmtp.Conn, m *Meters) error {
	now := trace.Now()
	wire, adds, aborts := o.Take(now)
	if len(wire) == 0 {
		return nil
	}
	for _, g := range adds {
		g.written.Store(now)
	}
	err := c.Write(wire)
	o.Written(wire)
	m.Aborts.Add(uint64(aborts))
	return err
}
