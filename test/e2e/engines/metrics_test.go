package engines

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/engine/vllmcore/coretest"
	"weir/test/e2e/harness"
)

// wantReceived wants figures of what came in of engines of a kind.
func wantReceived(t *testing.T, g *harness.Gateway, kind string, tokens int, paced bool) {
	t.Helper()
	of := func(name, label string) *dto.Histogram {
		for _, m := range harness.Scraped(t, g)[name].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == label {
					return m.GetHistogram()
				}
			}
		}
		t.Errorf("no %s of %s", name, label)
		return nil
	}
	streams, dispatch, wait := of("weir_receive_batch_streams", kind), of("weir_receive_dispatch_seconds", kind), of("weir_receive_wait_seconds", kind)
	merged, gaps := of("weir_receive_merged_deltas", kind), of("weir_inter_token_latency_seconds", "weir-sim")
	if streams.GetSampleCount() == 0 || streams.GetSampleSum() < float64(streams.GetSampleCount()) || dispatch.GetSampleCount() != streams.GetSampleCount() || dispatch.GetSampleSum() <= 0 ||
		wait.GetSampleCount() >= streams.GetSampleCount() || wait.GetSampleSum() <= 0 {
		t.Errorf("batches %v, dispatch %v, wait %v", streams, dispatch, wait)
	}
	if merged.GetSampleCount() == 0 || merged.GetSampleSum() < float64(merged.GetSampleCount()) || int(merged.GetSampleSum()) > 2*tokens {
		t.Errorf("merged %v", merged)
	}
	// An engine in this process says all that it has to say at once. A relayed one may have an
	// event for each stream's end besides.
	if n := int(gaps.GetSampleCount()); n > tokens+tokens/40 || paced && (n < tokens/2 || gaps.GetSampleSum() <= 0) {
		t.Errorf("%d times between %d tokens, %v s together", n, tokens, gaps.GetSampleSum())
	}
}

// wantLoad wants the engine's running and waiting requests, and those of this many ranks.
func wantLoad(t *testing.T, g *harness.Gateway, ranks int) {
	t.Helper()
	harness.Eventually(t, "the engine's load is told", func() bool {
		families := harness.Scraped(t, g)
		return len(families["weir_engine_running_requests"].GetMetric()) > 0 && len(families["weir_engine_waiting_requests"].GetMetric()) > 0 &&
			len(families["weir_engine_rank_running_requests"].GetMetric()) == ranks && len(families["weir_engine_rank_waiting_requests"].GetMetric()) == ranks
	})
}

