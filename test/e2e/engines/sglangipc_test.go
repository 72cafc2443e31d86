package engines

import (
	"bytes"
	"context"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/trace"
	"weir/test/e2e/harness"
)

// schedulers is a place for schedulers.
type schedulers struct {
	*harness.Sayer
	dir   string
	ranks int // 0 is one

	mu    sync.Mutex
	still int      // the rank that stands still; 0: none
	later []func() // what it does when it goes on
}

// stop has a rank stand still; 0 has it go on.
func (c *schedulers) stop(rank int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.still = rank; rank == 0 {
		for _, do := range c.later {
			do()
		}
		c.later = nil
	}
}

// do has a rank do something, now or when it goes on.
func (c *schedulers) do(rank int, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.still != 0 && rank == c.still {
		c.later = append(c.later, f)
		return
	}
	f()
}

func (c *schedulers) start() *schedtest.Scheduler {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), time.Minute)
	defer cancel()
	s, err := schedtest.Start(ctx, schedtest.Options{Dir: c.dir, Ranks: c.ranks, Receive: c.receive})
	if err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(s.Close)
	return s
}

func (c *schedulers) receive(s *schedtest.Scheduler, m schedtest.Message) {
	aborted := 0
	if m.Tag == "AbortReq" && m.ID() != "" {
		aborted = 1
	}
	holdBack := c.Hear(aborted)
	switch m.Tag {
	case "ConfigureLoggingReq":
		for rank := range max(c.ranks, 1) {
			c.do(rank, func() { s.AnswerFrom(rank, m) })
		}
	case "GetInternalStateReq":
		s.State(48)
	case "AbortReq":
		if m.ID() != "" {
			s.Echo(m.ID(), nil)
		}
	case "TokenizedGenerateReqInput":
		rank := max(m.Rank(), 0)
		c.do(rank, func() { c.say(s, m, rank, holdBack) })
	}
}

func (c *schedulers) say(s *schedtest.Scheduler, m schedtest.Message, rank int, holdBack bool) {
	limit, at := m.Limit(), float64(trace.Now())/1e9
	for i := range limit {
		o := schedtest.Output{ID: m.ID(), IDs: []uint32{c.IDs[i%len(c.IDs)]}, Count: i + 1, Prompt: len(m.Prompt()), Cached: 1, Queued: at, Forwarded: at, Prefilled: at}
		if i == limit-1 {
			o.Finish = map[string]any{"type": "length", "length": limit}
		}
		s.Step(rank, o)
		if holdBack {
			return
		}
	}
}

// TestSGLangIPC: a scheduler connects, serves, is hung up on, dies in the middle of a
// stream, and comes again.
func TestSGLangIPC(t *testing.T) {
	harness.Beside(t, harness.Light)
	c := &schedulers{Sayer: harness.NewSayer(t), dir: filepath.Join(harness.SocketDir(t), "sg")}
	g := harness.StartUnready(t, "serve", "--engine", "sglang-ipc="+c.dir+",model=weir-sim")
	says := func(word string) {
		t.Helper()
		harness.Eventually(t, word, func() bool { return bytes.Contains(harness.Get(t, g.Admin+"/engines").Body, []byte(word)) })
	}
	says("weir_sglang.py --weir " + c.dir)
	first := c.start()
	says("loads its model")
	if err := schedtest.Write(c.dir, schedtest.Manifest(map[string]any{"sglang": "0.4.9"})); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "refused", func() bool {
		return bytes.Contains(harness.Get(t, g.Admin+"/engines").Body, []byte("SGLang 0.4.9 was not tried"))
	})
	if err := schedtest.Write(c.dir, schedtest.Manifest(nil)); err != nil {
		t.Fatal(err)
	}
	ready := func() {
		harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
	}
	ready()
	// The launcher has named a LoRA adapter: it has weir-sim's tokenizer.
	g.WantModels("lora(weir-sim) weir-sim")
	if a := harness.Post(t, g.URL+"/v1/completions", `{"model":"lora","prompt":"Say it.","max_tokens":5}`); a.Status != http.StatusOK {
		t.Errorf("an adapter: %d %s", a.Status, a.Body)
	}
	g.Sentences(c.IDs, 3)
	var streams sync.WaitGroup
	for range 32 {
		streams.Go(func() { g.Sentences(c.IDs, 8) })
	}
	streams.Wait()
	if n := harness.Metric(t, g.Admin, "weir_sglang_ipc_ids_total"); n != float64((3+32*8)*len(c.IDs)+5) {
		t.Errorf("%v ids", n)
	}

	g.LosesEngine(c.Sayer, first.Close)
	c.start()
	ready()
	g.Sentences(c.IDs, 1)
	if ended := g.Balanced(); ended["finished"] != 35 || ended["cancelled"] != 1 || ended["failed"] != 1 {
		t.Errorf("%v", ended)
	}
	g.Interrupt()
	if leg := g.Records()[0].Attempts[0].Legs[0]; leg["to_server_time"] == nil || leg["acked_time"] == nil {
		t.Errorf("leg %v", leg)
	}
	for _, r := range g.Records() {
		for _, leg := range r.Attempts[0].Legs {
			for _, stamp := range []string{"queue_time_start", "queue_time_end", "prefill_start_time", "prefill_end_time", "server_first_token_time"} {
				at, ok := leg[stamp].(float64)
				if sent, _ := leg["to_server_time"].(float64); !ok || at < sent {
					t.Errorf("%s: leg %v", stamp, leg)
				}
			}
		}
	}
}
