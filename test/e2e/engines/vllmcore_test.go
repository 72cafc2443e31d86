package engines

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"weir/internal/engine/vllmcore/coretest"
	"weir/models"
	"weir/test/e2e/harness"
)

// TestVLLMCore: an engine core dials in, serves, is hung up on, dies in the middle
// of a stream, and comes again.
func TestVLLMCore(t *testing.T) {
	harness.Beside(t, harness.Light)
	c := harness.NewCores(t)
	_, env := harness.ShortTemp(t)
	at := harness.FreeAddress(t)
	g := harness.StartUnreadyWith(t, env, "serve", "--engine", "vllm-core=tcp://"+at+",model=weir-sim")
	harness.Eventually(t, "word of how to start an engine", func() bool {
		return bytes.Contains(harness.Get(t, g.Admin+"/engines").Body, []byte("vllm serve MODEL --headless --data-parallel-address 127.0.0.1"))
	})
	first := c.Start(coretest.Options{Handshake: "tcp://" + at})
	harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
	g.Whole(c, 3)
	var streams sync.WaitGroup
	for range 32 {
		streams.Go(func() { g.Whole(c, 8) })
	}
	streams.Wait()
	if n := harness.Metric(t, g.Admin, "weir_vllm_core_ids_total"); n != float64((3+32*8)*len(c.IDs)) {
		t.Errorf("%v ids", n)
	}

	g.LosesEngine(c.Sayer, first.Close)
	c.Start(coretest.Options{Handshake: "tcp://" + at})
	harness.Eventually(t, "ready again", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
	g.Whole(c, 1)
	if ended := g.Balanced(); ended["finished"] != 34 || ended["cancelled"] != 1 || ended["failed"] != 1 {
		t.Errorf("%v", ended)
	}
	g.Interrupt()
	r := g.Records()[0]
	if leg := r.Attempts[0].Legs[0]; leg["queue_time_start"] == nil || leg["acked_time"] == nil {
		t.Errorf("leg %v", leg)
	}
}

// Adapters are models of their own on an engine core that is configured to load them. An
// adapter that the core cannot load is named and refused, and the others are served.
func TestLoRA(t *testing.T) {
	harness.Beside(t, harness.Light)
	c := harness.NewCores(t)
	at := harness.FreeAddress(t)
	folder := modelFolder(t)
	_, env := harness.ShortTemp(t)
	g := harness.StartUnreadyWith(t, env, "serve", "--engine", "vllm-core=tcp://"+at, "--model", "base="+folder+",alias=nick,lora=sql=/adapters/sql,lora=gone=/nowhere")
	// Before the engine has come an adapter is a model that nobody serves yet.
	if a := harness.Post(t, g.URL+"/v1/completions", `{"model":"sql","prompt":"Say it.","max_tokens":5}`); a.Status != http.StatusServiceUnavailable {
		t.Errorf("before the engine: %d %s", a.Status, a.Body)
	}
	c.Start(coretest.Options{Handshake: "tcp://" + at})
	harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
	g.WantModels("base nick sql(base)")
	for model, want := range map[string]int{"sql": 200, "base": 200, "nick": 200, "gone": 503, "other": 404} {
		a := harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"Say it."}],"max_tokens":5}`, model))
		if a.Status != want {
			t.Errorf("%s: %d %s", model, a.Status, a.Body)
		}
		if model == "gone" && !bytes.Contains(a.Body, []byte("there is no /nowhere")) {
			t.Errorf("the failure is not named: %s", a.Body)
		}
	}
	if carried := c.Adapters(); len(carried) != 1 || carried["sql=/adapters/sql"] != 1 {
		t.Errorf("requests carried %v", carried)
	}
	if b := harness.Get(t, g.Admin+"/engines").Body; !bytes.Contains(b, []byte("LoRA adapter gone is not served: there is no /nowhere")) {
		t.Errorf("engines: %s", b)
	}
	g.Interrupt()
}

// TestFrontend: started as vLLM starts its front end, with sockets that vLLM has
// bound, or with addresses as earlier releases did.
func TestFrontend(t *testing.T) {
	harness.Beside(t, harness.Light)
	c := harness.NewCores(t)
	dir, env := harness.ShortTemp(t)
	folder := modelFolder(t)
	args := func(more string) string {
		return fmt.Sprintf(`{"model_tag":%q,"served_model_name":["weir-sim"]%s}`, folder, more)
	}
	listener := func(network, address string) *os.File {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	run := func(t *testing.T, files []*os.File, flags ...string) *harness.Gateway {
		p := harness.StartWith(t, files, append(env, "WEIR_ADMIN_LISTEN=127.0.0.1:0"), append([]string{"frontend", "--listen-fd", "3",
			"--engine-start-index", "2", "--engine-count", "1", "--data-parallel-size", "4"}, flags...)...)
		return &harness.Gateway{Process: p, URL: p.Line("gateway"), Admin: p.Line("admin")}
	}
	try := func(t *testing.T, g *harness.Gateway, in, out, models string) {
		c.Start(coretest.Options{Input: "ipc://" + in, Output: "ipc://" + out, Index: 2})
		harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
		g.T = t
		g.Whole(c, 2)
		g.WantModels(models)
		g.Interrupt()
	}
	t.Run("sockets", func(t *testing.T) {
		in, out := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		files := []*os.File{listener("tcp", "127.0.0.1:0"), listener("unix", in), listener("unix", out)}
		try(t, run(t, files, "--input-listener-fd", "4", "--output-listener-fd", "5", "--args-json", args(`,"gpu_memory_utilization":0.5,"enable_lora":true,"lora_modules":[{"name":"sql","path":"/adapters/sql","base_model_name":null,"is_3d_lora_weight":false}]`)), in, out, "sql(weir-sim) weir-sim")
	})
	t.Run("addresses", func(t *testing.T) {
		in, out := filepath.Join(dir, "c"), filepath.Join(dir, "d")
		try(t, run(t, []*os.File{listener("tcp", "127.0.0.1:0")}, "--input-address", "ipc://"+in, "--output-address", "ipc://"+out, "--args-json", args("")), in, out, "weir-sim")
	})
}

// modelFolder writes the built-in model's folder out.
func modelFolder(t *testing.T) string {
	dir := t.TempDir()
	if err := os.CopyFS(dir, models.Sim()); err != nil {
		t.Fatal(err)
	}
	return dir
}
