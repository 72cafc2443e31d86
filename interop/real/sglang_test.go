//go:build interop_engines

package real

import (
	"cmp"
	"context"
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

// sglangFlags are those with which SGLang runs without a GPU and without kernels of its own.
var sglangFlags = []string{
	"--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--disable-overlap-schedule", "--disable-cuda-graph",
	"--skip-server-warmup", "--sleep-on-idle", "--dtype", "float32", "--max-total-tokens", "200000", "--served-model-name", "tiny", "--random-seed", "1",
}

// WEIR_SGLANG_RELEASE names a folder that is called as the release in it, to run in place of the
// environment's: pip install --no-deps --target DIR/0.5.17 sglang==0.5.17, and the packages that it needs
// otherwise (transformers, tokenizers, huggingface-hub).
var (
	sgOther   = os.Getenv("WEIR_SGLANG_RELEASE")
	sgRelease = filepath.Base(cmp.Or(sgOther, "0.5.23"))
)

// sglang starts a module of SGLang's environment with the small model.
func sglang(t *testing.T, program []string, args ...string) *harness.Process {
	t.Helper()
	if sglangVenv == "" {
		t.Fatal("WEIR_SGLANG_VENV is not set: run make interop-engines")
	}
	stub, err := filepath.Abs("stub")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(sglangVenv, "bin", "python"), slices.Concat(program, []string{"--model-path", folder}, sglangFlags, args)...)
	cmd.Env = []string{"SGLANG_USE_CPU_ENGINE=1", "PYTHONPATH=" + strings.TrimPrefix(sgOther+":"+stub, ":"), "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1", "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT=600"}
	if slices.Contains(args, "--dp-size") {
		cmd.Env = append(cmd.Env, "SGLANG_CPU_OMP_THREADS_BIND=0|1") // one NUMA node has both ranks
	}
	return harness.StartCommand(t, cmd)
}

// sglangServer starts SGLang's own server.
func sglangServer(t *testing.T, args ...string) (p *harness.Process, url string) {
	t.Helper()
	port := freePort(t)
	return sglang(t, []string{"-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", port}, args...), "http://127.0.0.1:" + port
}

// schedulers starts SGLang's schedulers for weir.
func schedulers(t *testing.T, dir string, args ...string) *harness.Process {
	t.Helper()
	return sglang(t, []string{"../../integrations/sglang/weir_sglang.py", "--weir", dir}, args...)
}

// sgFleet is SGLang in its places: behind its own server, which weir relays or asks by ids, and
// with weir in the place of that server.
type sgFleet struct {
	fleet
	seen
	gateways []gateway          // by way; the first has none
	behind   []*harness.Process // by way
	direct   map[*harness.Process]string
}

// laterStops is a request that weir ends later than SGLang's own server does: min_tokens holds stop
// strings back too, as it does in vLLM.
const laterStops = "stop within min_tokens"

// Texts of the requests that are asked of every way. SGLang's API has no return_token_ids.
var (
	sgChat       = without(chat, "return_token_ids")
	sgCompletion = without(completion, "return_token_ids")
	sgLong       = without(long, "return_token_ids")
)

func without(f fields, name string) fields {
	f = f.with(nil)
	delete(f, name)
	return f
}

const (
	kvConfig = `{"publisher":"zmq","topic":"","endpoint":"tcp://127.0.0.1:%s","replay_endpoint":"tcp://127.0.0.1:%s","bind":true}`
	sgDirect = "SGLang itself"
)

// neighbour returns a port behind which the next one is free too.
func neighbour(t *testing.T) string {
	t.Helper()
	first, _ := harness.Neighbours(t)
	return first[strings.LastIndexByte(first, ':')+1:]
}

