package serve

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// protocol is a way in which a client speaks to the gateway other than plain
// HTTP/1.1.
type protocol struct {
	name  string
	tls   bool
	proto string // what a response must say
}

var protocols = []protocol{
	{"http1 tls", true, "HTTP/1.1"},
	{"http2 tls", true, "HTTP/2.0"},
	{"http2 plain", false, "HTTP/2.0"},
}

// startProtocol runs weir serve for clients of a protocol, and gives a way to
// reach it.
func startProtocol(t *testing.T, p protocol, engines ...string) (*harness.Gateway, *peer) {
	t.Helper()
	c := &peer{transport: &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}, want: p.proto}
	args := []string{"serve"}
	if p.tls {
		dir := t.TempDir()
		cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		c.transport.TLSClientConfig = &tls.Config{RootCAs: harness.KeyPair(t, cert, key, 1)}
		args = append(args, "--tls-cert", cert, "--tls-key", key)
	} else {
		args = append(args, "--h2c")
	}
	switch {
	case p.proto == "HTTP/1.1":
		c.transport.Protocols.SetHTTP1(true)
	case p.tls:
		c.transport.Protocols.SetHTTP2(true)
	default:
		c.transport.Protocols.SetUnencryptedHTTP2(true)
	}
	// A small window of each stream, so that one not read is felt soon.
	c.transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}
	c.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		if c.small.Load() {
			d.Control = harness.Narrow
		}
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c.dialed.Add(1)
		return &stallable{Conn: conn, stalled: &c.stalled, closed: make(chan struct{})}, nil
	}
	t.Cleanup(c.transport.CloseIdleConnections)
	g := harness.StartGateway(t, append(args, engines...)...)
	c.url = g.URL
	// The first connection is there before many requests want one at once, for
	// each of which the client would dial.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if a := harness.Read(resp); a.Status != http.StatusOK || a.Err != nil {
		t.Fatalf("models: status %d, %v", a.Status, a.Err)
	}
	return g, c
}

// peer is a client of one protocol.
type peer struct {
	transport *http.Transport
	url       string
	want      string
	dialed    atomic.Int64
	small     atomic.Bool // new connections hold little that is not read
	stalled   atomic.Bool // no connection is read any more
}

// stallable is a connection whose reads can be made to wait for its closing.
type stallable struct {
	net.Conn
	stalled *atomic.Bool
	once    atomic.Bool
	closed  chan struct{}
}

func (s *stallable) Read(p []byte) (int, error) {
	if s.stalled.Load() {
		<-s.closed
		return 0, net.ErrClosed
	}
	return s.Conn.Read(p)
}

func (s *stallable) Close() error {
	if !s.once.Swap(true) {
		close(s.closed)
	}
	return s.Conn.Close()
}

// ask begins a stream.
func (c *peer) ask(ctx context.Context, tokens int) (*http.Response, error) {
	body := fmt.Sprintf(`{"model":"weir-sim","stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_tokens":%d,"messages":[{"role":"user","content":"go on"}]}`, tokens)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.Proto != c.want || resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("%s %s, want 200 over %s", resp.Proto, resp.Status, c.want)
	}
	return resp, nil
}

