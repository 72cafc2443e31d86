//go:build interop

// Package vllmcore runs the built binary in front of engine cores made of what a
// real one is made of: libzmq's sockets, msgspec's codec, and a release's own
// structures and validation where wheels of vLLM are at hand. Only the model is
// missing (core.py).
//
//	go test -tags interop ./interop/vllm-core/
//
// WEIR_PYTHON names an interpreter with interop/requirements.txt installed.
// WEIR_VLLM_WHEELS names a folder that holds a folder with the Python files of a
// wheel for each release, as make vllm-wheels lays it out; without it only the
// structures written in definitions.py are used.
package vllmcore

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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	patience = 30 * time.Second
	sentence = "The quick brown fox jumps over the lazy dog and counts to seven. "
)

// setup is a gateway's binary, and the ids of the sentence.
type setup struct {
	t      *testing.T
	bin    string
	python string
	say    string
	port   int // of the handshake
	env    []string
}

// built is the built program.
var built string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		panic(err)
	}
	built = filepath.Join(dir, "weir")
	build := exec.Command("go", "build", "-o", built, "weir/cmd/weir")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	code := 1
	if err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

func newSetup(t *testing.T) *setup {
	s := &setup{t: t, bin: built, python: os.Getenv("WEIR_PYTHON")}
	if s.python == "" {
		s.python = "python3"
	}
	tokenize := exec.Command(s.bin, "tokenize", "-")
	tokenize.Stdin = strings.NewReader(sentence)
	out, err := tokenize.Output()
	if err != nil {
		t.Fatal(err)
	}
	var ids []int
	if err := json.Unmarshal(out, &ids); err != nil {
		t.Fatal(err)
	}
	s.say = strings.ReplaceAll(strings.Trim(fmt.Sprint(ids), "[]"), " ", ",")
	s.port = freePort(t)
	dir, err := os.MkdirTemp("", "vc") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s.env = append(os.Environ(), "TMPDIR="+dir, "XDG_RUNTIME_DIR=")
	return s
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// process is a running program whose lines are kept.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}

	mu    sync.Mutex
	lines []string
	more  chan struct{}
	err   bytes.Buffer
}

func (s *setup) start(name string, args ...string) *process {
	s.t.Helper()
	p := &process{t: s.t, cmd: exec.Command(name, args...), ended: make(chan struct{}), more: make(chan struct{})}
	p.cmd.Env = s.env
	p.cmd.Stderr = &p.err
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, lines.Text())
			close(p.more)
			p.more = make(chan struct{})
			p.mu.Unlock()
		}
		p.cmd.Wait()
	}()
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			s.t.Logf("%s said:\n%s\n%s", filepath.Base(name), strings.Join(p.lines, "\n"), p.err.String())
		}
	})
	return p
}

func (p *process) kill() {
	p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.ended
}

// line waits for a line that pick likes.
func (p *process) line(what string, pick func(line string) bool) string {
	p.t.Helper()
	late := time.After(patience)
	for at := 0; ; {
		p.mu.Lock()
		lines, more := p.lines, p.more
		p.mu.Unlock()
		for ; at < len(lines); at++ {
			if pick(lines[at]) {
				return lines[at]
			}
		}
		select {
		case <-more:
		case <-p.ended:
			p.t.Fatalf("ended without %s", what)
		case <-late:
			p.t.Fatalf("waited for %s", what)
		}
	}
}

// gateway is a running weir.
type gateway struct {
	*process
	api, admin, timeline string
}