func newSGLang(t *testing.T, adapters map[string]string) *sgFleet {
	lora := []string{"--enable-lora", "--lora-backend", "torch_native", "--max-loras-per-batch", "2", "--lora-paths", "one=" + adapters["one"], "two=" + adapters["two"]}
	events := fmt.Sprintf(kvConfig, neighbour(t), neighbour(t))
	whole, wholeURL := sglangServer(t, append(lora, "--enable-metrics")...)
	ranks, ranksURL := sglangServer(t, "--dp-size", "2", "--tokenizer-worker-num", "2", "--incremental-streaming-output", "--page-size", "16", "--kv-events-config", events)
	bare, bareURL := sglangServer(t, "--skip-tokenizer-init", "--page-size", "16")
	dir, _ := harness.ShortTemp(t)
	cores := schedulers(t, dir, append(lora, "--dp-size", "2", "--enable-metrics")...)
	model := []string{"--model", "tiny=" + folder, "--engine"}
	f := &sgFleet{fleet: fleet{t: t}, direct: map[*harness.Process]string{whole: wholeURL, ranks: ranksURL, bare: bareURL}}
	add := func(name, url string, g gateway, p *harness.Process) {
		f.ways, f.gateways, f.behind = append(f.ways, way{name, url, "tiny"}), append(f.gateways, g), append(f.behind, p)
	}
	add(sgDirect, wholeURL, gateway{}, whole)
	for _, w := range []struct {
		name string
		args []string
		p    *harness.Process
	}{
		{"relay", []string{"--engine", "openai=" + wholeURL}, whole},
		{"ids, all so far", append(model, "sglang="+wholeURL), whole},
		{"ids, the new ones, two ranks and tokenizers", append(model, "sglang="+ranksURL, "--idle-timeout", "30s", "--first-timeout", "1m"), ranks},
		{"ids, without a tokenizer", append(model, "sglang="+bareURL), bare},
		{"sglang-ipc, two ranks", append(model, "sglang-ipc="+dir+",model=tiny"), cores},
		{"relay, verify=ids", []string{"--engine", "openai=" + wholeURL + ",verify=ids"}, whole},
	} {
		g := serve(t, w.args...)
		add(w.name, g.URL, g, w.p)
	}
	for i, g := range f.gateways[1:] {
		g.ready(true, f.behind[i+1])
	}
	return f
}

