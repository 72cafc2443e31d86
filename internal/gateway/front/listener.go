package front

import (
	"errors"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"weir/internal/wire/sock"
)

// Listener returns a listener of client connections. Each is in the book of
// connections, and records when the first byte of a request was read, which net/http
// does not report. Use it together with Server.
func (f *Front) Listener(l net.Listener) net.Listener { return listener{l, f, false} }

// PlainListener is Listener without TLS. The front serves most requests there itself, and
// the server only gets the connections of the others: from Returned.
func (f *Front) PlainListener(l net.Listener) net.Listener { return listener{l, f, true} }

type listener struct {
	net.Listener
	f     *Front
	plain bool
}

// Accept implements net.Listener. It closes connections that are refused by itself.
// net/http waits and tries again after an error that will pass.
func (l listener) Accept() (net.Conn, error) {
	f := l.f
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				if f.Starved("accept", err) {
					time.Sleep(time.Millisecond) // a descriptor is free soon
					continue
				}
			}
			return nil, err
		}
		wrapped := &conn{Conn: c, socket: c}
		if over, ok := c.(interface{ Raw() net.Conn }); ok { // of the PROXY protocol
			wrapped.socket = over.Raw()
		}
		if err := wrapped.enter(f); err != nil {
			f.crowded.Error("a connection was refused", err)
			if tcp, ok := wrapped.socket.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // what refuses thousands must not remember them
			}
			wrapped.socket.Close()
			continue
		}
		_ = sock.LimitUnsent(wrapped.socket) // a kernel that cannot takes what it wants
		if l.plain && f.returned.direct.accept(wrapped) {
			continue
		}
		return wrapped, nil
	}
}

// Starved records that a socket could not be created. If it helps, it closes an inactive
// connection, if there is one: for a new connection only one that has been inactive for a
// while, and for a request in flight any.
func (f *Front) Starved(what string, err error) (helped bool) {
	f.metrics.Starved(what)
	f.starving.Error("a socket cannot be had ("+what+"); raise the limit of descriptors (ulimit -n), or lower --max-connections", err)
	if !sock.Starved(err) {
		return false
	}
	if what == "accept" {
		return f.conns.GiveWay(time.Now())
	}
	return f.conns.Yield(time.Now())
}

// enter puts the connection into the book, as its client's where that is known already.
func (c *conn) enter(f *Front) (err error) {
	if c.entry, err = f.conns.Open(time.Now(), func() { c.socket.Close() }); err != nil {
		return err
	}
	if peer := addrOf(c.socket.RemoteAddr()); peer.IsValid() && !f.opts.Proxies.Trusts(peer) {
		if err = c.entry.Of(peer); err != nil {
			c.entry.Close()
		}
	}
	return err
}

// addrOf is the address of a peer, if it has one.
func addrOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// connState records the connection states that net/http reports.
func (f *Front) connState(nc net.Conn, state http.ConnState) {
	c := connFrom(nc)
	if c == nil {
		return
	}
	switch state {
	case http.StateActive:
		c.entry.Busy()
		if c.Conn != c.socket { // a proxy has said by now whose it is
			if client := addrOf(c.RemoteAddr()); client.IsValid() && !f.opts.Proxies.Trusts(client) {
				if err := c.entry.Of(client); err != nil {
					f.crowded.Error("a connection was refused", err)
					c.socket.Close()
				}
			}
		}
	case http.StateIdle:
		c.entry.Idle(time.Now())
	}
}

// serverLog receives the log of net/http. A panic in it is a defect. Failed handshakes
// are counted, and logged if they are more than a dropped connection. All other lines are
// already known here, or concern a single client.
type serverLog struct{ f *Front }

// Write implements io.Writer, for one line.
func (l serverLog) Write(line []byte) (int, error) {
	f, text := l.f, strings.TrimSpace(string(line))
	switch {
	case strings.Contains(text, "panic"):
		f.log.Error("panic in net/http", "log", text)
	case strings.Contains(text, "TLS handshake error"):
		f.metrics.HandshakeError()
		if strings.HasSuffix(text, "EOF") || strings.Contains(text, "reset by peer") || strings.Contains(text, "i/o timeout") {
			f.log.Debug(text)
		} else {
			f.failing.Error("a client's TLS handshake failed", errors.New(text))
		}
	default:
		f.log.Debug(text)
	}
	return len(line), nil
}

// serverErrors returns the logger of an http.Server.
func (f *Front) serverErrors() *log.Logger { return log.New(serverLog{f}, "", 0) }
