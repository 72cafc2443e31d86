package gateway

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
// does not report. Use it together with the gateway's Server.
func (g *Gateway) Listener(l net.Listener) net.Listener { return listener{l, g, false} }

// PlainListener is Listener without TLS. The gateway serves most requests there itself, and
// the server only gets the connections of the others: from Returned.
func (g *Gateway) PlainListener(l net.Listener) net.Listener { return listener{l, g, true} }

type listener struct {
	net.Listener
	g     *Gateway
	plain bool
}

// Accept implements net.Listener. It closes connections that are refused by itself.
// net/http waits and tries again after an error that will pass.
func (l listener) Accept() (net.Conn, error) {
	g := l.g
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				if g.starved("accept", err) {
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
		if err := wrapped.enter(g); err != nil {
			g.crowded.Error("a connection was refused", err)
			if tcp, ok := wrapped.socket.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // what refuses thousands must not remember them
			}
			wrapped.socket.Close()
			continue
		}
		if l.plain && g.returned.direct.accept(wrapped) {
			continue
		}
		return wrapped, nil
	}
}

// starved records that a socket could not be created. If it helps, it closes an inactive
// connection, if there is one: for a new connection only one that has been inactive for a
// while, and for a request in flight any.
func (g *Gateway) starved(what string, err error) (helped bool) {
	g.opts.Metrics.Starved(what)
	g.starving.Error("a socket cannot be had ("+what+"); raise the limit of descriptors (ulimit -n), or lower --max-connections", err)
	if !sock.Starved(err) {
		return false
	}
	if what == "accept" {
		return g.conns.GiveWay(time.Now())
	}
	return g.conns.Yield(time.Now())
}

// enter puts the connection into the book, as its client's where that is known already.
func (c *conn) enter(g *Gateway) (err error) {
	if c.entry, err = g.conns.Open(time.Now(), func() { c.socket.Close() }); err != nil {
		return err
	}
	if peer := addrOf(c.socket.RemoteAddr()); peer.IsValid() && !g.opts.Front.Proxies.Trusts(peer) {
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
func (g *Gateway) connState(nc net.Conn, state http.ConnState) {
	c := connFrom(nc)
	if c == nil {
		return
	}
	switch state {
	case http.StateActive:
		c.entry.Busy()
		if c.Conn != c.socket { // a proxy has said by now whose it is
			if client := addrOf(c.RemoteAddr()); client.IsValid() && !g.opts.Front.Proxies.Trusts(client) {
				if err := c.entry.Of(client); err != nil {
					g.crowded.Error("a connection was refused", err)
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
type serverLog struct{ g *Gateway }

// Write implements io.Writer, for one line.
func (l serverLog) Write(line []byte) (int, error) {
	g, text := l.g, strings.TrimSpace(string(line))
	switch {
	case strings.Contains(text, "panic"):
		g.opts.Log.Error("panic in net/http", "log", text)
	case strings.Contains(text, "TLS handshake error"):
		g.opts.Metrics.HandshakeError()
		if strings.HasSuffix(text, "EOF") || strings.Contains(text, "reset by peer") || strings.Contains(text, "i/o timeout") {
			g.opts.Log.Debug(text)
		} else {
			g.handshakes.Error("a client's TLS handshake failed", errors.New(text))
		}
	default:
		g.opts.Log.Debug(text)
	}
	return len(line), nil
}

// serverErrors returns the logger of an http.Server.
func (g *Gateway) serverErrors() *log.Logger { return log.New(serverLog{g}, "", 0) }
