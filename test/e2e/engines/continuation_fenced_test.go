package engines

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/trace"
	"weir/test/e2e/harness"
)

// stepping is an engine in this process whose next id is a function of all before: their number
// says where it stands in the sentence, so that an id that was lost or came twice shifts the rest.
type stepping struct {
	say func(r *running)

	mu      sync.Mutex // of what it sends, too
	running []*running
}

// running is a request that it has.
type running struct {
	id            string
	prompt, limit int
	said          int
}

// steps has each request say one id every few milliseconds, until ended.
func (e *stepping) steps(ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(5 * time.Millisecond):
		}
		e.mu.Lock()
		for _, r := range e.running {
			e.say(r)
			r.said++
		}
		e.running = slices.DeleteFunc(e.running, func(r *running) bool { return r.said == r.limit })
		e.mu.Unlock()
	}
}

func (e *stepping) add(r running) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = append(e.running, &r)
}

func (e *stepping) abort(ids ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = slices.DeleteFunc(e.running, func(r *running) bool { return slices.Contains(ids, r.id) })
}

// begin has an engine step until the test ends.
func begin(t *testing.T, e *stepping) {
	var steps sync.WaitGroup
	ended := make(chan struct{})
	steps.Go(func() { e.steps(ended) })
	t.Cleanup(func() { close(ended); steps.Wait() })
}

