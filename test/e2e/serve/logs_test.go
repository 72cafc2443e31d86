package serve

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

const (
	marked    = "Zanzibar-quokka-9317"
	markedKey = "sk-marmot-48151623"
)

// quoting are bodies that have the marked words, by their paths: those that are served, and
// those that are refused for whatever reason.
var quoting = []struct{ path, body string }{
	{"/v1/chat/completions", `{"model":"weir-sim","max_tokens":3,"messages":[{"role":"user","content":"MARK"}]}`},
	{"/v1/chat/completions", `{"model":"weir-sim","max_tokens":3,"stream":true,"messages":[{"role":"user","content":"MARK"}]}`},
	{"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"MARK","content":"MARK"}]}`},
	{"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"MARK"}],"temperature":"MARK"}`},
	{"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"MARK"}],"MARK":{"MARK":1}}`},
	{"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://MARK/"}}]}]}`},
	{"/v1/chat/completions", `{"model":"MARK","messages":[{"role":"user","content":"MARK"}]}`},
	{"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"MARK`},
	{"/v1/completions", `{"model":"weir-sim","max_tokens":3,"prompt":"MARK","stop":["MARK"]}`},
	{"/v1/completions", `{"model":"weir-sim","prompt":["MARK",{"MARK":1}]}`},
	{"/v1/completions", `{"model":"weir-sim","prompt":"MARK","stop":{"MARK":1},"response_format":{"type":"MARK"}}`},
	{"/v1/messages", `{"model":"weir-sim","max_tokens":3,"system":"MARK","messages":[{"role":"user","content":"MARK"}]}`},
	{"/v1/messages", `{"model":"weir-sim","max_tokens":3,"messages":[{"role":"user","content":[{"type":"MARK","text":"MARK"}]}]}`},
	{"/v1/responses", `{"model":"weir-sim","max_output_tokens":3,"input":"MARK","instructions":"MARK"}`},
	{"/v1/responses", `{"model":"weir-sim","input":[{"type":"MARK"}],"previous_response_id":"MARK"}`},
	{"/generate", `{"text":"MARK","sampling_params":{"max_new_tokens":3}}`},
	{"/generate", `{"text":"MARK","sampling_params":{"MARK":3}}`},
	{"/tokenize", `{"model":"weir-sim","prompt":"MARK"}`},
	{"/tokenize", `{"model":"weir-sim","prompt":{"MARK":1}}`},
	{"/v1/embeddings", `{"model":"weir-sim","input":"MARK"}`},
}

// quote sends all of them, with a key in each way of showing one.
func quote(t *testing.T, g *harness.Gateway, model string) {
	t.Helper()
	for _, q := range quoting {
		body := strings.ReplaceAll(strings.ReplaceAll(q.body, "MARK", marked), "weir-sim", model)
		req, err := http.NewRequestWithContext(harness.Context(t), http.MethodPost, g.URL+q.path+"?key="+markedKey, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+markedKey)
		req.Header.Set("X-Api-Key", markedKey)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", q.path, err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil && resp.StatusCode != http.StatusOK { // a stream may be cut
			t.Fatalf("%s: %v", q.path, err)
		}
	}
}

// quiet wants neither in what a process has printed, and a line for each request.
func quiet(t *testing.T, name string, p *harness.Process, lines int) {
	t.Helper()
	p.Interrupt()
	all := p.Output() + p.Stderr.String()
	for _, secret := range []string{marked, markedKey} {
		if i := strings.Index(all, secret); i >= 0 {
			t.Errorf("%s has written %q: ...%s", name, secret, all[max(0, i-300):min(len(all), i+100)])
		}
	}
	if n := strings.Count(all, `"msg":"request"`); n != lines {
		t.Errorf("%s has %d lines of requests, want %d", name, n, lines)
	}
}

// The text of a request and the key that it shows are in no line of any output: in any dialect,
// whether the request is served, refused, or failed by its engine, and at the most talkative level
// of the log.
func TestLogsHoldNoPrompt(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, path := range harness.Paths {
		sim := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms", "--log-level", "debug", "--log-format", "json")
		g := harness.StartGateway(t, "serve", "--engine", sim.Spec(path), "--log-level", "debug", "--log-format", "json", "--access-log", "1")
		quote(t, g, "weir-sim")
		sim.SetFaults("cut,after=0")
		quote(t, g, "weir-sim")
		ended := g.Balanced()
		quiet(t, "the gateway by "+path, g.Process, ended["received"])
		quiet(t, "the engine by "+path, sim.Process, 0)
	}
}

// An engine that quotes the prompt in its errors is not quoted by the log.
func TestLogsQuoteNoEngine(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, status := range []int{http.StatusBadRequest, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
				return
			}
			b, _ := io.ReadAll(r.Body) // a body that breaks off is quoted as far as it came
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error":{"message":%q}}`, "cannot serve "+string(b))
		}))
		g := harness.StartGateway(t, "serve", "--engine", "openai="+engine.URL, "--log-level", "debug", "--log-format", "json", "--access-log", "1")
		quote(t, g, "m")
		ended := g.Balanced()
		quiet(t, fmt.Sprintf("the gateway at status %d", status), g.Process, ended["received"])
		engine.Close()
	}
}
