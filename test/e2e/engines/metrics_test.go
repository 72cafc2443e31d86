package engines

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/engine/vllmcore/coretest"
	"weir/test/e2e/harness"
)

// documented is a metric in docs/metrics.md.
type documented struct {
	kind, scope string
	series      int
}

// scopes are the document's sections, by the labels that a metric is counted by.
var scopes = map[string]string{"Of the gateway": "", "Of each model": "model", "Of each engine": "engine", "Of each data-parallel rank that an engine names": "engine rank", "Of each kind of engines": "kind"}

// documentedMetrics reads the tables of docs/metrics.md, and what it says of how many series
// an engine has.
func documentedMetrics(t *testing.T) (by map[string]documented, engines map[string]int) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	by, engines = map[string]documented{}, map[string]int{}
	scope := ""
	for line := range strings.Lines(string(text)) {
		if title, ok := strings.CutPrefix(line, "### "); ok {
			if scope, ok = scopes[strings.TrimSpace(title)]; !ok {
				t.Fatalf("what is counted %q?", title)
			}
		}
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if kind, ok := strings.CutPrefix(cells[0], "| engine of kind `"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(cells[1], " |"))
			if err != nil {
				t.Fatal(err)
			}
			engines[strings.TrimSuffix(kind, "`")] = n
		}
		if len(cells) < 6 || !strings.HasPrefix(cells[0], "| `weir_") {
			continue
		}
		n, err := strconv.Atoi(cells[4])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		by[strings.Trim(cells[0], "|` ")] = documented{cells[1], scope, n}
	}
	if len(by) < 100 || len(engines) != 6 {
		t.Fatalf("%d metrics and %d kinds of engines are documented", len(by), len(engines))
	}
	return by, engines
}

// scraped returns what a gateway's metrics are.
func scraped(t *testing.T, g *harness.Gateway) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(harness.Get(t, g.Admin+"/metrics").Body))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// lines is how many series a metric's sample has in the text format.
func lines(m *dto.Metric) int {
	if h := m.GetHistogram(); h != nil {
		return len(h.GetBucket()) + 2
	}
	return 1
}

// wantDocumented holds what a gateway says against docs/metrics.md: each metric is there, is
// of that type, and has no more series than it says.
func wantDocumented(t *testing.T, g *harness.Gateway) {
	t.Helper()
	by, most := documentedMetrics(t)
	perEngine, kinds := map[string]int{}, map[string]string{}
	for name, f := range scraped(t, g) {
		if !strings.HasPrefix(name, "weir_") {
			continue
		}
		d, ok := by[name]
		if !ok || d.kind != strings.ToLower(f.GetType().String()) {
			t.Errorf("%s, a %s, is documented as %+v", name, f.GetType(), d)
			continue
		}
		n := map[string]int{}
		for _, m := range f.GetMetric() {
			of, engine := "", ""
			for _, l := range m.GetLabel() {
				if strings.Contains(" "+d.scope+" ", " "+l.GetName()+" ") {
					of += l.GetName() + "=" + l.GetValue() + " "
				}
				switch l.GetName() {
				case "engine":
					engine = l.GetValue()
				case "kind":
					if name == "weir_engine_ready" {
						kinds[engine] = l.GetValue()
					}
				}
			}
			n[of] += lines(m)
			if d.scope == "engine" {
				perEngine[engine] += lines(m)
			}
		}
		for of, n := range n {
			if n > d.series {
				t.Errorf("%s has %d series of %s, and is documented with %d", name, n, of, d.series)
			}
		}
	}
	for engine, n := range perEngine {
		if kind, ok := kinds[engine]; ok && (n > most[kind] || n < 40) {
			t.Errorf("engine %s has %d series, at most %d of kind %s are documented", engine, n, most[kind], kind)
		}
	}
}

// wantReceived wants figures of what came in of engines of a kind.
func wantReceived(t *testing.T, g *harness.Gateway, kind string, tokens int, paced bool) {
	t.Helper()
	of := func(name, label string) *dto.Histogram {
		for _, m := range scraped(t, g)[name].GetMetric() {
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
		families := scraped(t, g)
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
			wantDocumented(t, g)
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
	harness.Eventually(t, "the slow ones were given up", func() bool { return g.Goroutines() <= goroutines+2 })
}
