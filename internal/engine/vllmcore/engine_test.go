package vllmcore

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine"
	"weir/internal/engine/coreclient"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/mux"
	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/wire/zmtp"
)

func startBench(t *testing.T, p *peer, change func(o *Options)) *enginetest.Bench {
	o := p.options()
	if change != nil {
		change(&o)
	}
	return enginetest.Start(t, enginetest.Rig{Engine: New(o), Peer: p})
}

func figures(b *enginetest.Bench) coreclient.Figures { return b.Rig.Engine.(*Engine).Figures() }

// WaitReady of the bench looks at the last report; this waits for one that says a
// word.
func waitWord(b *enginetest.Bench, word string) {
	b.T.Helper()
	for {
		s := b.Rig.Engine.(*Engine).state()
		if s.Err != nil && strings.Contains(s.Err.Error(), word) || strings.Contains(s.Facts.Software, word) {
			return
		}
		select {
		case <-b.Ctx.Done():
			b.T.Fatalf("no word of %q: %+v", word, s)
		case <-time.After(time.Millisecond): // nothing tells when a state changes back
		}
	}
}

func TestFactsAndCachedTokens(t *testing.T) {
	p := newPeer(t, "0.33.0")
	b := startBench(t, p, nil)
	want := engine.Facts{Models: []string{"test"}, ContextLength: 4096, MaxRunning: 256, Software: "vLLM 0.33.0", Instance: "one"}
	if got := b.WaitReady(true).Facts; !slices.Equal(got.Models, want.Models) || got.ContextLength != want.ContextLength ||
		got.MaxRunning != want.MaxRunning || got.Software != want.Software || got.Instance != want.Instance {
		t.Errorf("%+v, want %+v", got, want)
	}
	c := b.Accept(4)
	p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{1, 2}, Finish: infer.ReasonStop})
	f := b.WantFinish(c, infer.ReasonStop)
	if f.PromptTokens != 3 || f.CachedTokens != 1 {
		t.Errorf("%+v", f)
	}
	s := c.Sink.Stamps()
	if s == nil || s.QueueStart == 0 || s.QueueEnd < s.QueueStart || s.PrefillStart != s.QueueEnd || s.FirstToken < s.QueueEnd || s.FirstOutput != s.FirstToken {
		t.Errorf("stamps %+v", s)
	}
}

// The fields of a request as the engine reads them, and nothing else.
func TestSampling(t *testing.T) {
	p := newPeer(t, "0.33.0")
	b := startBench(t, p, nil)
	number := func(v float64) *float64 { return &v }
	k, seed := 7, int64(-5)
	for _, test := range []struct {
		change func(r *infer.Request)
		want   map[string]any
	}{
		{func(*infer.Request) {}, map[string]any{"max_tokens": int64(4), "_eos_token_id": int64(2),
			"stop_token_ids": []int64{5, 6, 7, 9}, "_all_stop_token_ids": []int64{2, 5, 6, 7, 9}}},
		{func(r *infer.Request) { r.StopIDs = []uint32{5, 11} }, map[string]any{"max_tokens": int64(4), "_eos_token_id": int64(2),
			"stop_token_ids": []int64{5, 6, 7, 9, 11}, "_all_stop_token_ids": []int64{2, 5, 6, 7, 9, 11}}},
		{func(r *infer.Request) { r.IgnoreEOS, r.MinTokens = true, 2 }, map[string]any{"max_tokens": int64(4), "min_tokens": int64(2), "ignore_eos": true,
			"_all_stop_token_ids": []int64{2, 5, 6, 7, 9}}},
		{func(r *infer.Request) {
			r.Sampling = infer.Sampling{Temperature: number(0), TopP: number(0.5), TopK: &k, Seed: &seed}
		}, map[string]any{"max_tokens": int64(4), "_eos_token_id": int64(2), "stop_token_ids": []int64{5, 6, 7, 9}, "_all_stop_token_ids": []int64{2, 5, 6, 7, 9},
			"temperature": 0.0, "top_p": 0.5, "top_k": int64(7), "seed": int64(-5)}},
	} {
		req := b.Request(4)
		test.change(req)
		_, err := b.Rig.Engine.Generate(b.Ctx, req, 1, b.NewSink(1), new(trace.Leg))
		if err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		got := p.adds[len(p.adds)-1]
		p.mu.Unlock()
		if got.ID != req.ID || !slices.Equal(got.Prompt, req.Prompt) || got.Fields != addFields || len(got.Sampling) != len(test.want) {
			t.Errorf("%+v, want %v", got, test.want)
		}
		for name, want := range test.want {
			var same bool
			switch want := want.(type) {
			case []int64:
				var ids []int64
				for _, id := range got.Sampling[name].([]any) {
					ids = append(ids, coretest.Number(id))
				}
				same = slices.Equal(ids, want)
			case int64:
				same = coretest.Number(got.Sampling[name]) == want
			default:
				same = got.Sampling[name] == want
			}
			if !same {
				t.Errorf("%s is %v, want %v", name, got.Sampling[name], want)
			}
		}
	}
}

