package serve

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/test/e2e/harness"
)

// address is where a gateway listens.
func address(g *harness.Gateway) string { return g.URL[strings.Index(g.URL, "//")+2:] }

func dial(t *testing.T, g *harness.Gateway) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address(g))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Behind a proxy that is trusted each client is counted by itself, by what the proxy
// says of it; and the record says whose request it was.
func TestClientsBehindATrustedProxy(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up", "--trusted-proxies", "127.0.0.0/8", "--max-connections-per-client", "1")
	begin := func(client string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL+"/v1/chat/completions", strings.NewReader(
			`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":50000,"messages":[{"role":"user","content":"go on"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Forwarded-For", "192.0.2.99, "+client) // the first is the client's own claim
		resp, err := harness.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	one, other := begin("203.0.113.1"), begin("203.0.113.2")
	again := begin("203.0.113.1")
	if one.StatusCode != 200 || other.StatusCode != 200 || again.StatusCode != 429 || again.Header.Get("Retry-After") == "" {
		t.Errorf("statuses %d, %d and %d, want 200, 200 and 429", one.StatusCode, other.StatusCode, again.StatusCode)
	}
	if a := harness.Read(again); !strings.Contains(string(a.Body), "--max-connections-per-client") {
		t.Errorf("refused with %s", a.Body)
	}
	one.Body.Close()
	harness.Eventually(t, "room again", func() bool {
		resp := begin("203.0.113.1")
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	other.Body.Close()
	g.Interrupt()
	clients := map[string]int{}
	for _, r := range g.Records() {
		clients[r.Client]++
	}
	if clients["203.0.113.1"] < 3 || clients["203.0.113.2"] != 1 || len(clients) != 2 {
		t.Errorf("the records' clients are %v", clients)
	}
}

// A proxy that speaks the PROXY protocol says whose a connection is. The connection's
// stream leaves net/http and comes back as any other; and a trusted proxy that says
// nothing, or a client too many, is refused.
func TestProxyProtocol(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartUnready(t, "up", "--trusted-proxies", "127.0.0.0/8", "--proxy-protocol", "--max-connections-per-client", "1")
	v2 := "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x02\x7f\x00\x00\x01\x04\xd2\x1f\x40" // 203.0.113.2
	for _, header := range []string{"PROXY TCP4 203.0.113.1 127.0.0.1 4711 8000\r\n", v2} {
		c := dial(t, g)
		io.WriteString(c, header)
		r := bufio.NewReader(c)
		for range 3 {
			harness.PostRaw(t, c, harness.AskStream)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			harness.WantComplete(t, harness.Read(resp))
		}
		if header != v2 {
			second := dial(t, g)
			io.WriteString(second, header+"GET /v1/models HTTP/1.1\r\nHost: weir\r\n\r\n")
			if b, err := io.ReadAll(second); len(b) > 0 {
				t.Errorf("a second connection of the same client got %.50q, %v", b, err)
			}
		}
	}
	silent := dial(t, g)
	io.WriteString(silent, "GET /v1/models HTTP/1.1\r\nHost: weir\r\n\r\n")
	if b, _ := io.ReadAll(silent); strings.HasPrefix(string(b), "HTTP/1.1 200") {
		t.Errorf("a proxy that says nothing was answered: %.50q", b)
	}
	g.Interrupt()
	clients := map[string]int{}
	for _, r := range g.Records() {
		clients[r.Client+" "+r.Outcome]++
	}
	if clients["203.0.113.1 finished"] != 3 || clients["203.0.113.2 finished"] != 3 || len(clients) != 2 {
		t.Errorf("the records are %v", clients)
	}
}

// Without descriptors weir refuses by itself, blames no engine, says so once, and is as
// before when there are some again.
func TestDescriptorsRunOut(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t)
	g := harness.StartGateway(t, "serve", "--engine", s.Spec("relay"))
	pid := g.Cmd.Process.Pid
	limit := func(n uint64) {
		t.Helper()
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: 20000}, nil); err != nil {
			t.Fatal(err)
		}
	}
	// Requests whose bodies are still to come: they have their connections, and need one
	// each to the engine, for which there are only those descriptors that others let go of:
	// the connections by which this test reads metrics, and that of each request which was
	// refused, since an idle connection gives way to a request.
	const requests = 32
	body := strings.Replace(harness.AskStream, "40", "50000", 1)
	var clients []net.Conn
	for range requests {
		c := dial(t, g)
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
		clients = append(clients, c)
	}
	harness.Eventually(t, "all requests are there", func() bool { return harness.Metric(t, g.Admin, "weir_requests_in_flight") == requests })
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	limit(uint64(len(fds)))
	refused := 0
	for _, c := range clients {
		io.WriteString(c, body)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode == 200 {
			continue // it goes on
		}
		refused++
		if a := harness.Read(resp); a.Status != 503 || !strings.Contains(string(a.Body), "no descriptors left") || a.Header.Get("Retry-After") != "1" {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
	}
	if refused < requests/4 { // every second one, but for what is let go of
		t.Errorf("%d of %d requests were refused", refused, requests)
	}
	var idle []net.Conn
	for range 5 {
		idle = append(idle, dial(t, g))
	}
	harness.Eventually(t, "counted", func() bool { return harness.Metric(t, g.Admin, "weir_starved_total", "for", "accept") > 0 })
	limit(20000)
	for _, c := range clients {
		c.Close()
	}
	for range 2 {
		harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream))
	}
	for _, what := range []string{"accept", "dial"} {
		if harness.Metric(t, g.Admin, "weir_starved_total", "for", what) == 0 {
			t.Errorf("%s: not counted", what)
		}
	}
	for _, c := range idle {
		c.Close()
	}
	if faults := harness.Metric(t, g.Admin, "weir_engine_faults_total"); faults != 0 {
		t.Errorf("%v faults of engines", faults)
	}
	g.Interrupt()
	if n := strings.Count(g.Stderr.String(), "cannot be had"); n != 1 {
		t.Errorf("said %d times:\n%s", n, g.Stderr.String())
	}
}

// After SIGTERM with --shutdown-delay a load balancer has time to turn away: readyz says
// so at once, and requests are taken until the delay is over, or a second signal comes.
func TestShutdownDelay(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up", "--shutdown-delay", "10m")
	if err := g.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.Find("leaving", func(line string) bool { return strings.HasPrefix(line, "leaving") })
	if a := harness.Get(t, g.Admin+"/readyz"); a.Status != http.StatusServiceUnavailable {
		t.Errorf("readyz says %d: %s", a.Status, a.Body)
	}
	for range 2 {
		harness.Client.CloseIdleConnections() // the next one is dialled
		harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream))
	}
	under := harness.Streamers(t, g, 1)[0] // which does not end before it is hung up on
	if _, err := under.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := g.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.Find("draining", func(line string) bool { return strings.HasPrefix(line, "draining") })
	under.Close() // the second signal drains, and cuts nothing
	g.Exits(0)
	t.Logf("exited %v after the second signal", time.Since(began).Round(time.Millisecond))
}