// TestSGLang holds what weir answers in front of a whole SGLang against what SGLang's own server
// answers. What is refused, and by which words, is in the page.
func TestSGLang(t *testing.T) {
	adapters := map[string]string{}
	dir := t.TempDir()
	for seed, name := range []string{"one", "two"} {
		adapters[name] = filepath.Join(dir, name)
		if out, err := exec.Command(filepath.Join(sglangVenv, "bin", "python"), "adapter.py", adapters[name], fmt.Sprint(seed+1)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	f := newSGLang(t, adapters)
	t.Run("engines", f.engines)
	t.Run("answers", f.answers)
	t.Run("choices", f.choices)
	t.Run("LoRA", f.lora)
	t.Run("streams", f.streams)
	t.Run("hang-ups", f.hangUps)
	t.Run("KV events", f.kvEvents)
	t.Run("a rank stopped", f.rankStopped)
	t.Run("stopped", f.stopped)
	t.Run("killed", f.killed)
	t.Run("stamps", f.stamps)
	f.written(t, "one engine")
}

// engines: weir finds out what they are.
func (f *sgFleet) engines(t *testing.T) {
	f.set("release", sgDirect, sgRelease)
	for i, g := range f.gateways[1:] {
		v := engines[struct {
			Kind, Software string
			MaxRunning     int `json:"max_running"`
			Ranks          []struct{ Rank int }
			Note           string
		}](g)[0]
		t.Logf("%s: %+v", f.ways[i+1].name, v)
		if !strings.Contains(strings.ToLower(v.Software), "sglang "+sgRelease) && v.Kind != "openai" {
			t.Errorf("%s: %+v", f.ways[i+1].name, v)
		}
		f.set("release", f.ways[i+1].name, strings.TrimPrefix(strings.ToLower(v.Software), "sglang "))
	}
}

// refusal is the part of an error that names what is refused.
func refusal(said string) string {
	var e struct {
		Error   struct{ Message string }
		Message string
	}
	_ = json.Unmarshal([]byte(said), &e)
	text := e.Error.Message + e.Message
	if before, _, ok := strings.Cut(text, " is not supported"); ok {
		return "refused: `" + before + "`"
	}
	return "refused: " + strings.NewReplacer("|", "/", "\n", " ").Replace(text[:min(len(text), 60)])
}

// answers: the same request has the same text, usage and end on every way, or is refused.
func (f *sgFleet) answers(t *testing.T) {
	ctx := harness.Context(t)
	bias := func(pairs ...string) fields {
		b := fields{}
		for i := 0; i < len(pairs); i += 2 {
			b[pairs[i]] = json.Number(pairs[i+1])
		}
		return fields{"logit_bias": b}
	}
	first, err := f.ways[0].ask(ctx, chatPath, sgChat, nil)
	if err != nil || first.Status != 200 || len(first.Text) < 20 {
		t.Fatalf("%+v, %v", first, err)
	}
	inside := string([]rune(first.Text)[9:14])
	for _, test := range []struct {
		name string
		more fields
		want func(a *answer) bool // of SGLang's own
	}{
		{"greedy", nil, func(a *answer) bool { return a.Reason == "length" && a.OutputTokens == 24 }},
		{"seed", fields{"temperature": 1, "seed": 5}, nil},
		{"penalties", fields{"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2}, nil},
		{"top_k, min_p", fields{"temperature": 1, "top_k": 1, "min_p": 0.01}, nil},
		{"end id", bias(imEnd, "100"), func(a *answer) bool { return a.Reason == "stop" && a.OutputTokens == 1 }},
		{"the other end id", bias(eos, "100"), func(a *answer) bool { return a.Reason == "stop" && a.OutputTokens == 1 }},
		{"min_tokens", bias(imEnd, "99", eos, "100").with(fields{"min_tokens": 5}), nil},
		{"ignore_eos", bias(imEnd, "100").with(fields{"ignore_eos": true}), func(a *answer) bool { return a.Reason == "length" }},
		{"stop_token_ids", fields{"stop_token_ids": []int{100, 200, 300}}.with(bias("200", "100")), nil},
		{"stop", fields{"stop": []string{inside, "never"}}, nil},
		{"stop of one letter", fields{"stop": []string{"e", "a"}}, nil},
		{laterStops, fields{"stop": []string{"e", "a"}, "min_tokens": 7}, nil},
		{"one token", fields{"max_tokens": 1}, nil},
		{"schema", fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"name": "n", "schema": schema}}, "max_tokens": 60}, nil},
		{"json_object", fields{"response_format": fields{"type": "json_object"}}, nil},
		{"regex", fields{"regex": "[0-9]{3}-[a-z]{4}"}, func(a *answer) bool { return len(a.Text) == 8 }},
		{"a guide that does not compile", fields{"regex": "([0-9"}, func(a *answer) bool { return a.Failed || a.Status == 400 }},
		{"an unknown field", fields{"no_such_field": 1}, nil},
		{"temperature below 0", fields{"temperature": -1}, func(a *answer) bool { return a.Status == 400 }},
		{"a prompt that is too long", fields{"max_tokens": 100000}, nil},
	} {
		for path, base := range map[string]fields{chatPath: sgChat, completionPath: sgCompletion} {
			for _, form := range []fields{nil, streamed} {
				body := base.with(test.more).with(form)
				want, err := f.ways[0].ask(ctx, path, body, nil)
				if err != nil || test.want != nil && !test.want(&want) {
					t.Fatalf("%s%s: %s has %+v %s, %v", test.name, path, f.ways[0].name, want, want.said, err)
				}
				no := refused(want)
				f.set(test.name, f.ways[0].name, map[bool]string{true: "refused", false: "answered"}[no])
				var all sync.WaitGroup
				for i, w := range f.ways[1:] {
					all.Go(func() {
						a, err := w.ask(ctx, path, body, nil)
						d := want.difference(a)
						switch {
						case err != nil:
							t.Errorf("%s, %s: %v", w.name, test.name, err)
						case refused(a) && no:
							f.set(test.name, w.name, "refused")
						case refused(a):
							f.set(test.name, w.name, refusal(a.said))
						case d == "":
							f.set(test.name, w.name, "equal")
						case no:
							f.set(test.name, w.name, "answered")
						case test.name == laterStops && !f.gateways[i+1].openai():
							f.set(test.name, w.name, "ends later")
						default:
							t.Errorf("%s%s, streamed %v: %s against %s: %s %s", test.name, path, form != nil, f.ways[0].name, w.name, d, a.said)
						}
					})
				}
				all.Wait()
			}
		}
	}
}

// refused reports whether a request was refused, by its status or the first event.
func refused(a answer) bool { return a.Status >= 400 || a.Failed && a.Text == "" }

// choices: several choices, and log probabilities.
func (f *sgFleet) choices(t *testing.T) {
	for name, more := range map[string]struct{ chat, completion fields }{
		"log probabilities": {fields{"logprobs": true, "top_logprobs": 3}, fields{"logprobs": 2}},
		"n":                 {fields{"n": 3}, fields{"n": 3}},
		"several prompts":   {nil, fields{"prompt": []string{"The quick brown fox", "Once upon"}}},
	} {
		for path, body := range map[string]fields{chatPath: sgChat.with(more.chat), completionPath: sgCompletion.with(more.completion)} {
			for _, form := range []fields{nil, streamed} {
				if name == "several prompts" && path == chatPath {
					continue
				}
				if name == "log probabilities" && path == chatPath && form != nil {
					continue // SGLang's own loses entries of some streams (docs/engines.md)
				}
				var want []chosen
				for i, w := range f.ways {
					got := w.choices(t, path, body.with(form))
					if i == 0 {
						want = got
						f.set(name, w.name, "answered")
						continue
					}
					same := len(got) == len(want)
					for k := range want {
						if same {
							if d := want[k].difference(got[k]); d != "" {
								same = false
								t.Errorf("%s%s, streamed %v, choice %d: %s and %s: %s", name, path, form != nil, k, f.ways[0].name, w.name, d)
							}
						}
					}
					if same {
						f.set(name, w.name, "equal")
					} else {
						t.Errorf("%s%s: %s has %d choices, %s %d", name, path, f.ways[0].name, len(want), w.name, len(got))
					}
				}
			}
		}
	}
}

// lora: adapters answer as with SGLang's own server, and as nothing else does.
func (f *sgFleet) lora(t *testing.T) {
	ctx := harness.Context(t)
	said := map[string]string{}
	for _, model := range []string{"tiny", "one", "two"} {
		var want answer
		for i, w := range f.ways {
			if i == 3 || i == 4 {
				continue // these have none
			}
			if w.model = model; f.gateways[i].openai() && model != "tiny" {
				w.model = "tiny:" + model // as SGLang's API reads it
			}
			a, err := w.ask(ctx, completionPath, sgCompletion.with(streamed), nil)
			switch {
			case err != nil || !a.Done || a.OutputTokens != 24:
				t.Errorf("%s, %s: %+v %s, %v", w.name, model, a, a.said, err)
			case i == 0:
				if by, ok := said[a.Text]; ok {
					t.Errorf("%s says what %s says", model, by)
				}
				want, said[a.Text] = a, model
				f.set("LoRA", w.name, "answered")
			case a.Text != want.Text:
				t.Errorf("%s, %s: %q, want %q", w.name, model, a.Text, want.Text)
			default:
				f.set("LoRA", w.name, "equal")
			}
		}
	}
}

// streams: many at once are whole, with the usage of each.
func (f *sgFleet) streams(t *testing.T) {
	const many, tokens = 64, 48
	ctx := harness.Context(t)
	for _, w := range f.ways {
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() {
				a, err := w.ask(ctx, completionPath, sgCompletion.with(streamed).with(fields{"prompt": fmt.Sprintf("Story %d.", i%8), "ignore_eos": true, "max_tokens": tokens}), nil)
				if err != nil || !a.Done || a.Failed || a.OutputTokens != tokens || a.Reason != "length" {
					t.Errorf("%s: %+v, %v", w.name, a, err)
				}
			})
		}
		all.Wait()
		f.set(fmt.Sprintf("%d streams at once", many), w.name, "whole")
	}
	const verified = 6
	if n := harness.Metric(t, f.gateways[verified].Admin, "weir_relay_streams_total", `verified="ids"`); n < many {
		t.Errorf("%v streams were verified", n)
	}
	f.set("verified by their ids", f.ways[verified].name, "completions")
}

