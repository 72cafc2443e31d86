//go:build interop

// Package engines runs what others publish for SGLang and vLLM against the
// simulated engine's wires: SGLang's own client and load generator, the official
// OpenAI client, and a gateway of SGLang's world.
//
//	go test -tags interop ./interop/engines/
//
// WEIR_PYTHON names an interpreter with interop/requirements.txt and this
// folder's requirements installed. What is not installed fails its test.
package engines

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// engine is a running weir engine.
type engine struct {
	sglang, vllm string // URLs
	plane        string // host:port
}

// startEngine runs an engine that speaks three wires. At the end of the test it is
// interrupted and must exit with 0.
func startEngine(t *testing.T, args ...string) engine {
	t.Helper()
	p := harness.Start(t, append([]string{"engine", "--wire", "sglang=127.0.0.1:0", "--wire", "vllm=127.0.0.1:0", "--wire", "weir=127.0.0.1:0"}, args...)...)
	t.Cleanup(p.Interrupt)
	return engine{p.Line("sglang"), p.Line("vllm"), p.Line("weir")}
}

// startGateway runs a gateway in front of an engine, given as --engine has it.
func startGateway(t *testing.T, spec string) (url string) {
	t.Helper()
	g := harness.StartGateway(t, "serve", "--engine", spec)
	t.Cleanup(g.Interrupt)
	return g.URL
}

// runScript runs a script of checks; each is a subtest.
func runScript(t *testing.T, script string, args ...string) {
	t.Helper()
	harness.Checks(t, 10, exec.Command(harness.Python(t), append([]string{script}, args...)...))
}

// SGLang's own client speaks to the gateway as to a server of SGLang's.
func TestSGLangClientOfGateway(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := startEngine(t)
	runScript(t, "sglang_client.py", startGateway(t, "weir="+e.plane), "gateway")
}

func TestSGLangClient(t *testing.T) {
	harness.Beside(t, harness.Light)
	runScript(t, "sglang_client.py", startEngine(t).sglang)
}

func TestOpenAIClient(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := startEngine(t, "--enable-per-request-metrics")
	runScript(t, "openai_client.py", e.vllm, e.sglang)
}

// A tool loop, structured output and reasoning, as the official client sees
// them. The engine takes a millisecond for a step: nothing here looks at time.
func TestModes(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := startEngine(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	runScript(t, "modes_client.py", e.vllm, e.sglang, startGateway(t, "openai="+e.vllm))
}

// SGLang's load generator counts as many tokens as were generated, and finds as
// many again in the text that it received. One process makes all its runs, because to import
// what it imports takes longer than to run it.
func TestSGLangLoadGenerator(t *testing.T) {
	harness.Beside(t, harness.Light)
	model, err := filepath.Abs("../../models/weir-sim")
	if err != nil {
		t.Fatal(err)
	}
	e := startEngine(t, "--max-total-tokens", "200000")
	gateway := startGateway(t, "weir="+e.plane)
	const prompts = 64
	dir := t.TempDir()
	names, runs := []string{}, [][]string{}
	for _, c := range []struct{ backend, url string }{
		{"sglang", gateway}, {"sglang", e.sglang}, {"sglang-oai", e.sglang}, {"sglang-oai-chat", e.sglang}, {"vllm", e.vllm}, {"vllm-chat", e.vllm},
	} {
		name, extra := c.backend, `{"ignore_eos": true}`
		if c.url == gateway {
			name, extra = "gateway", "{}" // where it would be a field of the wrong place
		}
		names = append(names, name)
		runs = append(runs, []string{"--backend", c.backend, "--base-url", c.url,
			"--dataset-name", "random-ids", "--model", "weir-sim", "--tokenizer", model, "--num-prompts", fmt.Sprint(prompts),
			"--random-input-len", "256", "--random-output-len", "64", "--random-range-ratio", "0.5", "--max-concurrency", "16",
			"--extra-request-body", extra, "--disable-tqdm", "--output-file", filepath.Join(dir, name)})
	}
	list, err := json.Marshal(runs)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(harness.Context(t), harness.Python(t), "bench_serving.py", string(list))
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			line, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			var r struct {
				Completed   int
				Tokens      int     `json:"total_output_tokens"`
				Retokenized int     `json:"total_output_tokens_retokenized"`
				TTFT        float64 `json:"median_ttft_ms"`
				ITL         float64 `json:"median_itl_ms"`
			}
			// Python writes the rate of requests, which is none, as no JSON has it.
			line = bytes.ReplaceAll(line, []byte("Infinity"), []byte("null"))
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if r.Completed != prompts || r.Tokens == 0 || r.Retokenized != r.Tokens || r.TTFT <= 0 || r.ITL <= 0 {
				t.Errorf("%+v\n%s", r, out)
			}
			t.Logf("%d requests, %d tokens, median TTFT %.1f ms, ITL %.1f ms", r.Completed, r.Tokens, r.TTFT, r.ITL)
		})
	}
}

