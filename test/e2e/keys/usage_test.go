package keys_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// used is one line of a usage log.
type used struct {
	RequestID  string `json:"request_id"`
	Time       time.Time
	Key        string
	Tenant     string
	Model      string
	Outcome    string
	Code       string
	Prompt     int `json:"prompt_tokens"`
	Cached     int `json:"cached_tokens"`
	Completion int `json:"completion_tokens"`
	Estimated  bool
}

// sums are what lines come to.
type sums struct{ requests, prompt, cached, completion int }

func (s sums) plus(u used) sums {
	return sums{s.requests + 1, s.prompt + u.Prompt, s.cached + u.Cached, s.completion + u.Completion}
}

// usageOf reads a usage log and its rotated files, in which each line must be whole.
func usageOf(t *testing.T, path string) (all []used, text string) {
	t.Helper()
	files, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text += string(data)
		for line := range strings.Lines(string(data)) {
			var u used
			if err := json.Unmarshal([]byte(line), &u); err != nil {
				t.Fatalf("%s: %v: %q", name, err, line)
			}
			all = append(all, u)
		}
	}
	return all, text
}

// fleet is what TestUsage asks: models by name, and the engines that serve each.
type fleet struct {
	*harness.Gateway
	t       *testing.T
	engines map[string][]metered
}

// metered is an engine that counts as vLLM does.
type metered struct{ url, admin string }

// counted sums the counters of a model's engines, at rest.
func (f *fleet) counted(model string) (n sums) {
	f.t.Helper()
	for _, e := range f.engines[model] {
		harness.Eventually(f.t, "the engine is at rest", func() bool {
			st := harness.EngineState(f.t, e.admin)
			return st.Running == 0 && st.Waiting == 0
		})
		metric := func(name string) int { return int(harness.Metric(f.t, e.url, "vllm:"+name)) }
		n.prompt += metric("prompt_tokens_total")
		n.cached += metric("prompt_tokens_cached_total")
		n.completion += metric("generation_tokens_total")
	}
	return n
}

