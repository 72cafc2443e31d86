//go:build linux

package scenario

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/control"
	"weir/internal/lab/ports"
)

// bedding describes the parts of a bed.
type bedding struct {
	name       string // of its files; that of the gateway unless given
	gateway    string // lab.Plane, or a control with one loop
	engines    int
	engine     []string // flags of each of them
	options    string   // of each --engine, such as ",max-running=8"
	serve      []string // of weir serve, besides
	ackTimeout time.Duration
	encodes    int // of the control: how often it tokenizes each prompt
}

// bed is a gateway under test, and its engines on the plane.
type bed struct {
	engines    []*lab.Process
	gateway    *lab.Process
	admins     []string // of the engines
	url, admin string
	metrics    string
	timeline   string
}

func (b *bed) stop() {
	if b.gateway != nil {
		b.gateway.Stop()
	}
	for _, e := range b.engines {
		e.Stop()
	}
}

// startBed starts a gateway and its engines. On failure the result contains what was
// started.
func (r *runner) startBed(ctx context.Context, of bedding) (*bed, error) {
	b := &bed{timeline: filepath.Join(r.dir, cmp.Or(of.name, of.gateway)+".jsonl")}
	binary := r.options.Binary
	planes, err := r.startEngines(ctx, b, "weir", of.engines, of.engine)
	if err != nil {
		return b, err
	}
	var api, admin string
	for _, addr := range []*string{&api, &admin} {
		if *addr, err = ports.Free(); err != nil {
			return b, err
		}
	}
	b.url = "http://" + api
	ready := "http://" + admin + "/readyz"
	b.admin = "http://" + admin
	b.metrics = b.admin + "/metrics"
	args := []string{binary, "serve", "--listen", api, "--admin-listen", admin, "--timeline", b.timeline, "--log-level", "error"}
	if of.ackTimeout > 0 {
		args = append(args, "--submit-timeout", of.ackTimeout.String())
	}
	args = append(args, of.serve...)
	for _, addr := range planes {
		args = append(args, "--engine", "weir="+addr+of.options)
	}
	if of.gateway != lab.Plane {
		spec, err := json.Marshal(&control.Loop{Engines: planes, Gateway: api, Timeline: b.timeline, AckTimeout: of.ackTimeout, Encodes: of.encodes})
		if err != nil {
			return b, err
		}
		args = []string{binary, r.options.RoleCommand, lab.LoopRole, string(spec)}
		b.metrics, ready = b.url, b.url
	}
	if b.gateway, err = lab.Start(args, r.environment); err != nil {
		return b, err
	}
	if err := b.gateway.AwaitHTTP(ctx, ready); err != nil {
		return b, err
	}
	return b, b.allReady(ctx)
}

// startEngines starts engines of a bed, and returns where they serve.
func (r *runner) startEngines(ctx context.Context, b *bed, wire string, n int, flags []string) (at []string, err error) {
	for range n {
		addr, err := ports.Free()
		if err != nil {
			return nil, err
		}
		admin, err := ports.Free()
		if err != nil {
			return nil, err
		}
		e, err := lab.Start(append([]string{r.options.Binary, "engine", "--wire", wire + "=" + addr, "--admin-listen", admin}, flags...), r.environment)
		if err != nil {
			return nil, err
		}
		b.engines, b.admins, at = append(b.engines, e), append(b.admins, admin), append(at, addr)
	}
	for i, e := range b.engines {
		if err := e.AwaitTCP(ctx, at[i]); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// allReady waits until the gateway asks every engine.
func (b *bed) allReady(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		n, err := readyEngines(within, b.metrics)
		switch {
		case err == nil && n == len(b.engines):
			return nil
		case within.Err() != nil:
			return fmt.Errorf("%d of %d engines became ready: %w", n, len(b.engines), cmp.Or(ctx.Err(), err, within.Err()))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// leastReady looks for a while how many engines the gateway asks.
func (b *bed) leastReady(ctx context.Context, during time.Duration) (least int, err error) {
	over := time.After(during)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for least = len(b.engines); ; {
		n, err := readyEngines(ctx, b.metrics)
		if err != nil {
			return 0, err
		}
		least = min(least, n)
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-over:
			return least, nil
		case <-tick.C:
		}
	}
}
