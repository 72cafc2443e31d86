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
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// setup is a folder for sockets, and the ids of the sentence.
type setup struct {
	t     testing.TB
	wheel string
	dir   string
	ids   []uint32

	serverArgs []string // of SGLang's own server, beyond those that it needs
}

func newSetup(t testing.TB) *setup {
	t.Helper()
	wheel := os.Getenv("WEIR_SGLANG_PARSERS")
	if wheel == "" {
		t.Fatal("WEIR_SGLANG_PARSERS names no folder with SGLang's wheel: run make interop")
	}
	return &setup{t: t, wheel: wheel, dir: harness.SocketDir(t), ids: harness.SaidIDs(t)}
}

// start runs a program of this folder.
func (s *setup) start(program string, args ...string) *harness.Process {
	s.t.Helper()
	return harness.StartCommand(s.t, exec.Command(harness.Python(s.t), append([]string{program, "--sglang", s.wheel}, args...)...))
}

// said is the sentence's ids, with commas.
func (s *setup) said() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(s.ids), "[]"), " ", ",")
}

// scheduler starts one, of weir's launcher unless args name other sockets.
func (s *setup) scheduler(args ...string) *harness.Process {
	s.t.Helper()
	p := s.start("sched.py", append([]string{"--say", s.said()}, args...)...)
	p.Find("ready", func(l string) bool { return strings.Contains(l, `"ready"`) })
	return p
}

// ipc starts a gateway in the place of the TokenizerManager; its scheduler may come
// later.
func (s *setup) ipc() *harness.Gateway {
	s.t.Helper()
	return harness.StartUnready(s.t, "serve", "--engine", "sglang-ipc="+s.dir+",model=weir-sim")
}

// ready waits until requests can be served.
func ready(g *harness.Gateway) {
	g.T.Helper()
	harness.Eventually(g.T, "ready", func() bool { return harness.Get(g.T, g.Admin+"/readyz").Status == http.StatusOK }, g.Process)
}

// many runs streams at once, each of its own number of sentences, and returns how
// many ids they are.
func (s *setup) many(g *harness.Gateway, streams int) (total int) {
	ctx := harness.Context(s.t)
	var all sync.WaitGroup
	for i := range streams {
		n := 1 + i%5
		total += n * len(s.ids)
		all.Go(func() {
			if err := g.Says(ctx, s.ids, n); err != nil {
				s.t.Error(err)
			}
		})
	}
	all.Wait()
	return total
}

// endless is a limit that no test waits for.
const endless = `,"max_tokens":90000`

// TestScheduler: 256 streams with every parameter decoded and verified by SGLang's
// own code, hang-ups, a scheduler that dies and one that is there when weir comes
// again. Counts of both ends are equal.
func TestScheduler(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	s := newSetup(t)
	g := s.ipc()
	first := s.scheduler("--weir", s.dir)
	ready(g)
	ctx := harness.Context(t)
	fields := `,"max_tokens":20,"min_tokens":2,"temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.1,"presence_penalty":0.5,"frequency_penalty":-0.5,` +
		`"repetition_penalty":1.5,"seed":-7,"logit_bias":{"5":-100,"6":1.5},"stop_token_ids":[9],"ignore_eos":true,"regex":"[a-z]+"`
	if a, err := g.Complete(ctx, "weir-sim", fields, nil); err != nil || !a.Done || a.Tokens != 20 {
		t.Fatalf("%+v, %v", a, err)
	}
	total := 20 + s.many(g, 256)
	n := first.Counts(func(n map[string]int) bool { return n["finished"] == 257 })
	if n["added"] != 257 || n["aborted"] != 0 || n["ids"] != total {
		t.Errorf("the scheduler counts %v, and the client %d ids", n, total)
	}

	var hangUps sync.WaitGroup
	for range 16 {
		hangUps.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if _, err := g.Complete(ctx, "weir-sim", endless, func(a *harness.Completion) bool { return len(a.Text) > 100 }); err != nil {
				t.Error(err)
			}
		})
	}
	hangUps.Wait()
	first.Counts(func(n map[string]int) bool { return n["aborted"] == 16 })

	a, err := g.Complete(ctx, "weir-sim", endless, func(a *harness.Completion) bool {
		if len(a.Text) > 100 && first.Cmd.ProcessState == nil {
			first.Kill()
		}
		return false
	})
	if err == nil && a.Failed == "" || a.Done || a.Finish != "" {
		t.Errorf("of a scheduler that died: %v, done %v", err, a.Done)
	}
	second := s.scheduler("--weir", s.dir, "--step", "0.001")
	ready(g)
	if _, err := g.Complete(ctx, "weir-sim", endless, func(a *harness.Completion) bool {
		if len(a.Text) > 100 {
			g.Kill() // and what it was doing goes on
		}
		return false
	}); err == nil {
		t.Error("the stream ended well")
	}
	again := s.ipc()
	ready(again)
	s.many(again, 8)
	second.Counts(func(n map[string]int) bool { return n["finished"] == 8 && n["aborted"] == 1 })
}

// The launcher reads SGLang's arguments as they hold, in the form of each release that
// is taken.
func TestLauncherArguments(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), harness.Python(t), "arguments.py").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "ok" {
		t.Fatalf("%v\n%s", err, out)
	}
}
