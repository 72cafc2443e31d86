package vllmcore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/disk"
	"weir/internal/engine/coreclient"
	"weir/internal/engine/mux"
	"weir/internal/wire/sock"
	"weir/internal/wire/zmtp"
)

func (e *Engine) config(kind zmtp.Type) zmtp.Config {
	return zmtp.Config{Type: kind, MaxMessage: e.opts.MaxMessage, WriteTimeout: e.opts.WriteTimeout}
}

// identified returns the place of the engine at the other end of a DEALER, whose
// identity is its index.
func (e *Engine) identified(c *zmtp.Conn) (*rank, error) {
	id := c.Identity()
	if len(id) != 2 {
		return nil, fmt.Errorf("an engine connected with identity %q, want its index in 2 bytes", id)
	}
	index := int(binary.LittleEndian.Uint16(id))
	r := e.rank(index)
	if r == nil {
		return nil, fmt.Errorf("engine %d connected where engines %d to %d are expected: give the number of engines with dp=N",
			index, e.opts.First, e.opts.First+e.opts.Engines-1)
	}
	return r, nil
}

// handshake serves a connection to the handshake socket: the engine sends HELLO,
// receives the addresses to connect to, and sends READY at the end.
func (e *Engine) handshake(ctx context.Context, conn net.Conn, nth uint64) {
	c, err := zmtp.Handshake(conn, e.config(zmtp.Router))
	if err != nil {
		e.host.NoteUnless(ctx, fmt.Errorf("handshake: %w", err))
		return
	}
	defer c.Close()
	r, err := e.identified(c)
	if err != nil {
		e.host.Note(fmt.Errorf("handshake: %w", err))
		return
	}
	for {
		frames, err := c.Recv()
		if err != nil {
			return // it leaves when it is ready, and when it dies
		}
		h, err := decodeHello(frames[len(frames)-1])
		if err != nil {
			e.host.Note(fmt.Errorf("handshake of engine %d: %w", r.index, err))
			return
		}
		if h.status != "HELLO" {
			continue // READY; what counts is the word on the input connection
		}
		if r.place.Clear(nth) { // whatever was here before is gone
			r.forget()
		}
		e.mu.Lock()
		to := e.dataTo
		e.mu.Unlock()
		e.host.Note(fmt.Errorf("engine %d has connected and loads its model", r.index))
		if err := c.Send(appendInit(nil, to[0], to[1])); err != nil {
			return
		}
	}
}

// input serves a connection to the input socket: an engine's session.
func (e *Engine) input(ctx context.Context, conn net.Conn, nth uint64) {
	c, err := zmtp.Handshake(conn, e.config(zmtp.Router))
	if err != nil {
		e.host.NoteUnless(ctx, fmt.Errorf("input: %w", err))
		return
	}
	defer c.Close()
	r, err := e.identified(c)
	if err != nil {
		e.host.Note(fmt.Errorf("input: %w", err))
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	leave, ok := r.place.Take(nth, func() {
		cancel(&mux.End{Why: mux.LossRestarted})
		c.Close()
	})
	if !ok {
		return
	}
	defer leave()
	word, adopted, err := e.hear(r, c)
	if err != nil {
		return // the connection has ended before the engine was ready
	}
	rd, err := decodeReady(word)
	warning := ""
	if err == nil {
		warning, err = rd.judge(e.opts.Coordinated)
	}
	if err != nil {
		e.host.Note(fmt.Errorf("engine %d: %w", r.index, err))
		r.refuse()
		_ = coreclient.WaitEnd(c) // closed, it would connect again and again
		return
	}
	if warning != "" {
		e.opts.Warn(fmt.Sprintf("engine %s, rank %d: %s", e.opts.Name, r.index, warning))
	}
	r.know(word)
	e.keep()
	ctx, in := coreclient.WatchInput(ctx, c, e.opts.Panicked)
	defer in.Close()
	s := e.newSession(ctx, r.index, rd, c)
	s.peer = hostOf(conn)
	if lost := r.takeLost(); adopted && len(lost) > 0 {
		s.Out.AbortStrays(lost)
	}
	r.current.Store(s)
	lost := s.serve(c)
	r.current.Store(nil)
	r.leave(lost)
}

// hear waits for an engine's description of itself. A known engine that connects again
// sends none; its previous description then still applies.
func (e *Engine) hear(r *rank, c *zmtp.Conn) (word []byte, adopted bool, err error) {
	known, refused := r.saved()
	if refused {
		_ = coreclient.WaitEnd(c)
		return nil, false, errors.New("refused before")
	}
	if known != nil {
		if err := c.NetConn().SetReadDeadline(time.Now().Add(e.opts.AdoptAfter)); err != nil {
			return nil, false, err
		}
	}
	frames, err := c.Recv()
	if known != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return known, true, c.NetConn().SetReadDeadline(time.Time{})
	}
	if err != nil {
		return nil, false, err
	}
	word = append([]byte{}, frames[len(frames)-1]...)
	return word, false, c.NetConn().SetReadDeadline(time.Time{})
}

