package change

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// A gateway is stopped again and again while it shuts down, and its time to drain covers none of
// its streams. Each client gets an explicit error: in the midst of its stream or of its upload,
// and also one whose connection the gateway has not accepted before the signal.
func TestStopOfAStalledGateway(t *testing.T) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t, "--cost", "constant", "--decode-cost", "1s", "--prefill-cost", "1ms", "--max-running-requests", "1000")
	g := harness.StartGateway(t, "serve", "--engine", sim.Spec("weir"), "--drain-timeout", "100ms")
	signal := func(s syscall.Signal) {
		if err := g.Cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
	}
	const body = `{"model":"weir-sim","prompt":"a","stream":true,"max_tokens":1000,"ignore_eos":true}`
	head := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
	open := func(request string) net.Conn {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		return c
	}
	const n = 100
	var conns []net.Conn
	for range n {
		conns = append(conns, open(head+body), open(head+body[:20]))
	}
	harness.Eventually(t, "requests in flight", func() bool { return harness.Metric(t, g.Admin, "weir_requests_in_flight") == 2*n })
	signal(syscall.SIGSTOP)
	for range 10 * n {
		conns = append(conns, open(head+body)) // the kernel answers
	}
	signal(syscall.SIGTERM)
	for range 5 {
		signal(syscall.SIGCONT)
		time.Sleep(2 * time.Millisecond)
		signal(syscall.SIGSTOP)
		time.Sleep(200 * time.Millisecond)
	}
	signal(syscall.SIGCONT)
	for i, c := range conns {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("connection %d has no answer: %v", i, err)
			continue
		}
		answer, err := io.ReadAll(resp.Body)
		if resp.StatusCode == http.StatusOK && err == nil || !strings.Contains(string(answer), `"code":"service_unavailable"`) {
			t.Errorf("connection %d: status %d, ...%q, %v", i, resp.StatusCode, answer[max(0, len(answer)-200):], err)
		}
	}
	g.Exits(0)
}