// Fields that a core with speculative decoding would ignore are refused: if the operator says that
// it decodes so, and once its statistics contain drafts.
func TestSpeculative(t *testing.T) {
	const lost = infer.CarriesMinP | infer.CarriesLogitBias
	for _, said := range []bool{true, false} {
		p := newPeer(t, "0.33.0")
		b := startBench(t, p, func(o *Options) { o.Speculative = said })
		carries := b.WaitReady(true).Facts.Carries & lost
		if !said {
			if carries != lost {
				t.Errorf("carries %s before anything is known", carries)
			}
			p.mu.Update(func() { p.core.Send(coretest.Batch{Stats: &coretest.Stats{Drafts: true}}) })
			for known := time.Now().Add(time.Minute); b.Rig.Engine.(*Engine).state().Facts.Carries&lost != 0 && time.Now().Before(known); {
				time.Sleep(time.Millisecond)
			}
		} else if carries != 0 {
			t.Errorf("carries %s", carries)
		}
		if f := b.Rig.Engine.(*Engine).state().Facts; len(f.Lacks) != 1 || f.Lacks[0].What != lost || !strings.Contains(f.Lacks[0].Why, "--speculative-config") {
			t.Errorf("%+v", f.Lacks)
		}
		req := b.Request(4)
		minP := 0.1
		req.Sampling.MinP = &minP
		c := b.GoWith(b.Ctx, req)
		b.Wait(c)
		if infer.AsError(c.Err).Code != infer.CodeUnsupported || !strings.Contains(c.Err.Error(), "min_p") {
			t.Errorf("said %t: %v", said, c.Err)
		}
	}
}

// A priority is carried to releases of which its place is known, where the operator
// says that they schedule by it, and refused by others.
func TestPriority(t *testing.T) {
	for version, carried := range map[string]bool{"0.20.0": false, "0.24.0": true, "0.33.0": true, "0.34.0": false} {
		for _, said := range []bool{false, true} {
			p := newPeer(t, version)
			b := startBench(t, p, func(o *Options) { o.Priorities = said })
			want := carried && said
			if got := b.WaitReady(true).Facts.Carries&infer.CarriesPriority != 0; got != want {
				t.Errorf("%s, priority=%v: carried %v", version, said, got)
			}
			req := b.Request(4)
			req.Priority = new(int64)
			*req.Priority = -1 << 62
			c := b.GoWith(b.Ctx, req)
			b.Wait(c)
			if !want {
				if infer.AsError(c.Err).Code != infer.CodeUnsupported || !strings.Contains(c.Err.Error(), "priority") {
					t.Errorf("%s, priority=%v: %v", version, said, c.Err)
				}
				continue
			}
			b.Must(c.Err)
			p.mu.Lock()
			got := p.adds[0]
			p.mu.Unlock()
			if got.Priority != *req.Priority || got.Fields != 14 {
				t.Errorf("%s: priority %d of %d fields", version, got.Priority, got.Fields)
			}
			p.Step(enginetest.Out{ID: req.ID, IDs: []uint32{5}, Finish: infer.ReasonStop})
			b.WantFinish(c, infer.ReasonStop)
		}
	}
}

// The trace that a request is part of is carried to releases in which its place is known,
// where it is kept, and what the engine gives back of it is read past.
func TestTraceHeaders(t *testing.T) {
	kept := trace.JoinTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=b")
	left := trace.JoinTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "")
	for version, placed := range map[string]bool{"0.20.0": false, "0.24.0": true, "0.33.0": true, "0.34.0": false} {
		for _, of := range []*trace.Context{nil, left, kept} {
			p := newPeer(t, version)
			b := startBench(t, p, nil)
			b.Caller = of.Caller(0, true)
			c := b.Accept(4)
			p.mu.Lock()
			got := p.adds[0]
			p.mu.Unlock()
			if placed && of == kept {
				if got.Fields != 15 || got.Trace["traceparent"] != kept.Header(kept.Leg(0, 0)) || got.Trace["tracestate"] != "a=b" {
					t.Errorf("%s: %d fields, trace %v", version, got.Fields, got.Trace)
				}
			} else if got.Fields != 9 || got.Trace != nil {
				t.Errorf("%s: %d fields, trace %v", version, got.Fields, got.Trace)
			}
			p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{5}, Finish: infer.ReasonStop})
			b.WantFinish(c, infer.ReasonStop)
		}
	}
}

