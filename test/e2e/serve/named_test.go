package serve

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// cause is what a request took long for, and how weir is to name it.
type cause struct {
	id     string
	stage  string        // of weir's own, as records and metrics have it
	least  time.Duration // that it took
	reason string        // the stage of the reports
	says   []string      // of the sentence

}

// named wants the cause of a request's time in everything that weir tells of it.
func (c *cause) named(t *testing.T, g *harness.Gateway) {
	t.Helper()
	g.Balanced()
	found := g.Reasons("id="+c.id, 1)[0]
	why := found.Reason
	if found.Slowest != c.stage || why.Stage != c.reason || why.MS < c.least.Seconds()*1e3 || len(why.Stages) < 2 {
		t.Errorf("the record's longest stage is %q, and its reason %+v; want %s and %s", found.Slowest, why, c.stage, c.reason)
	}
	for _, part := range c.says {
		if !strings.Contains(why.Sentence, part) {
			t.Errorf("%q lacks %q", why.Sentence, part)
		}
	}
	if s := harness.Metric(t, g.Admin, "weir_stage_seconds_sum", `stage="`+c.stage+`"`); s < c.least.Seconds() {
		t.Errorf("the metric of stage %s has %v s", c.stage, s)
	}
	g.Interrupt()
	inLog := false
	for line := range strings.Lines(g.Stderr.String()) {
		inLog = inLog || strings.Contains(line, "request_id="+c.id+" ") && strings.Contains(line, " stage="+c.stage+" ")
	}
	if !inLog {
		t.Errorf("no line of the log has %s with stage %s", c.id, c.stage)
	}
	inFile := time.Duration(0)
	for _, r := range g.Records() {
		if r.RequestID == c.id {
			inFile = time.Duration(r.Stages[c.stage])
		}
	}
	if inFile < c.least {
		t.Errorf("the file's record has %v of %s", inFile, c.stage)
	}
	out, stderr, code := harness.Finish(t, "", "report", g.Timeline)
	if want := "slowest     " + c.id + ": " + why.Sentence + "\n"; code != 0 || !strings.Contains(out, want) {
		t.Errorf("%d: no %q in\n%s%s", code, want, out, stderr)
	}
}

// chatAs asks for a chat under a name of its own.
func chatAs(t *testing.T, g *harness.Gateway, id, content string, tokens int) {
	t.Helper()
	a := harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, tokens, content), "X-Request-Id", id)
	harness.WantComplete(t, a)
}

// Each thing that makes a request slow is found by its name in the record, in its reason, in
// the metrics, in the log and in the report of the file.
func TestCausesAreNamed(t *testing.T) {
	t.Run("slow engine", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		fast := harness.StartSim(t, harness.FastSim...)
		slow := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "900ms", "--decode-cost", "2ms")
		g := harness.StartGateway(t, "serve", "--engine", fast.Spec("plane")+",name=quick", "--engine", slow.Spec("plane")+",name=tardy", "--policy", "round-robin", "--access-log", "1")
		for i := range 4 {
			chatAs(t, g, fmt.Sprintf("engine-%d", i), fmt.Sprintf("number %d", i), 4)
		}
		at := g.Reasons("engine=tardy", 1) // how many depends on which engine joined first
		c := cause{id: at[0].ID, stage: "engine", least: 800 * time.Millisecond, reason: "prefill", says: []string{"engine tardy computed the prompt"}}
		c.named(t, g)
	})
	t.Run("long template", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		folder := "weir-sim=" + harness.SlowTemplate(t)
		s := harness.StartSim(t, append([]string{"--model", folder}, harness.FastSim...)...)
		g := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"), "--model", folder, "--access-log", "1")
		chatAs(t, g, "template-fast", "quick", 4)
		chatAs(t, g, "template-slow", "SLOW it is", 4)
		c := cause{id: "template-slow", stage: "render", least: 100 * time.Millisecond, reason: "template", says: []string{"was template: the model's chat template was rendered"}}
		c.named(t, g)
	})
	t.Run("full pool", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		s := harness.StartSim(t, harness.FastSim...)
		g := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"), "--tokenize-workers", "1", "--prefix-cache", "0", "--debug-stage-delay", "tokenize=400ms", "--access-log", "1")
		var tasks sync.WaitGroup
		for i := range 8 {
			tasks.Go(func() { chatAs(t, g, fmt.Sprintf("pool-%d", i), fmt.Sprintf("number %d", i), 4) })
		}
		harness.Eventually(t, "seen in the pool's queue", func() bool {
			seen := page[requestsSeen](t, g.Admin+"/requests?stage=pool_wait")
			return len(seen.Requests) > 0 && harness.Metric(t, g.Admin, "weir_pool_waiting") > 0
		}, g.Process)
		tasks.Wait()
		g.Balanced()
		c := cause{id: g.Reasons("order=ttft&since=60s&limit=1", 1)[0].ID, stage: "pool_wait", least: 800 * time.Millisecond, reason: "tokenize wait", says: []string{"it waited for the tokenizing pool, which was full"}}
		c.named(t, g)
	})
	t.Run("slow client", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "200us")
		g := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"), "--access-log", "1")
		began := time.Now()
		id := strings.Repeat("x", 120) + "-client" // a long id makes large events
		conn := harness.DialNarrow(t, g)
		harness.PostRaw(t, conn, `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":4000,"messages":[{"role":"user","content":"go on"}]}`, "X-Request-Id", id, "Connection", "close")
		harness.Eventually(t, "seen waiting for its client", func() bool {
			seen := page[requestsSeen](t, g.Admin+"/requests?stage=flush")
			return len(seen.Requests) == 1 && seen.Requests[0].ID == id
		}, g.Process)
		time.Sleep(2*time.Second + 2*time.Since(began)) // it is how long it does not read: longer than all else, however busy the machine
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(conn); err != nil || !strings.Contains(string(b), "data: [DONE]") {
			t.Fatalf("%v after %d bytes", err, len(b))
		}
		c := cause{id: id, stage: "flush", least: time.Second, reason: "flush", says: []string{"was flush: its client did not take what weir wrote"}}
		c.named(t, g)
	})
	t.Run("slow upload", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		s := harness.StartSim(t, harness.FastSim...)
		g := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"), "--access-log", "1")
		body, to := io.Pipe()
		go func() {
			fmt.Fprint(to, `{"model":"weir-sim","prompt":"x",`)
			time.Sleep(600 * time.Millisecond) // it is how long it does not send
			fmt.Fprint(to, `"stream":true,"max_tokens":3}`)
			to.Close()
		}()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL+"/v1/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", "upload")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		harness.WantComplete(t, harness.Read(resp))
		c := cause{id: "upload", stage: "read", least: 500 * time.Millisecond, reason: "read", says: []string{"was read: its client had not sent all of it"}}
		c.named(t, g)
	})
}
