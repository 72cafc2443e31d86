package vllmcore

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/infer"
	"weir/internal/trace"
)

// asked runs one request for a model to its end and gives what the engine got.
func asked(b *enginetest.Bench, p *peer, model string) coretest.Request {
	b.T.Helper()
	req := b.Request(4)
	req.Model = model
	c := b.GoWith(b.Ctx, req)
	b.Wait(c)
	if c.Err != nil {
		b.T.Fatalf("%s: %v", model, c.Err)
	}
	p.Step(enginetest.Out{ID: req.ID, IDs: []uint32{5}, Finish: infer.ReasonStop})
	b.WantFinish(c, infer.ReasonStop)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.adds[len(p.adds)-1]
}

// Adapters are loaded before the engine is ready, each once, and again by an engine
// that has restarted; requests for them carry them, those for the base do not. What
// cannot be loaded is named, and keeps nothing else from being served.
func TestLoRA(t *testing.T) {
	p := newPeer(t, "0.33.0")
	p.lacks = "/adapters/gone"
	var mu sync.Mutex
	var warned []string
	b := startBench(t, p, func(o *Options) {
		o.LoRA = map[string]string{"sql": "/adapters/sql", "chat": "/adapters/chat", "gone": "/adapters/gone"}
		o.Warn = func(m string) {
			mu.Lock()
			defer mu.Unlock()
			warned = append(warned, m)
		}
	})
	const fault = "no adapter found for /adapters/gone"
	facts := b.WaitReady(true).Facts
	if want := []engine.LoRA{{Name: "chat"}, {Name: "gone", Fault: fault}, {Name: "sql"}}; !slices.Equal(facts.LoRA, want) {
		t.Errorf("%+v, want %+v", facts.LoRA, want)
	}
	if !slices.Equal(facts.Models, []string{"test"}) {
		t.Errorf("models %q", facts.Models)
	}
	mu.Lock()
	if len(warned) != 1 || !strings.Contains(warned[0], "gone") || !strings.Contains(warned[0], fault) {
		t.Errorf("warnings %q", warned)
	}
	mu.Unlock()
	p.mu.Lock()
	loads := slices.Clone(p.loads)
	p.mu.Unlock()
	if len(loads) != 3 {
		t.Fatalf("%d adapters were to be loaded: %+v", len(loads), loads)
	}
	for model, want := range map[string]*coretest.Adapter{"test": nil, "chat": &loads[0], "sql": &loads[2]} {
		got := asked(b, p, model)
		if (got.Adapter == nil) != (want == nil) || want != nil && *got.Adapter != *want || got.Fields != addFields {
			t.Errorf("%s: %+v of %d fields, want %+v", model, got.Adapter, got.Fields, want)
		}
	}
	req := b.Request(4)
	req.Model = "gone"
	if _, err := b.Rig.Engine.(*Engine).Generate(b.Ctx, req, 1, b.NewSink(1), &trace.Leg{}); infer.AsError(err).Code != infer.CodeUnavailable {
		t.Errorf("an adapter that is not loaded: %v", err)
	}

	p.Cut()
	b.WaitReady(false)
	p.Restore()
	if got := b.WaitReady(true).Facts.LoRA; !slices.Equal(got, facts.LoRA) {
		t.Errorf("after a restart %+v", got)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.loads, slices.Concat(loads, loads)) {
		t.Errorf("after a restart the engine had loaded %+v", p.loads)
	}
}

// An engine that says that it takes no adapters is not asked to load any.
func TestLoRADisabled(t *testing.T) {
	dir := tempDir(t)
	p := &peer{dir: dir}
	o := p.options()
	o.LoRA = map[string]string{"sql": "/adapters/sql"}
	e := New(o)
	ctx, stop := context.WithTimeout(t.Context(), enginetest.Patience)
	states := make(chan engine.State, 100)
	var ended sync.WaitGroup
	ended.Go(func() { e.Run(ctx, func(s engine.State) { states <- s }) })
	defer ended.Wait()
	defer stop()
	core, err := coretest.Start(ctx, coretest.Options{Handshake: "ipc://" + dir + "/h", NoLoRA: true,
		Receive: func(c *coretest.Core, m coretest.Message) {
			if m.Method != probeMethod {
				t.Errorf("%s was called", m.Method)
			}
			c.Send(coretest.Batch{Call: m.Call})
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	for s := range states {
		if !s.Ready {
			continue
		}
		if len(s.Facts.LoRA) != 1 || !strings.Contains(s.Facts.LoRA[0].Fault, "--enable-lora") {
			t.Errorf("%+v", s.Facts.LoRA)
		}
		return
	}
}

// The id of an adapter does not depend on the other adapters, and belongs to it alone.
func TestLoRAIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-c]{1,3}`)
		paths := rapid.MapOfN(word, word, 1, 6).Draw(t, "adapters")
		seen := map[int32]bool{}
		for i, l := range loraList(paths) {
			if l.id < 1 || seen[l.id] || l.path != paths[l.name] || l.name != slices.Sorted(maps.Keys(paths))[i] {
				t.Fatalf("%+v of %v", l, paths)
			}
			seen[l.id] = true
			if alone := loraList(map[string]string{l.name: l.path}); alone[0].id != l.id {
				t.Fatalf("%+v, and alone %+v", l, alone[0])
			}
			if moved := loraList(map[string]string{l.name: l.path + "/"}); moved[0].id == l.id {
				t.Fatalf("%+v has the id of another path", l)
			}
		}
	})
}
