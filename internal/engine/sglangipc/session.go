package sglangipc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/coreclient"
	"weir/internal/engine/mux"
	"weir/internal/wire/sock"
	"weir/internal/wire/zmtp"
)

// session is one engine, from its input connection and its launcher's manifest to the
// loss of any of its connections.
type session struct {
	*coreclient.Session
	dispatcher

	e        *Engine
	opts     *Options
	manifest *manifest
	codec    *codec
	adds     engine.Additions // to requests
	extra    string           // to its version

	says atomic.Pointer[about]       // a rank, the latest word of any
	load atomic.Pointer[engine.Load] // as it was read last
}

func (e *Engine) newSession(ctx context.Context, h *manifest, c *codec, in *zmtp.Conn) *session {
	s := &session{e: e, opts: &e.opts, manifest: h, codec: c, adds: h.additions(&e.opts), dispatcher: dispatcher{batch: batch{codec: c}}}
	s.Session = coreclient.NewSession(ctx, coreclient.Config{
		Options: &e.opts.Options, Kind: "sglang-ipc", Host: e.host, Meters: &e.meters, In: in, Code: c, Ranks: h.Ranks,
	}, s)
	return s
}

// ranks is how many ranks there are of which a request can name one; 0: it cannot.
func (s *session) ranks() int {
	if s.manifest.Ranks > 1 && s.codec.ranks {
		return s.manifest.Ranks
	}
	return 0
}

// about is what a rank says of itself.
func (s *session) about() about {
	if a := s.says.Load(); a != nil {
		return *a
	}
	return about{}
}

func (s *session) software() string { return "SGLang " + s.manifest.Version + s.extra }

// input serves a connection to the scheduler's input.
func (e *Engine) input(ctx context.Context, conn net.Conn, nth uint64) {
	c, err := zmtp.Handshake(conn, zmtp.Config{Type: zmtp.Push, WriteTimeout: e.opts.WriteTimeout})
	if err != nil {
		e.host.NoteUnless(ctx, fmt.Errorf("the scheduler's input: %w", err))
		return
	}
	defer c.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	leave, ok := e.place.Take(nth, func() {
		cancel(&mux.End{Why: mux.LossRestarted})
		c.Close()
	})
	if !ok {
		return
	}
	defer leave()
	ctx, in := coreclient.WatchInput(ctx, c, e.opts.Panicked)
	defer in.Close()
	e.host.Note(errors.New("a scheduler has connected and loads its model: the launcher's manifest has not arrived yet"))
	s := e.meet(ctx, c)
	if s == nil {
		e.host.Note(fmt.Errorf("the scheduler left before it could serve: %w", context.Cause(ctx)))
		return
	}
	s.serve(c)
}

// meet waits for the launcher's manifest and makes the session. A manifest that cannot
// be used is waited behind: the launcher may be started again with another.
func (e *Engine) meet(ctx context.Context, in *zmtp.Conn) *session {
	look := time.NewTicker(e.opts.WordInterval)
	defer look.Stop()
	last := ""
	for ctx.Err() == nil {
		b, err := readManifest(e.opts.Dir)
		if err == nil && string(b) != last {
			last = string(b)
			h, c, bad := parseManifest(b)
			warning := ""
			if bad == nil {
				warning, bad = h.judge(e.opts.Untried)
			}
			if bad == nil {
				s := e.newSession(ctx, h, c, in)
				if warning != "" {
					s.extra = " (not tried)"
					e.opts.Warn("engine " + e.opts.Name + ": " + warning)
				}
				return s
			}
			e.host.Note(bad)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			e.host.Note(err)
		}
		select {
		case <-ctx.Done():
		case <-look.C:
		}
	}
	return nil
}

// serve serves the session to its end. It aborts the requests of an earlier weir first.
func (s *session) serve(in *zmtp.Conn) {
	s.e.current.Store(s)
	s.e.host.Note(errors.New("the scheduler has loaded its model, and has not answered yet"))
	s.Out.Post(s.codec.appendAbort(nil, ""))
	s.Out.Post(s.codec.state)
	s.Run(func() { in.Close(); s.e.dismiss() }, func(now int64) { s.overdue(now-int64(s.opts.AbortTimeout), now) })
	s.e.current.Store(nil)
}

// output serves a connection of a scheduler's outputs, or of its answers to calls.
func (e *Engine) output(ctx context.Context, conn net.Conn, nth uint64) {
	c, err := zmtp.Handshake(sock.Reads(conn), zmtp.Config{Type: zmtp.Pull, MaxMessage: e.opts.MaxMessage, WriteTimeout: e.opts.WriteTimeout})
	if err != nil {
		e.host.NoteUnless(ctx, fmt.Errorf("the scheduler's outputs: %w", err))
		return
	}
	defer c.Close()
	if e.admit(c, nth) {
		defer e.forget(c)
		coreclient.ReadOutputs(c, func([][]byte) *coreclient.Session { return e.owner(c) })
	}
}

// admit assigns an output connection to a session. The connection does not identify its
// engine. One that was accepted before a session ended may belong to the engine that is
// gone, even if its handshake completes much later, and its end must not end the next
// session. A live engine connects again.
func (e *Engine) admit(c *zmtp.Conn, nth uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if nth <= e.dismissed {
		return false
	}
	e.outputs[c] = true
	return true
}

// owner returns the session that an output connection belongs to, nil while there is
// none.
func (e *Engine) owner(c *zmtp.Conn) *coreclient.Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.current.Load(); s != nil && e.outputs[c] {
		return s.Session
	}
	return nil
}

func (e *Engine) forget(c *zmtp.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.outputs, c)
}

// dismiss closes every output connection at the end of a session, and has those
// closed whose handshake is not through.
func (e *Engine) dismiss() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dismissed = e.host.Arrived()
	for c := range e.outputs {
		c.Close()
	}
	clear(e.outputs)
}

// Message implements coreclient.Wire.
func (s *session) Message(frames [][]byte, received int64) error {
	if len(frames) != 1 {
		return s.Fault(mux.FaultMalformed, fmt.Sprintf("a message of %d frames", len(frames)))
	}
	if fault := s.message(frames[0], received); fault != nil {
		return fault
	}
	switch d := &s.batch; d.kind {
	case state:
		if s.about() != d.says {
			says := d.says
			s.says.Store(&says)
			s.e.host.Signal()
		}
	case answer:
		if f, _, ok := s.Answered(d.call, received); ok {
			s.aborted(f.Aborts, received)
		}
	}
	return nil
}
