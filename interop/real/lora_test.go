//go:build interop_engines

package real

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// TestLoRA: adapters answer on every way as vLLM's own server has them answer, and as
// nothing else does; the base model is as it was, and an adapter that is not there is
// named.
func TestLoRA(t *testing.T) {
	dir := t.TempDir()
	adapters := map[string]string{}
	for seed, name := range []string{"one", "two"} {
		adapters[name] = filepath.Join(dir, name)
		if out, err := exec.Command(filepath.Join(venv, "bin", "python"), "adapter.py", adapters[name], fmt.Sprint(seed+1)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	port, handshake, slot, admin := freePort(t), freePort(t), freePort(t), freePort(t)
	direct := "http://127.0.0.1:" + port
	// One fits a step: requests for the other wait in the engine.
	lora := []string{"--enable-lora", "--max-lora-rank", "8", "--max-loras", "1", "--max-cpu-loras", "2"}
	modules := append(lora, "--lora-modules", "one="+adapters["one"], "two="+adapters["two"])
	server := vllm(t, nil, append([]string{"--port", port}, modules...)...)
	headless := vllm(t, nil, append([]string{"--headless", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", handshake}, lora...)...)
	whole := vllm(t, []string{"VLLM_USE_RUST_FRONTEND=1", "VLLM_RUST_FRONTEND_PATH=" + harness.Binary, "WEIR_ADMIN_LISTEN=127.0.0.1:" + admin},
		append([]string{"--port", slot}, modules...)...)
	core := serve(t, "--engine", "vllm-core=tcp://127.0.0.1:"+handshake,
		"--model", fmt.Sprintf("tiny=%s,lora=one=%s,lora=two=%s,lora=gone=%s", folder, adapters["one"], adapters["two"], filepath.Join(dir, "gone")))
	front := gateway{&harness.Gateway{Process: whole, URL: "http://127.0.0.1:" + slot, Admin: "http://127.0.0.1:" + admin}}
	harness.Eventually(t, "answered by vLLM's own server", answers(direct+"/v1/models"), server)
	core.ready(true, headless)
	front.ready(true)

	ctx := harness.Context(t)
	said := map[string]string{} // the model that says it
	for _, model := range []string{"tiny", "one", "two"} {
		for path, base := range map[string]fields{chatPath: chat, completionPath: completion} {
			for _, more := range []fields{nil, streamed, {"temperature": 1, "seed": 5}} {
				want, err := way{"vLLM itself", direct, model}.ask(ctx, path, base.with(more), nil)
				if err != nil || !want.Done || want.OutputTokens != 24 {
					t.Fatalf("%s%s: %+v, %v", model, path, want, err)
				}
				if by, ok := said[want.IDs]; ok && by != model {
					t.Errorf("%s says what %s says", model, by)
				}
				said[want.IDs] = model
				for _, w := range []way{{"vllm-core", core.URL, model}, {"front end", front.URL, model}} {
					a, err := w.ask(ctx, path, base.with(more), nil)
					if d := want.difference(a); err != nil || d != "" {
						t.Errorf("%s, %s%s: %s %s %v", w.name, model, path, d, a.said, err)
					}
				}
			}
		}
	}
	// At once, each gets its own, though only one adapter fits a step. That does not hold
	// for the base on the CPU, with vLLM's own server either: there vLLM multiplies with
	// its last slot's adapter for requests that have none, where they share a step with
	// one that has (its index for none is -1).
	type result struct {
		model string
		a     answer
		err   error
	}
	for _, w := range []way{{"vLLM itself", direct, ""}, {"vllm-core", core.URL, ""}} {
		results := make(chan result)
		for i := range 24 {
			of := w
			of.model = []string{"tiny", "one", "two"}[i%3]
			go func() {
				a, err := of.ask(ctx, completionPath, completion.with(streamed), nil)
				results <- result{of.model, a, err}
			}()
		}
		wrong := 0
		for range 24 {
			r := <-results
			switch {
			case r.err != nil || !r.a.Done || r.model != "tiny" && said[r.a.IDs] != r.model:
				t.Errorf("%s: %s at once: %+v, %v", w.name, r.model, r.a, r.err)
			case said[r.a.IDs] != r.model:
				wrong++
			}
		}
		t.Logf("%s: %d of 8 answers of the base are an adapter's", w.name, wrong)
	}
	a, err := way{"vllm-core", core.URL, "gone"}.ask(ctx, completionPath, completion, nil)
	if err != nil || a.Status != 503 || !strings.Contains(a.said, "gone") {
		t.Errorf("an adapter that is not there: %+v %s, %v", a, a.said, err)
	}
	t.Logf("an adapter that is not there: %s", a.said)
	for _, v := range core.engines() {
		t.Logf("%+v", v)
	}
}