// If all of an answer must match a guide, the engine is told that reasoning has ended,
// whatever its parser of reasoning finds in the prompt. A release in which the place of
// that is not known is given the guide alone, and is not given one behind reasoning.
func TestGuideOfAllTheAnswer(t *testing.T) {
	for _, test := range []struct {
		version   string
		whole     bool
		reasoning infer.Reasoning
		priority  bool
		fields    int // 0: refused
		ended     bool
	}{
		{"0.29.0", true, infer.OpenReasoning, false, 18, true},
		{"0.33.0", true, infer.OpenReasoning, false, 18, true},
		{"0.33.0", true, infer.NoReasoning, true, 18, true},
		{"0.33.0", false, infer.OpenReasoning, false, 9, false},
		{"0.33.0", false, infer.OwnReasoning, true, 14, false},
		{"0.34.0", true, infer.OpenReasoning, false, 0, false},
		{"0.34.0", true, infer.OwnReasoning, false, 0, false},
		{"0.34.0", true, infer.NoReasoning, false, 9, false},
		{"0.0.0+source", true, infer.OpenReasoning, false, 0, false},
	} {
		p := newPeer(t, test.version)
		b := startBench(t, p, func(o *Options) { o.Priorities = true })
		b.WaitReady(true)
		req := b.Request(4)
		req.Guide = &infer.Guide{Kind: infer.GuideRegex, Text: "a*", Reasoning: test.reasoning, Whole: test.whole}
		priority := int64(0)
		if test.priority {
			priority = -7
			req.Priority = &priority
		}
		c := b.GoWith(b.Ctx, req)
		b.Wait(c)
		if test.fields == 0 {
			if e := infer.AsError(c.Err); e.Code != infer.CodeUnsupported || !e.Retryable || !strings.Contains(e.Message, "tool call that must come") {
				t.Errorf("%+v: %v", test, c.Err)
			}
			continue
		}
		b.Must(c.Err)
		p.mu.Lock()
		got := p.adds[0]
		p.mu.Unlock()
		if got.Fields != test.fields || got.Ended != test.ended || got.Priority != priority {
			t.Errorf("%+v: %d fields, reasoning_ended %v, priority %d", test, got.Fields, got.Ended, got.Priority)
		}
		p.Step(enginetest.Out{ID: req.ID, IDs: []uint32{5}, Finish: infer.ReasonStop})
		b.WantFinish(c, infer.ReasonStop)
	}
}

// The defaults of a model's folder apply where a request says nothing.
func TestDefaults(t *testing.T) {
	number := func(v float64) *float64 { return &v }
	k := 20
	d := engine.Defaults{Temperature: number(0.6), TopP: number(0.95), TopK: &k, MinP: number(0.1), RepetitionPenalty: number(1.05)}
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, "0.33.0")
	b := startBench(t, p, func(o *Options) { o.Defaults = d })
	req := b.Request(4)
	req.Sampling.Temperature = number(0)
	if _, err := b.Rig.Engine.Generate(b.Ctx, req, 1, b.NewSink(1), new(trace.Leg)); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	got := p.adds[0].Sampling
	p.mu.Unlock()
	if got["temperature"] != 0.0 || got["top_p"] != 0.95 || coretest.Number(got["top_k"]) != 20 || got["min_p"] != 0.1 || got["repetition_penalty"] != 1.05 {
		t.Errorf("%v", got)
	}
	bad := engine.Defaults{TopP: number(0)}
	if err := bad.Check(); err == nil || !strings.Contains(err.Error(), "top_p") {
		t.Errorf("%v", err)
	}
}

