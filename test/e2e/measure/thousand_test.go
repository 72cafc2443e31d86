//go:build measure

package measure

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/internal/lab/kubeapi"
	"weir/test/e2e/harness"
)

// The gateway follows a thousand relayed engines of a cluster, of which fifty become ready or cease
// to be it each second. It takes at most 5 % of a core for that, above what it takes while nothing
// changes, and holds at most 100 MB. A scrape of its metrics takes at most 300 ms, and an open page
// 10 % of a core. Each change is seen within half a second; that is
// BenchmarkBoundThousand's.
func TestThousandEngines(t *testing.T) {
	harness.Beside(t, harness.Alone)
	const engines, rate, lasts = 1000, 50, 10 * time.Second
	api, kubeconfig := harness.StartKubernetes(t)
	figures := metricsOfVLLM()
	serves := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"llama","object":"model","created":1,"owned_by":"vllm","max_model_len":8192}]}`)
		case "/version":
			_, _ = io.WriteString(w, `{"version":"0.32.0"}`)
		case "/metrics":
			_, _ = io.WriteString(w, figures)
		default:
			http.NotFound(w, r)
		}
	})
	port := 0
	address := func(i int) string { return fmt.Sprintf("127.9.%d.%d", i/250+1, i%250+1) }
	put := func(i int, ready string) {
		name := fmt.Sprintf("pod-%04d", i)
		api.Put("/api/v1/namespaces/models/pods", kubeapi.Object{
			"metadata": kubeapi.Object{"name": name, "uid": "uid-" + name, "labels": kubeapi.Object{"app": "vllm"}},
			"spec":     kubeapi.Object{"containers": []any{kubeapi.Object{"name": "c", "ports": []any{kubeapi.Object{"containerPort": port}}}}},
			"status":   kubeapi.Object{"phase": "Running", "podIP": address(i), "conditions": []any{kubeapi.Object{"type": "Ready", "status": ready}}},
		})
	}
	for i := range engines {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", address(i), port))
		if err != nil {
			t.Fatal(err)
		}
		port = l.Addr().(*net.TCPAddr).Port
		s := &http.Server{Handler: serves}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { s.Close() })
		put(i, "True")
	}
	g := harness.StartUnready(t, "serve", "--discover", "kubernetes=pods,selector=app=vllm,loopback=true,kind=openai,kubeconfig="+kubeconfig)
	// Each answer of /engines or /metrics has a thousand engines, so that few are asked for.
	ready := func() int {
		time.Sleep(time.Second)
		return strings.Count(string(harness.Get(t, g.Admin+"/engines").Body), `"ready": true`)
	}
	harness.Eventually(t, "ready with all engines", func() bool { return ready() == engines }, g.Process)
	proc := fmt.Sprintf("/proc/%d/", g.Cmd.Process.Pid)
	cpu := func() float64 { // in hundredths of a second, as USER_HZ has it
		data, err := os.ReadFile(proc + "stat")
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		user, err := strconv.ParseFloat(fields[11], 64)
		system, err2 := strconv.ParseFloat(fields[12], 64)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		return (user + system) / 100
	}
	resident := func() float64 {
		data, err := os.ReadFile(proc + "statm")
		if err != nil {
			t.Fatal(err)
		}
		pages, err := strconv.ParseFloat(strings.Fields(string(data))[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return pages * float64(os.Getpagesize()) / 1e6
	}
	share := func(change func(n int)) float64 {
		before, began, n := cpu(), time.Now(), 0
		for tick := time.NewTicker(time.Second / rate); time.Since(began) < lasts; n++ {
			<-tick.C
			change(n)
		}
		return 100 * (cpu() - before) / time.Since(began).Seconds()
	}
	time.Sleep(5 * time.Second) // what the engines' joining has begun ends
	rests := share(func(int) {})
	changes := share(func(n int) { put(n/2, []string{"False", "True"}[n%2]) })
	flaps := share(func(n int) { put(n%engines, "False") })
	megabytes := resident()
	// What a scrape costs, and a page that shows the engines, which asks as often as this.
	size := map[string]int{}
	asks := func(path string) { size[path] = len(harness.Get(t, g.Admin+path).Body) }
	const scrapes = 10
	before := cpu()
	for range scrapes {
		asks("/metrics")
	}
	scrape := (cpu() - before) / scrapes * 1000
	page := share(func(n int) {
		for path, every := range map[string]int{"/live": rate, "/engines": rate, "/records?order=total&since=1m&limit=5&reason=1": 2 * rate, "/peers": 2 * rate, "/admin/fleet": 5 * rate} {
			if n%every == 0 {
				asks(path)
			}
		}
	})
	t.Logf("a scrape takes %.0f ms of CPU for %d KB, and an open page %.1f %% of a core: %v bytes", scrape, size["/metrics"]>>10, page-rests, size)
	t.Logf("%.1f %% of a core at rest, %.1f while %d pods a second change and change back, %.1f while as many cease to be ready for good; %.0f MB resident", rests, changes, rate, flaps, megabytes)
	if more := max(changes, flaps) - rests; more > 5 {
		t.Errorf("changes take %.1f %% of a core, want at most 5", more)
	}
	if scrape > 300 || page-rests > 10 {
		t.Errorf("a scrape takes %.0f ms and a page %.1f %% of a core, want at most 300 and 10", scrape, page-rests)
	}
	if megabytes > 100 {
		t.Errorf("%.0f MB resident, want at most 100", megabytes)
	}
}

// metricsOfVLLM are 60 KB of metrics, as a server of vLLM has, of which weir reads three lines.
func metricsOfVLLM() string {
	var text strings.Builder
	text.WriteString("vllm:num_requests_running{engine=\"0\",model_name=\"llama\"} 3.0\nvllm:num_requests_waiting{engine=\"0\",model_name=\"llama\"} 0.0\nvllm:kv_cache_usage_perc{engine=\"0\",model_name=\"llama\"} 0.25\n")
	for h := range 30 {
		fmt.Fprintf(&text, "# HELP vllm:histogram_%d Histogram of something in seconds.\n# TYPE vllm:histogram_%d histogram\n", h, h)
		for le := range 24 {
			fmt.Fprintf(&text, "vllm:histogram_%d_bucket{engine=\"0\",le=\"%d.0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 1234.0\n", h, le)
		}
	}
	return text.String()
}
