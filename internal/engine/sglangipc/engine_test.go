package sglangipc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/engine"
	"weir/internal/engine/coreclient"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/mux"
	"weir/internal/engine/sglang"
	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/infer"
	"weir/internal/wire/zmtp"
)

func start(t *testing.T, p *peer, set ...func(o *Options)) *enginetest.Bench {
	o := p.options()
	for _, f := range set {
		f(&o)
	}
	return enginetest.Start(t, enginetest.Rig{Engine: New(o), Peer: p})
}

func figures(b *enginetest.Bench) coreclient.Figures { return b.Rig.Engine.(*Engine).Figures() }

// until polls for something that nobody tells of.
func until(b *enginetest.Bench, what string, ok func() bool) {
	b.T.Helper()
	for !ok() {
		if b.Ctx.Err() != nil {
			b.T.Fatalf("waited for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func waitWord(b *enginetest.Bench, word string) engine.State {
	b.T.Helper()
	for {
		s := b.WaitReady(false)
		if s.Err != nil && strings.Contains(s.Err.Error(), word) {
			return s
		}
		if b.Ctx.Err() != nil {
			b.T.Fatalf("waited for %q, have %v", word, s.Err)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestFacts(t *testing.T) {
	p := newPeer(t, 2)
	b := start(t, p, func(o *Options) { o.Model = "" })
	e := b.Rig.Engine.(*Engine)
	until(b, "the running limit", func() bool { return e.state().Facts.MaxRunning == 96 })
	f := e.state().Facts
	if f.KVTokens != 2*70_000 || f.StepTokens != 8192 {
		t.Errorf("a KV cache of %d tokens, steps of %d", f.KVTokens, f.StepTokens)
	}
	if strings.Join(f.Models, " ") != "served" || !slices.Equal(f.LoRA, []engine.LoRA{{Name: "lora"}}) || f.ContextLength != 4096 || f.Software != "SGLang 0.5.23" || f.Instance != "one" || f.Carries != infer.CarriesAll&^(infer.CarriesMedia|infer.CarriesPromptLogprobs) {
		t.Errorf("%+v", f)
	}
	c := b.Accept(4)
	if g := figures(b); g.Ready != 2 || g.Live != 1 || g.Submitted != 1 || g.Accepted != 1 || g.Sessions != 1 {
		t.Errorf("%+v", g)
	}
	p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{4}, Finish: infer.ReasonStop})
	b.WantFinish(c, infer.ReasonStop)
	// An earlier weir may have left requests: they were aborted before anything else.
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all != 1 {
		t.Errorf("%d aborts of all", p.all)
	}
}

// The launcher's word may come before the scheduler connects or after, be of no use,
// and be followed by a better one.
func TestWords(t *testing.T) {
	p := newPeer(t, 1)
	if err := schedtest.Write(p.dir, nil); err != nil {
		t.Fatal(err)
	}
	o := p.options()
	o.WordInterval = time.Millisecond
	var warned []string
	o.Warn = func(m string) { warned = append(warned, m) }
	e := New(o)
	ctx, cancel := context.WithCancel(t.Context())
	reports := make(chan engine.State, 100)
	ended := make(chan struct{})
	go func() { defer close(ended); e.Run(ctx, func(s engine.State) { reports <- s }) }()
	defer func() { cancel(); <-ended }()
	expect := func(word string) {
		t.Helper()
		late := time.After(enginetest.Patience)
		for {
			select {
			case s := <-reports:
				if word == "" && s.Ready || word != "" && s.Err != nil && strings.Contains(s.Err.Error(), word) {
					return
				}
			case <-late:
				t.Fatalf("waited for %q", word)
			}
		}
	}
	expect("loads its model")
	if _, err := e.Generate(t.Context(), whole(), 1, enginetest.NewRecorder(1), newLeg()); infer.AsError(err).Code != infer.CodeUnavailable {
		t.Errorf("%v", err)
	}
	for _, bad := range []struct {
		set  map[string]any
		word string
	}{
		{map[string]any{"form": 2}, "version 2"},
		{map[string]any{"sglang": "0.5.16"}, "SGLang 0.5.16 was not tried"},
		{map[string]any{"sglang": "0.5.23.post1"}, "add untried=true"},
		{map[string]any{"sglang": "0.6.0"}, "SGLang 0.6.0 was not tried"},
		{map[string]any{"sglang": "main"}, "SGLang main was not tried"},
		{map[string]any{"vocab_size": 0, "context_length": 0}, "does not say context_length, vocab_size"},
		{map[string]any{"wire": map[string]any{}}, "no structure TokenizedGenerateReqInput"},
		{map[string]any{"vocab_size": "many"}, "cannot be read"},
	} {
		if err := schedtest.Write(p.dir, schedtest.Manifest(bad.set)); err != nil {
			t.Fatal(err)
		}
		expect(bad.word)
	}
	if err := schedtest.Write(p.dir, schedtest.Manifest(nil)); err != nil {
		t.Fatal(err)
	}
	expect("")
	if len(warned) != 0 {
		t.Errorf("warned of %q", warned)
	}
}

func TestUntried(t *testing.T) {
	p := newPeer(t, 1)
	if err := schedtest.Write(p.dir, schedtest.Manifest(map[string]any{"sglang": "0.6.0"})); err != nil {
		t.Fatal(err)
	}
	warned := make(chan string, 1)
	b := start(t, p, func(o *Options) { o.Untried, o.Warn = true, func(m string) { warned <- m } })
	if w := <-warned; !strings.Contains(w, "0.6.0 was not tried") {
		t.Error(w)
	}
	if s := b.WaitReady(true); s.Facts.Software != "SGLang 0.6.0 (not tried)" {
		t.Errorf("%+v", s)
	}
	b.Barrier()
}

// structures that this weir cannot write to, or read.
func TestCodecRefuses(t *testing.T) {
	edit := func(name string, f func(s *structure)) map[string]structure {
		var h manifest
		if err := json.Unmarshal(schedtest.Manifest(nil), &h); err != nil {
			t.Fatal(err)
		}
		s := h.Wire[name]
		f(&s)
		h.Wire[name] = s
		return h.Wire
	}
	rename := func(from, to string) func(s *structure) {
		return func(s *structure) {
			for i := range s.Fields {
				if s.Fields[i] == from {
					s.Fields[i] = to
				}
			}
		}
	}
	swap := func(from, to string) func(s *structure) {
		return func(s *structure) { s.Sample = []byte(strings.Replace(string(s.Sample), from, to, 1)) }
	}
	for word, wire := range map[string]map[string]structure{
		"SamplingParams has no field min_p":                     edit(tagSampling, rename("min_p", "min_prob")),
		"SamplingParams lacks one of the fields":                edit(tagSampling, rename("is_normalized", "normal")),
		"BatchTokenIDOutput has no field completion_tokens":     edit(tagOutputs, rename("completion_tokens", "tokens")),
		"BatchTokenIDOutput begins with":                        edit(tagOutputs, func(s *structure) { s.Fields[0], s.Fields[1] = s.Fields[1], s.Fields[0] }),
		"TokenizedGenerateReqInput has no field lora_id":        edit(tagRequest, rename("lora_id", "adapter")),
		"TokenizedGenerateReqInput has no field priority":       edit(tagRequest, rename("priority", "urgency")),
		"the sample of TokenizedGenerateReqInput has 50 values": edit(tagRequest, func(s *structure) { s.Fields = s.Fields[1:] }),
		"the sample of AbortReq begins with":                    edit(tagAbort, swap("AbortReq", "abortReq")),
		"AbortReq.abort_all is of type":                         edit(tagAbort, swap("\xc2", "\x00")),
		"AbortReq has no field finished_reason":                 edit(tagAbort, rename("finished_reason", "why")),
		"TokenizedGenerateReqInput.stream is of type":           edit(tagRequest, swap("\xff\x00\xc0\xc3", "\xff\x00\xc0\x01")),
		"SamplingParams is written as a map": edit(tagRequest, func(s *structure) {
			head, chunks, err := s.split(tagRequest, tagRequest)
			if err != nil {
				t.Fatal(err)
			}
			s.Sample = slices.Clone(head)
			for _, c := range chunks {
				if c.field == "sampling_params" {
					c.raw = []byte{0x80}
				}
				s.Sample = append(s.Sample, c.raw...)
			}
		}),
		"the sample of GetInternalStateReq":                           edit(tagState, func(s *structure) { s.Sample = s.Sample[:4] }),
		"ConfigureLoggingReq and":                                     nil,
		"the sample of SamplingParams has 33 values for 32 fields":    edit(tagSampling, func(s *structure) { s.Fields = s.Fields[:32] }),
		"SamplingParams.is_normalized of the sample is c2":            edit(tagRequest, swap("\x90\x90\x00\x00\xc3\xc2", "\x90\x90\x00\x00\xc2\xc2")),
		"SamplingParams.stop_strs of the sample is c0, want 90":       edit(tagRequest, swap("\x90\x90\x00\x00\xc3\xc2", "\xc0\x90\x00\x00\xc3\xc2")),
		"the launcher hands over no structure GetInternalStateReq":    edit(tagState, func(s *structure) {}),
		"the sample of ConfigureLoggingReq has 1 bytes after its end": edit(tagFence, func(s *structure) { s.Sample = append(s.Sample, 0xc0) }),
	} {
		switch {
		case wire == nil:
			word = tagAbort + " and " + tagFence + " do not begin with rid"
			wire = edit(tagAbort, func(s *structure) { s.Fields[0], s.Fields[1] = s.Fields[1], s.Fields[0] })
		case strings.HasPrefix(word, "the launcher"):
			delete(wire, tagState)
		}
		if _, err := newCodec(wire); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v, want %q", err, word)
		}
	}
}

// A request that would end an engine, or make its output meaningless, is refused here.
func TestRefusedHere(t *testing.T) {
	h, _, err := parseManifest(schedtest.Manifest(nil))
	if err != nil {
		t.Fatal(err)
	}
	nan := math.NaN()
	for what, set := range map[string]func(r *infer.Request){
		"max_tokens":         func(r *infer.Request) { r.MaxTokens = 0 },
		"max_tokens ":        func(r *infer.Request) { r.MaxTokens = 1 << 40 },
		"min_tokens":         func(r *infer.Request) { r.MinTokens = 101 },
		"min_tokens ":        func(r *infer.Request) { r.MinTokens = -1 },
		"id 1 of the prompt": func(r *infer.Request) { r.Prompt[1] = 128000 },
		"at most 4084":       func(r *infer.Request) { r.Prompt = make([]uint32, 4085) },
		"stop_token_ids":     func(r *infer.Request) { r.StopIDs[0] = 128000 },
		"temperature":        func(r *infer.Request) { r.Sampling.Temperature = ptr(-1.0) },
		"temperature ":       func(r *infer.Request) { r.Sampling.Temperature = &nan },
		"top_p":              func(r *infer.Request) { r.Sampling.TopP = ptr(0.0) },
		"min_p":              func(r *infer.Request) { r.Sampling.MinP = ptr(1.5) },
		"presence_penalty":   func(r *infer.Request) { r.Sampling.PresencePenalty = ptr(2.5) },
		"frequency_penalty":  func(r *infer.Request) { r.Sampling.FrequencyPenalty = ptr(-2.5) },
		"repetition_penalty": func(r *infer.Request) { r.Sampling.RepetitionPenalty = ptr(0.0) },
		"logit_bias":         func(r *infer.Request) { r.Sampling.LogitBias[0].ID = 128000 },
		"logit_bias ":        func(r *infer.Request) { r.Sampling.LogitBias[0].Value = math.Inf(1) },
		"response_format":    func(r *infer.Request) { r.Guide.Text = "\xff" },
		"internal":           func(r *infer.Request) { r.ID = "short" },
	} {
		req := whole()
		if bad := h.check(req, &engine.Additions{}); bad != nil {
			t.Fatal(bad)
		}
		set(req)
		bad := h.check(req, &engine.Additions{})
		if what == "internal" {
			if bad == nil || bad.Code != infer.CodeInternal {
				t.Errorf("%v", bad)
			}
			continue
		}
		if bad == nil || bad.Code != infer.CodeInvalid || !strings.Contains(bad.Param+bad.Message, strings.TrimSpace(what)) {
			t.Errorf("%s: %v", what, bad)
		}
	}
}

// The fields of a request reach the scheduler, in its words.
func TestRequest(t *testing.T) {
	p := newPeer(t, 1)
	b := start(t, p, func(o *Options) { o.Defaults = engine.Defaults{TopK: ptr(20), Temperature: ptr(0.6)} })
	said := func(set func(r *infer.Request)) map[string]any {
		t.Helper()
		req := &infer.Request{ID: "words-" + strings.Repeat("0", 10), Prompt: []uint32{3, 4}, MaxTokens: 7}
		set(req)
		ctx, cancel := context.WithCancel(b.Ctx)
		defer cancel()
		sink := enginetest.NewRecorder(1)
		g, err := b.Rig.Engine.Generate(ctx, req, 1, sink, newLeg())
		if err != nil {
			t.Fatal(err)
		}
		p.Step(enginetest.Out{ID: req.ID, IDs: []uint32{9}, Finish: infer.ReasonStop})
		if _, err := sink.WaitFinish(b.Ctx); err != nil {
			t.Fatal(err)
		}
		g.Abort()
		p.mu.Lock()
		defer p.mu.Unlock()
		m := p.adds[len(p.adds)-1]
		if m.Fields["stream"] != true || m.Fields["return_logprob"] != false {
			t.Errorf("%+v", m.Fields)
		}
		sampling := m.Fields["sampling_params"].(map[string]any)
		sampling["lora_id"], sampling["priority"] = m.Fields["lora_id"], m.Fields["priority"]
		return sampling
	}
	plain := said(func(*infer.Request) {})
	if plain["temperature"] != 0.6 || schedtest.Number(plain["top_k"]) != 20 || schedtest.Number(plain["max_new_tokens"]) != 7 || plain["lora_id"] != nil || plain["priority"] != nil {
		t.Errorf("%v", plain)
	}
	cold := said(func(r *infer.Request) { r.Sampling.Temperature, r.Model = new(float64), "lora" })
	if cold["temperature"] != 1.0 || schedtest.Number(cold["top_k"]) != 1 || cold["lora_id"] != "adapter" {
		t.Errorf("the likeliest: %v", cold)
	}
	first := int64(-7)
	if soon := said(func(r *infer.Request) { r.Priority = &first }); schedtest.Number(soon["priority"]) != first {
		t.Errorf("a priority: %v", soon)
	}
	all := said(func(r *infer.Request) {
		r.Sampling.TopK, r.Guide = ptr(-1), &infer.Guide{Kind: infer.GuideChoice, Choices: []string{"a.b", "c"}}
	})
	if schedtest.Number(all["top_k"]) != 1<<30 || all["regex"] != `(a\.b|c)` {
		t.Errorf("%v", all)
	}
}

// An output connection that breaks is the end of the session: what it held may be
// lost. The engine lives and connects again.
func TestOutputLost(t *testing.T) {
	p := newPeer(t, 1)
	b := start(t, p)
	c := b.Accept(10)
	p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{1}})
	b.Must(c.Sink.WaitIDs(b.Ctx, 1))
	p.now().CloseOutput()
	f := b.WantFinish(c, infer.ReasonError)
	if f.Err.Code != infer.CodeEngine || !f.Err.Retryable {
		t.Errorf("%v", f.Err)
	}
	<-p.now().Done() // it is told on every connection
	if s := waitWord(b, "an output connection"); s.Ready {
		t.Error("ready")
	}
	p.Cut()
	p.Restore()
	b.WaitReady(true)
	b.Barrier()
	if figures(b).Lost[mux.LossConnection] != 1 {
		t.Errorf("%+v", figures(b))
	}
}

// An engine that connects while another is connected takes its place.
func TestRestarted(t *testing.T) {
	p := newPeer(t, 1)
	b := start(t, p)
	c := b.Accept(10)
	old := p.now()
	// The second says nothing, and its output connections may be closed as those of
	// the session that ends.
	p.mu.Update(func() { p.mute = true })
	p.Restore()
	b.WantFinish(c, infer.ReasonError)
	<-old.Done()
	// The third comes when the second's session has closed what outputs it found, as
	// it does not connect them again as libzmq would.
	e := b.Rig.Engine.(*Engine)
	until(b, "its session", func() bool { return e.current.Load() != nil })
	p.Cut()
	until(b, "the end of its session", func() bool { return e.current.Load() == nil })
	p.mu.Update(func() { p.mute = false })
	p.Restore()
	b.WaitReady(true)
	b.Barrier()
	old.Close()
}

// weir may be started again: the scheduler connects again by itself, says nothing,
// and goes on with requests that nobody knows.
func TestGatewayRestarts(t *testing.T) {
	p := newPeer(t, 1)
	b := start(t, p)
	c := b.Accept(100)
	b.Stop()
	b.WantFinish(c, infer.ReasonError)
	p.Cut()
	go p.Restore() // as libzmq does
	again := start(t, p)
	again.Must(p.mu.Await(again.Ctx, "a second abort of all", func() bool { return p.all == 2 }))
	p.now().Step(0, schedtest.Output{ID: "of-another-0001", IDs: ids(1), Count: 50, Prompt: 3})
	again.Must(p.Aborted(again.Ctx, "of-another-0001"))
	again.Barrier()
}

func TestMalformed(t *testing.T) {
	p := newPeer(t, 1)
	b := start(t, p)
	c := b.Accept(10)
	p.now().Raw([]byte("nonsense"))
	f := b.WantFinish(c, infer.ReasonError)
	if f.Err.Code != infer.CodeIntegrity {
		t.Errorf("%v", f.Err)
	}
	if figures(b).Lost[mux.LossIntegrity] != 1 {
		until(b, "the loss", func() bool { return figures(b).Lost[mux.LossIntegrity] == 1 })
	}
}

// Silence is told from idleness by questions, and both from a peer that does not
// read.
func TestSilence(t *testing.T) {
	p := newPeer(t, 1)
	quick := func(o *Options) { o.ProbeInterval, o.ProbeTimeout = 2*time.Millisecond, time.Second }
	b := start(t, p, quick)
	until(b, "questions", func() bool { return figures(b).Fences > 5 }) // idle, and there
	c := b.Accept(10)
	p.mu.Update(func() { p.mute = true })
	f := b.WantFinish(c, infer.ReasonError)
	if f.Err.Code != infer.CodeEngine || !strings.Contains(f.Err.Message, "stopped answering") || !f.Err.Retryable {
		t.Errorf("%v", f.Err)
	}
	waitWord(b, "nothing was heard of it for 1s")
}

func TestDoesNotRead(t *testing.T) {
	p := newPeer(t, 1)
	b := start(t, p)
	p.Cut()
	go p.connect(schedtest.Options{Slow: true})
	// Nothing confirms a session with an engine that does not read.
	waitWord(b, "has not answered yet")
	c := b.Go(b.Ctx, 4)
	b.Wait(c)
	if infer.AsError(c.Err).Code != infer.CodeUnavailable {
		t.Errorf("%v", c.Err)
	}
}

func TestFolder(t *testing.T) {
	dir := tempDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	e := New(Options{Options: coreclient.Options{Name: "e"}, Dir: dir})
	ctx, cancel := context.WithCancel(t.Context())
	said := make(chan engine.State, 1)
	ended := make(chan struct{})
	go func() { defer close(ended); e.Run(ctx, func(s engine.State) { said <- s }) }()
	if s := <-said; s.Ready || s.Err == nil || !strings.Contains(s.Err.Error(), "0700") {
		t.Errorf("%+v", s)
	}
	cancel()
	<-ended
}

func TestManyAbortsAtOnce(t *testing.T) {
	p := newPeer(t, 1)
	b := start(t, p)
	var calls []*enginetest.Call
	for range 64 {
		calls = append(calls, b.Accept(100))
	}
	for _, c := range calls {
		c.Gen.Abort()
	}
	for i, c := range calls {
		b.Must(p.Aborted(b.Ctx, c.Request.ID))
		if i%2 == 0 {
			p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{1}, Finish: infer.ReasonAbort})
		} else {
			p.now().Echo(c.Request.ID, nil)
		}
		b.WantFinish(c, infer.ReasonAbort)
	}
	if n := figures(b); n.Live != 0 || n.Aborts != 64 {
		t.Errorf("%+v", n)
	}
}