// A request that would end an engine, or that it could not fulfil, is not sent.
func TestRefusedHere(t *testing.T) {
	number := func(v float64) *float64 { return &v }
	integer := func(v int) *int { return &v }
	bias := func(b ...infer.Bias) func(r *infer.Request) {
		return func(r *infer.Request) { r.Sampling.LogitBias = b }
	}
	guide := func(k infer.GuideKind) func(r *infer.Request) {
		return func(r *infer.Request) { r.Guide = &infer.Guide{Kind: k, Text: "x", Choices: []string{"x"}} }
	}
	for _, version := range []string{"0.33.0", "0.28.0"} {
		p := newPeer(t, version)
		b := startBench(t, p, func(o *Options) { o.Vocab = 100 })
		for _, test := range []struct {
			param  string // empty: taken, or not by this release
			since  string
			change func(r *infer.Request)
		}{
			{"max_tokens", "", func(r *infer.Request) { r.MaxTokens = 0 }},
			{"min_tokens", "", func(r *infer.Request) { r.MinTokens = 5 }},
			{"top_k", "", func(r *infer.Request) { r.Sampling.TopK = integer(-2) }},
			{"temperature", "", func(r *infer.Request) { r.Sampling.Temperature = number(-0.1) }},
			{"temperature", "", func(r *infer.Request) { r.Sampling.Temperature = number(2.1) }},
			{"temperature", "", func(r *infer.Request) { r.Sampling.Temperature = number(math.NaN()) }},
			{"top_p", "", func(r *infer.Request) { r.Sampling.TopP = number(0) }},
			{"top_p", "", func(r *infer.Request) { r.Sampling.TopP = number(1.1) }},
			{"min_p", "", func(r *infer.Request) { r.Sampling.MinP = number(1.1) }},
			{"presence_penalty", "", func(r *infer.Request) { r.Sampling.PresencePenalty = number(2.1) }},
			{"frequency_penalty", "", func(r *infer.Request) { r.Sampling.FrequencyPenalty = number(-2.1) }},
			{"repetition_penalty", "", func(r *infer.Request) { r.Sampling.RepetitionPenalty = number(0) }},
			{"logit_bias", "", bias(infer.Bias{ID: 100})},
			{"logit_bias", "", bias(infer.Bias{ID: 1, Value: 101})},
			{"logit_bias", "", bias(infer.Bias{ID: 1}, infer.Bias{ID: 1})},
			{"stop_token_ids", "", func(r *infer.Request) { r.StopIDs = []uint32{99, 100} }},
			{"", "0.33.0", guide(infer.GuideJSONSchema)},
			{"", "0.33.0", guide(infer.GuideRegex)},
			{"", "0.33.0", guide(infer.GuideChoice)},
			{"", "0.33.0", guide(infer.GuideStructuralTag)},
			{"", "never", guide(infer.GuideGrammar)},
			{"", "", bias(infer.Bias{ID: 1, Value: -100}, infer.Bias{ID: 99, Value: 100})},
		} {
			req := b.Request(4)
			test.change(req)
			_, err := b.Rig.Engine.Generate(b.Ctx, req, 1, b.NewSink(1), new(trace.Leg))
			e := infer.AsError(err)
			switch taken := test.param == "" && (test.since == "" || test.since == version); {
			case taken && err != nil, !taken && err == nil:
				t.Errorf("%s: %+v gives %v", version, req, err)
			case test.param != "" && (e.Code != infer.CodeInvalid || e.Param != test.param):
				t.Errorf("%s: %v", test.param, err)
			case !taken && test.param == "" && e.Code != infer.CodeUnsupported:
				t.Errorf("%s: %v", test.since, err)
			}
		}
		p.mu.Lock()
		adds := slices.Clone(p.adds)
		p.mu.Unlock()
		for _, a := range adds {
			if so, ok := a.Sampling["structured_outputs"].(map[string]any); ok && (len(so) != 2 || so["_backend"] != guideBackend) {
				t.Errorf("structured_outputs %v", so)
			}
		}
	}
}

func TestEngineSaysThatItIsDead(t *testing.T) {
	p := newPeer(t, "0.33.0")
	b := startBench(t, p, nil)
	c := b.Accept(4)
	p.now().Raw([]byte(coreDead))
	f := b.WantFinish(c, infer.ReasonError)
	if f.Err.Code != infer.CodeEngine || !f.Err.Retryable || !strings.Contains(f.Err.Message, "died") {
		t.Errorf("%v", f.Err)
	}
	waitWord(b, "dead")
}

// An engine whose connections broke connects again and says nothing, since it has
// said all; it is known, asked, and told to drop what was lost.
func TestReconnect(t *testing.T) {
	for name, breaks := range map[string]func(p *peer){
		"input and output": func(p *peer) { p.now().Close() },
		"output":           func(p *peer) { p.now().CloseOutput(); <-p.now().Done() },
		"a malformed message": func(p *peer) {
			p.now().Raw([]byte("nonsense"))
			<-p.now().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, "0.33.0")
			b := startBench(t, p, func(o *Options) { o.AdoptAfter = 20 * time.Millisecond })
			c := b.Accept(100)
			p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{1}})
			input, output := p.now().Addresses()
			breaks(p)
			b.WantFinish(c, infer.ReasonError)
			b.WaitReady(false)
			b.Must(p.connect(coretest.Options{Input: input, Output: output, Word: []byte{}}))
			p.mu.Update(func() { p.requests[c.Request.ID].ended_ = true; p.answer() })
			b.WaitReady(true)
			b.Must(p.Aborted(b.Ctx, c.Request.ID))
			b.Barrier()
			if f := figures(b); f.Sessions != 2 {
				t.Errorf("%+v", f)
			}
		})
	}
}

// If two engines have one index, the new one serves.
func TestRestart(t *testing.T) {
	p := newPeer(t, "0.33.0")
	b := startBench(t, p, nil)
	c := b.Accept(4)
	old := p.now()
	p.mu.Update(func() { p.order = nil })
	p.Restore() // while the old connections stand
	b.WantFinish(c, infer.ReasonError)
	<-old.Done()
	b.WaitReady(true)
	waitWord(b, "0.33.0")
	b.Barrier()
}