// stamps: the records have the schedulers' own, in their order.
func (f *sgFleet) stamps(t *testing.T) {
	for _, i := range []int{2, 5} {
		f.gateways[i].Interrupt()
		all := 0
		for _, r := range f.gateways[i].Records() {
			if r.Outcome != "finished" || len(r.Attempts) == 0 {
				continue
			}
			leg, last := r.Attempts[len(r.Attempts)-1].Legs[0], 0.0
			for _, stamp := range []string{"to_server_time", "queue_time_start", "queue_time_end", "prefill_end_time"} {
				at, ok := leg[stamp].(float64)
				if !ok || at < last {
					t.Errorf("%s, %s: %v", f.ways[i].name, stamp, leg)
				}
				last = at
			}
			all++
		}
		if all < 100 {
			t.Errorf("%s: %d records", f.ways[i].name, all)
		}
		f.set("stamps of queue and prefill", f.ways[i].name, "in each record")
	}
}

// openai reports whether the API of SGLang's own server answers, directly or relayed.
func (g gateway) openai() bool { return g.Gateway == nil || g.engines()[0].Kind == "openai" }

// begun reports whether a stream has some output.
func begun(a answer) bool { return len(a.Text) > 20 }

// running is how many requests SGLang itself counts, by its loads or those that weir reads.
func (f *sgFleet) running(i int) int {
	if url := f.direct[f.behind[i]]; url != "" {
		resp, err := http.Get(url + "/v1/loads")
		if err != nil {
			return -1
		}
		defer resp.Body.Close()
		var l struct {
			Loads []struct {
				Running int `json:"num_running_reqs"`
				Waiting int `json:"num_waiting_reqs"`
			}
		}
		if json.NewDecoder(resp.Body).Decode(&l) != nil || len(l.Loads) == 0 {
			return -1
		}
		n := 0
		for _, r := range l.Loads {
			n += r.Running + r.Waiting
		}
		return n
	}
	if v := f.gateways[i].engines(); len(v) == 1 && v[0].Running != nil && v[0].Waiting != nil {
		return *v[0].Running + *v[0].Waiting
	}
	return -1
}

