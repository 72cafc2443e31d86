//go:build interop

// Package vllmcore runs the built binary in front of engine cores made of what a
// real one is made of: libzmq's sockets, msgspec's codec, and a release's own
// structures and validation where wheels of vLLM are at hand. Only the model is
// missing (core.py).
//
//	go test -tags interop ./interop/vllm-core/
//
// WEIR_PYTHON names an interpreter with interop/requirements.txt installed.
// WEIR_VLLM_WHEELS names a folder that holds a folder with the Python files of a
// wheel for each release, as make vllm-wheels lays it out; without it only the
// structures written in definitions.py are used.
package vllmcore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// setup is where engine cores and gateways meet, and the ids of the sentence.
type setup struct {
	t         *testing.T
	handshake string   // tcp://HOST:PORT
	env       []string // of the gateways
	ids       []uint32
}

func newSetup(t *testing.T) *setup {
	t.Helper()
	_, env := harness.ShortTemp(t)
	return &setup{t: t, handshake: "tcp://" + harness.FreeAddress(t), env: env, ids: harness.SaidIDs(t)}
}

// start runs a program of this folder.
func start(t *testing.T, program string, args ...string) *harness.Process {
	t.Helper()
	return harness.StartCommand(t, exec.Command(harness.Python(t), append([]string{program}, args...)...))
}

// gateway starts one that engine cores dial in to. spec is more of its --engine.
func (s *setup) gateway(spec string, args ...string) *harness.Gateway {
	s.t.Helper()
	return harness.StartUnreadyWith(s.t, s.env, append([]string{"serve", "--engine", "vllm-core=" + s.handshake + ",model=weir-sim" + spec}, args...)...)
}

// core starts an engine core that dials in and waits until it is ready.
func (s *setup) core(args ...string) *harness.Process {
	s.t.Helper()
	say := strings.ReplaceAll(strings.Trim(fmt.Sprint(s.ids), "[]"), " ", ",")
	c := start(s.t, "core.py", append([]string{"--handshake", s.handshake, "--say", say}, args...)...)
	c.Find("ready", func(l string) bool { return strings.Contains(l, `"ready"`) })
	return c
}

// releases lists the releases to play, and the core's flags for each.
func releases(t *testing.T) map[string][]string {
	all := map[string][]string{"own definitions": nil}
	if dir := os.Getenv("WEIR_VLLM_WHEELS"); dir != "" {
		found, err := filepath.Glob(filepath.Join(dir, "*", "vllm"))
		if err != nil || len(found) == 0 {
			t.Fatalf("WEIR_VLLM_WHEELS=%s holds no wheels: %v", dir, err)
		}
		for _, path := range found {
			release := filepath.Base(filepath.Dir(path))
			all[release] = []string{"--wheel", filepath.Dir(path), "--version", release}
		}
	}
	return all
}

