package engines

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// guesser asks one gateway for the same long prompt under different names.
type guesser struct {
	t     *testing.T
	g     *harness.Gateway
	model string
	path  string
}

// ask asks for one token behind a prompt, and returns the tokens of the prompt that the usage
// reports as cached, and how long the answer took. own is the caller's own cache_salt.
func (q *guesser) ask(prompt, own string) (cached int, took time.Duration) {
	q.t.Helper()
	text, err := json.Marshal(prompt)
	if err != nil {
		q.t.Fatal(err)
	}
	body := fmt.Sprintf(`{"model":%q,"max_tokens":1,"temperature":0`, q.model)
	switch q.path {
	case "/v1/completions":
		body += `,"prompt":` + string(text)
	case "/v1/responses":
		body = strings.Replace(body, "max_tokens", "max_output_tokens", 1) + `,"input":` + string(text)
	default:
		body += `,"messages":[{"role":"user","content":` + string(text) + `}]`
	}
	if own != "" {
		body += fmt.Sprintf(`,"cache_salt":%q`, own)
	}
	began := time.Now()
	a := harness.Post(q.t, q.g.URL+q.path, body+"}")
	took = time.Since(began)
	var said struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
			Details2 struct {
				Cached int `json:"cached_tokens"`
			} `json:"input_tokens_details"`
			Read int `json:"cache_read_input_tokens"`
		}
	}
	if err := json.Unmarshal(a.Body, &said); err != nil || a.Status != 200 {
		q.t.Fatalf("%s: %d %s", q.path, a.Status, a.Body)
	}
	return said.Usage.Details.Cached + said.Usage.Details2.Cached + said.Usage.Read, took
}

// guess has the victim ask for a prompt twice, and then the attacker once, by a prompt of n's
// own. It returns what the attacker learns: the tokens that the usage reports as cached, and
// how much longer than the victim's second request it waited.
func (q *guesser) guess(n int, victim, attacker string) (own, cached int, longer float64) {
	q.t.Helper()
	prompt := strings.Repeat(fmt.Sprintf("The %dth secret of the house of Usher is kept in its cellar. ", n), 200)
	q.ask(prompt, victim)
	own, quick := q.ask(prompt, victim)
	cached, took := q.ask(prompt, attacker)
	return own, cached, took.Seconds() / quick.Seconds()
}

// One caller guesses another's prompt from the time of its answer and from the usage, over each
// wire to the engine, unless the model isolates its callers; within its own cache each caller
// finds all. Without keys all callers are one tenant, so that their own salts, which divide
// further, stand for tenants here.
func TestCacheIsolation(t *testing.T) {
	harness.Beside(t, harness.Light)
	slow := []string{"--cost", "constant", "--prefill-cost", "20ms", "--decode-cost", "1ms", "--chunked-prefill-size", "128", "--max-total-tokens", "400000",
		"--enable-prompt-tokens-details", "--enable-cache-report", "--enable-scale-out"}
	for _, c := range []struct {
		name  string
		spec  func(*harness.Sim) string
		paths []string
	}{
		{"plane", func(s *harness.Sim) string { return "weir=" + s.Plane }, []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}},
		{"vllm ids", func(s *harness.Sim) string { return "vllm=" + s.VLLM }, []string{"/v1/chat/completions"}},
		{"sglang ids", func(s *harness.Sim) string { return "sglang=" + s.SGLang }, []string{"/v1/chat/completions"}},
		{"vllm relayed", func(s *harness.Sim) string { return "openai=" + s.VLLM }, []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}},
		{"sglang relayed", func(s *harness.Sim) string { return "openai=" + s.SGLang }, []string{"/v1/chat/completions", "/v1/completions"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sim := harness.StartSim(t, slow...)
			open := harness.StartGateway(t, "serve", "--engine", c.spec(sim))
			apart := harness.StartGateway(t, "serve", "--engine", c.spec(sim), "--isolation", "tenant")
			for i, path := range c.paths {
				// The control: it is seen.
				q := &guesser{t, open, "weir-sim", path}
				own, cached, longer := q.guess(i, "", "")
				if own < 1000 || cached != own || longer > 3 {
					t.Errorf("%s, shared: %d tokens of the victim's own were cached, %d of the attacker's, after %.1f times the time; want all, as soon", path, own, cached, longer)
				}
				q.g = apart
				own, cached, longer = q.guess(100+i, "victim", "attacker")
				if own < 1000 || cached != 0 || longer < 3 {
					t.Errorf("%s, isolated: %d tokens of the victim's own were cached, %d of the attacker's, after %.1f times the time; want all and none, much later", path, own, cached, longer)
				}
				t.Logf("%s: isolated, the attacker waited %.1f times as long as the victim's second request", path, longer)
			}
		})
	}
}

