package serve

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// Streams hang up, all at one instant or a few among those that go on, while they
// stream or before their first token: every one is cancelled, every engine request
// aborted, and nothing is left behind. How soon is measured by make measure.
func TestHangUpOfMany(t *testing.T) {
	t.Parallel()
	const step = time.Second
	streams := 512
	if testing.Short() {
		streams = 192
	}
	for _, path := range []string{"plane", "relay", "vllm"} {
		for name, streaming := range map[string]bool{"before the first token": false, "streaming": true} {
			t.Run(path+" "+name, func(t *testing.T) {
				harness.Beside(t, harness.Heavy)
				for _, f := range harness.HangUps(t, path, streams, streaming, step) {
					t.Logf("%d hang-ups in %v; the engine knew of each after p50 %v, p99 %v, max %v", f.N, f.Closing, f.P50, f.P99, f.Max)
				}
			})
		}
	}
}

// A client that hangs up while its request waits in the gateway, because no
// engine is ready, is done with at once.
func TestHangUpInTheQueue(t *testing.T) {
	harness.Beside(t, harness.Light)
	const n = 64
	s := harness.StartSim(t, "--fault", "refuse")
	g := harness.StartUnready(t, "serve", "--engine", "weir="+s.Plane, "--wait-for-engines", "5m")
	conns := harness.Streamers(t, g, n)
	harness.Eventually(t, "all queued", func() bool { return harness.Metric(t, g.Admin, "weir_requests_in_flight") == n })
	began := time.Now()
	for _, c := range conns {
		c.Close()
	}
	if ended := g.Balanced(); ended["cancelled"] != n || ended["received"] != n {
		t.Errorf("ended %v, want %d cancelled", ended, n)
	}
	t.Logf("%d hang-ups in the queue were done with after %v", n, time.Since(began).Round(time.Millisecond))
	g.Interrupt()
	for _, r := range g.Records() {
		if r.Outcome != "cancelled" || r.Stages["queue"] == 0 || len(r.Attempts) != 0 {
			t.Fatalf("record %+v", r)
		}
	}
}

// A client that has sent something ahead hangs up as one that has not, however it
// does, over a connection with and without TLS: the engine is free at once, not
// once it is done.
func TestHangUpBehindBytesAhead(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "300ms", "--decode-cost", "300ms")
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	config := &tls.Config{RootCAs: harness.KeyPair(t, cert, key, 1), NextProtos: []string{"http/1.1"}, ServerName: "127.0.0.1"}
	for name, flags := range map[string][]string{"plain": nil, "tls": {"--tls-cert", cert, "--tls-key", key}} {
		for _, path := range []string{"plane", "relay"} {
			t.Run(name+" "+path, func(t *testing.T) {
				g := harness.StartGateway(t, append([]string{"serve", "--engine", s.Spec(path)}, flags...)...)
				inFlight := func(n int) {
					harness.Eventually(t, fmt.Sprint(n, " in flight"), func() bool {
						st := harness.EngineState(t, s.Admin)
						return harness.Metric(t, g.Admin, "weir_requests_in_flight") == float64(n) && st.Running+st.Waiting == n
					})
				}
				var hangUps []func()
				for _, stream := range []bool{true, false} {
					for _, ahead := range []string{"\r\n", "GET /v1/models HTTP/1.1\r\nHost: weir\r\n\r\n"} {
						for how, hangUp := range map[string]func(*net.TCPConn){
							"close":      func(c *net.TCPConn) { c.Close() },
							"half-close": func(c *net.TCPConn) { c.CloseWrite() },
							"reset":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
						} {
							c, err := net.Dial("tcp", g.URL[strings.Index(g.URL, "//")+2:])
							if err != nil {
								t.Fatal(err)
							}
							defer c.Close()
							socket := c.(*net.TCPConn)
							if flags != nil {
								c = tls.Client(c, config)
							}
							harness.PostRaw(t, c, fmt.Sprintf(`{"model":"weir-sim","stream":%v,"ignore_eos":true,"max_tokens":50000,"messages":[{"role":"user","content":"go on"}]}`, stream))
							hangUps = append(hangUps, func() {
								if _, err := io.WriteString(c, ahead); err != nil {
									t.Errorf("%s, ahead %q: %v", how, ahead, err)
								}
								hangUp(socket)
							})
						}
					}
				}
				inFlight(len(hangUps))
				for _, hangUp := range hangUps {
					hangUp()
				}
				inFlight(0)
				if ended := g.Balanced(); ended["cancelled"] != 12 || ended["received"] != 12 {
					t.Errorf("ended %v, want 12 cancelled", ended)
				}
			})
		}
	}
}