// output serves a connection to the output socket. Whose it is shows in its first
// message, and it is never another's.
func (e *Engine) output(ctx context.Context, conn net.Conn, nth uint64) {
	c, err := zmtp.Handshake(sock.Reads(conn), e.config(zmtp.Pull))
	if err != nil {
		e.host.NoteUnless(ctx, fmt.Errorf("output: %w", err))
		return
	}
	defer c.Close()
	coreclient.ReadOutputs(c, func(frames [][]byte) *coreclient.Session { return e.claim(frames[0], c) })
}

// claim finds the session that a connection belongs to: the one that has asked what
// the message answers.
func (e *Engine) claim(b []byte, c *zmtp.Conn) *coreclient.Session {
	r := e.rank(rankOf(b))
	if r == nil {
		if string(b) != coreDead {
			e.host.Note(errors.New("outputs of an engine that is not expected"))
		}
		return nil
	}
	s := r.current.Load()
	if s == nil || !s.asked(b) || !s.output.CompareAndSwap(nil, c) {
		return nil
	}
	if s.Err() != nil { // it ended before it could know of the connection
		c.Close()
	}
	return s.Session
}

func (r *rank) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.lost, r.refused = nil, nil, false
}

func (r *rank) refuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.refused = nil, true
}

func (r *rank) know(word []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = word
}

func (r *rank) saved() (known []byte, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known, r.refused
}

// maxLost bounds the requests that are remembered of an engine that was lost.
const maxLost = 1 << 16

func (r *rank) leave(lost []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = append(r.lost, lost[:min(len(lost), maxLost)]...)
	r.lost = r.lost[max(0, len(r.lost)-maxLost):]
}

func (r *rank) takeLost() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := r.lost
	r.lost = nil
	return lost
}

// keep writes what is known of the engines to the file that outlives weir. That
// it cannot be written is no reason not to serve.
func (e *Engine) keep() {
	if e.opts.Memory == "" {
		return
	}
	b := msgp.AppendArrayHeader(nil, uint32(len(e.ranks)))
	for _, r := range e.ranks {
		known, _ := r.saved()
		b = msgp.AppendBytes(b, known)
	}
	e.mu.Lock() // of two that write
	defer e.mu.Unlock()
	err := os.MkdirAll(filepath.Dir(e.opts.Memory), 0o700)
	if err == nil {
		err = disk.Replace(e.opts.Memory, b)
	}
	if err != nil {
		e.opts.Warn(fmt.Sprintf("engine %s: its engines will not be known after a restart of weir: %v", e.opts.Name, err))
	}
}

// remember reads what keep has written.
func (e *Engine) remember() {
	if e.opts.Memory == "" {
		return
	}
	b, err := disk.Read(e.opts.Memory, disk.MaxSettings)
	if err != nil {
		return
	}
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil || int(n) != len(e.ranks) {
		return
	}
	for _, r := range e.ranks {
		var word []byte
		if word, b, err = msgp.ReadBytesBytes(b, nil); err != nil {
			return
		}
		if _, err := decodeReady(word); err == nil {
			r.know(word)
		}
	}
}