// A scheduler's connections say nothing of whose they are, and its handshake may come
// through when it has died and another has taken its place. Neither its input may take
// that place again, nor the end of its outputs end the session of the other.
func TestLateHandshake(t *testing.T) {
	for name, kind := range map[string]zmtp.Type{inputName: zmtp.Pull, outputName: zmtp.Push} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, 1)
			b := start(t, p)
			b.WaitReady(true)
			at := p.options()
			conn, err := net.Dial("unix", at.endpoint(name).Address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			slow := &slowGreeter{Conn: conn, there: make(chan struct{}), goOn: make(chan struct{})}
			ended := make(chan error, 1)
			go func() {
				c, err := zmtp.Handshake(slow, zmtp.Config{Type: kind})
				if err == nil && kind == zmtp.Push {
					err = c.Send(schedtest.AppendMessage(nil, tagStateOut, nil, nil, nil))
				}
				if err == nil {
					err = conn.(*net.UnixConn).CloseWrite()
				}
				for err == nil {
					_, err = c.Recv()
				}
				ended <- err
			}()
			<-slow.there
			p.Cut()
			b.WaitReady(false)
			p.Restore()
			b.WaitReady(true)
			s := b.Rig.Engine.(*Engine).current.Load()
			close(slow.goOn)
			if err := <-ended; !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Error(err)
			}
			if err := s.Err(); err != nil {
				t.Errorf("the session ended: %v", err)
			}
			b.Barrier()
		})
	}
}