// For every wire the metrics show how output arrives and leaves, and what the engines report
// about their work. Every metric is documented.
func TestMetricsOfEveryWire(t *testing.T) {
	const streams, tokens = 20, 40
	secure := certify(t, filepath.Join(t.TempDir(), "engine.pem"), "engine.internal")
	simulated := func(wire, kind string, flags ...string) func(*testing.T) (*harness.Gateway, func()) {
		return func(t *testing.T) (*harness.Gateway, func()) {
			url, _ := harness.StartWire(t, wire, append(append(flags, "--name", "engine"), harness.FastSim...)...)
			if slices.Contains(flags, secure) {
				url += ",ca=" + secure + ",server-name=engine.internal"
			}
			g := harness.StartGateway(t, "serve", "--engine", kind+"="+url+",name=engine")
			return g, func() {
				var all sync.WaitGroup
				for range streams {
					all.Go(func() { harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream)) })
				}
				all.Wait()
			}
		}
	}
	says := func(t *testing.T, g *harness.Gateway, ids []uint32) func() {
		n := tokens / len(ids)
		return func() {
			var all sync.WaitGroup
			for range streams {
				all.Go(func() { g.Sentences(ids, n) })
			}
			all.Wait()
		}
	}
	for name, c := range map[string]struct {
		kind  string
		start func(t *testing.T) (*harness.Gateway, func())
		ranks int
		loads bool
	}{
		"plane":        {"weir", simulated("weir", "weir"), 0, true},
		"sglang":       {"sglang", simulated("sglang", "sglang", "--dp-size", "2"), 2, true},
		"vllm":         {"vllm", simulated("vllm", "vllm"), 0, true},
		"relay":        {"openai", simulated("openai", "openai"), 0, false},
		"TLS relay":    {"openai", simulated("openai", "openai", "--ssl-certfile", secure), 0, false},
		"vllm relay":   {"openai", simulated("vllm", "openai"), 0, true},
		"sglang relay": {"openai", simulated("sglang", "openai", "--dp-size", "2"), 2, true},
		"vllm-core": {"vllm-core", func(t *testing.T) (*harness.Gateway, func()) {
			c := harness.NewCores(t)
			_, env := harness.ShortTemp(t)
			at := harness.FreeAddress(t)
			g := harness.StartUnreadyWith(t, env, "serve", "--engine", "vllm-core=tcp://"+at+",model=weir-sim,name=engine")
			c.Start(coretest.Options{Handshake: "tcp://" + at})
			return g, says(t, g, c.IDs)
		}, 0, true},
		"sglang-ipc": {"sglang-ipc", func(t *testing.T) (*harness.Gateway, func()) {
			c := &schedulers{Sayer: harness.NewSayer(t), dir: filepath.Join(harness.SocketDir(t), "s")}
			g := harness.StartUnready(t, "serve", "--engine", "sglang-ipc="+c.dir+",model=weir-sim,name=engine")
			c.start()
			if err := schedtest.Write(c.dir, schedtest.Manifest(nil)); err != nil {
				t.Fatal(err)
			}
			return g, says(t, g, c.IDs)
		}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			g, load := c.start(t)
			harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
			load()
			g.Balanced()
			wantReceived(t, g, c.kind, streams*tokens, !strings.Contains("vllm-core sglang-ipc", c.kind))
			if n := harness.Metric(t, g.Admin, "weir_engine_requests_total"); n < streams {
				t.Errorf("%v requests were handed over, want %d", n, streams)
			}
			if c.loads {
				wantLoad(t, g, c.ranks)
			}
			harness.WantDocumented(t, g)
		})
	}
}

// However many models clients ask for, they make no series.
func TestModelsThatNobodyServes(t *testing.T) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", sim.Spec("relay")+",name=engine")
	size := func() int {
		return bytes.Count(harness.Get(t, g.Admin+"/metrics").Body, []byte("\nweir_"))
	}
	ask := func(i int) {
		a := harness.Post(t, g.URL+fmt.Sprintf("/v1/chat/completions?n=%d", i), fmt.Sprintf(`{"model":"model-%d","messages":[{"role":"user","content":"x"}]}`, i))
		if a.Status != http.StatusNotFound {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		if a := harness.Post(t, g.URL+fmt.Sprintf("/v1/path-%d", i), `{"model":"weir-sim"}`); a.Status == http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	ask(0)
	before := size()
	for i := range 3000 {
		ask(i)
	}
	if after := size(); after > before+60 { // stages that none had had
		t.Errorf("%d series after thousands of models, %d before", after, before)
	}
}

// A scraper that reads a byte a second is given up at the timeout that it states. The gateway
// serves other clients meanwhile, scrapers too.
func TestSlowScraper(t *testing.T) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", sim.Spec("plane")+",name=engine")
	goroutines := g.Goroutines()
	d := net.Dialer{Control: func(network, address string, c syscall.RawConn) error { return harness.Narrow(network, address, c) }}
	var slow sync.WaitGroup
	for range 10 {
		conn, err := d.Dial("tcp", strings.TrimPrefix(g.Admin, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Prometheus-Scrape-Timeout-Seconds: 3\r\nConnection: close\r\n\r\n")
		slow.Go(func() {
			b := make([]byte, 1)
			for {
				if _, err := conn.Read(b); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
	}
	for range 5 {
		harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream))
		if a := harness.Get(t, g.Admin+"/metrics"); a.Status != http.StatusOK {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	g.Has(goroutines) // the slow ones were given up
}