// SGLang's load generator and weir's measure the same engine of known times, in
// small; the figures are printed, and bench/accuracy takes them in earnest.
func TestAccuracyBesideSGLang(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	file := filepath.Join(t.TempDir(), "accuracy.json")
	cmd := exec.CommandContext(harness.Context(t), "go", "run", "./bench/accuracy", "-quick", "-cells", "100 streams,500 streams", "-python", harness.Python(t), "-json", file)
	cmd.Dir, cmd.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("\n%s", out)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Results []struct{ Requests, Complete int }
		Peers   []struct {
			Completed int
			Known     struct{ Requests int }
		}
	}
	if err := json.Unmarshal(text, &r); err != nil || len(r.Results) != 2 || len(r.Peers) != 2 {
		t.Fatalf("%v: %s", err, text)
	}
	for i, mine := range r.Results {
		// SGLang's sends one more before it begins.
		if peer := r.Peers[i]; mine.Complete != mine.Requests || mine.Requests == 0 || peer.Completed != mine.Requests || peer.Known.Requests < peer.Completed {
			t.Errorf("%+v, %+v", mine, peer)
		}
	}
}

// A gateway that others publish takes the engine for SGLang: it finds out what
// it serves, and relays its streams.
func TestGatewayInFront(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := startEngine(t, "--incremental-streaming-output")
	at := harness.FreeAddress(t)
	host, port, _ := net.SplitHostPort(at)
	_, metrics, _ := net.SplitHostPort(harness.FreeAddress(t))
	smg := harness.StartCommand(t, exec.Command(filepath.Join(filepath.Dir(harness.Python(t)), "smg"), "launch", "--worker-urls", e.sglang, "--host", host, "--port", port, "--prometheus-port", metrics))
	url := "http://" + at
	harness.Eventually(t, "serving the engine's model", func() bool {
		resp, err := http.Get(url + "/v1/models")
		return err == nil && bytes.Contains(harness.Read(resp).Body, []byte(`"weir-sim"`))
	}, smg)
	for path, body := range map[string]string{
		"/generate":            `{"text":"Once upon","stream":true,"sampling_params":{"max_new_tokens":12,"ignore_eos":true}}`,
		"/v1/chat/completions": `{"model":"weir-sim","messages":[{"role":"user","content":"Hello"}],"max_tokens":12,"ignore_eos":true,"stream":true}`,
		"/v1/completions":      `{"model":"weir-sim","prompt":"Once upon","max_tokens":12,"ignore_eos":true,"stream":true}`,
	} {
		direct, through := words(t, e.sglang+path, body), words(t, url+path, body)
		if len(direct) != 12 || strings.Join(direct, " ") != strings.Join(through, " ") {
			t.Errorf("%s: %q through the gateway, %q without", path, through, direct)
		}
	}
}

// words returns the words of a stream of any of the three shapes.
func words(t *testing.T, url, body string) []string {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var text string
	done := false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			done = done || ok
			continue
		}
		var event struct {
			Text    string
			Choices []struct {
				Text  string
				Delta struct{ Content string }
			}
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		text += event.Text
		for _, c := range event.Choices {
			text += c.Text + c.Delta.Content
		}
	}
	if !done {
		t.Errorf("%s: the stream did not end: %q", url, text)
	}
	return strings.Fields(text)
}
