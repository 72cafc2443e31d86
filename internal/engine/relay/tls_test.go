package relay

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"weir/internal/engine/access"
	"weir/internal/infer"
	"weir/internal/trace"
)

// secure starts an https engine.
func secure(t *testing.T, h http.Handler) (e *Engine, conns *atomic.Int64) {
	t.Helper()
	return trusting(t, h, true)
}

// trusting starts an https engine for an adapter that trusts it, or another one.
func trusting(t *testing.T, h http.Handler, trusted bool) (e *Engine, conns *atomic.Int64) {
	t.Helper()
	conns = new(atomic.Int64)
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true // it would speak it, if it were asked to
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	var o access.Options
	if trusted {
		o.CA = filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(o.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, err := access.New(o)
	if err != nil {
		t.Fatal(err)
	}
	e = New(Options{Name: "peer", URL: u, Access: a})
	t.Cleanup(e.client.CloseIdle)
	return e, conns
}

func TestTLS(t *testing.T) {
	e, conns := secure(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			t.Errorf("spoke %s", r.Proto)
		}
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil || n != r.ContentLength {
			t.Errorf("read %d of %d bytes: %v", n, r.ContentLength, err)
		}
		for range 3 {
			_, _ = io.WriteString(w, "data: x\n\n")
			w.(http.Flusher).Flush()
		}
	}))
	for _, size := range []int{2, 15 << 10, 5 << 20} {
		keeps(t, func() int { return int(conns.Load()) }, func() {
			mustAsk(t, e, strings.Repeat("x", size), strings.Repeat("data: x\n\n", 3))
		})
	}
}

func TestTLSUnknownRoot(t *testing.T) {
	e, _ := trusting(t, http.NotFoundHandler(), false)
	_, err := e.Forward(bounded(t), post("{}"), &trace.Leg{})
	wantFault(t, err, infer.CodeEngine)
}

// A cut is no end under TLS either.
func TestTLSCut(t *testing.T) {
	e, _ := secure(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
		_ = c.(*tls.Conn).NetConn().Close()
	}))
	_, got, err := ask(t, e, "{}")
	if wantFault(t, err, infer.CodeEngine); got != "half" {
		t.Errorf("read %q", got)
	}
}