func TestReleases(t *testing.T) {
	for release, flags := range releases(t) {
		t.Run(release, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s, ctx := newSetup(t), harness.Context(t)
			g := s.gateway(",priority=true", "--allow-field", "priority")
			c := s.core(flags...)

			priority := `,"priority":-7`
			if strings.HasPrefix(release, "0.2") && release < "0.24" {
				_, err := g.Complete(ctx, "weir-sim", priority, nil)
				if err == nil || !strings.Contains(err.Error(), "400") || !strings.Contains(err.Error(), "priority") {
					t.Errorf("a priority: %v", err)
				}
				priority = ""
			}
			guide, guided := `,"regex":"[a-z]+"`, []string{`"structured_outputs": `, "[a-z]+", "guidance", `"reasoning_ended": true`}
			if flags != nil && release != "0.33.0" {
				_, err := g.Complete(ctx, "weir-sim", guide, nil)
				if err == nil || !strings.Contains(err.Error(), "400") || !strings.Contains(err.Error(), "regex") {
					t.Errorf("a guide: %v", err)
				}
				guide, guided = "", nil
			}
			// Everything a request may carry, as the engine decodes and validates it.
			a, err := g.Complete(ctx, "weir-sim", `,"max_tokens":40,"min_tokens":3,"temperature":0.5,"top_p":0.9,"top_k":7,"seed":-5,"presence_penalty":0.5,"frequency_penalty":-0.5,`+
				`"repetition_penalty":1.5,"min_p":0.25,"logit_bias":{"7":1.5}`+guide+priority+fmt.Sprintf(`,"stop_token_ids":[%d]`, s.ids[4]), nil)
			if err != nil || a.Finish != "stop" || !a.Done || a.Tokens != 5 {
				t.Fatalf("%+v, %v", a, err)
			}
			first := c.Find("the first request", func(l string) bool { return strings.Contains(l, `"first"`) })
			for _, want := range []string{`"max_tokens": "40"`, `"min_tokens": "3"`, `"temperature": "0.5"`, `"top_p": "0.9"`, `"top_k": "7"`, `"seed": "-5"`, `"client": 0`,
				`"presence_penalty": "0.5"`, `"frequency_penalty": "-0.5"`, `"repetition_penalty": "1.5"`, `"min_p": "0.25"`, `"logit_bias": "{7: 1.5}"`} {
				if !strings.Contains(first, want) {
					t.Errorf("%s is not in %s", want, first)
				}
			}

			if priority != "" {
				guided = append(guided, `"priority": -7`)
			}
			for _, want := range guided {
				if !strings.Contains(first, want) {
					t.Errorf("%s is not in %s", want, first)
				}
			}

			const streams, rounds = 64, 4
			errs := make(chan error)
			for range streams {
				go func() {
					var err error
					for range rounds {
						if err = g.Says(ctx, s.ids, 5); err != nil {
							break
						}
					}
					errs <- err
				}()
			}
			for range streams {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			n := c.Counts(func(n map[string]int) bool { return n["finished"] == streams*rounds+1 })
			if n["ids"] != streams*rounds*5*len(s.ids)+5 || n["added"] != n["finished"] {
				t.Errorf("counts %v", n)
			}
			checkTimeline(t, g)
		})
	}
}

// Adapters are loaded by the engine's own call before it is served, and requests for
// them carry them, as each release decodes both; what it does not load is refused.
func TestLoRA(t *testing.T) {
	for release, flags := range releases(t) {
		t.Run(release, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s, ctx := newSetup(t), harness.Context(t)
			g := s.gateway("", "--model", "weir-sim=../../models/weir-sim,lora=sql=/adapters/sql,lora=gone=/nowhere")
			c := s.core(flags...)
			if line := c.Find("an adapter loaded", func(l string) bool { return strings.Contains(l, `"loaded"`) }); !strings.Contains(line, `"sql"`) || !strings.Contains(line, "/adapters/sql") {
				t.Error(line)
			}
			for _, model := range []string{"weir-sim", "sql", "sql"} {
				if a, err := g.Complete(ctx, model, fmt.Sprintf(`,"max_tokens":%d`, len(s.ids)), nil); err != nil || !a.Done || a.Text != harness.Said {
					t.Errorf("%s: %+v, %v", model, a, err)
				}
			}
			if _, err := g.Complete(ctx, "gone", "", nil); err == nil || !strings.Contains(err.Error(), "no adapter at /nowhere") {
				t.Errorf("an adapter that was not loaded: %v", err)
			}
			if n := c.Counts(func(n map[string]int) bool { return n["finished"] == 3 }); n["with sql"] != 2 {
				t.Errorf("counts %v", n)
			}
		})
	}
}

