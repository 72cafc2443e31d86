package simserver

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine/plane/planepb"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/flags"
)

// status asks for a page, and gives 0 where nothing came for a minute.
func (b *bench) status(url string) int {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.client.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return 0
	}
	if err != nil {
		b.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// A wedged engine serves its pages, takes connections, and gives no token on any wire. Requests
// that waited are computed when it goes on.
func TestWedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		g := b.dial(1, 0)
		if err := g.submit(1, 100); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if err := g.recv(); err != nil {
				t.Fatal(err)
			}
		}
		b.faults("wedge")
		synctest.Wait()
		steps := b.e.State().Steps
		answered := make(chan string, 4)
		for _, url := range []string{b.openai + chat, b.vllm + chat, b.sglang + chat} {
			go func() {
				a, err := b.post(context.Background(), url, ask+`,"stream":true}`)
				if err != nil || !a.terminated {
					t.Errorf("%s: %+v, %v", url, a, err)
				}
				answered <- url
			}()
		}
		go func() {
			if err := g.submit(2, 5); err != nil {
				t.Error(err)
			}
			answered <- "plane"
		}()
		for url, want := range map[string]int{
			b.openai + "/health": 200, b.vllm + "/health": 200, b.vllm + "/v1/models": 200, b.sglang + "/v1/models": 200, b.openai + "/metrics": 404,
			b.sglang + "/health": 503, // it generates
		} {
			if got := b.status(url); got != want {
				t.Errorf("%s: %d", url, got)
			}
		}
		if _, err := g.client.Describe(t.Context(), &planepb.DescribeRequest{}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if n := b.e.State().Steps; n != steps || len(answered) > 0 {
			t.Fatalf("%d steps, and %d answers", n-steps, len(answered))
		}
		if f := b.e.State().Faults; f[0] != (sim.Struck{Fault: "wedge", Times: 1}) {
			t.Errorf("struck %v", f)
		}
		b.faults()
		for range 4 {
			<-answered
		}
		g.until(2)
		for slot := range uint32(2) {
			if err := g.verify(slot + 1); err != nil {
				t.Error(err)
			}
		}
	})
}

// One wedged rank keeps what it is given, while the other one serves.
func TestWedgeOfOneRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{DPSize: 2}})
		b.faults("wedge,rank=1")
		const body = `{"input_ids":[1,2,3],"routed_dp_rank":RANK,"sampling_params":{"max_new_tokens":5,"ignore_eos":true}}`
		stuck := make(chan generatedAnswer)
		go func() { stuck <- b.generate(strings.Replace(body, "RANK", "1", 1)) }()
		synctest.Wait()
		for range 3 {
			if a := b.generate(strings.Replace(body, "RANK", "0", 1)); a.status != 200 {
				t.Errorf("%+v", a)
			}
		}
		time.Sleep(time.Minute)
		select {
		case a := <-stuck:
			t.Fatalf("the wedged rank answered %+v", a)
		default:
		}
		if s := b.e.State(); s.Waiting != 1 || s.Finished != 3 {
			t.Errorf("%+v", s)
		}
		b.faults()
		if a := <-stuck; a.status != 200 {
			t.Errorf("%+v", a)
		}
	})
}

// Streams go on while no prompt is computed, and none begins.
func TestNoPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		g := b.dial(1, 0)
		if err := g.submit(1, 50); err != nil {
			t.Fatal(err)
		}
		if err := g.recv(); err != nil {
			t.Fatal(err)
		}
		b.faults("noprefill")
		if err := g.submit(2, 5); err != nil {
			t.Fatal(err)
		}
		g.until(1)
		time.Sleep(time.Minute)
		if s := b.e.State(); s.Finished != 1 || s.Waiting != 1 {
			t.Fatalf("%+v", s)
		}
		b.faults()
		g.until(2)
	})
}

// A dragging engine takes this many times as long.
func TestDrag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		took := func() time.Duration {
			began := time.Now()
			if a, err := b.post(t.Context(), b.vllm+chat, ask+`}`); err != nil || a.status != 200 {
				t.Fatalf("%+v, %v", a, err)
			}
			return time.Since(began)
		}
		usual := took()
		b.faults("drag,by=25")
		if slow := took(); slow < 20*usual {
			t.Errorf("%v in place of %v", slow, usual)
		}
	})
}

// An engine that calls itself idle works all the same.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{SGLang: flags.SGLang{Metrics: true}})
		b.faults("idle")
		g := b.dial(1, 0)
		if err := g.submit(1, 100_000); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			s, err := g.steps.Recv()
			if err != nil || s.Running != 0 || s.Waiting != 0 {
				t.Fatalf("%v, %v", s, err)
			}
		}
		for _, url := range []string{b.sglang, b.vllm} {
			code, page := b.get(url + "/metrics")
			lines := strings.Split(page, "\n")
			i := slices.IndexFunc(lines, func(l string) bool {
				return strings.HasPrefix(l, "sglang:num_running_reqs") || strings.HasPrefix(l, "vllm:num_requests_running")
			})
			if code != 200 || i < 0 || !strings.HasSuffix(lines[i], " 0") {
				t.Errorf("%s: %d, %q", url, code, lines[max(i, 0)])
			}
		}
		if b.e.State().Running != 1 {
			t.Error("its own state lies, too")
		}
	})
}

// A restart breaks all that there is, and the next request finds an empty cache and
// another process, at the same ports.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{KVTokens: 1 << 18, PageSize: 16}})
		prompt := strings.Replace(ask, "20", "5", 1) + `}`
		long := strings.Replace(prompt, `"content":"`, `"content":"`+strings.Repeat("a long prompt ", 20), 1)
		cached := func() uint64 {
			before := b.e.State().CachedTokens
			if a, err := b.post(t.Context(), b.openai+chat, long); err != nil || a.status != 200 {
				t.Fatalf("%+v, %v", a, err)
			}
			return b.e.State().CachedTokens - before
		}
		cached()
		if cached() == 0 {
			t.Fatal("nothing is cached even without a restart")
		}
		g := b.dial(1, 0)
		if err := g.submit(1, 100_000); err != nil {
			t.Fatal(err)
		}
		broken := make(chan error)
		go func() {
			_, err := b.post(context.Background(), b.vllm+chat, strings.Replace(ask, "20", "100000", 1)+`,"stream":true}`)
			broken <- err
		}()
		b.settle("both", func(s engine.State) bool { return s.Running == 2 })
		before := b.e.State().Instance
		if err := b.e.SetFaults([]sim.Fault{{Kind: sim.Restart}}); err != nil {
			t.Fatal(err)
		}
		if err := <-broken; err == nil {
			t.Error("a stream outlived the restart")
		}
		for err := error(nil); err == nil; {
			_, err = g.steps.Recv()
		}
		b.settle("a new process", func(s engine.State) bool { return s.Instance != before && s.Running == 0 && s.Sessions == 0 })
		if n := cached(); n != 0 {
			t.Errorf("%d tokens were cached", n)
		}
		if s := b.e.State(); s.Faults[0].Times != 1 {
			t.Errorf("it restarted %d times", s.Faults[0].Times)
		}
		b.dial(2, 0)
	})
}
