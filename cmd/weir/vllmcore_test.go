package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/trace"
	"weir/models"
)

// said is what an engine core says, over and over.
const said = "The quick brown fox jumps over the lazy dog and counts to seven. "

// sayer is what engines in this process that say the sentence go by: one id an
// output and all that was asked for at once, unless the first id is to be the only
// one.
type sayer struct {
	t   *testing.T
	ids []uint32

	mu       sync.Mutex
	holdBack bool
	aborted  int
}

func newSayer(t *testing.T) *sayer {
	ids, stderr, code := tokenize(t, said, "-")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	c := &sayer{t: t}
	if err := json.Unmarshal([]byte(ids), &c.ids); err != nil {
		t.Fatal(err)
	}
	return c
}

// hear notes requests that were aborted, and says whether to hold back.
func (c *sayer) hear(aborted int) (holdBack bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted += aborted
	return c.holdBack
}

func (c *sayer) hold(back bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holdBack = back
}

func (c *sayer) wereAborted() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aborted
}

// cores is a place for engine cores.
type cores struct {
	*sayer
	adapters map[string]int // requests by the adapter that they carry, by the sayer's mutex
}

func newCores(t *testing.T) *cores { return &cores{newSayer(t), map[string]int{}} }

// start connects an engine.
func (c *cores) start(o coretest.Options) *coretest.Core {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	o.Receive = c.receive
	core, err := coretest.Start(ctx, o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(core.Close)
	return core
}

func (c *cores) receive(core *coretest.Core, m coretest.Message) {
	holdBack := c.hear(len(m.Abort))
	if l := m.Add.Adapter; l != nil {
		c.mu.Lock()
		c.adapters[l.Name+"="+l.Path]++
		c.mu.Unlock()
	}
	if m.Type == 3 {
		b := coretest.Batch{Call: m.Call, Given: true}
		if l := m.Adapter; l != nil && !strings.HasPrefix(l.Path, "/adapters/") {
			b.Failure = "Call to add_lora method failed: there is no " + l.Path
		}
		core.Send(b)
	}
	if m.Type != 0 {
		return
	}
	now := trace.Now()
	limit := int(coretest.Number(m.Add.Sampling["max_tokens"]))
	for i := range limit {
		o := coretest.Output{ID: m.Add.ID, IDs: []uint32{c.ids[i%len(c.ids)]}, Finish: -1}
		if i == 0 {
			o.Prompt, o.Cached, o.Queued, o.Scheduled = len(m.Add.Prompt), 1, now, now+1
		}
		if i == limit-1 {
			o.Finish = 1
		}
		core.Send(coretest.Batch{Outputs: []coretest.Output{o}})
		if holdBack {
			return
		}
	}
}

// streamed gives what a stream of completions said, and whether it ended well.
func streamed(a answer) (text string, done bool) {
	for line := range bytes.Lines(a.body) {
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		if !ok {
			continue
		}
		if done = string(data) == "[DONE]"; done {
			continue
		}
		var e struct{ Choices []struct{ Text string } }
		if json.Unmarshal(data, &e) == nil {
			for _, choice := range e.Choices {
				text += choice.Text
			}
		}
	}
	return text, done
}

func (g *gateway) say(n int) answer {
	return post(g.t, g.url+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":"Say it.","stream":true,"max_tokens":%d}`, n))
}

// whole wants an answer of n sentences.
func (g *gateway) whole(c *cores, n int) { g.t.Helper(); g.sentences(c.ids, n) }

// sentences wants an answer of n sentences of an engine that says these ids.
func (g *gateway) sentences(ids []uint32, n int) {
	g.t.Helper()
	if text, done := streamed(g.say(n * len(ids))); !done || text != strings.Repeat(said, n) {
		g.t.Errorf("%q, done %v", text, done)
	}
}

// begun gives an answer whose first line was read.
func (g *gateway) begun() *http.Response {
	g.t.Helper()
	resp, err := http.Post(g.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"weir-sim","prompt":"Say it.","stream":true,"max_tokens":99}`))
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		g.t.Fatal(err)
	}
	return resp
}

// socketDir is a folder whose path is short enough for that of a socket in it.
func socketDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "vc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// shortTemp is a socketDir, and an environment in which weir puts its own sockets
// there.
func shortTemp(t *testing.T) (dir string, env []string) {
	dir = socketDir(t)
	return dir, []string{"TMPDIR=" + dir, "XDG_RUNTIME_DIR="}
}

// TestVLLMCore: an engine core dials in, serves, is hung up on, dies in the middle
// of a stream, and comes again.
func TestVLLMCore(t *testing.T) {
	beside(t, light)
	c := newCores(t)
	_, env := shortTemp(t)
	at := freeAddress(t)
	g := startUnreadyWith(t, env, "serve", "--engine", "vllm-core=tcp://"+at+",model=weir-sim")
	eventually(t, "word of how to start an engine", func() bool {
		return bytes.Contains(get(t, g.admin+"/engines").body, []byte("vllm serve MODEL --headless --data-parallel-address 127.0.0.1"))
	})
	first := c.start(coretest.Options{Handshake: "tcp://" + at})
	eventually(t, "ready", func() bool { return get(t, g.admin+"/readyz").status == http.StatusOK })
	g.whole(c, 3)
	var streams sync.WaitGroup
	for range 32 {
		streams.Go(func() { g.whole(c, 8) })
	}
	streams.Wait()
	if n := metric(t, g.admin, "weir_vllm_core_ids_total"); n != float64((3+32*8)*len(c.ids)) {
		t.Errorf("%v ids", n)
	}

	c.hold(true)
	g.begun().Body.Close()
	eventually(t, "aborted", func() bool { return c.wereAborted() == 1 })

	cut := g.begun()
	first.Close()
	rest := read(cut)
	if _, done := streamed(rest); done || !bytes.Contains(rest.body, []byte(`"error"`)) {
		t.Errorf("a stream whose engine died: %s, %v", rest.body, rest.err)
	}
	eventually(t, "not ready", func() bool { return get(t, g.admin+"/readyz").status != http.StatusOK })
	c.hold(false)
	c.start(coretest.Options{Handshake: "tcp://" + at})
	eventually(t, "ready again", func() bool { return get(t, g.admin+"/readyz").status == http.StatusOK })
	g.whole(c, 1)
	if ended := g.balanced(); ended["finished"] != 34 || ended["cancelled"] != 1 || ended["failed"] != 1 {
		t.Errorf("%v", ended)
	}
	g.interrupt()
	r := g.records()[0]
	if leg := r.Attempts[0].Legs[0]; leg["queue_time_start"] == nil || leg["acked_time"] == nil {
		t.Errorf("leg %v", leg)
	}
}

// wantModels wants a list of models, each with its parent if it has one.
func (g *gateway) wantModels(want string) {
	g.t.Helper()
	var list struct{ Data []struct{ ID, Parent string } }
	if err := json.Unmarshal(get(g.t, g.url+"/v1/models").body, &list); err != nil {
		g.t.Fatal(err)
	}
	var names []string
	for _, m := range list.Data {
		name := m.ID
		if m.Parent != "" {
			name += "(" + m.Parent + ")"
		}
		names = append(names, name)
	}
	if got := strings.Join(names, " "); got != want {
		g.t.Errorf("models %q, want %q", got, want)
	}
}

// TestLoRA: adapters are models of their own on an engine core that is told to load
// them; one that it cannot load is named and refused, and hides nothing else.
func TestLoRA(t *testing.T) {
	beside(t, light)
	c := newCores(t)
	at := freeAddress(t)
	folder := modelFolder(t)
	_, env := shortTemp(t)
	g := startUnreadyWith(t, env, "serve", "--engine", "vllm-core=tcp://"+at, "--model", "base="+folder+",alias=nick,lora=sql=/adapters/sql,lora=gone=/nowhere")
	// Before the engine has come an adapter is a model that nobody serves yet.
	if a := post(t, g.url+"/v1/completions", `{"model":"sql","prompt":"Say it.","max_tokens":5}`); a.status != http.StatusServiceUnavailable {
		t.Errorf("before the engine: %d %s", a.status, a.body)
	}
	c.start(coretest.Options{Handshake: "tcp://" + at})
	eventually(t, "ready", func() bool { return get(t, g.admin+"/readyz").status == http.StatusOK })
	g.wantModels("base nick sql(base)")
	for model, want := range map[string]int{"sql": 200, "base": 200, "nick": 200, "gone": 503, "other": 404} {
		a := post(t, g.url+"/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"Say it."}],"max_tokens":5}`, model))
		if a.status != want {
			t.Errorf("%s: %d %s", model, a.status, a.body)
		}
		if model == "gone" && !bytes.Contains(a.body, []byte("there is no /nowhere")) {
			t.Errorf("the failure is not named: %s", a.body)
		}
	}
	c.mu.Lock()
	if len(c.adapters) != 1 || c.adapters["sql=/adapters/sql"] != 1 {
		t.Errorf("requests carried %v", c.adapters)
	}
	c.mu.Unlock()
	if b := get(t, g.admin+"/engines").body; !bytes.Contains(b, []byte("LoRA adapter gone is not served: there is no /nowhere")) {
		t.Errorf("engines: %s", b)
	}
	g.interrupt()

	for args, want := range map[string]string{
		"--engine openai=127.0.0.1:1 --model base=" + folder + ",lora=sql=/l":                                           "--lora-paths",
		"--engine vllm-core=tcp://" + at + " --model base=" + folder + ",lora=base=/l":                                  `the name "base" is given`,
		"--engine vllm-core=tcp://" + at + ",model=base --model base=" + folder + " --model o=" + folder + ",lora=x=/l": "--model o,lora",
	} {
		p := start(t, append([]string{"serve"}, strings.Fields(args)...)...)
		<-p.exited
		if !strings.Contains(p.stderr.String(), want) || p.cmd.ProcessState.ExitCode() == 0 {
			t.Errorf("%s: %s", args, p.stderr.String())
		}
	}
}

