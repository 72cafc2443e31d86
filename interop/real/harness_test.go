//go:build interop_engines

// Package real runs the built binary in front of engines as they are released, on a
// CPU and with a small model of random weights (model.py): vLLM behind its own API
// server, dialling in without it, and with weir started by it as its front end; and
// transformers' server. What weir answers is held against what the engine's own server
// answers to the same request.
//
//	make interop-engines
//
// WEIR_REAL_VENV names the virtual environment that the Makefile makes. What is not
// installed fails its test.
package real

import (
	"bufio"
	"bytes"
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
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait; an engine takes a minute to start where nothing else
// runs.
const patience = 10 * time.Minute

var (
	venv   string // the engines'
	binary string // weir
	folder string // the model's
)

func TestMain(m *testing.M) {
	code, err := 1, setUp()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	if binary != "" {
		os.RemoveAll(filepath.Dir(binary))
	}
	os.Exit(code)
}

func setUp() error {
	if venv = os.Getenv("WEIR_REAL_VENV"); venv == "" {
		return fmt.Errorf("WEIR_REAL_VENV is not set: run make interop-engines")
	}
	dir, err := os.MkdirTemp("", "real")
	if err != nil {
		return err
	}
	binary, folder = filepath.Join(dir, "weir"), filepath.Join(dir, "model")
	build := exec.Command("go", "build", "-o", binary, "weir/cmd/weir")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	for _, cmd := range []*exec.Cmd{build, exec.Command(filepath.Join(venv, "bin", "python"), "model.py", folder)} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", cmd, err, out)
		}
	}
	return nil
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// process is a running program, in a process group with all that it starts.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

func start(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(name, args...), ended: make(chan struct{})}
	out, err := os.CreateTemp(t.TempDir(), filepath.Base(name))
	if err != nil {
		t.Fatal(err)
	}
	p.log = out.Name()
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
		out.Close()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			said := strings.Split(p.said(), "\n")
			t.Logf("%v said at last:\n%s", p.cmd, strings.Join(said[max(0, len(said)-40):], "\n"))
		}
	})
	return p
}

func (p *process) said() string {
	b, _ := os.ReadFile(p.log)
	return string(b)
}

// kill ends the process and all that it started, at once.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
}

// interrupt asks the process to end, and waits until it has.
func (p *process) interrupt() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("%v has not ended", p.cmd)
	}
}

// eventually waits until holds does, or one of the processes has ended.
func eventually(t *testing.T, what string, holds func() bool, needs ...*process) {
	t.Helper()
	for late := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if holds() {
			return
		}
		for _, p := range needs {
			select {
			case <-p.ended:
				t.Fatalf("waiting for %s: %v has ended:\n%s", what, p.cmd, p.said())
			default:
			}
		}
		if time.Now().After(late) {
			t.Fatalf("waited for %s", what)
		}
	}
}

// gateway is a running weir.
type gateway struct {
	*process
	api, admin string
}

func serve(t *testing.T, args ...string) *gateway {
	t.Helper()
	g := &gateway{api: fmt.Sprintf("127.0.0.1:%d", freePort(t)), admin: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	g.process = start(t, nil, binary, append([]string{"serve", "--listen", g.api, "--admin-listen", g.admin}, args...)...)
	g.api, g.admin = "http://"+g.api, "http://"+g.admin
	return g
}

// engineView is what /engines says of an engine.
type engineView struct {
	Name, Kind, Software, Error string
	Ready                       bool
	Running, Waiting            *int
	Models                      []string
}

func (g *gateway) engines() (views []engineView) {
	resp, err := http.Get(g.admin + "/engines")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	_ = json.NewDecoder(resp.Body).Decode(&views)
	return views
}

// ready waits until every engine is ready, or none is.
func (g *gateway) ready(ready bool, needs ...*process) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("engines that are ready: %v", ready), func() bool {
		views := g.engines()
		for _, v := range views {
			if v.Ready != ready {
				return false
			}
		}
		return len(views) > 0
	}, append(needs, g.process)...)
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

	said string // by an error
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

// list gives the members of an array with a comma behind each.
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
	for lines.Scan() {
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

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