// Keys of one tenant share what the engine keeps of their prompts, and tenants do not, unless
// every key is apart.
func TestCacheIsolationByKeys(t *testing.T) {
	harness.Beside(t, harness.Light)
	file := filepath.Join(t.TempDir(), "keys.yaml")
	var keys []string
	for _, k := range [][2]string{{"a1", "A"}, {"a2", "A"}, {"b1", "B"}} {
		out, _, code := harness.Finish(t, "", "keys", "add", "--keys", file, "--tenant", k[1], k[0])
		key := regexp.MustCompile(`weir_[A-Za-z0-9_-]+`).FindString(out)
		if code != 0 || key == "" {
			t.Fatalf("weir keys add: %d %q", code, out)
		}
		keys = append(keys, key)
	}
	sim := harness.StartSim(t, "--max-total-tokens", "400000", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	for is, want := range map[string][3]bool{"off": {true, true, true}, "tenant": {true, true, false}, "key": {true, false, false}, "": {true, true, false}} {
		args := []string{"serve", "--engine", "weir=" + sim.Plane, "--keys", file}
		if is != "" { // otherwise by default
			args = append(args, "--isolation", is)
		}
		g := harness.StartGateway(t, args...)
		ask := func(key string) bool {
			t.Helper()
			body := fmt.Sprintf(`{"model":"weir-sim","max_tokens":1,"prompt":%q}`, strings.Repeat(is+" is the secret of the cellar. ", 100))
			req, err := http.NewRequest(http.MethodPost, g.URL+"/v1/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+key)
			req.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			said, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("%d %s, %v", resp.StatusCode, said, err)
			}
			return !strings.Contains(string(said), `"cached_tokens":0`)
		}
		if ask(keys[0]) {
			t.Errorf("%s: a new prompt was cached", is)
		}
		if got := [3]bool{ask(keys[0]), ask(keys[1]), ask(keys[2])}; got != want {
			t.Errorf("%s: found again by the key, its tenant's other key, another tenant: %v, want %v", is, got, want)
		}
	}
}

// Both halves of a pair keep tenants apart: a prefill engine finds nothing that it has of another
// tenant's prompt.
func TestCacheIsolationOfPairs(t *testing.T) {
	harness.Beside(t, harness.Light)
	half := func(role string) *harness.Process {
		return harness.Start(t, "engine", "--wire", "vllm=127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--nixl-side-channel-port", "0", "--max-total-tokens", "65536",
			"--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"`+role+`","kv_connector_extra_config":{"kv_lease_duration":2}}`)
	}
	p, d := half("kv_producer"), half("kv_consumer")
	cached := func() int { return int(harness.Metric(t, p.Line("vllm"), "vllm:prompt_tokens_cached_total")) }
	for is, apart := range map[string]bool{"off": false, "tenant": true} {
		g := harness.StartGateway(t, "serve", "--engine", "openai="+p.Line("vllm")+",role=prefill", "--engine", "openai="+d.Line("vllm")+",role=decode", "--isolation", is, "--generation-probes", "off", "--policy", "round-robin")
		harness.Eventually(t, "both halves are known", func() bool {
			return strings.Count(string(harness.Get(t, g.Admin+"/engines").Body), `"ready": true`) >= 2
		})
		ask := func(own string) int {
			t.Helper()
			if is != "off" {
				own = fmt.Sprintf(`,"cache_salt":%q`, own)
			} else {
				own = ""
			}
			before := cached()
			a := harness.Post(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","max_tokens":2,"prompt":%q%s}`, strings.Repeat(is+" is the secret of the cellar. ", 100), own))
			if a.Status != 200 {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			return cached() - before
		}
		ask("victim")
		if again, other := ask("victim"), ask("attacker"); again < 500 || (other == 0) != apart {
			t.Errorf("%s: the prefill engine found %d tokens again and %d for another tenant, apart: %v", is, again, other, apart)
		}
	}
}

// With keys and no word on isolation, an engine that reads no salt serves all the same, and
// operators are warned.
func TestCacheIsolationByDefault(t *testing.T) {
	harness.Beside(t, harness.Light)
	file := filepath.Join(t.TempDir(), "keys.yaml")
	key, _, _ := harness.Finish(t, "", "keys", "add", "--keys", file, "a")
	sim := harness.StartSim(t)
	g := harness.StartGateway(t, "serve", "--engine", "openai="+sim.OpenAI+",name=plain", "--keys", file)
	a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"weir-sim","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`, "Authorization", "Bearer "+strings.TrimSpace(key))
	if a.Status != 200 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if body := string(harness.Get(t, g.Admin+"/engines").Body); !strings.Contains(body, "tenants share its prefix cache") {
		t.Errorf("operators are shown nothing: %s", body)
	}
	if log := g.Stderr.String(); !strings.Contains(log, "tenants share its prefix cache") {
		t.Errorf("the log has no warning: %s", log)
	}
}

// An engine whose API may pass over a salt is given no requests of a model that isolates its
// callers, and says why in the log, to operators and to the caller.
func TestCacheIsolationWantsSalts(t *testing.T) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t)
	g := harness.StartUnready(t, "serve", "--engine", "openai="+sim.OpenAI+",name=plain", "--isolation", "key")
	harness.Eventually(t, "the engine says why it is not used", func() bool {
		return strings.Contains(string(harness.Get(t, g.Admin+"/engines").Body), "may pass over it")
	})
	a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"hi"}]}`)
	if a.Status != 503 || !strings.Contains(string(a.Body), "isolation=off") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	for _, args := range [][]string{{"--isolation", "key", "--allow-field", "cache_salt"}, {"--model", "m=,isolation=tenant", "--allow-field", "extra_key"}, {"--isolation", "all"}, {"--model", "m=,isolation=on"}} {
		if _, said, code := harness.Finish(t, "", append([]string{"serve", "--engine", "openai=" + sim.OpenAI}, args...)...); code == 0 || !strings.Contains(said, "isolation") && !strings.Contains(said, "cache") {
			t.Errorf("%v: exit %d, %s", args, code, said)
		}
	}
}
