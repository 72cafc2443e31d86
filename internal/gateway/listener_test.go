package gateway

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/fleet/admission"
	"weir/internal/gateway/front"
	"weir/internal/infer"
)

// At the limit of connections the longest idle one gives way to a new one, also one
// whose stream has left net/http; busy ones do not, and then the new one is refused.
func TestIdleConnectionsGiveWay(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Front: front.Options{Conns: admission.ConnLimits{Total: 3}}}, []any{e}, func(t *testing.T, b *bench) {
		// streamed answers n requests on a connection, which is kept.
		streamed := func(c *caller) {
			c.send("POST", chatPath, askStream(``))
			e.call(t, len(e.handed())).end(infer.ReasonStop, words()[0])
			c.wantWhole(text(words()[0]), "stop")
			time.Sleep(time.Second)
		}
		oldest, idle, busy := b.dial(0), b.dial(0), b.dial(0)
		streamed(oldest)
		streamed(idle)
		busy.send("POST", chatPath, askStream(``))
		under := e.call(t, 3)
		next := b.dial(0)
		streamed(next)
		if a := oldest.answer(); !a.closed {
			t.Error("the longest idle connection has not given way")
		}
		if a := idle.answer(); a.closed {
			t.Error("a connection has given way that has been idle for less long")
		}
		idle.send("POST", chatPath, askStream(``))
		next.send("POST", chatPath, askStream(``))
		refused := b.dial(0)
		synctest.Wait()
		if a := refused.answer(); !a.closed {
			t.Error("a connection too many is not refused")
		}
		if n := b.sum("weir_connections_refused_total"); n != 1 {
			t.Errorf("%v refused", n)
		}
		if n := b.sum("weir_connections_gave_way_total"); n != 1 {
			t.Errorf("%v gave way", n)
		}
		under.end(infer.ReasonStop, words()[0])
		busy.wantWhole(text(words()[0]), "stop")
		if n := b.sum("weir_connections"); n != 3 {
			t.Errorf("%v connections are open", n)
		}
	})
}

// A connection without a request gives way once it has had its time, and before that is
// let be.
func TestFreshConnectionsGiveWay(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Front: front.Options{Conns: admission.ConnLimits{Total: 1}}}, []any{e}, func(t *testing.T, b *bench) {
		slow := b.dial(0)
		slow.write("POST " + chatPath) // never more
		synctest.Wait()
		early := b.dial(0)
		if a := early.answer(); !a.closed {
			t.Error("a connection of this second has given way")
		}
		time.Sleep(time.Second)
		c := b.post(chatPath, askStream(``))
		e.call(t, 1).end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
		if a := slow.answer(); !a.closed {
			t.Error("a connection without a request keeps a new one out")
		}
	})
}

// failing is a listener whose next accepts fail.
type failing struct {
	net.Listener
	errs []error
}

func (l *failing) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, err
	}
	return l.Listener.Accept()
}

// Want of descriptors is counted each time, logged once, and ends nothing.
func TestStarvedAccept(t *testing.T) {
	var log bytes.Buffer
	inBubble(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, nil, func(t *testing.T, b *bench) {
		log.Reset()
		l := &failing{Listener: b.net}
		for range 5 {
			l.errs = append(l.errs, &net.OpError{Op: "accept", Err: syscall.EMFILE})
		}
		l.errs = append(l.errs, errors.New("broken"))
		before := b.sum("weir_starved_total")
		of := b.g.front.Listener(l)
		for range 6 {
			if _, err := of.Accept(); err == nil {
				t.Fatal("accepted")
			}
		}
		if n := b.sum("weir_starved_total") - before; n != 6 {
			t.Errorf("counted %v times", n)
		}
		if n := strings.Count(log.String(), "cannot be had"); n != 1 {
			t.Errorf("logged %d times: %s", n, log.String())
		}
		time.Sleep(time.Minute)
		b.g.front.Starved("accept", syscall.ENFILE)
		if s := log.String(); strings.Count(s, "cannot be had") != 2 || !strings.Contains(s, "times=6") {
			t.Errorf("after a minute: %s", s)
		}
	})
}

// Lines that net/http logs reach the operator where they matter: panics always, and once a minute
// handshakes that fail by more than a dropped connection.
func TestServerLog(t *testing.T) {
	var log bytes.Buffer
	inBubble(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, nil, func(t *testing.T, b *bench) {
		log.Reset()
		l := b.g.Server().ErrorLog
		for range 3 {
			l.Print("http: TLS handshake error from 192.0.2.1:1: tls: client offered only unsupported versions")
			l.Print("http: TLS handshake error from 192.0.2.1:1: EOF")
			l.Print("http: URL query contains semicolon")
		}
		if n := b.sum("weir_tls_handshake_errors_total"); n != 6 {
			t.Errorf("%v handshakes counted", n)
		}
		l.Print("http: panic serving 192.0.2.1:1: boom")
		s := log.String()
		if strings.Count(s, "\n") != 2 || strings.Count(s, "unsupported versions") != 1 || !strings.Contains(s, "level=ERROR msg=\"panic") {
			t.Errorf("logged %s", s)
		}
	})
}

// A gateway that leaves serves what comes, and closes each connection behind its answer, so that
// clients go elsewhere. It knows which connections have brought nothing yet.
func TestLeave(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		began := time.Now()
		kept, silent := b.dial(0), b.dial(0)
		synctest.Wait()
		if n := b.g.front.Unread(began); n != 2 {
			t.Errorf("%d connections have brought nothing, want 2", n)
		}
		kept.send("POST", chatPath, askStream(``))
		e.call(t, 1).end(infer.ReasonStop, words()[0])
		kept.wantWhole(text(words()[0]), "stop")
		if a := kept.answer(); a.closed {
			t.Error("a connection is closed, and nobody leaves")
		}
		if n := b.g.front.Unread(began); n != 1 {
			t.Errorf("%d connections have brought nothing, want 1", n)
		}
		time.Sleep(time.Second)
		if n := b.g.front.Unread(time.Now()); n != 0 {
			t.Errorf("%d connections count that are older", n)
		}
		b.g.Leave()
		for i, c := range []*caller{kept, silent} {
			c.send("POST", chatPath, askStream(``))
			e.call(t, 2+i).end(infer.ReasonStop, words()[0])
			c.wantWhole(text(words()[0]), "stop")
			if a := c.answer(); !a.closed || !bytes.Contains(c.raw, []byte("\r\nConnection: close\r\n")) {
				t.Errorf("closed: %v, and the answer is %q", a.closed, c.raw)
			}
		}
	})
}
