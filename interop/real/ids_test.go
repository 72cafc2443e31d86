//go:build interop_engines

package real

import (
	"fmt"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// TestVLLMByIDs has vLLM's own server, as released, behind kind vllm: without its flag by
// /v1/completions, with it by /inference/v1/generate, and both behind one name beside a relay and
// a core that dials in.
func TestVLLMByIDs(t *testing.T) {
	ports, handshake := [2]string{freePort(t), freePort(t)}, freePort(t)
	urls := [2]string{"http://127.0.0.1:" + ports[0], "http://127.0.0.1:" + ports[1]}
	servers := [2]*harness.Process{vllm(t, nil, "--port", ports[0]), vllm(t, nil, "--port", ports[1], "--enable-scale-out")}
	headless := vllm(t, nil, "--headless", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", handshake)
	model := []string{"--model", "tiny=" + folder}
	by := [2]gateway{serve(t, append(model, "--engine", "vllm="+urls[0])...), serve(t, append(model, "--engine", "vllm="+urls[1])...)}
	mixed := serve(t, append(model, "--engine", "openai="+urls[0]+",name=relayed", "--engine", "vllm="+urls[0]+",name=completions", "--engine", "vllm="+urls[1]+",name=generate", "--engine", "vllm-core=tcp://127.0.0.1:"+handshake+",model=tiny,name=core", "--policy", "round-robin")...)
	for i, path := range []string{"/v1/completions", "/inference/v1/generate"} {
		by[i].ready(true, servers[i])
		if v := by[i].engines()[0]; v.Kind != "vllm" || !strings.Contains(v.Software, path) {
			t.Errorf("%+v, want kind vllm by %s", v, path)
		}
	}
	mixed.ready(true, servers[0], servers[1], headless)
	f := &fleet{t: t, server: servers[0], relay: by[0], ways: []way{
		{"vLLM itself", urls[0], "tiny"}, {"by completions", by[0].URL, "tiny"}, {"by generate", by[1].URL, "tiny"}, {"mixed", mixed.URL, "tiny"},
	}}
	t.Run("answers", f.answers)
	t.Run("choices", f.choices)
	t.Run("guides", f.guides)
	t.Run("refusals", f.refusals)
	t.Run("tokenize", f.tokenize)
	t.Run("streams", f.streams)
	t.Run("hang-ups", func(t *testing.T) {
		ctx := harness.Context(t)
		for i, w := range f.ways[1:3] {
			leave(ctx, t, w, 16)
			harness.Eventually(t, "idle "+w.name, func() bool {
				n, ok := metric(urls[i], "vllm:num_requests_running")
				return ok && n == 0
			}, servers[i])
		}
	})
	t.Run("weir killed", func(t *testing.T) {
		ctx := harness.Context(t)
		cut := run(ctx, t, f.ways[2])
		by[1].Kill()
		cut()
		harness.Eventually(t, "idle after weir was killed", func() bool {
			n, ok := metric(urls[1], "vllm:num_requests_running")
			return ok && n == 0
		}, servers[1])
	})
	t.Run("server killed", f.serverKilled)
	// The others serve what it would have.
	f.ways[0].url = urls[1]
	t.Run("two left", func(t *testing.T) {
		for range 4 {
			f.same(harness.Context(t), t, f.ways[3])
		}
	})
	t.Run("core killed", func(t *testing.T) {
		run(harness.Context(t), t, f.ways[3])
		headless.Kill()
		for range 4 {
			f.same(harness.Context(t), t, f.ways[3])
		}
	})
	mixed.Interrupt()
	served := map[string]int{}
	for _, r := range mixed.Records() {
		if n := len(r.Attempts); n > 0 && r.Outcome == "finished" { // /tokenize has none
			served[fmt.Sprint(r.Attempts[n-1].Legs[0]["engine"])]++
		}
	}
	if t.Logf("behind one name: %v", served); len(served) != 4 {
		t.Errorf("requests were served by %v, want all four engines", served)
	}
}
