package main

import (
	"bytes"
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/engine/sglangipc/schedtest"
)

// schedulers is a place for schedulers.
type schedulers struct {
	*sayer
	dir string
}

func (c *schedulers) start() *schedtest.Scheduler {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	s, err := schedtest.Start(ctx, schedtest.Options{Dir: c.dir, Receive: c.receive})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(s.Close)
	return s
}

func (c *schedulers) receive(s *schedtest.Scheduler, m schedtest.Message) {
	aborted := 0
	if m.Tag == "AbortReq" && m.ID() != "" {
		aborted = 1
	}
	holdBack := c.hear(aborted)
	switch m.Tag {
	case "ConfigureLoggingReq":
		s.Answer(m)
	case "GetInternalStateReq":
		s.State(48)
	case "AbortReq":
		if m.ID() != "" {
			s.Echo(m.ID(), nil)
		}
	case "TokenizedGenerateReqInput":
		limit := m.Limit()
		for i := range limit {
			o := schedtest.Output{ID: m.ID(), IDs: []uint32{c.ids[i%len(c.ids)]}, Count: i + 1, Prompt: len(m.Prompt()), Cached: 1}
			if i == limit-1 {
				o.Finish = map[string]any{"type": "length", "length": limit}
			}
			s.Step(0, o)
			if holdBack {
				return
			}
		}
	}
}

// TestSGLangIPC: a scheduler connects, serves, is hung up on, dies in the middle of a
// stream, and comes again.
func TestSGLangIPC(t *testing.T) {
	beside(t, light)
	c := &schedulers{newSayer(t), filepath.Join(socketDir(t), "sg")}
	g := startUnready(t, "serve", "--engine", "sglang-ipc="+c.dir+",model=weir-sim")
	says := func(word string) {
		t.Helper()
		eventually(t, word, func() bool { return bytes.Contains(get(t, g.admin+"/engines").body, []byte(word)) })
	}
	says("weir_sglang.py --weir " + c.dir)
	first := c.start()
	says("loads its model")
	if err := schedtest.Write(c.dir, schedtest.Word(map[string]any{"sglang": "0.4.9"})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "refused", func() bool {
		return bytes.Contains(get(t, g.admin+"/engines").body, []byte("SGLang 0.4.9 was not tried"))
	})
	if err := schedtest.Write(c.dir, schedtest.Word(nil)); err != nil {
		t.Fatal(err)
	}
	ready := func() {
		eventually(t, "ready", func() bool { return get(t, g.admin+"/readyz").status == http.StatusOK })
	}
	ready()
	// The launcher has named a LoRA adapter: it has weir-sim's tokenizer.
	g.wantModels("lora(weir-sim) weir-sim")
	if a := post(t, g.url+"/v1/completions", `{"model":"lora","prompt":"Say it.","max_tokens":5}`); a.status != http.StatusOK {
		t.Errorf("an adapter: %d %s", a.status, a.body)
	}
	g.sentences(c.ids, 3)
	var streams sync.WaitGroup
	for range 32 {
		streams.Go(func() { g.sentences(c.ids, 8) })
	}
	streams.Wait()
	if n := metric(t, g.admin, "weir_sglang_ipc_ids_total"); n != float64((3+32*8)*len(c.ids)+5) {
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
	c.start()
	ready()
	g.sentences(c.ids, 1)
	if ended := g.balanced(); ended["finished"] != 35 || ended["cancelled"] != 1 || ended["failed"] != 1 {
		t.Errorf("%v", ended)
	}
	g.interrupt()
	if leg := g.records()[0].Attempts[0].Legs[0]; leg["to_server_time"] == nil || leg["acked_time"] == nil {
		t.Errorf("leg %v", leg)
	}
}

// TestSGLangIPCSpecification: what cannot be a place for sockets.
func TestSGLangIPCSpecification(t *testing.T) {
	beside(t, light)
	for spec, want := range map[string]string{
		"sglang-ipc=/tmp/" + strings.Repeat("x", 100) + ",model=weir-sim": "longer than the 100 bytes",
		"sglang-ipc=ipc:///tmp/x,model=weir-sim":                          "want a folder after sglang-ipc=",
		"sglang-ipc=/tmp/x":                                               "add model=NAME",
		"sglang-ipc=/tmp/x,model=weir-sim,untried=perhaps":                "want true or false",
		"sglang-ipc=/tmp/x,dp=2":                                          "the options are model, name, untried",
	} {
		p := start(t, "serve", "--engine", spec)
		<-p.exited
		if !strings.Contains(p.stderr.String(), want) || p.cmd.ProcessState.ExitCode() == 0 {
			t.Errorf("%s: %s", spec, p.stderr.String())
		}
	}
}