// slowGreeter is a connection that says READY when it may go on.
type slowGreeter struct {
	net.Conn
	writes      int
	there, goOn chan struct{}
}

func (c *slowGreeter) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 2 { // the first is the greeting
		close(c.there)
		<-c.goOn
	}
	return c.Conn.Write(p)
}

// How the schedulers were started, by their launcher's word, is what they carry, and
// what is added to requests; an older launcher's word says nothing of it.
func TestStarted(t *testing.T) {
	temperature, ends := engine.Defaults{Temperature: ptr(0.5)}, []uint32{5, 6}
	for _, c := range []struct {
		release string
		started map[string]any
		lacks   infer.Carries
		adds    engine.Defaults
		stops   []uint32 // of a request with min_tokens
	}{
		{"0.5.23", nil, 0, temperature, nil},
		{"0.5.18", nil, 0, temperature, ends},
		{"0.5.23", map[string]any{"skip_tokenizer_init": false, "grammar_backend": "none", "enable_deterministic_inference": true, "sampling_defaults": "model"},
			infer.CarriesGuides, temperature, nil},
		{"0.5.23", map[string]any{"skip_tokenizer_init": false, "grammar_backend": "xgrammar", "speculative_algorithm": "EAGLE", "sampling_defaults": "openai"},
			infer.CarriesMinP | infer.CarriesSeed, engine.Defaults{}, nil},
	} {
		set := map[string]any{"sglang": c.release}
		if c.started != nil {
			set["started"] = c.started
		}
		h, codec, err := parseManifest(schedtest.Manifest(set))
		if err != nil {
			t.Fatal(err)
		}
		o := &Options{EndIDs: ends}
		o.Defaults = temperature
		adds := h.additions(o)
		if diff := cmp.Diff(c.adds, adds.Defaults); diff != "" {
			t.Errorf("%s %v: %s", c.release, c.started, diff)
		}
		if got := (sglang.Carries | infer.CarriesPriority) &^ h.carries(); got != c.lacks {
			t.Errorf("%s %v: lacks %s, want %s", c.release, c.started, got, c.lacks)
		}
		req := &infer.Request{MinTokens: 2, MaxTokens: 9}
		if got := codec.mode.StopIDs(req, adds.EndIDs); !slices.Equal(got, c.stops) {
			t.Errorf("%s: stop ids %v, want %v", c.release, got, c.stops)
		}
		if c.lacks&infer.CarriesGuides != 0 {
			req := whole()
			if bad := h.check(req, &adds); bad == nil || bad.Lacks&infer.CarriesGuides == 0 {
				t.Errorf("a guide is let through: %v", bad)
			}
		}
	}
}