func TestVersions(t *testing.T) {
	for _, test := range []struct {
		version string
		word    []byte
		warned  string
		refused string
	}{
		{version: "0.33.0"},
		{version: "0.20.0"}, // which does not say so
		{version: "0.29.0rc2.dev3+g0123456"},
		{version: "0.34.0", warned: "newer than what this was tested with; vLLM 0.20 to 0.33 are known"},
		{version: "1.0.0", warned: "newer"},
		{version: "dev", warned: `"dev"`},
		{version: "0.19.1", refused: "vLLM 0.19.1 speaks another form of the wire; vLLM 0.20 to 0.33 are known"},
		{version: "0.19", word: []byte("\x81\xaenum_gpu_blocks\x05"), refused: "does not say its max_model_len, as before vLLM 0.20"},
	} {
		t.Run(test.version, func(t *testing.T) {
			dir := tempDir(t)
			p := &peer{dir: dir}
			o := p.options()
			var mu sync.Mutex
			var warnings []string
			o.Warn = func(s string) { mu.Lock(); warnings = append(warnings, s); mu.Unlock() }
			e := New(o)
			ctx, cancel := context.WithTimeout(t.Context(), enginetest.Patience)
			defer cancel()
			states := make(chan engine.State, 100)
			run, stop := context.WithCancel(ctx)
			var ended sync.WaitGroup
			ended.Go(func() { e.Run(run, func(s engine.State) { states <- s }) })
			defer ended.Wait()
			defer stop()
			core, err := coretest.Start(ctx, coretest.Options{Handshake: "ipc://" + dir + "/h", Version: test.version, Word: test.word,
				Receive: func(c *coretest.Core, m coretest.Message) {
					if m.Type == 3 {
						c.Send(coretest.Batch{Call: m.Call})
					}
				}})
			if err != nil {
				t.Fatal(err)
			}
			defer core.Close()
			for {
				select {
				case <-ctx.Done():
					t.Fatal("neither ready nor refused")
				case s := <-states:
					if test.refused != "" && s.Err != nil && strings.Contains(s.Err.Error(), test.refused) {
						return
					}
					if !s.Ready {
						continue
					}
				}
				break
			}
			mu.Lock()
			defer mu.Unlock()
			if test.refused != "" || (len(warnings) > 0) != (test.warned != "") || test.warned != "" && !strings.Contains(warnings[0], test.warned) {
				t.Errorf("ready with warnings %q", warnings)
			}
		})
	}
}

// Who is not expected is told of, and nobody suffers.
func TestStrangers(t *testing.T) {
	p := newPeer(t, "0.33.0")
	b := startBench(t, p, nil)
	stranger := zmtp.Endpoint{Network: "unix", Address: p.dir + "/in"}
	c, err := zmtp.Dial(b.Ctx, stranger, zmtp.Config{Type: zmtp.Dealer, Identity: []byte{1, 0}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Recv(); err == nil {
		t.Error("engine 1 of 1 was taken")
	}
	c.Close()
	err = b.Rig.Engine.(*Engine).host.Why()
	if err == nil || !strings.Contains(err.Error(), "dp=N") {
		t.Errorf("%v", err)
	}
	raw, err := net.Dial("unix", p.dir+"/h")
	if err != nil {
		t.Fatal(err)
	}
	raw.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 10)))
	raw.Read(make([]byte, 1000))
	raw.Close()
	b.Barrier()
}