// send posts a request under an id and returns its status and how its answer was read.
func (f *fleet) send(path, id, key, body string) (int, error) {
	f.t.Helper()
	resp := f.begin(path, id, key, body)
	defer resp.Body.Close()
	_, err := io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func (f *fleet) begin(path, id, key, body string) *http.Response {
	f.t.Helper()
	req, err := http.NewRequestWithContext(harness.Context(f.t), "POST", f.URL+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "X-Api-Key": {key}, "X-Request-Id": {id}}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp
}

// hangUp begins a stream and leaves after some events.
func (f *fleet) hangUp(id, key, body string) {
	f.t.Helper()
	resp := f.begin("/v1/chat/completions", id, key, body)
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for events := 0; events < 4; {
		line, err := r.ReadString('\n')
		if err != nil {
			f.t.Fatal(err)
		}
		if strings.HasPrefix(line, "data:") {
			events++
		}
	}
}

// startFleet starts engines of four models and a gateway before them: "weir-sim" has two engines
// that exchange ids with weir, "vllm" a relayed vLLM, "openai" a relayed engine with only OpenAI's
// API, and "pair" a prefill and a decode engine.
func startFleet(t *testing.T, args ...string) *fleet {
	f := &fleet{t: t, engines: map[string][]metered{}}
	start := func(model, wire string, more ...string) *harness.Process {
		p := harness.Start(t, append([]string{"engine", "--wire", "vllm=127.0.0.1:0", "--wire", wire + "=127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--served-model-name", model,
			"--cost", "constant", "--prefill-cost", "2ms", "--decode-cost", "20ms", "--max-total-tokens", "65536", "--enable-prompt-tokens-details"}, more...)...)
		f.engines[model] = append(f.engines[model], metered{p.Line("vllm"), p.Line("admin")})
		return p
	}
	kv := func(role string) []string {
		return []string{"--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"` + role + `","kv_connector_extra_config":{"kv_lease_duration":2}}`}
	}
	a, b, o := start("weir-sim", "weir"), start("weir-sim", "weir"), start("openai", "openai")
	v := start("vllm", "openai")
	p, d := start("pair", "openai", kv("kv_producer")...), start("pair", "openai", kv("kv_consumer")...)
	f.Gateway = harness.StartGateway(t, append([]string{"serve", "--engine", "weir=" + a.Line("weir"), "--engine", "weir=" + b.Line("weir"), "--engine", "openai=" + o.Line("openai"), "--engine", "openai=" + v.Line("vllm"),
		"--engine", "openai=" + p.Line("vllm") + ",role=prefill", "--engine", "openai=" + d.Line("vllm") + ",role=decode"}, args...)...)
	return f
}

// The usage log, the metrics and the engines' own counters add up. The requests are streams
// and whole answers, with several choices, pairs, embeddings, and streams of relayed engines
// with and without usage. Some are refused, some fail, some are given up by client or engine,
// and some continue at another engine.
func TestUsage(t *testing.T) {
	dir := t.TempDir()
	callers, log := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "usage.jsonl")
	alice := add(t, "alice", "--keys", callers, "--tenant", "research")
	bob := add(t, "bob", "--keys", callers, "--tenant", "sales")
	carol := add(t, "carol", "--keys", callers, "--tenant", "sales", "--models", "nothing")
	f := startFleet(t, "--keys", callers, "--usage-log", log, "--usage-log-max-size", "4KiB", "--usage-log-keep", "100", "--policy", "round-robin", "--generation-probes", "off")
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	models := []string{"weir-sim", "vllm", "openai", "pair"}
	for _, model := range models {
		harness.Eventually(t, model, func() bool {
			_, _, text := ask(t, "GET", f.URL+"/v1/models", "", "X-Api-Key", alice)
			return strings.Contains(text, `"`+model+`"`)
		})
	}
	harness.Eventually(t, "all engines", func() bool {
		return strings.Count(string(harness.Get(t, f.Admin+"/engines").Body), `"ready": true`) >= 6
	})
	before := f.counted("pair") // weir has asked both halves for a token each
	const long = "Tell a long story of a weir, a mill and a miller who counts every sack that passes, so that a prompt has some pages."
	body := func(model, more string) string {
		return `{"model":"` + model + `","messages":[{"role":"user","content":"` + long + `"}]` + more + `}`
	}
	const chats = "/v1/chat/completions"
	sent := 0
	want := func(status int, class, key, path, body string) {
		t.Helper()
		sent++
		if got, err := f.send(path, fmt.Sprintf("%s-%d", class, sent), key, body); got != status || err != nil {
			t.Fatalf("%s: status %d, %v; want %d", body, got, err, status)
		}
	}
	for _, model := range models {
		for _, key := range []string{alice, bob} {
			want(200, "whole", key, chats, body(model, `,"max_tokens":7`))
			want(200, "whole", key, chats, body(model, `,"max_tokens":11,"stream":true,"stream_options":{"include_usage":true}`))
			want(200, "quiet", key, chats, body(model, `,"max_tokens":5,"stream":true`))
		}
		want(200, "two", bob, chats, body(model, `,"max_tokens":3,"n":2`))
		want(400, "refused", bob, chats, body(model, `,"max_tokens":-1`))
		want(404, "refused", carol, chats, body(model, `,"max_tokens":3`))
		want(401, "unknown", carol+"x", chats, body(model, `,"max_tokens":3`))
	}
	want(200, "embed", alice, "/v1/embeddings", `{"model":"vllm","input":["one text","and another one"]}`)
	exact := map[string]sums{}
	for _, model := range models {
		exact[model] = f.counted(model)
	}
	faults := func(model, fault string) {
		for _, e := range f.engines[model] {
			(&harness.Sim{Process: f.Process, Admin: e.admin}).SetFaults(strings.Fields(fault)...)
		}
	}
	for _, model := range models[:3] {
		faults(model, "fail")
		want(map[bool]int{true: 502, false: 500}[model == "weir-sim"], "failed", bob, chats, body(model, `,"max_tokens":3`))
		faults(model, "abort,after=4")
		sent++
		f.send(chats, fmt.Sprintf("cut-%d", sent), bob, body(model, `,"max_tokens":50,"stream":true,"seed":1`)) // which does not go on elsewhere
		faults(model, "")
		sent++
		f.hangUp(fmt.Sprintf("hang-%d", sent), alice, body(model, `,"max_tokens":400,"stream":true`))
	}
	first := f.engines["weir-sim"][0]
	(&harness.Sim{Process: f.Process, Admin: first.admin}).SetFaults("abort,after=4")
	continued := func() int { return int(harness.Metric(t, f.Admin, "weir_continuations_total")) }
	for before, tries := continued(), 0; continued() == before; tries++ {
		if tries == 20 {
			t.Fatal("no stream went on at another engine")
		}
		want(200, "goes", alice, chats, body("weir-sim", `,"max_tokens":20,"stream":true`))
	}
	faults("weir-sim", "")
	f.Balanced()
	after := map[string]sums{}
	for _, model := range models {
		after[model] = f.counted(model)
	}
	metrics := map[[2]string]sums{}
	for _, tenant := range []string{"research", "sales"} {
		for _, model := range append(models, "") {
			labels := []string{`tenant="` + tenant + `"`, `model="` + model + `"`}
			metric := func(name string) int { return int(harness.Metric(t, f.Admin, "weir_usage_"+name, labels...)) }
			if n := (sums{metric("requests_total"), metric("prompt_tokens_total"), metric("cached_tokens_total"), metric("completion_tokens_total")}); n != (sums{}) {
				metrics[[2]string{tenant, model}] = n
			}
		}
	}
	f.Interrupt()
	f.Exits(0)
	given, halves := f.given()

	all, text := usageOf(t, log)
	logged := map[[2]string]sums{}
	whole, every := map[string]sums{}, map[string]sums{} // what engines must have counted for what is logged
	late := map[string]int{}                             // and what they may have generated besides
	classes := map[string]int{}
	for _, u := range all {
		pair := [2]string{u.Tenant, u.Model}
		logged[pair] = logged[pair].plus(u)
		class, _, _ := strings.Cut(u.RequestID, "-")
		classes[class]++
		counts := u
		switch class {
		case "whole", "quiet":
			if u.Outcome != "finished" || u.Estimated || u.Prompt == 0 || u.Completion == 0 {
				t.Errorf("%+v", u)
			}
		case "two": // each choice is a request of its own to the engine
			counts.Prompt, counts.Cached = 2*u.Prompt, 2*u.Cached
		case "embed": // the simulated engine counts no embeddings; what it answered was seen above
			if u.Prompt == 0 || u.Completion != 0 {
				t.Errorf("%+v", u)
			}
			continue
		case "refused", "failed":
			if u.Prompt+u.Cached+u.Completion != 0 || u.Outcome == "finished" || u.Code == "" {
				t.Errorf("%+v", u)
			}
		case "cut", "hang":
			if u.Completion < 1 || u.Outcome == "finished" || u.Code == "" || u.Estimated == (u.Model == "weir-sim") {
				t.Errorf("%+v", u)
			}
			late[u.Model] += map[string]int{"cut": 50, "hang": 400}[class] - u.Completion
		case "goes":
			if n := given[u.RequestID]; n > 0 { // the second engine takes in what the first one gave
				classes["gone"]++
				counts.Prompt += u.Prompt + n
				late[u.Model] += 20 - n
			}
		default:
			t.Errorf("%+v is not expected: a request without a known key belongs to nobody", u)
		}
		if every[u.Model] = every[u.Model].plus(counts); class == "whole" || class == "quiet" || class == "two" {
			whole[u.Model] = whole[u.Model].plus(counts)
		}
	}
	if want := map[string]int{"whole": 16, "quiet": 8, "two": 4, "embed": 1, "refused": 8, "failed": 3, "cut": 3, "hang": 3, "gone": 1, "goes": classes["goes"]}; !maps.Equal(classes, want) {
		t.Errorf("the log has %v, want %v", classes, want)
	}
	if !maps.Equal(logged, metrics) {
		t.Errorf("the log comes to %v,\nmetrics to %v", logged, metrics)
	}
	for _, model := range models[:3] {
		e, w := exact[model], whole[model]
		if e.prompt != w.prompt || e.cached != w.cached || e.completion != w.completion {
			t.Errorf("%s: by the log engines have counted %+v for whole answers, and they have counted %+v", model, w, e)
		}
		e, w = after[model], every[model]
		if estimated := model != "weir-sim"; !estimated && e.prompt != w.prompt {
			t.Errorf("%s: by the log engines have taken in %d tokens, and they have counted %d", model, w.prompt, e.prompt)
		}
		if more := e.completion - w.completion; model == "weir-sim" && (more < 0 || more > late[model]) {
			t.Errorf("%s: engines have generated %d tokens more than the log has, of up to %d that nobody got", model, more, late[model])
		}
		t.Logf("%s: whole %+v of %+v, all %+v of %+v", model, whole[model], exact[model], every[model], after[model])
	}
	// A prefill engine generates the first id of each half, which nobody gets.
	if got, want := exact["pair"].completion-before.completion, whole["pair"].completion+halves; got != want || halves == 0 {
		t.Errorf("pair: engines have generated %d tokens, and by the log it is %d, with %d halves", got, want, halves)
	}
	for _, secret := range []string{alice, bob, carol} {
		if strings.Contains(text, strings.TrimPrefix(secret, "weir_")) {
			t.Error("a key is in the usage log")
		}
	}
}

// given reads from the timeline how many ids were given to clients before their streams went on
// at another engine, and how many prefill halves there were.
func (f *fleet) given() (n map[string]int, halves int) {
	data, err := os.ReadFile(f.Timeline)
	if err != nil {
		f.t.Fatal(err)
	}
	n = map[string]int{}
	for line := range strings.Lines(string(data)) {
		var r struct {
			ID       string `json:"request_id"`
			Attempts []struct {
				Given int `json:"given_tokens"`
				Legs  []struct{ Role string }
			}
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			f.t.Fatal(err)
		}
		for _, a := range r.Attempts {
			n[r.ID] += a.Given
			for _, l := range a.Legs {
				if l.Role == "prefill" {
					halves++
				}
			}
		}
	}
	return n, halves
}