// whole wants n streams at once, each complete and every word right.
func (c *peer) whole(t *testing.T, n, tokens int) {
	t.Helper()
	words := harness.Words(t)
	results := make(chan error, n)
	for range n {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			resp, err := c.ask(ctx, tokens)
			if err != nil {
				results <- err
				return
			}
			defer resp.Body.Close()
			got, err := harness.Follow(words, resp.Body, nil)
			if err == nil && got != tokens {
				err = fmt.Errorf("%d tokens, want %d", got, tokens)
			}
			results <- err
		}()
	}
	for range n {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// eachProtocol runs a test for every protocol and both kinds of engine, each with
// its load beside others.
func eachProtocol(t *testing.T, load int, sim []string, test func(t *testing.T, p protocol, s *harness.Sim, engine string)) {
	t.Parallel()
	for _, p := range protocols {
		for _, path := range []string{"plane", "relay"} {
			t.Run(p.name+" "+path, func(t *testing.T) {
				harness.Beside(t, load)
				s := harness.StartSim(t, sim...)
				test(t, p, s, "--engine="+s.Spec(path))
			})
		}
	}
}

// Streams over TLS and HTTP/2 are whole, connections serve one after another,
// a hang-up frees the engine, and a drain lets what is in flight end.
func TestProtocols(t *testing.T) {
	eachProtocol(t, harness.Heavy, harness.FastSim, func(t *testing.T, p protocol, s *harness.Sim, engine string) {
		g, c := startProtocol(t, p, engine)
		c.whole(t, 64, 32)
		if n := c.dialed.Load(); p.proto == "HTTP/2.0" && n != 1 {
			t.Errorf("%d connections for HTTP/2, want 1", n)
		}
		before := c.dialed.Load()
		for range 3 {
			c.whole(t, 1, 4)
		}
		// Over HTTP/1.1, net/http's client keeps two idle connections.
		if n := c.dialed.Load(); n != before {
			t.Errorf("%d connections, then %d: none was used again", before, n)
		}

		hungUp := 8
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		for range hungUp {
			resp, err := c.ask(ctx, 50000)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		if st := harness.EngineState(t, s.Admin); st.Running != hungUp {
			t.Errorf("engine state %+v, want %d running", st, hungUp)
		}
		hangUp()
		harness.Eventually(t, "free", func() bool { return harness.EngineState(t, s.Admin).Running == 0 })
		if ended := g.Balanced(); ended["cancelled"] != hungUp || ended["finished"] != 64+3 {
			t.Errorf("ended %v, want %d cancelled and %d finished", ended, hungUp, 64+3)
		}

		resp, err := c.ask(t.Context(), 50)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		g.Interrupt()
		if n, err := harness.Follow(harness.Words(t), resp.Body, nil); err != nil || n != 50 {
			t.Errorf("the stream in flight at the drain: %d tokens, %v", n, err)
		}
	})
}

// A stream that its engine breaks ends with an error event and then a broken
// connection or a reset stream, never as if it were complete; an HTTP/2
// connection survives it.
func TestProtocolsBroken(t *testing.T) {
	eachProtocol(t, harness.Light, append(harness.FastSim, "--fault", "cut,after=10"), func(t *testing.T, p protocol, s *harness.Sim, engine string) {
		g, c := startProtocol(t, p, engine)
		const streams = 3
		for range streams {
			harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
			resp, err := c.ask(t.Context(), 20)
			if err != nil {
				t.Fatal(err)
			}
			a := harness.Read(resp)
			if a.Err == nil || bytes.Contains(a.Body, []byte("[DONE]")) || !bytes.Contains(a.Body, []byte("\n\ndata: {\"error\":")) {
				t.Errorf("read error %v: %.300s", a.Err, a.Body)
			}
		}
		if ended := g.Balanced(); ended["failed"] != streams || ended["received"] != streams {
			t.Errorf("ended %v, want %d failed", ended, streams)
		}
		if n := c.dialed.Load(); p.proto == "HTTP/2.0" && n != 1 {
			t.Errorf("%d connections, want the broken streams to leave the one alone", n)
		}
		g.Interrupt()
	})
}

// A stream that is not read is ended after the write deadline, and its engine
// freed; 16 others, on the same connection where that is possible, are whole
// meanwhile.
func TestProtocolsSlowClient(t *testing.T) {
	quick := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "200us"}
	eachProtocol(t, harness.Heavy, quick, func(t *testing.T, p protocol, s *harness.Sim, engine string) {
		g, c := startProtocol(t, p, engine, "--write-timeout", "2s")
		if p.proto == "HTTP/1.1" {
			c.transport.CloseIdleConnections()
			c.small.Store(true)
		}
		unread, err := c.ask(t.Context(), 100000)
		if err != nil {
			t.Fatal(err)
		}
		defer unread.Body.Close()
		c.small.Store(false)
		c.whole(t, 16, 200)
		harness.Eventually(t, "free", func() bool { return harness.EngineState(t, s.Admin).Running == 0 })
		if n := c.dialed.Load(); p.proto == "HTTP/2.0" && n != 1 {
			t.Errorf("%d connections, want one for all", n)
		}
		g.Balanced()
		if n := harness.Metric(t, g.Admin, "weir_requests_total", `code="slow_client"`); n != 1 {
			t.Errorf("%v requests ended for their slow client, want 1: %v", n, g.Balanced())
		}
		if p.proto == "HTTP/1.1" {
			unread.Body.Close() // the kernel holds megabytes of it, to be read by the kilobyte
		} else if n, err := harness.Follow(harness.Words(t), unread.Body, nil); err == nil || n == 0 {
			t.Errorf("the unread stream: %d tokens, then %v; want some and a broken end", n, err)
		}
		c.whole(t, 1, 4)
		g.Interrupt()
	})
}

// A connection that nobody reads, with several streams on it, is closed after
// two write deadlines at most, and the engine freed of all of them.
func TestProtocolsStuckConnection(t *testing.T) {
	quick := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "200us"}
	eachProtocol(t, harness.Heavy, quick, func(t *testing.T, p protocol, s *harness.Sim, engine string) {
		if p.proto == "HTTP/1.1" {
			t.Skip("a connection is one stream, as in TestProtocolsSlowClient")
		}
		g, c := startProtocol(t, p, engine, "--write-timeout", "1s")
		// Connections that hold little: what stalls is TCP, not a stream's window.
		c.transport.CloseIdleConnections()
		c.small.Store(true)
		var open []*http.Response
		for range 4 {
			resp, err := c.ask(t.Context(), 100000)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			open = append(open, resp)
		}
		c.stalled.Store(true)
		harness.Eventually(t, "free", func() bool { return harness.EngineState(t, s.Admin).Running == 0 })
		g.Balanced()
		if n := harness.Metric(t, g.Admin, "weir_requests_total", `code="slow_client"`); n != float64(len(open)) {
			t.Errorf("%v requests ended for their slow client, want %d", n, len(open))
		}
		c.stalled.Store(false)
		c.transport.CloseIdleConnections()
		g.Interrupt()
	})
}