// steppingCore connects a vLLM engine core.
func steppingCore(t *testing.T, ids []uint32, handshake string) (kill func()) {
	e := &stepping{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	core, err := coretest.Start(ctx, coretest.Options{Handshake: handshake, Receive: func(c *coretest.Core, m coretest.Message) {
		e.abort(m.Abort...)
		switch m.Type {
		case 0:
			e.add(running{id: m.Add.ID, prompt: len(m.Add.Prompt), limit: int(coretest.Number(m.Add.Sampling["max_tokens"]))})
		case 3:
			_ = c.Send(coretest.Batch{Call: m.Call, Given: true}) // fails once it is closed
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	e.say = func(r *running) {
		o := coretest.Output{ID: r.id, IDs: []uint32{ids[(r.prompt+r.said)%len(ids)]}, Finish: -1}
		if r.said == 0 {
			now := trace.Now()
			o.Prompt, o.Cached, o.Queued, o.Scheduled = r.prompt, 1, now, now+1
		}
		if r.said == r.limit-1 {
			o.Finish = 1
		}
		_ = core.Send(coretest.Batch{Outputs: []coretest.Output{o}}) // likewise
	}
	t.Cleanup(core.Close)
	begin(t, e)
	return core.Close
}

// steppingScheduler connects a scheduler of SGLang.
func steppingScheduler(t *testing.T, ids []uint32, dir string) (kill func()) {
	e := &stepping{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	scheduler, err := schedtest.Start(ctx, schedtest.Options{Dir: dir, Receive: func(s *schedtest.Scheduler, m schedtest.Message) {
		switch m.Tag {
		case "TokenizedGenerateReqInput":
			e.add(running{id: m.ID(), prompt: len(m.Prompt()), limit: m.Limit()})
		case "AbortReq":
			e.abort(m.ID())
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		switch {
		case m.Tag == "ConfigureLoggingReq":
			_ = s.Answer(m)
		case m.Tag == "GetInternalStateReq":
			_ = s.State(48)
		case m.Tag == "AbortReq" && m.ID() != "":
			_ = s.Echo(m.ID(), nil)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	e.say = func(r *running) {
		o := schedtest.Output{ID: r.id, IDs: []uint32{ids[(r.prompt+r.said)%len(ids)]}, Count: r.said + 1, Prompt: r.prompt, Cached: 1}
		if r.said == r.limit-1 {
			o.Finish = map[string]any{"type": "length", "length": r.limit}
		}
		_ = scheduler.Step(0, o) // fails once it is closed
	}
	t.Cleanup(scheduler.Close)
	begin(t, e)
	return scheduler.Close
}

// One of three engines whose front end is weir breaks its connections while it streams. Each
// stream, with its usage, is the same as without the break.
func TestStreamsOutliveTheirFencedEngine(t *testing.T) {
	const streams, tokens = 60, 120
	for name, start := range map[string]func(t *testing.T, ids []uint32) (g *harness.Gateway, kill func()){
		"vllm-core": func(t *testing.T, ids []uint32) (*harness.Gateway, func()) {
			_, env := harness.ShortTemp(t)
			args, at := []string{"serve", "--policy", "round-robin"}, [3]string{}
			for i := range at {
				at[i] = "tcp://" + harness.FreeAddress(t)
				args = append(args, "--engine", fmt.Sprintf("vllm-core=%s,model=weir-sim,name=e%d", at[i], i))
			}
			g := harness.StartUnreadyWith(t, env, args...)
			kill := steppingCore(t, ids, at[0])
			for _, at := range at[1:] {
				steppingCore(t, ids, at)
			}
			return g, kill
		},
		"sglang-ipc": func(t *testing.T, ids []uint32) (*harness.Gateway, func()) {
			args, dirs := []string{"serve", "--policy", "round-robin"}, [3]string{}
			for i := range dirs {
				dirs[i] = filepath.Join(harness.SocketDir(t), "sg")
				args = append(args, "--engine", fmt.Sprintf("sglang-ipc=%s,model=weir-sim,name=e%d", dirs[i], i))
			}
			g := harness.StartUnready(t, args...) // which makes the folders
			kill := steppingScheduler(t, ids, dirs[0])
			for _, dir := range dirs[1:] {
				steppingScheduler(t, ids, dir)
			}
			for _, dir := range dirs {
				if err := schedtest.Write(dir, schedtest.Manifest(nil)); err != nil {
					t.Fatal(err)
				}
			}
			return g, kill
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			ids := harness.SaidIDs(t)
			g, kill := start(t, ids)
			harness.Eventually(t, "all well", func() bool { return up(t, g) == 3 })
			ask := func(i int) harness.Answer {
				prompt, _ := json.Marshal(ids[:1+i%len(ids)])
				return harness.Post(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":%s,"stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,"ignore_eos":true}`, prompt, tokens))
			}
			answers := make([]harness.Answer, streams)
			var asked sync.WaitGroup
			for i := range answers {
				asked.Go(func() { answers[i] = ask(i) })
			}
			harness.Eventually(t, "each has some of its answer", func() bool {
				return open(t, g, "e0") >= streams/4 && harness.Metric(t, g.Admin, "weir_output_writes_total") >= 8*streams
			})
			kill()
			asked.Wait()
			went := harness.Metric(t, g.Admin, "weir_continuations_total")
			if went < streams/4 {
				t.Errorf("%v of %d streams went on", went, streams)
			}
			noted := 0
			for i, a := range answers {
				harness.WantComplete(t, a)
				got, _ := harness.Streamed(a)
				uncut := ask(i)
				want, _ := harness.Streamed(uncut)
				if got != want || len(want) == 0 || usage(t, a) != usage(t, uncut) {
					t.Errorf("stream %d: %q, %s, without a break %q, %s", i, got, usage(t, a), want, usage(t, uncut))
				}
				if strings.Contains(string(a.Body), ": x-weir-continued 1\n") {
					noted++
				}
			}
			if noted != int(went) {
				t.Errorf("%d streams say that they went on, and %v did", noted, went)
			}
			g.Balanced()
			g.Interrupt()
		})
	}
}

// usage is a stream's prompt and completion tokens.
func usage(t *testing.T, a harness.Answer) string {
	t.Helper()
	for line := range strings.Lines(string(a.Body)) {
		var e struct {
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		data, ok := strings.CutPrefix(line, "data: {")
		if ok && json.Unmarshal([]byte("{"+data), &e) == nil && e.Usage != nil {
			return fmt.Sprintf("%d and %d tokens", e.Usage.Prompt, e.Usage.Completion)
		}
	}
	return "no usage"
}
