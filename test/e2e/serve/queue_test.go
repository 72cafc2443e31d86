package serve

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// full starts an engine that may have one request, and has one that does not end by itself.
func full(t *testing.T, flags ...string) (s *harness.Sim, g *harness.Gateway, running harness.Streamer) {
	s = harness.StartSim(t, "--cost", "constant", "--prefill-cost", "10ms", "--decode-cost", "10ms")
	g = harness.StartGateway(t, append([]string{"serve", "--queue", "on", "--engine", "weir=" + s.Plane + ",max-running=1"}, flags...)...)
	running = harness.Streamers(t, g, 1)[0]
	harness.Eventually(t, "the engine has one", func() bool { return harness.EngineState(t, s.Admin).Running == 1 })
	return s, g, running
}

// wait waits until this many requests wait in the queue.
func wait(t *testing.T, g *harness.Gateway, n int) {
	t.Helper()
	harness.Eventually(t, fmt.Sprint(n, " wait"), func() bool { return harness.Metric(t, g.Admin, "weir_queue_requests") == float64(n) })
}

// Requests for which an engine has no room wait in the gateway. A client that hangs up frees
// its place. A request beyond the queue's bound is refused in the shape of its API. Waiting
// requests are served when there is room.
func TestQueue(t *testing.T) {
	harness.Beside(t, harness.Light)
	s, g, running := full(t, "--max-queue", "2")
	waiting := harness.Streamers(t, g, 2)
	wait(t, g, 2)
	if st := harness.EngineState(t, s.Admin); st.Running+st.Waiting != 1 {
		t.Errorf("the engine has %+v, and may have one", st)
	}
	const model = `{"model":"weir-sim",`
	for _, test := range []struct {
		path, body, shape string
		status            int
	}{
		{"/v1/chat/completions", harness.AskStream, `"type":"rate_limit`, 429},
		{"/v1/completions", model + `"prompt":"x"}`, `"type":"rate_limit`, 429},
		{"/v1/responses", model + `"input":"x","store":false}`, `"code":"rate_limit`, 429},
		{"/v1/messages", model + `"max_tokens":4,"messages":[{"role":"user","content":"x"}]}`, `"type":"overloaded_error"`, 529},
		{"/generate", `{"text":"x"}`, `"error"`, 503},
	} {
		a := harness.Post(t, g.URL+test.path, test.body)
		if a.Status != test.status || a.Header.Get("X-Refusal-Reason") != "queue_full" || !strings.Contains(string(a.Body), "--max-queue") || !strings.Contains(string(a.Body), `"error"`) {
			t.Errorf("%s: status %d, headers %v, body %s", test.path, a.Status, a.Header, a.Body)
		}
	}
	waiting[0].Close()
	wait(t, g, 1)
	for _, test := range []struct {
		header, value, reason string
		status                int
	}{
		{"X-Request-Timeout", "0.3", "timeout", 429},
		{"X-Request-Deadline", "2001-01-01T00:00:00Z", "timeout", 429},
		{"X-Request-Deadline", "soon", "", 400},
	} {
		a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream, test.header, test.value)
		if a.Status != test.status || a.Header.Get("X-Refusal-Reason") != test.reason {
			t.Errorf("%s: %s: status %d, headers %v, body %s", test.header, test.value, a.Status, a.Header, a.Body)
		}
	}
	running.Close()
	resp, err := http.ReadResponse(bufio.NewReader(waiting[1]), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("the one that waited: %v, %v", resp, err)
	}
	waiting[1].Close()
	ended := g.Balanced()
	if ended["rejected"] != 8 || ended["cancelled"] != 3 {
		t.Errorf("ended %v", ended)
	}
	g.Interrupt()
}

// After SIGTERM those that wait are served while the gateway drains, and what still waits when
// it is cut ends, too.
func TestQueueDrains(t *testing.T) {
	harness.Beside(t, harness.Light)
	_, g, running := full(t, "--drain-timeout", "10m")
	answers := make(chan harness.Answer, 1)
	go func() { answers <- harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream) }()
	wait(t, g, 1)
	harness.Streamers(t, g, 2) // of which one has the engine then, and one still waits
	wait(t, g, 3)
	if err := g.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.Find("draining", func(line string) bool { return strings.HasPrefix(line, "draining") })
	running.Close()
	select {
	case a := <-answers:
		harness.WantComplete(t, a)
	case <-time.After(harness.Patience):
		t.Fatal("the one that waited was not served")
	}
	wait(t, g, 1)
	if err := g.Cmd.Process.Signal(syscall.SIGTERM); err != nil { // cuts what is left
		t.Fatal(err)
	}
	g.Wait()
	waited := false
	outcomes := map[string]int{}
	for _, r := range g.Records() {
		outcomes[r.Outcome]++
		waited = waited || r.Outcome == "failed" && len(r.Attempts) == 0
		if r.Residual != 0 {
			t.Errorf("a residual of %d ns: %+v", r.Residual, r)
		}
	}
	if outcomes["finished"] != 1 || outcomes["failed"] != 2 || outcomes["cancelled"] != 1 || !waited {
		t.Errorf("ended as %v, one of them while it waited: %t", outcomes, waited)
	}
}