// Halves of a request reach two engines as each release decodes them, and what the prefill
// engine's own encoder writes of the KV that it keeps reaches the decode engine as it was.
func TestPairs(t *testing.T) {
	for release, flags := range releases(t) {
		for _, mode := range []string{"pull", "push"} {
			t.Run(release+" "+mode, func(t *testing.T) {
				harness.Beside(t, harness.Light)
				s, d, ctx := newSetup(t), newSetup(t), harness.Context(t)
				// By cost a short prompt stays with the decode engine; in turn every one goes to both.
				g := s.gateway(",role=prefill", "--engine", "vllm-core="+d.handshake+",model=weir-sim,role=decode", "--policy", "round-robin")
				with := func(id string) []string { return append([]string{"--connector", mode, "--engine-id", id}, flags...) }
				prefill, decode := s.core(with("P")...), d.core(with("D")...)
				harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 }, g.Process)
				const many = 8
				for range many {
					if err := g.Says(ctx, s.ids, 3); err != nil {
						t.Fatal(err)
					}
				}
				// One more of each was asked how halves meet.
				n := prefill.Counts(func(n map[string]int) bool { return n["finished"] == many+1 })
				if m := decode.Counts(func(n map[string]int) bool { return n["finished"] == many+1 }); n["prefill halves"] != many+1 || n["ids"] != many+1 || m["decode halves"] != many || m["prefill halves"] != 1 {
					t.Errorf("prefill %v, decode %v", n, m)
				}
				var kept []string
				for line := range strings.Lines(prefill.Output()) {
					var said struct{ Keeps json.RawMessage }
					if json.Unmarshal([]byte(line), &said) == nil && said.Keeps != nil {
						kept = append(kept, string(said.Keeps))
					}
				}
				for line := range strings.Lines(decode.Output()) {
					var said struct {
						Fetches json.RawMessage
						ID      string
					}
					if json.Unmarshal([]byte(line), &said) != nil || said.Fetches == nil {
						continue
					}
					if mode == "pull" && !slices.Contains(kept, string(said.Fetches)) {
						t.Errorf("fetches %s of\n%s", said.Fetches, strings.Join(kept, "\n"))
					}
					// The prefill half has the same id, by which a push is known.
					if mode == "push" && !strings.Contains(strings.Join(kept, ""), `"remote_request_id": "`+said.ID+`"`) {
						t.Errorf("no prefill half has the id %s of the decode half", said.ID)
					}
				}
			})
		}
	}
}