func (s *setup) gateway(engine string, args ...string) *gateway {
	g := &gateway{timeline: filepath.Join(s.t.TempDir(), "timeline.jsonl")}
	g.process = s.start(s.bin, append([]string{"serve", "--engine", engine, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--timeline", g.timeline}, args...)...)
	address := func(name string) string {
		line := g.line(name, func(l string) bool { return strings.HasPrefix(l, name) })
		return strings.Fields(line)[1]
	}
	g.api, g.admin = address("gateway"), address("admin")
	return g
}

func (s *setup) spec(more string) string {
	return fmt.Sprintf("vllm-core=tcp://127.0.0.1:%d,model=weir-sim%s", s.port, more)
}

// core starts an engine core that dials in and waits until it is ready.
func (s *setup) core(args ...string) *process {
	all := append([]string{"core.py", "--handshake", fmt.Sprintf("tcp://127.0.0.1:%d", s.port), "--say", s.say}, args...)
	c := s.start(s.python, all...)
	c.line("ready", func(l string) bool { return strings.Contains(l, `"ready"`) })
	return c
}

// counts waits until a core is at rest with counts that pick likes.
func (c *process) counts(pick func(n map[string]int) bool) map[string]int {
	var n struct {
		Counts map[string]int
		Live   int
	}
	c.line("counts", func(l string) bool {
		n.Counts = nil
		return json.Unmarshal([]byte(l), &n) == nil && n.Counts != nil && n.Live == 0 && pick(n.Counts)
	})
	return n.Counts
}

// answer is what a client got of a stream.
type answer struct {
	text, finish string
	done         bool
	failed       string
	tokens       int
}

// complete asks for a completion and reads it, or until stop says so.
func (g *gateway) complete(ctx context.Context, fields string, stop func(a *answer) bool) (answer, error) {
	return g.completeOf(ctx, "weir-sim", fields, stop)
}

func (g *gateway) completeOf(ctx context.Context, model, fields string, stop func(a *answer) bool) (answer, error) {
	body := `{"model":"` + model + `","prompt":"Say it.","stream":true,"stream_options":{"include_usage":true}` + fields + `}`
	req, err := http.NewRequestWithContext(ctx, "POST", g.api+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		return answer{}, fmt.Errorf("%s: %s", resp.Status, b)
	}
	var a answer
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			a.done = true
			continue
		}
		var e struct {
			Choices []struct {
				Text   string
				Finish string `json:"finish_reason"`
			}
			Usage *struct {
				Completion int `json:"completion_tokens"`
			}
			Error *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return a, fmt.Errorf("%q: %w", data, err)
		}
		for _, c := range e.Choices {
			a.text += c.Text
			a.finish += c.Finish
		}
		if e.Usage != nil {
			a.tokens = e.Usage.Completion
		}
		if e.Error != nil {
			a.failed = e.Error.Message
		}
		if stop != nil && stop(&a) {
			return a, nil
		}
	}
	return a, lines.Err()
}

// want checks a whole answer of n ids: the sentence over and over.
func (g *gateway) want(ctx context.Context, per, n int) error {
	a, err := g.complete(ctx, fmt.Sprintf(`,"max_tokens":%d`, n), nil)
	switch {
	case err != nil:
		return err
	case !a.done || a.failed != "" || a.finish != "length" || a.tokens != n:
		return fmt.Errorf("%+v", a)
	case a.text != strings.Repeat(sentence, n/per):
		return fmt.Errorf("text %q", a.text)
	}
	return nil
}

func (s *setup) per() int { return strings.Count(s.say, ",") + 1 }

// releases lists the releases to play, and the core's flags for each.
func releases(t *testing.T) map[string][]string {
	all := map[string][]string{"own definitions": nil}
	if dir := os.Getenv("WEIR_VLLM_WHEELS"); dir != "" {
		found, err := filepath.Glob(filepath.Join(dir, "*", "vllm"))
		if err != nil || len(found) == 0 {
			t.Fatalf("WEIR_VLLM_WHEELS=%s holds no wheels: %v", dir, err)
		}
		for _, path := range found {
			release := filepath.Base(filepath.Dir(path))
			all[release] = []string{"--wheel", filepath.Dir(path), "--version", release}
		}
	}
	return all
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestReleases(t *testing.T) {
	for release, flags := range releases(t) {
		t.Run(release, func(t *testing.T) {
			s, ctx := newSetup(t), testContext(t)
			g := s.gateway(s.spec(",priority=true"))
			c := s.core(flags...)

			priority := `,"priority":-7`
			if strings.HasPrefix(release, "0.2") && release < "0.24" {
				_, err := g.complete(ctx, priority, nil)
				if err == nil || !strings.Contains(err.Error(), "400") || !strings.Contains(err.Error(), "priority") {
					t.Errorf("a priority: %v", err)
				}
				priority = ""
			}
			guide, guided := `,"regex":"[a-z]+"`, []string{`"structured_outputs": `, "[a-z]+", "guidance"}
			if flags != nil && release != "0.33.0" {
				_, err := g.complete(ctx, guide, nil)
				if err == nil || !strings.Contains(err.Error(), "400") || !strings.Contains(err.Error(), "regex") {
					t.Errorf("a guide: %v", err)
				}
				guide, guided = "", nil
			}
			// Everything a request may carry, as the engine decodes and validates it.
			a, err := g.complete(ctx, `,"max_tokens":40,"min_tokens":3,"temperature":0.5,"top_p":0.9,"top_k":7,"seed":-5,"presence_penalty":0.5,"frequency_penalty":-0.5,`+
				`"repetition_penalty":1.5,"min_p":0.25,"logit_bias":{"7":1.5}`+guide+priority+`,"stop_token_ids":[`+s.nth(4)+`]`, nil)
			if err != nil || a.finish != "stop" || !a.done || a.tokens != 5 {
				t.Fatalf("%+v, %v", a, err)
			}
			first := c.line("the first request", func(l string) bool { return strings.Contains(l, `"first"`) })
			for _, want := range []string{`"max_tokens": "40"`, `"min_tokens": "3"`, `"temperature": "0.5"`, `"top_p": "0.9"`, `"top_k": "7"`, `"seed": "-5"`, `"client": 0`,
				`"presence_penalty": "0.5"`, `"frequency_penalty": "-0.5"`, `"repetition_penalty": "1.5"`, `"min_p": "0.25"`, `"logit_bias": "{7: 1.5}"`} {
				if !strings.Contains(first, want) {
					t.Errorf("%s is not in %s", want, first)
				}
			}

			if priority != "" {
				guided = append(guided, `"priority": -7`)
			}
			for _, want := range guided {
				if !strings.Contains(first, want) {
					t.Errorf("%s is not in %s", want, first)
				}
			}

			const streams, rounds = 64, 4
			errs := make(chan error)
			for range streams {
				go func() {
					var err error
					for range rounds {
						if err = g.want(ctx, s.per(), 5*s.per()); err != nil {
							break
						}
					}
					errs <- err
				}()
			}
			for range streams {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			n := c.counts(func(n map[string]int) bool { return n["finished"] == streams*rounds+1 })
			if n["ids"] != streams*rounds*5*s.per()+5 || n["added"] != n["finished"] {
				t.Errorf("counts %v", n)
			}
			g.checkTimeline()
		})
	}
}

// Adapters are loaded by the engine's own call before it is served, and requests for
// them carry them, as each release decodes both; what it does not load is refused.
func TestLoRA(t *testing.T) {
	for release, flags := range releases(t) {
		t.Run(release, func(t *testing.T) {
			s, ctx := newSetup(t), testContext(t)
			g := s.gateway(s.spec(""), "--model", "weir-sim=../../models/weir-sim,lora=sql=/adapters/sql,lora=gone=/nowhere")
			c := s.core(flags...)
			if line := c.line("an adapter loaded", func(l string) bool { return strings.Contains(l, `"loaded"`) }); !strings.Contains(line, `"sql"`) || !strings.Contains(line, "/adapters/sql") {
				t.Error(line)
			}
			for _, model := range []string{"weir-sim", "sql", "sql"} {
				if a, err := g.completeOf(ctx, model, fmt.Sprintf(`,"max_tokens":%d`, s.per()), nil); err != nil || !a.done || a.text != sentence {
					t.Errorf("%s: %+v, %v", model, a, err)
				}
			}
			if _, err := g.completeOf(ctx, "gone", "", nil); err == nil || !strings.Contains(err.Error(), "no adapter at /nowhere") {
				t.Errorf("an adapter that was not loaded: %v", err)
			}
			if n := c.counts(func(n map[string]int) bool { return n["finished"] == 3 }); n["with sql"] != 2 {
				t.Errorf("counts %v", n)
			}
		})
	}
}

// nth gives the n-th id that is said.
func (s *setup) nth(n int) string { return strings.Split(s.say, ",")[n] }

// checkTimeline looks for the engine's own stamps and counts in the records.
func (g *gateway) checkTimeline() {
	b, err := os.ReadFile(g.timeline)
	if err != nil {
		g.t.Fatal(err)
	}
	records := 0
	for line := range bytes.Lines(b) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var r struct {
			Outcome string
			Cached  int `json:"cached_tokens"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			g.t.Fatal(err)
		}
		if r.Outcome == "rejected" {
			continue
		}
		records++
		if r.Cached == 0 {
			g.t.Fatalf("no cached tokens in %s", line)
		}
		for _, stamp := range []string{"queue_time_start", "queue_time_end", "server_first_token_time", "to_server_time", "acked_time"} {
			if !bytes.Contains(line, []byte(`"`+stamp+`":`)) {
				g.t.Fatalf("no %s in %s", stamp, line)
			}
		}
	}
	if records == 0 {
		g.t.Error("no records")
	}
}

// Several choices are several requests to the engine, and log probabilities are
// read where it puts them, with one alternative more than was asked for.
func TestChoicesAndLogprobs(t *testing.T) {
	for release, flags := range releases(t) {
		t.Run(release, func(t *testing.T) {
			s, ctx := newSetup(t), testContext(t)
			g := s.gateway(s.spec(""))
			c := s.core(flags...)
			const tokens = 12
			req, err := http.NewRequestWithContext(ctx, "POST", g.api+"/v1/completions", strings.NewReader(
				fmt.Sprintf(`{"model":"weir-sim","prompt":["Say it.","And again."],"n":2,"logprobs":3,"max_tokens":%d}`, tokens)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if err := g.want(ctx, s.per(), s.per()); err != nil { // the engine is there
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var a struct {
				Choices []struct {
					Logprobs struct {
						Tokens []string
						Values []float64            `json:"token_logprobs"`
						Tops   []map[string]float64 `json:"top_logprobs"`
					}
				}
				Usage struct {
					Completion int `json:"completion_tokens"`
				}
			}
			if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != 200 || len(a.Choices) != 4 || a.Usage.Completion != 4*tokens {
				t.Fatalf("%s, %v: %+v", resp.Status, err, a)
			}
			for i, choice := range a.Choices {
				l := choice.Logprobs
				if len(l.Tokens) != tokens || len(l.Values) != tokens || len(l.Tops) != tokens {
					t.Fatalf("choice %d: %+v", i, l)
				}
				for n := range l.Values {
					if l.Values[n] != -float64(n+1)/8 || l.Tops[n][l.Tokens[n]] != l.Values[n] || len(l.Tops[n]) > 3 {
						t.Errorf("choice %d, token %d: %q %v, alternatives %v", i, n, l.Tokens[n], l.Values[n], l.Tops[n])
					}
				}
			}
			if n := c.counts(func(n map[string]int) bool { return n["finished"] == 5 }); n["added"] != 5 {
				t.Errorf("counts %v", n)
			}
		})
	}
}

func TestHangUp(t *testing.T) {
	s, ctx := newSetup(t), testContext(t)
	g := s.gateway(s.spec(""))
	c := s.core()
	const streams = 32
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			if _, err := g.complete(ctx, `,"max_tokens":4000`, func(a *answer) bool { return len(a.text) > 100 }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	n := c.counts(func(n map[string]int) bool { return n["aborted"] == streams })
	if n["finished"] != 0 {
		t.Errorf("counts %v", n)
	}
}

func TestEngineRestarts(t *testing.T) {
	s, ctx := newSetup(t), testContext(t)
	g := s.gateway(s.spec(""))
	for range 3 {
		c := s.core()
		a, err := g.complete(ctx, `,"max_tokens":4000`, func(a *answer) bool {
			if len(a.text) > 100 {
				c.kill()
			}
			return false
		})
		if err == nil && a.failed == "" || a.done || a.finish != "" {
			t.Errorf("%+v, %v", a, err)
		}
	}
	s.core()
	if err := g.want(ctx, s.per(), s.per()); err != nil {
		t.Error(err)
	}
}

// TestGatewayRestarts: an engine takes minutes to load, so one that is still there
// must serve on when weir comes back. It was told nothing and says nothing; its
// sockets connect again by themselves.
func TestGatewayRestarts(t *testing.T) {
	s, ctx := newSetup(t), testContext(t)
	g := s.gateway(s.spec(""))
	c := s.core()
	if err := g.want(ctx, s.per(), s.per()); err != nil {
		t.Fatal(err)
	}
	if _, err := g.complete(ctx, `,"max_tokens":4000`, func(a *answer) bool {
		if len(a.text) > 100 {
			g.kill()
		}
		return false
	}); err == nil {
		t.Error("the stream ended well")
	}
	again := s.gateway(s.spec(""))
	if err := again.want(ctx, s.per(), s.per()); err != nil {
		t.Fatal(err)
	}
	n := c.counts(func(n map[string]int) bool { return n["finished"] == 2 && n["aborted"] == 1 })
	if n["added"] != 3 {
		t.Errorf("counts %v", n)
	}
}

func TestRanks(t *testing.T) {
	s, ctx := newSetup(t), testContext(t)
	g := s.gateway(s.spec(",dp=2"))
	cores := []*process{s.core("--index", "0"), s.core("--index", "1")}
	for !g.has(`2 of 2`) && !g.has(`"max_running": 512`) {
		if ctx.Err() != nil {
			t.Fatal("the engines did not join")
		}
	}
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			if err := g.want(ctx, s.per(), 4*s.per()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, c := range cores {
		c.counts(func(n map[string]int) bool { return n["finished"] == 16 })
	}
}

// has says whether the engines' state has a text in it.
func (g *gateway) has(text string) bool {
	resp, err := http.Get(g.admin + "/engines")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	time.Sleep(10 * time.Millisecond) // of the poll
	return strings.Contains(string(b), text)
}
