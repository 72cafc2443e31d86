//go:build interop

// Package sglang runs the built binary in the place of SGLang's TokenizerManager, on
// the sockets of a scheduler made of what a real one is made of: libzmq, and SGLang's
// own structures, codec and validation from its wheel. Only the model is missing
// (sched.py). It also runs SGLang's own HTTP server and TokenizerManager before such a
// scheduler (server.py), with weir in front, and beside it.
//
//	go test -tags interop ./interop/sglang/
//
// WEIR_PYTHON names an interpreter with the requirements.txt of interop,
// interop/engines and this folder installed, and WEIR_SGLANG_PARSERS a folder with
// SGLang's wheel (interop/parsers/requirements.txt).
package sglang

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	patience = time.Minute
	sentence = "The quick brown fox jumps over the lazy dog and counts to seven. "
)

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

// setup is a folder for sockets, and the ids of the sentence.
type setup struct {
	t      testing.TB
	python string
	wheel  string
	dir    string
	ids    []int

	serverArgs []string // of SGLang's own server, beyond those that it needs
}

func newSetup(t testing.TB) *setup {
	s := &setup{t: t, python: os.Getenv("WEIR_PYTHON"), wheel: os.Getenv("WEIR_SGLANG_PARSERS")}
	if s.python == "" {
		s.python = "python3"
	}
	if s.wheel == "" {
		t.Fatal("WEIR_SGLANG_PARSERS names no folder with SGLang's wheel: run make interop")
	}
	tokenize := exec.Command(built, "tokenize", "-")
	tokenize.Stdin = strings.NewReader(sentence)
	out, err := tokenize.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &s.ids); err != nil {
		t.Fatal(err)
	}
	if s.dir, err = os.MkdirTemp("", "sg"); err != nil { // short enough for a socket's path
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(s.dir) })
	return s
}

// process is a running program whose lines are kept.
type process struct {
	t     testing.TB
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
	p.cmd.Process.Kill()
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

// scheduler starts one, of weir's launcher unless args name other sockets.
func (s *setup) scheduler(args ...string) *process {
	say := strings.ReplaceAll(strings.Trim(fmt.Sprint(s.ids), "[]"), " ", ",")
	all := append([]string{"sched.py", "--sglang", s.wheel, "--say", say}, args...)
	p := s.start(s.python, all...)
	p.line("ready", func(l string) bool { return strings.Contains(l, `"ready"`) })
	return p
}

// counts waits until a scheduler is at rest with counts that pick likes.
func (p *process) counts(pick func(n map[string]int) bool) map[string]int {
	p.t.Helper()
	var n struct{ Counts map[string]int }
	p.line("counts", func(l string) bool {
		n.Counts = nil
		return json.Unmarshal([]byte(l), &n) == nil && n.Counts != nil && pick(n.Counts)
	})
	return n.Counts
}

// gateway is a running weir.
type gateway struct {
	*process
	api, admin string
}

func (s *setup) gateway(engine string) *gateway {
	g := &gateway{process: s.start(built, "serve", "--engine", engine, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")}
	address := func(name string) string {
		return strings.Fields(g.line(name, func(l string) bool { return strings.HasPrefix(l, name) }))[1]
	}
	g.api, g.admin = address("gateway"), address("admin")
	return g
}

// ready waits until requests can be served.
func (g *gateway) ready() {
	g.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if resp, err := http.Get(g.admin + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
	}
	g.t.Fatal("it did not become ready")
}

// answer is what a client got of a stream.
type answer struct {
	text, finish, failed string
	done                 bool
	tokens               int
}

// complete asks for a completion and reads it, or until stop says so.
func (g *gateway) complete(ctx context.Context, fields string, stop func(a *answer) bool) (a answer, err error) {
	body := `{"model":"weir-sim","prompt":"Say it.","stream":true,"stream_options":{"include_usage":true}` + fields + `}`
	req, err := http.NewRequestWithContext(ctx, "POST", g.api+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		return a, fmt.Errorf("%s: %s", resp.Status, b)
	}
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

// want checks a whole answer of n sentences.
func (g *gateway) want(ctx context.Context, ids, n int) error {
	a, err := g.complete(ctx, fmt.Sprintf(`,"max_tokens":%d`, ids*n), nil)
	switch {
	case err != nil:
		return err
	case !a.done || a.failed != "" || a.finish != "length" || a.tokens != ids*n:
		return fmt.Errorf("%+v", a)
	case a.text != strings.Repeat(sentence, n):
		return fmt.Errorf("text %q", a.text)
	}
	return nil
}

// many runs streams at once, each of its own number of sentences, and gives how many
// ids they are.
func (g *gateway) many(ids, streams int) (total int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var all sync.WaitGroup
	for i := range streams {
		n := 1 + i%5
		total += n * ids
		all.Go(func() {
			if err := g.want(ctx, ids, n); err != nil {
				g.t.Error(err)
			}
		})
	}
	all.Wait()
	return total
}

// TestScheduler: 256 streams with every parameter decoded and verified by SGLang's
// own code, hang-ups, a scheduler that dies and one that is there when weir comes
// again. Counts of both ends are equal.
func TestScheduler(t *testing.T) {
	s := newSetup(t)
	g := s.gateway("sglang-ipc=" + s.dir + ",model=weir-sim")
	first := s.scheduler("--weir", s.dir)
	g.ready()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	fields := `,"max_tokens":20,"min_tokens":2,"temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.1,"presence_penalty":0.5,"frequency_penalty":-0.5,` +
		`"repetition_penalty":1.5,"seed":-7,"logit_bias":{"5":-100,"6":1.5},"stop_token_ids":[9],"ignore_eos":true,"regex":"[a-z]+"`
	if a, err := g.complete(ctx, fields, nil); err != nil || !a.done || a.tokens != 20 {
		t.Fatalf("%+v, %v", a, err)
	}
	total := 20 + g.many(len(s.ids), 256)
	n := first.counts(func(n map[string]int) bool { return n["finished"] == 257 })
	if n["added"] != 257 || n["aborted"] != 0 || n["ids"] != total {
		t.Errorf("the scheduler counts %v, and the client %d ids", n, total)
	}

	var hangUps sync.WaitGroup
	for range 16 {
		hangUps.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if _, err := g.complete(ctx, `,"max_tokens":90000`, func(a *answer) bool { return len(a.text) > 100 }); err != nil {
				t.Error(err)
			}
		})
	}
	hangUps.Wait()
	first.counts(func(n map[string]int) bool { return n["aborted"] == 16 })

	a, err := g.complete(ctx, `,"max_tokens":90000`, func(a *answer) bool {
		if len(a.text) > 100 && first.cmd.ProcessState == nil {
			first.kill()
		}
		return false
	})
	if err == nil && a.failed == "" || a.done || a.finish != "" {
		t.Errorf("of a scheduler that died: %v, done %v", err, a.done)
	}
	second := s.scheduler("--weir", s.dir, "--step", "0.001")
	g.ready()
	if _, err := g.complete(ctx, `,"max_tokens":90000`, func(a *answer) bool {
		if len(a.text) > 100 {
			g.kill() // and what it was doing goes on
		}
		return false
	}); err == nil {
		t.Error("the stream ended well")
	}
	again := s.gateway("sglang-ipc=" + s.dir + ",model=weir-sim")
	again.ready()
	again.many(len(s.ids), 8)
	second.counts(func(n map[string]int) bool { return n["finished"] == 8 && n["aborted"] == 1 })
}