// checkTimeline looks for the engine's own stamps and counts in the records.
func checkTimeline(t *testing.T, g *harness.Gateway) {
	t.Helper()
	b, err := os.ReadFile(g.Timeline)
	if err != nil {
		t.Fatal(err)
	}
	records := 0
	for line := range bytes.Lines(b) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var r struct {
			Outcome string
			Cached  int `json:"cached_tokens"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		if r.Outcome == "rejected" {
			continue
		}
		records++
		if r.Cached == 0 {
			t.Fatalf("no cached tokens in %s", line)
		}
		for _, stamp := range []string{"queue_time_start", "queue_time_end", "server_first_token_time", "to_server_time", "acked_time"} {
			if !bytes.Contains(line, []byte(`"`+stamp+`":`)) {
				t.Fatalf("no %s in %s", stamp, line)
			}
		}
	}
	if records == 0 {
		t.Error("no records")
	}
}

// Several choices are several requests to the engine, and log probabilities are
// read where it puts them, with one alternative more than was asked for.
func TestChoicesAndLogprobs(t *testing.T) {
	for release, flags := range releases(t) {
		t.Run(release, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s, ctx := newSetup(t), harness.Context(t)
			g := s.gateway("")
			c := s.core(flags...)
			const tokens = 12
			req, err := http.NewRequestWithContext(ctx, "POST", g.URL+"/v1/completions", strings.NewReader(
				fmt.Sprintf(`{"model":"weir-sim","prompt":["Say it.","And again."],"n":2,"logprobs":3,"max_tokens":%d}`, tokens)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if err := g.Says(ctx, s.ids, 1); err != nil { // the engine is there
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var a struct {
				Choices []struct {
					Logprobs struct {
						Tokens []string
						Values []float64            `json:"token_logprobs"`
						Tops   []map[string]float64 `json:"top_logprobs"`
					}
				}
				Usage struct {
					Completion int `json:"completion_tokens"`
				}
			}
			if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != 200 || len(a.Choices) != 4 || a.Usage.Completion != 4*tokens {
				t.Fatalf("%s, %v: %+v", resp.Status, err, a)
			}
			for i, choice := range a.Choices {
				l := choice.Logprobs
				if len(l.Tokens) != tokens || len(l.Values) != tokens || len(l.Tops) != tokens {
					t.Fatalf("choice %d: %+v", i, l)
				}
				for n := range l.Values {
					if l.Values[n] != -float64(n+1)/8 || l.Tops[n][l.Tokens[n]] != l.Values[n] || len(l.Tops[n]) > 3 {
						t.Errorf("choice %d, token %d: %q %v, alternatives %v", i, n, l.Tokens[n], l.Values[n], l.Tops[n])
					}
				}
			}
			if n := c.Counts(func(n map[string]int) bool { return n["finished"] == 5 }); n["added"] != 5 {
				t.Errorf("counts %v", n)
			}
		})
	}
}

func TestHangUp(t *testing.T) {
	harness.Beside(t, harness.Light)
	s, ctx := newSetup(t), harness.Context(t)
	g := s.gateway("")
	c := s.core()
	const streams = 32
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			if _, err := g.Complete(ctx, "weir-sim", `,"max_tokens":4000`, func(a *harness.Completion) bool { return len(a.Text) > 100 }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	n := c.Counts(func(n map[string]int) bool { return n["aborted"] == streams })
	if n["finished"] != 0 {
		t.Errorf("counts %v", n)
	}
}

func TestEngineRestarts(t *testing.T) {
	harness.Beside(t, harness.Light)
	s, ctx := newSetup(t), harness.Context(t)
	g := s.gateway("")
	// Once an engine has been there, nobody waits for its next start.
	join := func() *harness.Process {
		c := s.core()
		harness.Eventually(t, "the engine has joined", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 1 }, g.Process)
		return c
	}
	for range 3 {
		c := join()
		a, err := g.Complete(ctx, "weir-sim", `,"max_tokens":4000`, func(a *harness.Completion) bool {
			if len(a.Text) > 100 {
				c.Kill()
			}
			return false
		})
		if err == nil && a.Failed == "" || a.Done || a.Finish != "" {
			t.Errorf("%+v, %v", a, err)
		}
	}
	join()
	if err := g.Says(ctx, s.ids, 1); err != nil {
		t.Error(err)
	}
}

// TestGatewayRestarts: an engine takes minutes to load, so one that is still there
// must serve on when weir comes back. It was told nothing and says nothing; its
// sockets connect again by themselves.
func TestGatewayRestarts(t *testing.T) {
	harness.Beside(t, harness.Light)
	s, ctx := newSetup(t), harness.Context(t)
	g := s.gateway("")
	c := s.core()
	if err := g.Says(ctx, s.ids, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Complete(ctx, "weir-sim", `,"max_tokens":4000`, func(a *harness.Completion) bool {
		if len(a.Text) > 100 {
			g.Kill()
		}
		return false
	}); err == nil {
		t.Error("the stream ended well")
	}
	again := s.gateway("")
	if err := again.Says(ctx, s.ids, 1); err != nil {
		t.Fatal(err)
	}
	n := c.Counts(func(n map[string]int) bool { return n["finished"] == 2 && n["aborted"] == 1 })
	if n["added"] != 3 {
		t.Errorf("counts %v", n)
	}
}

func TestRanks(t *testing.T) {
	harness.Beside(t, harness.Light)
	s, ctx := newSetup(t), harness.Context(t)
	g := s.gateway(",dp=2")
	cores := []*harness.Process{s.core("--index", "0"), s.core("--index", "1")}
	harness.Eventually(t, "joined by both engines", func() bool {
		view := string(harness.Get(t, g.Admin+"/engines").Body)
		return strings.Contains(view, `2 of 2`) || strings.Contains(view, `"max_running": 512`)
	}, g.Process)
	// Each goes on until all have begun: a rank that is done sooner would get more of them.
	const streams = 32
	var begun, all sync.WaitGroup
	begun.Add(streams)
	everybody := make(chan struct{})
	go func() { begun.Wait(); close(everybody) }()
	for range streams {
		all.Go(func() {
			here := sync.OnceFunc(begun.Done)
			defer here()
			if _, err := g.Complete(ctx, "weir-sim", `,"max_tokens":4000`, func(*harness.Completion) bool {
				here()
				select {
				case <-everybody:
					return true
				default:
					return false
				}
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	// A rank whose process gets less of the machine is given less: its share is no exact half.
	added := 0
	for _, c := range cores {
		n := c.Counts(func(n map[string]int) bool { return n["added"] > 0 && n["aborted"] == n["added"] })
		if n["added"] < streams/4 {
			t.Errorf("a rank got %d of %d", n["added"], streams)
		}
		added += n["added"]
	}
	if added != streams {
		t.Errorf("the ranks got %d of %d", added, streams)
	}
	for range streams {
		all.Go(func() {
			if err := g.Says(ctx, s.ids, 4); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