// The launcher says where rank 0 publishes what its KV cache holds, and by that where the
// others do. An older one says nothing of it.
func TestKVEvents(t *testing.T) {
	events := map[string]any{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5600", "topic": "kv"}
	for _, test := range []struct {
		set  map[string]any
		want engine.KVEvents
	}{
		{map[string]any{"kv_events": events, "lora": map[string]string{}}, engine.KVEvents{Endpoint: "tcp://*:5557", Replay: "tcp://*:5600", Topic: "kv", Host: "127.0.0.1"}},
		{map[string]any{"kv_events": nil}, engine.KVEvents{}},
		{nil, engine.KVEvents{}},
		{map[string]any{"kv_events": events, "lora": map[string]string{"sql": "7f"}, "sglang": "0.5.16"},
			engine.KVEvents{Endpoint: "tcp://*:5557", Replay: "tcp://*:5600", Topic: "kv", Host: "127.0.0.1", Why: sglang.AdaptersUntold}},
	} {
		h, _, err := parseManifest(schedtest.Manifest(test.set))
		if err != nil {
			t.Fatal(err)
		}
		if got := h.kvEvents(); got != test.want {
			t.Errorf("%v: %+v", test.set, got)
		}
	}
}

// A request names the rank that it is for, and so does a probe of one rank, which has the
// rank generate: a fence would wait for all of them.
func TestRanks(t *testing.T) {
	p := newPeer(t, 2)
	b := enginetest.Start(t, enginetest.Rig{Engine: New(p.options()), Peer: p})
	e := b.Rig.Engine.(*Engine)
	facts := b.WaitReady(true).Facts
	if len(facts.Ranks) != 2 || facts.Ranks[1].Number != 1 || !facts.Ranks[0].Ready || !facts.Ranks[1].Ready || !e.Generates() {
		t.Errorf("%+v", facts.Ranks)
	}
	for rank, want := range map[int]any{0: int64(0), 1: int64(1), 2: nil, -1: nil} {
		b.Rank = rank
		c := b.Accept(4)
		p.mu.Lock()
		got := p.adds[len(p.adds)-1]
		p.mu.Unlock()
		if got.ID() != c.Request.ID || got.Fields["routed_dp_rank"] != want || (c.Leg.DPRank == rank) != (want != nil || rank < 0) {
			t.Errorf("for rank %d: %v, and the record has %d", rank, got.Fields["routed_dp_rank"], c.Leg.DPRank)
		}
		p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{7}, Finish: infer.ReasonStop})
		b.WantFinish(c, infer.ReasonStop)
	}
	done := make(chan error)
	probe := func(ctx context.Context) (id string) {
		t.Helper()
		p.mu.Lock()
		had := len(p.adds)
		p.mu.Unlock()
		go func() { done <- e.Probe(ctx, engine.Probe{Rank: 1}) }()
		b.Must(p.mu.Await(b.Ctx, "a probe", func() bool { return len(p.adds) > had }))
		p.mu.Lock()
		defer p.mu.Unlock()
		m := p.adds[had]
		if m.Limit() != 1 || m.Fields["routed_dp_rank"] != int64(1) {
			t.Errorf("probed by %v", m.Fields)
		}
		return m.ID()
	}
	p.Mute(true) // the other rank answers no fence any more
	id := probe(b.Ctx)
	p.Step(enginetest.Out{ID: id, IDs: []uint32{7}, Finish: infer.ReasonLength})
	if err := <-done; err != nil {
		t.Errorf("a probe that was answered: %v", err)
	}
	p.Refuse(infer.CodeOverloaded)
	probe(b.Ctx)
	if err := <-done; !errors.Is(err, engine.ErrBusy) {
		t.Errorf("a probe that was refused: %v", err)
	}
	ctx, giveUp := context.WithCancel(b.Ctx)
	id = probe(ctx)
	giveUp()
	if err := <-done; !errors.Is(err, context.Canceled) && infer.AsError(err).Code != infer.CodeCancelled {
		t.Errorf("a probe that was given up: %v", err)
	}
	b.Must(p.Aborted(b.Ctx, id))
	p.Mute(false)
	p.Step(enginetest.Out{ID: id, Finish: infer.ReasonAbort})
}