// TestFrontend: started as vLLM starts its front end, with sockets that vLLM has
// bound, or with addresses as earlier releases did.
func TestFrontend(t *testing.T) {
	beside(t, light)
	c := newCores(t)
	dir, env := shortTemp(t)
	folder := modelFolder(t)
	args := func(more string) string {
		return fmt.Sprintf(`{"model_tag":%q,"served_model_name":["weir-sim"]%s}`, folder, more)
	}
	listener := func(network, address string) *os.File {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	run := func(t *testing.T, files []*os.File, flags ...string) *gateway {
		p := startWith(t, files, append(env, "WEIR_ADMIN_LISTEN=127.0.0.1:0"), append([]string{"frontend", "--listen-fd", "3",
			"--engine-start-index", "2", "--engine-count", "1", "--data-parallel-size", "4"}, flags...)...)
		return &gateway{weir: p, url: p.line("gateway"), admin: p.line("admin")}
	}
	try := func(t *testing.T, g *gateway, in, out, models string) {
		c.start(coretest.Options{Input: "ipc://" + in, Output: "ipc://" + out, Index: 2})
		eventually(t, "ready", func() bool { return get(t, g.admin+"/readyz").status == http.StatusOK })
		g.t = t
		g.whole(c, 2)
		g.wantModels(models)
		g.interrupt()
	}
	t.Run("sockets", func(t *testing.T) {
		in, out := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		files := []*os.File{listener("tcp", "127.0.0.1:0"), listener("unix", in), listener("unix", out)}
		try(t, run(t, files, "--input-listener-fd", "4", "--output-listener-fd", "5", "--args-json", args(`,"gpu_memory_utilization":0.5,"enable_lora":true,"lora_modules":[{"name":"sql","path":"/adapters/sql","base_model_name":null,"is_3d_lora_weight":false}]`)), in, out, "sql(weir-sim) weir-sim")
	})
	t.Run("addresses", func(t *testing.T) {
		in, out := filepath.Join(dir, "c"), filepath.Join(dir, "d")
		try(t, run(t, []*os.File{listener("tcp", "127.0.0.1:0")}, "--input-address", "ipc://"+in, "--output-address", "ipc://"+out, "--args-json", args("")), in, out, "weir-sim")
	})
	t.Run("refused", func(t *testing.T) {
		for _, test := range []struct{ json, want string }{
			{args(`,"api_key":["secret"]`), "--api-key of vllm serve is not carried"},
			{args(`,"lora_modules":[{"name":"weir-sim","path":"/l"}]`), `--lora-modules of vllm serve: the name "weir-sim" is given twice`},
			{args(`,"chat_template":"x.jinja"`), "chat_template.jinja"},
			{`{}`, "no model_tag"},
			{`{"model_tag":"nobody/nothing"}`, "neither a folder nor in Hugging Face's cache"},
			{`{`, "--args-json"},
		} {
			p := startWith(t, nil, env, "frontend", "--listen-fd", "3", "--args-json", test.json)
			<-p.exited
			if !strings.Contains(p.stderr.String(), test.want) || p.cmd.ProcessState.ExitCode() == 0 {
				t.Errorf("%s: %s", test.json, p.stderr.String())
			}
		}
	})
}

// modelFolder writes the built-in model's folder out.
func modelFolder(t *testing.T) string {
	dir := t.TempDir()
	if err := os.CopyFS(dir, models.Sim()); err != nil {
		t.Fatal(err)
	}
	return dir
}
