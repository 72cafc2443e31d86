//go:build interop_engines

// Package real runs the built binary in front of engines as they are released, on a
// CPU and with a small model of random weights (model.py): vLLM behind its own API
// server, dialling in without it, and with weir started by it as its front end;
// transformers' server; and SGLang behind its own server and without it. Each answer of weir's is
// compared with the answer of the engine's own server to the same request.
//
//	make interop-engines
//
//	make interop-sglang
//
// WEIR_REAL_VENV and WEIR_SGLANG_VENV name the virtual environments that the Makefile makes. What
// is not installed fails its test.
package real

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

var (
	venv       string // vLLM's and transformers'
	sglangVenv string // SGLang's
	folder     string // the model's
)

func TestMain(m *testing.M) {
	harness.Patience = 10 * time.Minute // an engine takes a minute to start where nothing else runs
	os.Exit(runTests(m))
}

// runTests makes the model first.
func runTests(m *testing.M) (code int) {
	venv, sglangVenv = os.Getenv("WEIR_REAL_VENV"), os.Getenv("WEIR_SGLANG_VENV")
	if venv == "" && sglangVenv == "" {
		fmt.Fprintln(os.Stderr, "neither WEIR_REAL_VENV nor WEIR_SGLANG_VENV is set: run make interop-engines or make interop-sglang")
		return 1
	}
	dir, err := os.MkdirTemp("", "real")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	folder = filepath.Join(dir, "model")
	if out, err := exec.Command(filepath.Join(cmp.Or(venv, sglangVenv), "bin", "python"), "model.py", folder).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "model.py: %v\n%s", err, out)
		return 1
	}
	return harness.Run(m)
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(harness.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// start runs a program of the engines' environment.
func start(t *testing.T, env []string, name string, args ...string) *harness.Process {
	t.Helper()
	cmd := exec.Command(filepath.Join(venv, "bin", name), args...)
	cmd.Env = env
	return harness.StartCommand(t, cmd)
}

// gateway is a running weir.
type gateway struct{ *harness.Gateway }

// serve starts a gateway, whose engines may come later.
func serve(t *testing.T, args ...string) gateway {
	t.Helper()
	return gateway{harness.StartUnready(t, append([]string{"serve"}, args...)...)}
}

// engineView is what /engines says of an engine.
type engineView struct {
	Name, Kind, Software, Error string
	Ready                       bool
	Running, Waiting            *int
	Models                      []string
}

func (g gateway) engines() []engineView { return engines[engineView](g) }

// engines reads /engines, each engine as a V; nil where there is no answer.
func engines[V any](g gateway) (views []V) {
	resp, err := http.Get(g.Admin + "/engines")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	_ = json.NewDecoder(resp.Body).Decode(&views)
	return views
}

// ready waits until every engine is ready, or none is.
func (g gateway) ready(ready bool, needs ...*harness.Process) {
	g.T.Helper()
	harness.Eventually(g.T, fmt.Sprintf("before engines that are ready: %v", ready), func() bool {
		views := g.engines()
		for _, v := range views {
			if v.Ready != ready {
				return false
			}
		}
		return len(views) > 0
	}, append(needs, g.Process)...)
}

// way is one way to the model.
type way struct {
	name, url, model string
}

// fields are a request's, without its model.
type fields map[string]any

func (f fields) with(more fields) fields {
	all := fields{}
	for _, m := range []fields{f, more} {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

// answer is what came back, streamed or not. Comparing two says whether a client
// could tell them apart by what it was promised.
type answer struct {
	Status                     int
	Text, Reason               string
	IDs                        string
	PromptTokens, OutputTokens int
	Failed                     bool // an error event
	Done                       bool // a whole answer

	_    [0]func()     // two are compared by difference: the gap is never the same twice
	said string        // by an error
	gap  time.Duration // the longest between two events of a stream
}

func (w way) post(ctx context.Context, path string, body fields) (*http.Response, error) {
	text, err := json.Marshal(body.with(fields{"model": w.model}))
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", w.url+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// chunk is an answer, or an event of one.
type chunk struct {
	Choices []struct {
		Text           string
		Message, Delta struct{ Content string }
		FinishReason   string          `json:"finish_reason"`
		TokenIDs       json.RawMessage `json:"token_ids"`
	}
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids"`
	Usage          *struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
	}
	Error json.RawMessage
}

func (a *answer) take(data []byte) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("%q: %w", data, err)
	}
	for _, choice := range c.Choices {
		a.Text += choice.Text + choice.Message.Content + choice.Delta.Content
		a.Reason += choice.FinishReason
		a.IDs += list(choice.TokenIDs)
	}
	if c.Usage != nil {
		a.PromptTokens, a.OutputTokens = c.Usage.Prompt, c.Usage.Output
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		a.Failed, a.said = true, string(c.Error)
	}
	return nil
}

// list returns the members of an array with a comma behind each.
func list(raw json.RawMessage) string {
	in := strings.ReplaceAll(strings.Trim(string(raw), "[]"), " ", "")
	if in == "" || in == "null" {
		return ""
	}
	return in + ","
}

// ask sends a request and reads the answer to its end, or until enough says so.
func (w way) ask(ctx context.Context, path string, body fields, enough func(a *answer) bool) (a answer, err error) {
	resp, err := w.post(ctx, path, body)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	a.Status = resp.StatusCode
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return a, err
		}
		if a.Status != 200 {
			a.said = string(b)
			return a, nil
		}
		a.Done = true
		return a, a.take(b)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	var last time.Time
	for lines.Scan() {
		if now := time.Now(); !last.IsZero() {
			a.gap, last = max(a.gap, now.Sub(last)), now
		} else {
			last = now
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			a.Done = true
			continue
		}
		if err := a.take([]byte(data)); err != nil {
			return a, err
		}
		if enough != nil && enough(&a) {
			return a, nil
		}
	}
	return a, lines.Err()
}

// metric reads a gauge of an engine's own metrics.
func metric(url, name string) (float64, bool) {
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok && (rest[0] == '{' || rest[0] == ' ') {
			v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			return v, err == nil
		}
	}
	return 0, false
}

func answers(url string) func() bool {
	return func() bool {
		resp, err := http.Get(url)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	}
}