// An engine that does not read holds nobody up: what it was not sent is refused,
// and then it is given up.
func TestWedgedEngine(t *testing.T) {
	t.Parallel() // it waits for WriteTimeout, in which all requests must come
	dir := tempDir(t)
	p := &peer{dir: dir}
	o := p.options()
	o.WriteTimeout, o.MaxQueued = 3*time.Second, 1<<20
	e := New(o)
	ctx, cancel := context.WithTimeout(t.Context(), enginetest.Patience)
	defer cancel()
	states := make(chan engine.State, 100)
	run, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { e.Run(run, func(s engine.State) { states <- s }) })
	defer ended.Wait()
	defer stop()
	core, err := coretest.Start(ctx, coretest.Options{Handshake: "ipc://" + dir + "/h", Receive: func(c *coretest.Core, m coretest.Message) {
		if m.Type == 3 && m.Method == probeMethod {
			c.Send(coretest.Batch{Call: m.Call})
		}
		if m.Type == 0 {
			<-ctx.Done() // it never reads again
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	for s := range states {
		if s.Ready {
			break
		}
	}
	var mu sync.Mutex
	codes := map[infer.Code]int{}
	// Large, and quick to encode: all of them come while the engine is not given up.
	guide := &infer.Guide{Kind: infer.GuideJSONSchema, Text: strings.Repeat("x", 200_000)}
	var calls sync.WaitGroup
	for i := range 64 {
		calls.Go(func() {
			req := &infer.Request{ID: string(rune('A'+i)) + "-id", Model: "test", Prompt: []uint32{1}, MaxTokens: 4, Guide: guide}
			_, err := e.Generate(ctx, req, 1, enginetest.NewRecorder(1), new(trace.Leg))
			e := infer.AsError(err)
			mu.Lock()
			defer mu.Unlock()
			if e == nil || !e.Retryable {
				t.Errorf("%v", err)
				return
			}
			codes[e.Code]++
		})
	}
	calls.Wait()
	if codes[infer.CodeOverloaded] == 0 || codes[infer.CodeEngine] == 0 || len(codes) > 3 {
		t.Errorf("codes %v", codes)
	}
	for s := range states {
		if s.Err != nil && strings.Contains(s.Err.Error(), "has not read") {
			break
		}
	}
	cancel()
	core.Close()
}

// Silence is a loss after its bound, in virtual time, and busy is not silent.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		var engineEnd *zmtp.Conn
		var shaken sync.WaitGroup
		shaken.Go(func() {
			var err error
			engineEnd, err = zmtp.Handshake(&lazy{Conn: theirs}, zmtp.Config{Type: zmtp.Dealer, Identity: []byte{0, 0}})
			if err != nil {
				t.Error(err)
			}
		})
		in, err := zmtp.Handshake(&lazy{Conn: ours}, zmtp.Config{Type: zmtp.Router})
		shaken.Wait()
		if err != nil || engineEnd == nil {
			t.Fatal(err)
		}
		e := New(Options{Options: coreclient.Options{Name: "e", Model: "m"}})
		s := e.newSession(t.Context(), 0, ready{contextLength: 100}, in)
		asked := 0
		go func() { // reads and answers nothing
			for {
				if _, err := engineEnd.Recv(); err != nil {
					return
				}
				asked++
			}
		}()
		began := time.Now()
		busy := time.AfterFunc(92*time.Second, func() { s.Receive([][]byte{coretest.Append(nil, coretest.Batch{Timestamp: 1}, "0.33.0")}, 1) })
		defer busy.Stop()
		s.serve(in)
		var end *mux.End
		if !errors.As(s.Err(), &end) || end.Why != mux.LossSilent || !strings.Contains(end.Error(), "nothing was heard of it for 2m0s") {
			t.Errorf("%v", end)
		}
		if d := time.Since(began); d != 215*time.Second {
			t.Errorf("after %v", d)
		}
		synctest.Wait()
		if asked != 1 {
			t.Errorf("%d questions while one was unanswered", asked)
		}
	})
}

// An engine is lost to nobody before its connections are closed: what looks at the
// state may come at any moment, and an engine that connects then must meet the next
// session.
func TestConnectionsEndBeforeTheLossIsKnown(t *testing.T) {
	ours, theirs := net.Pipe()
	var far sync.WaitGroup
	far.Go(func() {
		c, err := zmtp.Handshake(&lazy{Conn: theirs}, zmtp.Config{Type: zmtp.Dealer, Identity: []byte{0, 0}})
		if err != nil {
			t.Error(err)
			return
		}
		_ = coreclient.WaitEnd(c)
	})
	in, err := zmtp.Handshake(&lazy{Conn: ours}, zmtp.Config{Type: zmtp.Router})
	if err != nil {
		t.Fatal(err)
	}
	e := New(Options{Options: coreclient.Options{Name: "e", Model: "m"}})
	s := e.newSession(t.Context(), 0, ready{contextLength: 100}, in)
	e.ranks[0].current.Store(s)
	s.Receive([][]byte{coretest.Append(nil, coretest.Batch{Timestamp: 1, Call: ask(t, s)}, "0.33.0")}, 1)
	if !e.state().Ready {
		t.Fatal("it does not serve")
	}
	s.End(mux.LossConnection, io.EOF)
	s.Run(func() {
		defer in.Close()
		for range 50 { // time for what must not happen
			if time.Sleep(time.Millisecond); !e.state().Ready {
				t.Error("the loss was known before the connections were closed")
				return
			}
		}
	}, nil)
	far.Wait()
	if e.state().Ready {
		t.Error("the loss is not known")
	}
}