// The write deadline bounds writes, not the wait for an engine: a stream that
// has been silent for longer goes on.
func TestProtocolsSilentEngine(t *testing.T) {
	slow := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1s"}
	eachProtocol(t, harness.Light, slow, func(t *testing.T, p protocol, s *harness.Sim, engine string) {
		g, c := startProtocol(t, p, engine, "--write-timeout", "200ms")
		c.whole(t, 4, 3)
		if ended := g.Balanced(); ended["finished"] != 4 {
			t.Errorf("ended %v", ended)
		}
		g.Interrupt()
	})
}

// One port serves HTTP/2 and HTTP/1.1 to whoever asks for it, nothing older
// than TLS 1.2, and a changed certificate without a restart.
func TestTLSListener(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	roots := harness.KeyPair(t, cert, key, 1)
	g := harness.StartGateway(t, "up", "--tls-cert", cert, "--tls-key", key)
	addr := strings.TrimPrefix(g.URL, "https://")
	dial := func(roots *x509.CertPool, most uint16, protocols ...string) (tls.ConnectionState, error) {
		conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS10, MaxVersion: most, NextProtos: protocols})
		if err != nil {
			return tls.ConnectionState{}, err
		}
		defer conn.Close()
		return conn.ConnectionState(), nil
	}
	for _, offered := range []struct {
		protocols []string
		want      string
	}{{[]string{"h2", "http/1.1"}, "h2"}, {[]string{"http/1.1"}, "http/1.1"}, {nil, ""}} {
		if st, err := dial(roots, 0, offered.protocols...); err != nil || st.NegotiatedProtocol != offered.want {
			t.Errorf("offered %v: %q, %v; want %q", offered.protocols, st.NegotiatedProtocol, err, offered.want)
		}
	}
	if _, err := dial(roots, tls.VersionTLS12); err != nil {
		t.Errorf("TLS 1.2: %v", err)
	}
	if _, err := dial(roots, tls.VersionTLS11); err == nil {
		t.Error("TLS 1.1 is served")
	}
	// Without TLS, the port says so and no more.
	if a := harness.Get(t, "http://"+addr+"/v1/models"); a.Status != http.StatusBadRequest {
		t.Errorf("plain HTTP to the TLS port: %d %s", a.Status, a.Body)
	}

	renewed := harness.KeyPair(t, cert, key, 2)
	harness.Eventually(t, "renewed", func() bool {
		st, err := dial(renewed, 0)
		return err == nil && st.PeerCertificates[0].SerialNumber.Int64() == 2
	})
	g.Interrupt()
}

// Without --h2c, a client that begins with HTTP/2 is refused and HTTP/1.1 is
// served; with it, both are.
func TestPlainListener(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, h2c := range []bool{false, true} {
		args := []string{"up"}
		if h2c {
			args = append(args, "--h2c")
		}
		g := harness.StartGateway(t, args...)
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get(g.URL + "/v1/models")
		if err == nil {
			resp.Body.Close()
		}
		if (err == nil && resp.StatusCode == http.StatusOK) != h2c {
			t.Errorf("--h2c %t: %v", h2c, err)
		}
		transport.CloseIdleConnections()
		if a := harness.Get(t, g.URL+"/v1/models"); a.Status != http.StatusOK {
			t.Errorf("--h2c %t: HTTP/1.1: %d", h2c, a.Status)
		}
		if a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream); a.Status != http.StatusOK || a.Err != nil {
			t.Errorf("--h2c %t: a stream over HTTP/1.1: %d %v", h2c, a.Status, a.Err)
		}
		g.Interrupt()
	}
}
