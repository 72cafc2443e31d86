//go:build interop_engines

package real

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"weir/test/e2e/harness"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Ids of the model's folder.
const (
	imEnd = "32740" // an end id: the tokenizer's own
	eos   = "32737" // an end id: generation_config.json's second
)

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
)

var (
	chat       = fields{"messages": []fields{{"role": "user", "content": "Hello, 世界"}}, "temperature": 0, "max_tokens": 24, "return_token_ids": true}
	completion = fields{"prompt": "The quick brown fox", "temperature": 0, "max_tokens": 24, "return_token_ids": true}
	streamed   = fields{"stream": true, "stream_options": fields{"include_usage": true}}
	schema     = fields{"type": "object", "additionalProperties": false, "required": []string{"a", "b"},
		"properties": fields{"a": fields{"type": "integer", "minimum": 0, "maximum": 99}, "b": fields{"enum": []string{"x", "y"}}}}
)

func vllm(t *testing.T, env []string, args ...string) *harness.Process {
	t.Helper()
	return vllmOf(t, folder, env, args...)
}

// vllmOf starts vLLM with the model of another folder.
func vllmOf(t *testing.T, folder string, env []string, args ...string) *harness.Process {
	t.Helper()
	env = append(env, "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "VLLM_CPU_KVCACHE_SPACE=1", "OMP_NUM_THREADS=1")
	return start(t, env, "vllm", append([]string{"serve", folder, "--host", "127.0.0.1",
		"--served-model-name", "tiny", "--enforce-eager", "--dtype", "float32", "--max-model-len", "4096"}, args...)...)
}

// fleet is vLLM in its three places: behind its own server, which weir relays;
// dialling in to weir; and with weir as the front end that it starts.
type fleet struct {
	t                       *testing.T // whose end is that of what was started
	server, headless, whole *harness.Process
	relay, core, slot       gateway  // of slot, admin only
	dial                    []string // what the headless engine is started with
	serve                   []string // what the gateway it dials is started with
	ways                    []way    // the first is vLLM itself
}

func newFleet(t *testing.T) *fleet {
	port, handshake, slot, admin := freePort(t), freePort(t), freePort(t), freePort(t)
	direct := "http://127.0.0.1:" + port
	f := &fleet{
		t:    t,
		dial: []string{"--headless", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", handshake},
	}
	f.server = vllm(t, nil, "--port", port)
	f.headless = vllm(t, nil, f.dial...)
	f.whole = vllm(t, []string{"VLLM_USE_RUST_FRONTEND=1", "VLLM_RUST_FRONTEND_PATH=" + harness.Binary, "WEIR_ADMIN_LISTEN=127.0.0.1:" + admin},
		"--port", slot)
	f.relay = serve(t, "--engine", "openai="+direct)
	f.serve = []string{"--engine", "vllm-core=tcp://127.0.0.1:" + handshake + ",model=tiny", "--model", "tiny=" + folder}
	f.core = serve(t, f.serve...)
	f.slot = gateway{&harness.Gateway{Process: f.whole, URL: "http://127.0.0.1:" + slot, Admin: "http://127.0.0.1:" + admin}}
	f.relay.ready(true, f.server)
	f.core.ready(true, f.headless)
	f.slot.ready(true)
	f.ways = []way{{"vLLM itself", direct, "tiny"}, {"relay", f.relay.URL, "tiny"}, {"vllm-core", f.core.URL, "tiny"}, {"front end", f.slot.URL, "tiny"}}
	return f
}

func TestVLLM(t *testing.T) {
	f := newFleet(t)
	for name, views := range map[string][]engineView{"openai": f.relay.engines(), "vllm-core": append(f.core.engines(), f.slot.engines()...)} {
		for _, v := range views {
			t.Logf("%s: %+v", name, v)
			if v.Kind != name || !strings.Contains(strings.Join(v.Models, " "), "tiny") {
				t.Errorf("%+v, want kind %s", v, name)
			}
		}
	}
	t.Run("answers", f.answers)
	t.Run("choices", f.choices)
	t.Run("guides", f.guides)
	t.Run("refusals", f.refusals)
	t.Run("tokenize", f.tokenize)
	t.Run("streams", f.streams)
	t.Run("hang-ups", f.hangUps)
	t.Run("weir killed", f.weirKilled)
	t.Run("engine killed", f.engineKilled)
	t.Run("server killed", f.serverKilled)
	t.Run("stopped", f.stopped)
}

// answers: the same request has the same answer on every way, whatever it asks for.
func (f *fleet) answers(t *testing.T) {
	ctx := harness.Context(t)
	bias := func(pairs ...string) fields {
		b := fields{}
		for i := 0; i < len(pairs); i += 2 {
			b[pairs[i]] = json.Number(pairs[i+1])
		}
		return fields{"logit_bias": b}
	}
	first, err := f.ways[0].ask(ctx, chatPath, chat, nil)
	if err != nil || first.Status != 200 {
		t.Fatalf("%+v, %v", first, err)
	}
	ids := strings.Split(strings.TrimSuffix(first.IDs, ","), ",")
	stopIDs := []json.Number{json.Number(ids[2]), json.Number(ids[5])}
	inside := string([]rune(first.Text)[9:14])
	for _, test := range []struct {
		name string
		more fields
		want func(a *answer) bool // of what all have
	}{
		{"greedy", nil, func(a *answer) bool { return a.Reason == "length" && a.OutputTokens == 24 }},
		{"seeded", fields{"temperature": 1, "seed": 5}, nil},
		{"top_k, top_p, min_p", fields{"temperature": 1.3, "seed": 5, "top_k": 50, "top_p": 0.8, "min_p": 0.01}, nil},
		{"penalties", fields{"temperature": 0.7, "seed": 9, "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2}, nil},
		{"biased over and over", bias("100", "50").with(fields{"repetition_penalty": 1.9, "frequency_penalty": 2}), nil},
		{"end id", bias(imEnd, "100"), func(a *answer) bool { return a.Reason == "stop" && a.OutputTokens == 1 }},
		{"the other end id", bias(eos, "100"), func(a *answer) bool { return a.Reason == "stop" && a.OutputTokens == 1 }},
		{"min_tokens", bias(imEnd, "99", eos, "100").with(fields{"min_tokens": 5}), func(a *answer) bool { return a.Reason == "stop" && a.OutputTokens == 6 }},
		{"ignore_eos", bias(imEnd, "100").with(fields{"ignore_eos": true}), func(a *answer) bool { return a.Reason == "length" }},
		{"stop_token_ids", fields{"stop_token_ids": stopIDs}, nil},
		{"stop_token_ids after min_tokens", fields{"stop_token_ids": stopIDs, "min_tokens": 4}, nil},
		{"stop", fields{"stop": []string{inside, "never"}}, nil},
		{"stop of one letter", fields{"stop": []string{"e", "a"}}, nil},
		{"stop after min_tokens", fields{"stop": []string{"e", "a"}, "min_tokens": 7}, nil},
		{"special tokens", bias("32739", "100"), func(a *answer) bool { return a.Text == "" && a.OutputTokens == 24 }},
		{"one token", fields{"max_tokens": 1}, nil},
		{"no limit", fields{"max_tokens": nil, "stop": "q"}, nil},
		{"schema", fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"name": "n", "schema": schema}}, "max_tokens": 400}, nil},
		{"json", fields{"response_format": fields{"type": "json_object"}}, nil},
		{"choice", fields{"structured_outputs": fields{"choice": []string{"red", "green"}}}, nil},
		{"regex", fields{"structured_outputs": fields{"regex": "[0-9]{3}-[a-z]{4}"}}, nil},
	} {
		for path, base := range map[string]fields{chatPath: chat, completionPath: completion} {
			for _, form := range []fields{nil, streamed} {
				var want answer
				for i, w := range f.ways {
					a, err := w.ask(ctx, path, base.with(test.more).with(form), nil)
					if err != nil {
						t.Fatalf("%s, %s: %v", w.name, test.name, err)
					}
					if i == 0 {
						if want = a; !a.Done || a.Failed || a.OutputTokens == 0 || test.want != nil && !test.want(&a) {
							t.Errorf("%s%s: %s has %+v %s", test.name, path, w.name, a, a.said)
						}
					}
					if test.name == "choice" { // another backend, another end id
						a.IDs = want.IDs
					}
					if d := want.difference(a); d != "" {
						t.Errorf("%s%s, streamed %v: %s against %s: %s %s", test.name, path, form != nil, f.ways[0].name, w.name, d, a.said)
					}
				}
			}
		}
	}
}

// guides: what is to follow a schema does, and what the engine cannot follow is
// refused and not passed over.
func (f *fleet) guides(t *testing.T) {
	ctx := harness.Context(t)
	compiler := jsonschema.NewCompiler()
	text, _ := json.Marshal(schema)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err == nil {
		err = compiler.AddResource("schema.json", doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	compiled := compiler.MustCompile("schema.json")
	whole := 0
	for _, w := range f.ways {
		for seed := range 8 {
			a, err := w.ask(ctx, chatPath, chat.with(fields{"temperature": 1, "seed": seed, "max_tokens": 1000,
				"response_format": fields{"type": "json_schema", "json_schema": fields{"name": "n", "schema": schema}}}), nil)
			if err != nil || a.Status != 200 {
				t.Fatalf("%s: %v, %+v", w.name, err, a)
			}
			if a.Reason != "stop" {
				continue // the model may write white space without end
			}
			whole++
			v, err := jsonschema.UnmarshalJSON(strings.NewReader(a.Text))
			if err == nil {
				err = compiled.Validate(v)
			}
			if err != nil {
				t.Errorf("%s, seed %d: %q: %v", w.name, seed, a.Text, err)
			}
		}
		a, err := w.ask(ctx, chatPath, chat.with(fields{"structured_outputs": fields{"regex": "[0-9]{3}-[a-z]{4}"}}), nil)
		if err != nil || !regexp.MustCompile(`^[0-9]{3}-[a-z]{4}$`).MatchString(a.Text) {
			t.Errorf("%s: %q, %v", w.name, a.Text, err)
		}
		for _, no := range []fields{
			{"structured_outputs": fields{"regex": "([0-9"}},
			{"response_format": fields{"type": "json_schema", "json_schema": fields{"name": "n", "schema": fields{"type": "nonsense"}}}},
			{"response_format": fields{"type": "json_schema", "json_schema": fields{"name": "n", "schema": fields{"type": "array", "uniqueItems": true, "items": fields{"type": "integer"}}}}},
		} {
			for _, form := range []fields{nil, streamed} {
				// vLLM has sent its head by then when it streams.
				if a, err := w.ask(ctx, chatPath, chat.with(no).with(form), nil); err != nil || a.Status != 400 && !a.Failed || a.Text != "" {
					t.Errorf("%s: %v gives %+v, %v", w.name, no, a, err)
				}
			}
		}
	}
	if whole < len(f.ways) {
		t.Errorf("%d answers were whole documents", whole)
	}
}

// refusals: what the engine refuses, weir refuses, and the engine lives on.
func (f *fleet) refusals(t *testing.T) {
	ctx := harness.Context(t)
	for _, no := range []fields{
		{"temperature": -1}, {"top_p": 2}, {"min_p": 3}, {"max_tokens": 0}, {"max_tokens": 1000000}, {"prompt": ""},
		{"prompt": []int{1, 99999999}}, {"logit_bias": fields{"99999999": 1}}, {"presence_penalty": 3}, {"min_tokens": 30},
	} {
		for _, w := range f.ways {
			a, err := w.ask(ctx, completionPath, completion.with(no), nil)
			if err != nil || a.Status != 400 {
				if w.name == "vLLM itself" || w.name == "relay" {
					t.Logf("%s takes %v: status %d", w.name, no, a.Status)
					continue
				}
				t.Errorf("%s: %v gives %+v, %v", w.name, no, a, err)
			}
		}
	}
	for _, w := range f.ways {
		if a, err := w.ask(ctx, completionPath, completion, nil); err != nil || !a.Done {
			t.Errorf("%s afterwards: %+v, %v", w.name, a, err)
		}
	}
}

// tokenize: the same ids.
func (f *fleet) tokenize(t *testing.T) {
	ctx := harness.Context(t)
	for _, body := range []fields{
		{"prompt": "Grüße, 世界! 12345 \n\n\t end"}, {"prompt": "x", "add_special_tokens": false}, {"messages": chat["messages"]},
		{"messages": []fields{{"role": "system", "content": "s"}, {"role": "user", "content": "<|im_end|>x"}}, "add_generation_prompt": false},
	} {
		var want string
		for i, w := range f.ways {
			resp, err := w.post(ctx, "/tokenize", body)
			if err != nil {
				t.Fatal(err)
			}
			var got struct{ Tokens json.RawMessage }
			err = json.NewDecoder(resp.Body).Decode(&got)
			resp.Body.Close()
			if ids := list(got.Tokens); i == 0 {
				want = ids
			} else if ids != want || err != nil || ids == "" {
				t.Errorf("%s: %v: %q, want %q, %v", w.name, body, ids, want, err)
			}
		}
	}
}

// streams: many at once, each with as many ids as the engine says, and what it has
// when it is alone.
func (f *fleet) streams(t *testing.T) {
	const many, tokens = 64, 48
	ctx := harness.Context(t)
	ask := func(w way, i int) (answer, error) {
		return w.ask(ctx, completionPath, completion.with(streamed).with(fields{"prompt": fmt.Sprintf("Story %d.", i%8), "ignore_eos": true, "max_tokens": tokens}), nil)
	}
	var alone [8]answer
	for i := range alone {
		var err error
		if alone[i], err = ask(f.ways[0], i); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range f.ways {
		var all sync.WaitGroup
		other := 0
		var mu sync.Mutex
		for i := range many {
			all.Go(func() {
				a, err := ask(w, i)
				switch {
				case err != nil || !a.Done || a.Failed || a.OutputTokens != tokens || strings.Count(a.IDs, ",") != tokens:
					t.Errorf("%s: %d ids: %+v, %v", w.name, strings.Count(a.IDs, ","), a, err)
				case a.IDs != alone[i%8].IDs:
					mu.Lock()
					other++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		t.Logf("%s: %d streams of %d ids, %d of them with other ids than alone", w.name, many, tokens, other)
		// An engine's sums depend on what it computes together; a token may tip.
		if other > many/4 {
			t.Errorf("%s: %d of %d streams have other ids than alone", w.name, other, many)
		}
	}
}

// long is a stream that its client leaves.
var long = completion.with(streamed).with(fields{"ignore_eos": true, "max_tokens": 3000})

// leave opens streams, reads a little of each, and hangs up.
func leave(ctx context.Context, t *testing.T, w way, many int) {
	t.Helper()
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	var begun sync.WaitGroup
	for range many {
		begun.Go(func() {
			a, err := w.ask(ctx, completionPath, long, func(a *answer) bool { return strings.Count(a.IDs, ",") > 3 })
			if err != nil || a.Done {
				t.Errorf("%s: %+v, %v", w.name, a, err)
			}
		})
	}
	begun.Wait()
}

// alone reports whether a request that runs is the only one that the engine runs, by
// its own words.
func alone(ctx context.Context, t *testing.T, g gateway) bool {
	t.Helper()
	running := -1
	_, err := way{"", g.URL, "tiny"}.ask(ctx, completionPath, long, func(a *answer) bool {
		if strings.Count(a.IDs, ",") < 20 {
			return false
		}
		if v := g.engines(); len(v) == 1 && v[0].Running != nil && v[0].Waiting != nil {
			running = *v[0].Running + *v[0].Waiting
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return running == 1
}

// hangUps: the engine's own count of running requests is 0 again.
func (f *fleet) hangUps(t *testing.T) {
	const many = 16
	ctx := harness.Context(t)
	for _, w := range f.ways[:2] {
		leave(ctx, t, w, many)
		harness.Eventually(t, "idle behind "+w.name, func() bool {
			n, ok := metric(f.ways[0].url, "vllm:num_requests_running")
			return ok && n == 0
		}, f.server)
	}
	for w, g := range map[way]gateway{f.ways[2]: f.core, f.ways[3]: f.slot} {
		leave(ctx, t, w, many)
		harness.Eventually(t, "alone on "+w.name, func() bool { return alone(ctx, t, g) })
	}
}

// weirKilled: another weir finds the engine again, and the engine drops what the
// first one left.
func (f *fleet) weirKilled(t *testing.T) {
	ctx := harness.Context(t)
	cut := run(ctx, t, f.ways[2])
	f.core.Kill()
	for _, a := range cut() {
		if a.Done {
			t.Errorf("%+v", a)
		}
	}
	f.core = serve(f.t, f.serve...)
	f.ways[2].url = f.core.URL
	f.core.ready(true, f.headless)
	harness.Eventually(t, "alone", func() bool { return alone(ctx, t, f.core) })
	f.same(ctx, t, f.ways[2])
}

// same checks that a way answers as vLLM itself.
func (f *fleet) same(ctx context.Context, t *testing.T, w way) {
	t.Helper()
	want, err := f.ways[0].ask(ctx, chatPath, chat, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := w.ask(ctx, chatPath, chat, nil)
	if d := want.difference(a); err != nil || d != "" {
		t.Errorf("%s: %v %s", w.name, err, d)
	}
}

// engineKilled: what ran ends with an error event and never with [DONE]; the engine
// dials in again and serves.
func (f *fleet) engineKilled(t *testing.T) {
	ctx := harness.Context(t)
	f.dies(ctx, t, f.ways[2], f.headless)
	f.core.ready(false)
	f.headless = vllm(f.t, nil, f.dial...)
	f.core.ready(true, f.headless)
	f.same(ctx, t, f.ways[2])
}

// serverKilled: the same of a relay.
func (f *fleet) serverKilled(t *testing.T) {
	f.dies(harness.Context(t), t, f.ways[1], f.server)
	f.relay.ready(false)
}

// run opens four streams and returns when all have begun. end waits for their ends.
func run(ctx context.Context, t *testing.T, w way) (end func() [4]answer) {
	t.Helper()
	return four(ctx, w, long, func(a answer) bool { return strings.Count(a.IDs, ",") > 3 }, func(a answer) {
		if strings.Count(a.IDs, ",") < 3 {
			t.Errorf("%s: a stream that did not begin: %+v", w.name, a)
		}
	})
}

// four opens four streams of a completion and returns when each has begun or ended. Each is handed to ended at
// its end; end waits for all.
func four(ctx context.Context, w way, body fields, begun func(answer) bool, ended func(answer)) (end func() [4]answer) {
	var answers [4]answer
	var beginning, running sync.WaitGroup
	for i := range answers {
		beginning.Add(1)
		running.Go(func() {
			once := sync.OnceFunc(beginning.Done)
			defer once()
			answers[i], _ = w.ask(ctx, completionPath, body, func(a *answer) bool {
				if begun(*a) {
					once()
				}
				return false
			})
			ended(answers[i])
		})
	}
	beginning.Wait()
	return func() [4]answer {
		running.Wait()
		return answers
	}
}

// dies kills an engine under streams.
func (f *fleet) dies(ctx context.Context, t *testing.T, w way, p *harness.Process) {
	t.Helper()
	end := run(ctx, t, w)
	p.Kill()
	for _, a := range end() {
		if a.Done || !a.Failed {
			t.Errorf("%s: done %v, failed %v", w.name, a.Done, a.Failed)
		}
	}
}

// stopped: vLLM ends when it is told to, and weir, which it started, with it.
func (f *fleet) stopped(t *testing.T) {
	_ = f.whole.Cmd.Process.Signal(syscall.SIGTERM)
	f.whole.Wait()
	harness.Eventually(t, "without a weir frontend", func() bool {
		procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range procs {
			if b, _ := os.ReadFile(p); strings.HasPrefix(string(b), harness.Binary+"\x00frontend") {
				return false
			}
		}
		return true
	})
}