// A connection of outputs belongs to the session whose question is answered over it,
// and to no later one: its end would be taken for that of an engine that just came
// back. It may come to light late, with what an engine that has died has said.
func TestOutputOfAnEndedSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Options{Options: coreclient.Options{Name: "e", Model: "m"}})
		first := e.newSession(t.Context(), 0, ready{contextLength: 100}, nil)
		e.ranks[0].current.Store(first)
		connect := func() (c *zmtp.Conn, ended <-chan struct{}) {
			ours, theirs := net.Pipe()
			done := make(chan struct{})
			go func() { defer close(done); e.output(t.Context(), &lazy{Conn: ours}, 1) }()
			c, err := zmtp.Handshake(&lazy{Conn: theirs}, zmtp.Config{Type: zmtp.Push})
			if err != nil {
				t.Fatal(err)
			}
			return c, done
		}
		send := func(c *zmtp.Conn, call int64) {
			if err := c.Send(coretest.Append(nil, coretest.Batch{Timestamp: 1, Call: call}, "0.33.0")); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		c, ended := connect()
		late, lateEnded := connect()
		asked := ask(t, first)
		send(c, 0)
		if first.output.Load() != nil {
			t.Fatal("a connection without an answer is the first session's")
		}
		send(c, asked)
		if first.output.Load() == nil || e.meters.Frames.Load() != 1 {
			t.Fatalf("the first session heard %d messages", e.meters.Frames.Load())
		}
		end := &mux.End{Why: mux.LossRestarted}
		first.End(end.Why, nil)
		first.Close(end)
		second := e.newSession(t.Context(), 0, ready{contextLength: 100}, nil)
		e.ranks[0].current.Store(second)
		ask(t, second)
		for _, of := range []struct {
			c     *zmtp.Conn
			ended <-chan struct{}
		}{{c, ended}, {late, lateEnded}} {
			send(of.c, 0)
			send(of.c, asked)
			of.c.Close()
			<-of.ended
		}
		if second.output.Load() != nil || e.meters.Frames.Load() != 1 || second.Err() != nil {
			t.Errorf("the second session has a connection of the first one's: %d messages, ends with %v", e.meters.Frames.Load(), second.Err())
		}
	})
}

// ask has a session ask its first question and gives the call's number.
func ask(t *testing.T, s *session) int64 {
	s.Out.Ask()
	wire, _, _ := s.Out.Take(1)
	_, b, err := msgp.ReadArrayHeaderBytes(wire[5:]) // behind the heads of two frames and the type
	if err == nil {
		b, err = msgp.Skip(b)
	}
	call, _, err2 := msgp.ReadInt64Bytes(b)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return call
}

// lazy is a pipe's end whose writes do not wait to be read.
type lazy struct {
	net.Conn
	last chan struct{}
}

func (l *lazy) Write(p []byte) (int, error) {
	before, done := l.last, make(chan struct{})
	l.last = done
	p = slices.Clone(p)
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		l.Conn.Write(p)
	}()
	return len(p), nil
}

func (l *lazy) SetWriteDeadline(time.Time) error { return nil }
func (l *lazy) SetDeadline(time.Time) error      { return nil }

// A request goes to the rank that it is for. One that stands still is silent when it is
// probed, and no other; one that is lost takes only its own requests along.
func TestRanks(t *testing.T) {
	p, q := newPeer(t, "0.33.0"), &peer{}
	e := New(func() Options { o := p.options(); o.Engines = 2; return o }())
	b := enginetest.Start(t, enginetest.Rig{Engine: e, Peer: p})
	waitWord(b, "1 of 2 engines")
	said := [2]bool{} // what a rank has said stays
	ranks := func(ready ...bool) {
		t.Helper()
		for i, r := range e.state().Facts.Ranks {
			said[i] = said[i] || ready[i]
			if len(ready) != 2 || r.Number != i || r.Ready != ready[i] || said[i] != (r.Instance != "") || said[i] != (r.MaxRunning > 0) {
				t.Errorf("%+v, want %v", r, ready)
			}
		}
	}
	ranks(true, false)
	*q = peer{t: t, ctx: p.ctx, version: "0.33.0", index: 1, dir: p.dir, requests: map[string]*peerRequest{}, aborted: map[string]int{}}
	q.Restore()
	defer q.Cut()
	for figures(b).Ready < 2 {
		if b.Ctx.Err() != nil {
			t.Fatal("the second engine did not join")
		}
		time.Sleep(time.Millisecond) // of a poll
	}
	ranks(true, true)
	var calls []*enginetest.Call
	for i := range 10 {
		b.Rank = i % 2
		c := b.Accept(100)
		calls = append(calls, c)
		if c.Leg.DPRank != i%2 {
			t.Errorf("for rank %d, and it says %d", i%2, c.Leg.DPRank)
		}
	}
	for i, of := range []*peer{p, q} {
		of.mu.Lock()
		if len(of.adds) != 5 {
			t.Errorf("rank %d was given %d requests", i, len(of.adds))
		}
		of.mu.Unlock()
	}
	q.Mute(true)
	b.Must(e.Probe(b.Ctx, engine.Probe{Rank: 0}))
	silent, stop := context.WithTimeout(b.Ctx, 50*time.Millisecond)
	defer stop()
	for _, rank := range []int{1, -1} {
		if err := e.Probe(silent, engine.Probe{Rank: rank}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("probe of rank %d, which stands still: %v", rank, err)
		}
	}
	q.Mute(false)
	b.Must(e.Probe(b.Ctx, engine.Probe{Rank: 1}))
	q.Cut()
	for _, c := range calls {
		if c.Leg.DPRank == 1 {
			b.WantFinish(c, infer.ReasonError)
		} else if _, err := c.Sink.WaitFinish(done()); err == nil {
			t.Error("a request of the other rank ended")
		}
	}
	waitWord(b, "1 of 2 engines")
	ranks(true, false)
	for _, rank := range []int{1, 2, -1} {
		b.Rank = rank
		c := b.Go(b.Ctx, 4)
		if b.Wait(c); infer.AsError(c.Err).Code != infer.CodeUnavailable || !infer.AsError(c.Err).NotRun {
			t.Errorf("for rank %d, which is not there: %v", rank, c.Err)
		}
	}
	b.Rank = 0
	b.Accept(4)
}

