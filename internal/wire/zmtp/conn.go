package zmtp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// Config states what a connection is.
type Config struct {
	// Type is our own socket's.
	Type Type
	// Identity is what a DEALER is known by to a ROUTER; at most 255 bytes.
	Identity []byte
	// MaxMessage bounds a message's size in bytes; default 64 MiB. A larger one
	// is an error of Recv.
	MaxMessage int
	// HandshakeTimeout bounds the way from the connection to its first message;
	// default 10 s.
	HandshakeTimeout time.Duration
	// WriteTimeout bounds a Send or Write to a peer that does not read; default 30 s.
	// After a timeout the connection is unusable.
	WriteTimeout time.Duration
}

// Conn is a connection to one peer. One goroutine at a time may receive; any may
// send and close.
type Conn struct {
	conn net.Conn
	peer ready
	in   reader

	mu    sync.Mutex // of writes
	out   []byte     // reused
	write time.Duration
}

// Handshake does the handshake with the peer at the other end of conn, on either
// side. After an error conn is closed.
func Handshake(conn net.Conn, cfg Config) (*Conn, error) {
	c := &Conn{
		conn:  conn,
		in:    reader{src: conn, limit: cmp.Or(cfg.MaxMessage, 64<<20)},
		write: cmp.Or(cfg.WriteTimeout, 30*time.Second),
	}
	if err := c.handshake(cfg); err != nil {
		conn.Close()
		return nil, err
	}
	c.in.obey = c.obey
	return c, nil
}

func (c *Conn) handshake(cfg Config) error {
	deadline := time.Now().Add(cmp.Or(cfg.HandshakeTimeout, 10*time.Second))
	if err := c.conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("zmtp: %w", err)
	}
	// libzmq sends all of its greeting only after it has read the beginning of
	// ours, and its READY after all of it; so ours is sent before theirs is read.
	if _, err := c.conn.Write(greeting()); err != nil {
		return fmt.Errorf("zmtp: send the greeting: %w", err)
	}
	if err := c.in.hold(greetingSize); err != nil {
		return fmt.Errorf("zmtp: read the greeting: %w", err)
	}
	if err := checkGreeting(c.in.buf[c.in.start:][:greetingSize]); err != nil {
		return err
	}
	c.in.start += greetingSize
	ours := ready{kind: cfg.Type, identity: cfg.Identity}
	if _, err := c.conn.Write(appendFrame(nil, flagCommand, command("READY", ours.body()))); err != nil {
		return fmt.Errorf("zmtp: send READY: %w", err)
	}
	frames, isCommand, err := c.in.next()
	if err != nil {
		return fmt.Errorf("zmtp: read READY: %w", err)
	}
	if !isCommand {
		return errors.New("zmtp: the peer sent a message before its READY")
	}
	name, body, err := parseCommand(frames[0])
	switch {
	case err != nil:
		return err
	case name == "ERROR":
		return fmt.Errorf("zmtp: the peer refused the connection: %q", refusal(body))
	case name != "READY":
		return fmt.Errorf("zmtp: the peer sent %q where READY was expected", name)
	}
	if c.peer, err = parseReady(body); err != nil {
		return err
	}
	if !slices.Contains(peers[cfg.Type], c.peer.kind) {
		return fmt.Errorf("zmtp: the peer is a %s socket, which does not go with %s", c.peer.kind, cfg.Type)
	}
	return c.conn.SetDeadline(time.Time{})
}

// Identity is the peer's, as it stated it; empty when it has none.
func (c *Conn) Identity() []byte { return c.peer.identity }

// NetConn is the connection underneath, for its addresses.
func (c *Conn) NetConn() net.Conn { return c.conn }

// Recv returns the frames of the next message. They are valid until the next Recv.
// The error is io.EOF if the peer closed the connection between two messages.
func (c *Conn) Recv() ([][]byte, error) {
	for {
		frames, isCommand, err := c.in.next()
		if err != nil {
			return nil, err
		}
		if !isCommand {
			return frames, nil
		}
		if s := asMessage(frames[0]); s != nil {
			return [][]byte{s}, nil
		}
		if err := c.obey(frames[0]); err != nil {
			return nil, err
		}
	}
}

// asMessage returns a SUB's command in the form of ZMTP 3.0, as Subscribe sends it; nil
// for any other one.
func asMessage(command []byte) []byte {
	name, topic, err := parseCommand(command)
	switch {
	case err == nil && name == "SUBSCRIBE":
		return append([]byte{1}, topic...)
	case err == nil && name == "CANCEL":
		return append([]byte{0}, topic...)
	}
	return nil
}

// obey answers a command that comes between messages, or between their frames.
func (c *Conn) obey(b []byte) error {
	name, body, err := parseCommand(b)
	if err != nil {
		return err
	}
	switch name {
	case "PING":
		if len(body) < 2 {
			return errors.New("zmtp: a PING that is cut short")
		}
		return c.Write(appendFrame(nil, flagCommand, command("PONG", body[2:])))
	case "ERROR":
		return fmt.Errorf("zmtp: the peer ended the connection: %q", refusal(body))
	}
	return nil // PONG, and what later versions may bring
}

// Send sends one message.
func (c *Conn) Send(frames ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = AppendMessage(c.out[:0], frames...)
	err := c.flush(c.out)
	if cap(c.out) > keepSize {
		c.out = nil
	}
	return err
}

// Subscribe asks a PUB for the messages whose first frame begins with topic. It is a
// message in the form of ZMTP 3.0, which later releases take too.
func (c *Conn) Subscribe(topic string) error { return c.Send(append([]byte{1}, topic...)) }

// Subscription reads a SUB's message from the frames of Recv. on reports whether the subscription
// begins or ends.
func Subscription(frames [][]byte) (topic string, on, ok bool) {
	if len(frames) != 1 || len(frames[0]) == 0 || frames[0][0] > 1 {
		return "", false, false
	}
	return string(frames[0][1:]), frames[0][0] == 1, true
}

// Write sends messages that AppendMessage has put into wire form.
func (c *Conn) Write(wire []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flush(wire)
}

func (c *Conn) flush(wire []byte) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.write)); err != nil {
		return err
	}
	_, err := c.conn.Write(wire)
	return err
}

// Close ends the connection; a Recv or Send under way fails.
func (c *Conn) Close() error { return c.conn.Close() }

// Dial connects to an endpoint and greets who is there.
func Dial(ctx context.Context, e Endpoint, cfg Config) (*Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, e.Network, e.Address)
	if err != nil {
		return nil, fmt.Errorf("zmtp: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	return Handshake(conn, cfg)
}

var _ io.Closer = (*Conn)(nil)