// hangUps: SGLang ends what its clients left.
func (f *sgFleet) hangUps(t *testing.T) {
	for i, w := range f.ways[1:] {
		ctx, hangUp := context.WithCancel(harness.Context(t))
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				if a, err := w.ask(ctx, completionPath, sgLong, func(a *answer) bool { return begun(*a) }); err != nil || a.Done {
					t.Errorf("%s: %+v, %v", w.name, a, err)
				}
			})
		}
		all.Wait()
		hangUp()
		harness.Eventually(t, "idle behind "+w.name, func() bool { return f.running(i+1) == 0 }, f.behind[i+1])
		f.set("16 hang-ups", w.name, "engine idle")
	}
}

// kvEvents: by the events of two ranks weir predicts what SGLang finds in its caches, after a
// restart too. Without them it does not.
func (f *sgFleet) kvEvents(t *testing.T) {
	const i = 3
	c := newConversations(1, 20)
	spec := "sglang=" + f.direct[f.behind[i]]
	for _, phase := range []struct {
		name, option string
		least        float64
	}{{"first", "", 0.97}, {"after a restart of weir", "", 0.97}, {"without events", ",kv-events=off", 0}} {
		share := knownCaches{engines: []string{spec}, processes: []*harness.Process{f.behind[i]}, block: 16}.run(t, phase.name, phase.option, 60, 1, c)
		if share < phase.least || phase.least == 0 && share > 0.9 {
			t.Errorf("%s: %.3f of the predictions are right", phase.name, share)
		}
	}
	f.set("cached tokens as predicted by KV events", f.ways[i].name, "97 % and more")
}