func TestWaves(t *testing.T) {
	w := waves{last: -1, seen: -1}
	check := func(want int64, ok bool) {
		t.Helper()
		if got, yes := w.submitted(); yes != ok || ok && got != want {
			t.Errorf("wave %d, %v; want %d, %v", got, yes, want, ok)
		}
	}
	check(0, true)
	check(0, false)
	w.ended(0)
	check(1, true)
	w.ended(0) // the other rank's word of the same wave
	check(0, false)
	w.ended(7)
	check(8, true)

	p := newPeer(t, "0.33.0")
	b := startBench(t, p, func(o *Options) { o.Lockstep = true })
	b.Barrier()
	b.Barrier()
	b.Must(p.mu.Await(b.Ctx, "wave 0", func() bool { return slices.Equal(p.waves, []int64{0}) }))
	p.now().Send(coretest.Batch{Complete: 1}) // wave 0
	b.Must(p.mu.Await(b.Ctx, "nothing", func() bool { return true }))
	b.Barrier()
	b.Barrier()
	b.Must(p.mu.Await(b.Ctx, "wave 1", func() bool { return slices.Equal(p.waves, []int64{0, 1}) }))
}

// The facts that engines report outlive weir.
func TestMemory(t *testing.T) {
	p := newPeer(t, "0.33.0")
	keep := func(o *Options) { o.Memory, o.AdoptAfter = p.dir+"/memory", 20*time.Millisecond }
	b := startBench(t, p, keep)
	b.Barrier()
	b.Stop()
	input, output := p.now().Addresses()

	o := p.options()
	keep(&o)
	var dial sync.WaitGroup
	dial.Go(func() { // as libzmq does, until somebody listens again
		if err := p.connect(coretest.Options{Input: input, Output: output, Word: []byte{}}); err != nil {
			t.Error(err)
		}
	})
	again := enginetest.Start(t, enginetest.Rig{Engine: New(o), Peer: p})
	dial.Wait()
	again.Barrier()
	if s := again.WaitReady(true); s.Facts.Software != "vLLM 0.33.0" || s.Facts.ContextLength != 4096 {
		t.Errorf("%+v", s)
	}
	if err := os.WriteFile(o.Memory, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := New(o)
	e.remember()
	if known, _ := e.ranks[0].saved(); known != nil {
		t.Errorf("remembered %q", known)
	}
}

func TestPlace(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	dir := tempDir(t)
	t.Setenv("TMPDIR", dir)
	at := func(addr string) (Options, error) {
		o := Options{Handshake: zmtp.Endpoint{Network: "tcp", Address: addr}}
		return o, o.Place()
	}
	o, err := at("127.0.0.1:5570")
	if err != nil || o.Input.Network != "unix" || o.Output.Network != "unix" || !strings.HasPrefix(o.Input.Address, dir) || o.Input == o.Output || o.Memory == "" {
		t.Errorf("%+v, %v", o, err)
	}
	if again, err := at("127.0.0.1:5570"); err != nil || again.Input != o.Input || again.Memory != o.Memory {
		t.Errorf("%+v, %v: not the same place twice", again, err)
	}
	if o, err := at("10.0.0.1:5570"); err != nil || o.Input.String() != "tcp://10.0.0.1:5571" || o.Output.String() != "tcp://10.0.0.1:5572" {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range []string{"127.0.0.1", "127.0.0.1:0", "127.0.0.1:65534", "127.0.0.1:x"} {
		if o, err := at(bad); err == nil {
			t.Errorf("%s: %+v", bad, o)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	if err := os.Chmod(dir+"/"+entries[0].Name(), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := at("127.0.0.1:5570"); !errors.Is(err, err) || err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("a folder that others can open: %v", err)
	}
}
