package sglangipc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine/fenced"
	"weir/internal/sock"
	"weir/internal/trace"
	"weir/internal/zmtp"
)

// session is one engine, from its input connection and its launcher's word to the
// loss of any of its connections. It is never revived: a new one takes its place.
type session struct {
	e     *Engine
	opts  *Options
	word  *handover
	codec *codec
	in    *zmtp.Conn
	extra string // to its version

	ctx    context.Context // ends with the session; its cause says why
	cancel context.CancelCauseFunc

	table      *fenced.Table
	out        *fenced.Outbox
	heard      atomic.Uint64 // messages of the engine
	maxRunning atomic.Int64  // of a rank; 0: not said

	mu   sync.Mutex // of whoever dispatches
	over bool
	up   bool // a question was answered
	disp dispatcher
}

func (e *Engine) newSession(ctx context.Context, h *handover, c *codec, in *zmtp.Conn) *session {
	s := &session{e: e, opts: &e.opts, word: h, codec: c, in: in, table: fenced.NewTable(), out: fenced.NewOutbox(e.opts.MaxQueued, c, h.Ranks)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.disp = dispatcher{batch: batch{codec: c},
		Dispatcher: fenced.Dispatcher{Engine: e.opts.Name, Table: s.table, Out: s.out, Meters: &e.meters}}
	return s
}

func (s *session) software() string { return "SGLang " + s.word.Version + s.extra }

// end ends the session; the first to say why is believed.
func (s *session) end(why fenced.Loss, cause error) { s.cancel(&fenced.End{Why: why, Cause: cause}) }

// input serves a connection to the scheduler's input. Of two the new one wins: the
// old one may be that of a process that died and was not seen to.
func (e *Engine) input(ctx context.Context, conn net.Conn) {
	c, err := zmtp.Handshake(conn, zmtp.Config{Type: zmtp.Push, WriteTimeout: e.opts.WriteTimeout})
	if err != nil {
		e.host.NoteUnless(ctx, fmt.Errorf("the scheduler's input: %w", err))
		return
	}
	defer c.Close()
	e.mu.Lock()
	if e.holder != nil {
		e.holder.Close()
	}
	e.holder = c
	e.mu.Unlock()
	e.place.Lock()
	defer e.place.Unlock()

	ctx, cancel := context.WithCancelCause(ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer c.Close() // before the wait for the reader
	reader.Go(func() { cancel(waitEnd(c)) })

	e.host.Note(errors.New("a scheduler has connected and loads its model: there is no word of its launcher yet"))
	s := e.meet(ctx, c)
	if s == nil {
		e.host.Note(fmt.Errorf("the scheduler left before it could serve: %w", context.Cause(ctx)))
		return
	}
	s.run()
}

// waitEnd waits for the end of a connection on which nothing else comes.
func waitEnd(c *zmtp.Conn) error {
	for {
		if _, err := c.Recv(); errors.Is(err, io.EOF) {
			return &fenced.End{Why: fenced.LossConnection, Cause: errors.New("the engine closed its input connection")}
		} else if err != nil {
			return &fenced.End{Why: fenced.LossConnection, Cause: fmt.Errorf("its input connection: %w", err)}
		}
	}
}

// meet waits for the word of the launcher and makes the session. A word that cannot
// be used is waited behind: the launcher may be started again with another.
func (e *Engine) meet(ctx context.Context, in *zmtp.Conn) *session {
	look := time.NewTicker(e.opts.WordInterval)
	defer look.Stop()
	last := ""
	for ctx.Err() == nil {
		b, err := readWord(e.opts.Dir)
		if err == nil && string(b) != last {
			last = string(b)
			h, c, bad := parseWord(b)
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

// run serves the session to its end and gives every generation its terminal delta.
// What an earlier weir left running is aborted first.
func (s *session) run() {
	s.e.adopt(s)
	s.e.host.Note(errors.New("the scheduler has loaded its model, and has not answered yet"))
	s.out.Post(s.codec.appendAbort(nil, ""))
	s.out.Post(s.codec.state)
	s.out.Ask()
	patience := fenced.Patience{ProbeInterval: s.opts.ProbeInterval, ProbeTimeout: s.opts.ProbeTimeout, WriteTimeout: s.opts.WriteTimeout}
	if why, err := s.out.Write(s.ctx, s.in, patience, &s.heard, &s.e.meters, s.overdue); err != nil {
		s.end(why, err)
	}
	end := &fenced.End{Why: fenced.LossClosed}
	if !errors.As(context.Cause(s.ctx), &end) {
		end.Cause = context.Cause(s.ctx)
	}
	// No new request comes in, the router looks elsewhere, and only then do those
	// that end here look for another engine.
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.e.current.CompareAndSwap(s, nil)
	s.e.host.Note(end)
	s.in.Close()
	s.e.dismiss(s)
	s.close(end)
	s.e.meters.Lost[end.Why].Add(1)
}

// adopt gives the session what comes from here on. Output connections that stand
// may be its own; those of a dead engine end by themselves.
func (e *Engine) adopt(s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.session = s
}

// dismiss closes the output connections: what lives connects again, to a new
// session.
func (e *Engine) dismiss(s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.session == s {
		e.session = nil
	}
	for c := range e.outputs {
		c.Close()
	}
	clear(e.outputs)
}

// output serves a connection of a scheduler's outputs, or of its answers to calls.
func (e *Engine) output(ctx context.Context, conn net.Conn) {
	c, err := zmtp.Handshake(sock.Reads(conn), zmtp.Config{Type: zmtp.Pull, MaxMessage: e.opts.MaxMessage, WriteTimeout: e.opts.WriteTimeout})
	if err != nil {
		e.host.NoteUnless(ctx, fmt.Errorf("the scheduler's outputs: %w", err))
		return
	}
	defer c.Close()
	e.mu.Lock()
	e.outputs[c] = true
	e.mu.Unlock()
	var s *session // that something of this connection belonged to
	for {
		frames, err := c.Recv()
		if err != nil {
			e.mu.Lock()
			delete(e.outputs, c)
			e.mu.Unlock()
			if s != nil {
				s.outputEnded(err)
			}
			return
		}
		received := trace.Now()
		if s == nil {
			e.mu.Lock()
			if e.outputs[c] {
				s = e.session
			}
			e.mu.Unlock()
			if s == nil {
				continue // of a time before the session
			}
		}
		if !s.receive(frames, received) {
			return
		}
	}
}

// outputEnded ends the session because an output connection gave no more.
func (s *session) outputEnded(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("the engine closed it")
	}
	s.end(fenced.LossConnection, fmt.Errorf("an output connection: %w", err))
}

// receive takes in one message of the engine, read at a moment of trace's clock.
// It reports false when the session is over.
func (s *session) receive(frames [][]byte, received int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.heard.Add(1)
	s.begin()
	var fault *fenced.Fault
	if len(frames) != 1 {
		fault = s.disp.Fault(fenced.FaultMalformed, fmt.Sprintf("a message of %d frames", len(frames)))
	} else if fault = s.disp.message(frames[0], received); fault == nil {
		s.take(received)
	}
	s.finish()
	s.e.meters.Dispatch.Add(trace.Now() - received)
	if fault != nil {
		s.end(fenced.LossIntegrity, fault)
		return false
	}
	return true
}

// take takes in what a message says of the session.
func (s *session) take(received int64) {
	switch d := &s.disp.batch; d.kind {
	case state:
		if d.maxRunning > 0 && s.maxRunning.Swap(int64(d.maxRunning)) != int64(d.maxRunning) {
			s.e.host.Signal()
		}
	case answer:
		f, sent, ok := s.out.Answered(d.call)
		if !ok {
			return
		}
		s.e.meters.Fences.Add(1)
		s.e.meters.FenceLast.Store(received - sent)
		s.disp.answered(f, received)
		if !s.up {
			s.up = true
			s.e.meters.Sessions.Add(1)
			s.e.current.Store(s)
			s.e.host.Signal()
		}
	}
}

// overdue ends what the engine should have ended long ago.
func (s *session) overdue(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.begin()
	s.disp.overdue(now-int64(s.opts.AbortTimeout), now)
	s.finish()
}

// close gives every generation of a session that is over its terminal delta.
func (s *session) close(end *fenced.End) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Close()
	s.begin()
	defer s.finish()
	s.disp.Close(end.Terminal(s.opts.Name), trace.Now())
}

func (s *session) begin() {
	if s.opts.Batch != nil {
		s.opts.Batch.Begin()
	}
}

func (s *session) finish() {
	if s.opts.Batch != nil {
		s.opts.Batch.End()
	}
}
