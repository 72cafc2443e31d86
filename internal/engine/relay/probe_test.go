package relay

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/engine"
	"weir/internal/infer"
)

// run starts an adapter and gives what it reports.
func run(t *testing.T, e *Engine) <-chan engine.State {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	states, done := make(chan engine.State, 16), make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx, func(s engine.State) { states <- s })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return states
}

// next waits for a report.
func next(t *testing.T, states <-chan engine.State) engine.State {
	t.Helper()
	select {
	case s := <-states:
		return s
	case <-time.After(time.Minute):
		t.Fatal("nothing was reported")
		panic("unreachable")
	}
}

func models(body string) string {
	return "HTTP/1.1 200 OK\r\nServer: test/1\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

// An engine is ready once it tells its models, tells when they change, and is
// gone when it refuses connections.
func TestRun(t *testing.T) {
	answers := make(chan string, 3)
	answers <- "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
	answers <- models(`{"data":[{"id":"one"}]}`)
	answers <- models(`{"data":[{"id":"two"}]}`)
	p := play(t, func(_ int, w *wire) {
		for r, _ := w.request(); r != nil; r, _ = w.request() {
			if r.Method != "GET" || r.RequestURI != "/v1/models" {
				t.Errorf("%s %s", r.Method, r.RequestURI)
			}
			w.send(<-answers)
		}
	})
	states := run(t, p.engine(Options{ProbeInterval: time.Millisecond}))
	if s := next(t, states); s.Ready || s.Err == nil {
		t.Errorf("got %+v, want not ready", s)
	}
	for _, name := range []string{"one", "two"} {
		want := engine.State{Ready: true, Facts: engine.Facts{Models: []string{name}, Software: "test/1", Salts: engine.Salts{Why: untoldSalts}}}
		if diff := cmp.Diff(want, next(t, states)); diff != "" {
			t.Error(diff)
		}
	}
	p.listener.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	close(answers)
	if s := next(t, states); !s.Ready || len(s.Facts.Old) != 1 || s.Facts.Old[0].Page != engine.AllPages || s.Facts.Models[0] != "two" {
		t.Errorf("got %+v, want old facts", s)
	}
	if s := next(t, states); s.Ready || s.Err == nil {
		t.Errorf("got %+v, want gone", s)
	}
}

// An engine without a list of models serves the one it is said to.
func TestRunNamedModel(t *testing.T) {
	p := play(t, func(_ int, w *wire) {
		w.request()
		w.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
	})
	want := engine.State{Ready: true, Facts: engine.Facts{Models: []string{"named"}, Salts: engine.Salts{Why: untoldSalts}}}
	if diff := cmp.Diff(want, next(t, run(t, p.engine(Options{Model: "named"})))); diff != "" {
		t.Error(diff)
	}
}

// pages serves documents by their paths, and has no others.
func pages(t *testing.T, docs map[string]string) *peer {
	return play(t, func(_ int, w *wire) {
		for r, _ := w.request(); r != nil; r, _ = w.request() {
			if doc, ok := docs[r.URL.Path]; ok {
				w.send(models(doc))
			} else {
				w.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
			}
		}
	})
}

// The fields that an engine's own API loses are known for engines that say what they are, and for
// no others.
func TestLacks(t *testing.T) {
	const sglang, vllm = `{"data":[{"id":"m","owned_by":"sglang"}]}`, `{"data":[{"id":"m","owned_by":"vllm"}]}`
	const info = `{"version":"0.5.23","skip_tokenizer_init":false,"grammar_backend":"none","enable_deterministic_inference":true}`
	for _, c := range []struct {
		name string
		docs map[string]string
		has  infer.Carries // among what it lacks
		not  infer.Carries
		says string
	}{
		{"SGLang", map[string]string{"/v1/models": sglang, "/server_info": info}, infer.CarriesGuides | infer.SpelledGuided, infer.CarriesSeed | infer.SpelledSGLang, "--grammar-backend none"},
		{"an older SGLang", map[string]string{"/v1/models": sglang, "/get_server_info": info}, infer.CarriesGuides, infer.CarriesSeed, "--grammar-backend none"},
		{"half of a deployment", map[string]string{"/v1/models": sglang, "/server_info": `{"skip_tokenizer_init":false,"disaggregation_mode":"decode"}`}, infer.SpelledGuided, 0, "SGLang"},
		{"a router of SGLangs", map[string]string{"/v1/models": sglang}, 0, infer.CarriesAnything, ""},
		{"vLLM", map[string]string{"/v1/models": vllm, "/version": `{"version":"0.33.0"}`}, infer.SpelledGuided | infer.SpelledSGLang, infer.SpelledVLLM | infer.CarriesAll, "vLLM 0.33.0"},
		{"vLLM of its own build", map[string]string{"/v1/models": vllm, "/version": `{"version":"0.12.1rc2.dev3+gabc"}`}, infer.SpelledGuided, infer.CarriesAll, "0.12.1rc2"},
		{"an older vLLM", map[string]string{"/v1/models": vllm, "/version": `{"version":"0.11.2"}`}, 0, infer.CarriesAnything, ""},
		{"a vLLM that does not say", map[string]string{"/v1/models": vllm}, 0, infer.CarriesAnything, ""},
		{"another with SGLang's page", map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"somebody"}]}`, "/server_info": info}, 0, infer.CarriesAnything, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := next(t, run(t, pages(t, c.docs).engine(Options{})))
			if !s.Ready {
				t.Fatal(s.Err)
			}
			lacks := infer.CarriesAnything &^ infer.CarriesAnything.Without(s.Facts.Lacks)
			if lacks&c.has != c.has || lacks&c.not != 0 {
				t.Errorf("lacks %s", lacks)
			}
			if says := fmt.Sprint(s.Facts.Lacks); !strings.Contains(says, c.says) {
				t.Errorf("says %s", says)
			}
		})
	}
}

// An engine that does not say once how it was started is as it was; one that was
// started otherwise is known by its next word.
func TestLacksChange(t *testing.T) {
	const list = `{"data":[{"id":"m","owned_by":"sglang"}]}`
	words := make(chan string, 4)
	words <- models(`{"version":"0.5.23","skip_tokenizer_init":true}`)
	words <- "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
	words <- "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n" // the older name
	words <- models(`{"version":"0.5.23","skip_tokenizer_init":false}`)
	last := models(`{"version":"0.5.23","skip_tokenizer_init":false}`)
	p := play(t, func(_ int, w *wire) {
		for r, _ := w.request(); r != nil; r, _ = w.request() {
			if r.URL.Path == "/v1/models" {
				w.send(models(list))
				continue
			}
			select {
			case word := <-words:
				w.send(word)
			default:
				w.send(last)
			}
		}
	})
	states := run(t, p.engine(Options{ProbeInterval: time.Millisecond}))
	for _, want := range []infer.Carries{infer.CarriesGuides, 0} {
		lacks := infer.CarriesAll &^ infer.CarriesAll.Without(next(t, states).Facts.Lacks)
		if lacks&infer.CarriesGuides != want {
			t.Errorf("lacks %s", lacks)
		}
	}
}

// An adapter of an SGLang has the name under which its API answers as the adapter, which is not the
// one that it lists. Those of vLLM have their own.
func TestAdapterNames(t *testing.T) {
	for owner, want := range map[string]string{"sglang": "m,m:l", "vllm": "m,l", "somebody": "m,l"} {
		list := `{"data":[{"id":"m","owned_by":"` + owner + `","parent":null},{"id":"l","owned_by":"` + owner + `","parent":"m"}]}`
		s := next(t, run(t, pages(t, map[string]string{"/v1/models": list, "/server_info": `{"skip_tokenizer_init":false}`, "/version": `{"version":"0.33.0"}`}).engine(Options{})))
		if got := strings.Join(s.Facts.Models, ","); !s.Ready || got != want {
			t.Errorf("%s: %s, want %s", owner, got, want)
		}
	}
}
