//go:build interop

// Package prometheus has Prometheus itself, of Debian's package, scrape a gateway that
// serves, and asks it what integrations/prometheus asks.
//
//	go test -tags interop ./interop/prometheus/
package prometheus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const integration = "../../integrations/prometheus/"

// promtool runs Prometheus' own checks.
func promtool(t *testing.T, dir string, stdin []byte, args ...string) {
	t.Helper()
	c := exec.Command("promtool", args...)
	c.Dir, c.Stdin = dir, bytes.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v; make prometheus installs it\n%s", args, err, out)
	}
}

// The configuration is valid, and each alert fires when it should and not otherwise.
func TestRules(t *testing.T) {
	promtool(t, integration, nil, "check", "config", "prometheus.yml")
	promtool(t, integration, nil, "check", "rules", "weir.rules.yml")
	promtool(t, integration, nil, "test", "rules", "weir.rules.test.yml")
	rules, err := os.ReadFile(integration + "weir.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(integration + "weir.rules.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	alerts := 0
	for line := range strings.Lines(string(rules)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "- alert: "); ok {
			if alerts++; !bytes.Contains(tests, []byte(`alertname="`+name+`"`)) {
				t.Errorf("no test has the alert %s fire", name)
			}
		}
	}
	if alerts < 15 {
		t.Errorf("%d alerts", alerts)
	}
}

// prometheusServer is a Prometheus that scrapes gateways.
type prometheusServer struct {
	*testing.T
	url string
}

// scrapes starts one with a file of rules.
func scrapes(t *testing.T, gateways, rules string, flags ...string) *prometheusServer {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs: [{job_name: weir, static_configs: [{targets: [%s]}]}]\n", rules, gateways)
	harness.WriteFile(t, filepath.Join(dir, "prometheus.yml"), config)
	address := harness.FreeAddress(t)
	args := append([]string{"--config.file=" + filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address}, flags...)
	harness.StartCommand(t, exec.Command("prometheus", args...))
	p := &prometheusServer{t, "http://" + address}
	harness.Eventually(t, "Prometheus is ready", func() bool {
		resp, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// get reads what the API says.
func (p *prometheusServer) get(path string, to any) error {
	resp, err := http.Get(p.url + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return json.Unmarshal(answer.Data, to)
}

// ask returns the values of a query now, those that are numbers.
func (p *prometheusServer) ask(query string) (values []string, err error) {
	var data struct {
		Result []struct {
			Value []any
		}
	}
	err = p.get("/api/v1/query?query="+url.QueryEscape(query), &data)
	for _, r := range data.Result {
		if v := fmt.Sprint(r.Value[1]); v != "NaN" {
			values = append(values, v)
		}
	}
	return values, err
}

// question is a query of the dashboard.
type question struct{ panel, query string }

// dashboard returns what it asks.
func dashboard(t *testing.T) (all []question) {
	t.Helper()
	text, err := os.ReadFile(integration + "weir.dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all = append(all, question{p.Title, variables.Replace(q.Expr)})
		}
	}
	if len(all) < 60 {
		t.Fatalf("%d queries", len(all))
	}
	return all
}

// fleet is two gateways with every kind of figure to show: one of engines that are handed
// ids, of which one has ranks and one sends what does not add up, and one of relayed ones.
func fleet(t *testing.T) (targets string, load func()) {
	slow := append([]string{"--cost", "constant", "--prefill-cost", "2ms", "--decode-cost", "5ms"}, "--max-total-tokens", "100000")
	one, bad := harness.StartSim(t, append(slow, "--dp-size", "2")...), harness.StartSim(t, append(slow, "--name", "bad")...)
	vllm, _ := harness.StartWire(t, "vllm", slow...)
	tokens := harness.StartGateway(t, "serve", "--stall-threshold", "20ms",
		"--engine", one.Spec("sglang")+",name=ranks", "--engine", bad.Spec("sglang")+",name=bad")
	relays := harness.StartGateway(t, "serve", "--engine", "openai="+vllm+",name=relayed")
	bad.SetFaults("miscount,nth=7", "cut,after=0,nth=5")
	load = func() {
		var all sync.WaitGroup
		for _, g := range []*harness.Gateway{tokens, relays} {
			for range 4 {
				all.Go(func() {
					for i := range 4 {
						harness.Post(t, g.URL+"/v1/chat/completions", strings.Replace(harness.AskStream, `"x"`, fmt.Sprintf(`"%s %d"`, strings.Repeat("the same words again ", 60), i), 1))
						harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"weir-sim","messages":1}`)
					}
				})
			}
		}
		all.Wait()
	}
	return fmt.Sprintf("%q,%q", instance(tokens), instance(relays)), load
}

// instance is what Prometheus calls a gateway.
func instance(g *harness.Gateway) string { return strings.TrimPrefix(g.Admin, "http://") }

// Prometheus takes in what a gateway says, in either form of histograms, its linter finds
// nothing, the rules can be evaluated, and each query of the dashboard, and of
// docs/metrics.md, returns data.
func TestDashboard(t *testing.T) {
	t.Parallel()
	targets, load := fleet(t)
	rules := rulesFile(t, 1)
	servers := map[string]*prometheusServer{"classic": scrapes(t, targets, rules), "native": scrapes(t, targets, rules, "--enable-feature=native-histograms")}
	questions := dashboard(t)
	stop := make(chan struct{})
	var loading sync.WaitGroup
	loading.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				load()
			}
		}
	})
	defer loading.Wait()
	defer close(stop)
	for form, p := range servers {
		t.Run(form, func(t *testing.T) {
			open := questions
			for deadline := time.Now().Add(90 * time.Second); len(open) > 0 && time.Now().Before(deadline); time.Sleep(time.Second) {
				var still []question
				for _, q := range open {
					values, err := p.ask(q.query)
					if err != nil {
						t.Fatalf("%s: %s: %v", q.panel, q.query, err)
					}
					if len(values) == 0 {
						still = append(still, q)
					}
				}
				open = still
			}
			for _, q := range open {
				t.Errorf("no data for %q: %s", q.panel, q.query)
			}
			var rules struct {
				Groups []struct {
					Rules []struct{ Name, Health, LastError string }
				}
			}
			if err := p.get("/api/v1/rules", &rules); err != nil {
				t.Fatal(err)
			}
			for _, r := range rules.Groups[0].Rules {
				if r.Health != "ok" {
					t.Errorf("alert %s: %s %s", r.Name, r.Health, r.LastError)
				}
			}
			native, err := p.ask(`count(histogram_count(weir_ttft_seconds))`)
			if err != nil || (form == "native") != (len(native) > 0) {
				t.Errorf("native histograms of the time to first token: %v, %v", native, err)
			}
			classic, err := p.ask(`count(weir_ttft_seconds_bucket)`)
			if err != nil || (form == "classic") != (len(classic) > 0) {
				t.Errorf("classic buckets of the time to first token: %v, %v", classic, err)
			}
		})
	}
	document, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, asked, _ := strings.Cut(string(document), "## Questions to ask")
	for line := range strings.Lines(asked) {
		if cells := strings.Split(line, "` | `"); len(cells) == 2 {
			if _, err := servers["classic"].ask(strings.TrimSuffix(strings.TrimSpace(cells[1]), "` |")); err != nil {
				t.Errorf("%s: %v", cells[1], err)
			}
		}
	}
	for _, target := range strings.Split(targets, ",") {
		promtool(t, ".", harness.Get(t, "http://"+strings.Trim(target, `"`)+"/metrics").Body, "check", "metrics")
	}
}
