package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/load"
)

// native is an object of /generate: an event, or a whole answer.
type native struct {
	Text *string
	IDs  []uint32 `json:"output_ids"`
	Meta struct {
		ID     string
		Finish *struct {
			Type    string
			Matched any
			Message string
			Status  int `json:"status_code"`
		} `json:"finish_reason"`
		Prompt     int     `json:"prompt_tokens"`
		Completion int     `json:"completion_tokens"`
		Latency    float64 `json:"e2e_latency"`
	} `json:"meta_info"`
}

// told is what an answer of /generate told, and whether its end marker came.
type told struct {
	text   string
	ids    []uint32
	last   native
	events int
	done   bool
}

// nativeAnswer reads an answer of either form and checks each event's count.
func nativeAnswer(a answer, stream, incremental bool) (got told, err error) {
	take := func(data []byte) error {
		var e native
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("%w: %.200s", err, data)
		}
		text := ""
		if e.Text != nil {
			text = *e.Text
		}
		if incremental {
			text, e.IDs = got.text+text, append(got.ids, e.IDs...)
		} else if !strings.HasPrefix(text, got.text) || len(e.IDs) < len(got.ids) {
			return fmt.Errorf("an event takes back what was told: %.200s", data)
		}
		unsent := 0
		if f := e.Meta.Finish; f != nil && f.Matched != nil {
			if _, byID := f.Matched.(float64); byID {
				unsent = 1
			}
		}
		if len(e.IDs)+unsent != e.Meta.Completion {
			return fmt.Errorf("%d ids told and %d counted: %.300s", len(e.IDs), e.Meta.Completion, data)
		}
		got.text, got.ids, got.last = text, e.IDs, e
		got.events++
		return nil
	}
	if !stream {
		return got, take(a.body)
	}
	for line := range bytes.Lines(a.body) {
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		switch {
		case !ok:
		case got.done:
			return got, fmt.Errorf("something follows the end marker: %.200s", data)
		case string(data) == "[DONE]":
			got.done = true
		default:
			if err := take(data); err != nil {
				return got, err
			}
		}
	}
	return got, nil
}

// 256 callers at once, whatever is behind: every id is the one that the engine
// itself answers with, every text is that of its ids, in all four forms of an
// answer; and so through two gateways, one behind the other's sglang adapter.
func TestGenerate(t *testing.T) {
	t.Parallel()
	model, err := simModel()
	if err != nil {
		t.Fatal(err)
	}
	s := startSim(t, append(fast, "--incremental-streaming-output")...)
	inner := startGateway(t, "serve", "--engine", s.spec("plane"))
	for name, spec := range map[string]string{
		"plane": s.spec("plane"), "sglang": s.spec("sglang"), "weir behind weir": "sglang=" + inner.url,
	} {
		t.Run(name, func(t *testing.T) {
			beside(t, heavy)
			g := startGateway(t, "serve", "--engine", spec)
			const callers, tokens = 256, 12
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(7, uint64(i/4)))
					prompt := make([]uint32, 1+rng.IntN(40))
					for k := range prompt {
						prompt[k] = rng.Uint32N(uint32(model.Tokenizer.Size()) / 2)
					}
					ids, _ := json.Marshal(prompt)
					ask := fmt.Sprintf(`"input_ids":%s,"sampling_params":{"max_new_tokens":%d,"sampling_seed":%d,"ignore_eos":%v}`, ids, tokens, i/4, i%8 < 4)
					want, err := nativeAnswer(post(t, s.sglang+"/generate", `{`+ask+`}`), false, false)
					if err != nil || want.last.Meta.Finish == nil {
						t.Errorf("the engine itself: %v", err)
						return
					}
					stream, incremental, noText := i%4 != 0, i%4 >= 2, i%4 == 3
					a := post(t, g.url+"/generate", fmt.Sprintf(`{%s,"rid":"caller-%d","stream":%v,"incremental_streaming_output":%v,"skip_tokenizer_init":%v}`,
						ask, i, stream, incremental, noText))
					got, err := nativeAnswer(a, stream, incremental)
					switch f := got.last.Meta.Finish; {
					case err != nil || a.status != http.StatusOK || a.err != nil || got.done != stream:
						t.Errorf("caller %d: %d, %v, %v: %.300s", i, a.status, a.err, err, a.body)
					case !slices.Equal(got.ids, want.ids) || !noText && got.text != model.Tokenizer.Decode(want.ids, true):
						t.Errorf("caller %d: %v and %q, want %v", i, got.ids, got.text, want.ids)
					case f == nil || f.Type != want.last.Meta.Finish.Type || f.Matched != want.last.Meta.Finish.Matched:
						t.Errorf("caller %d ended with %+v, want %+v", i, f, want.last.Meta.Finish)
					case got.last.Meta.ID != fmt.Sprintf("caller-%d", i) || got.last.Meta.Prompt != len(prompt) || got.last.Meta.Completion != want.last.Meta.Completion || got.last.Meta.Latency <= 0:
						t.Errorf("caller %d: %+v, want %+v", i, got.last.Meta, want.last.Meta)
					}
				})
			}
			all.Wait()
			if ended := g.balanced(); ended["finished"] != callers {
				t.Errorf("%v", ended)
			}
			g.interrupt()
			for _, r := range g.records()[:3] {
				if !strings.HasPrefix(r.RequestID, "caller-") || r.CompletionTokens == 0 {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// Several prompts with several answers each, and the log probabilities of every
// id: whole and streamed they are the same, and each prompt's first answer is that
// of a request of its own.
func TestGenerateBatch(t *testing.T) {
	beside(t, light)
	type object struct {
		native
		Index *int
		Meta  struct {
			ID     string
			Finish *struct{ Type string } `json:"finish_reason"`
			Own    [][]any                `json:"output_token_logprobs"`
			Top    [][][]any              `json:"output_top_logprobs"`
		} `json:"meta_info"`
	}
	s := startSim(t, append(fast, "--incremental-streaming-output")...)
	for _, path := range []string{"plane", "sglang"} {
		g := startGateway(t, "serve", "--engine", s.spec(path))
		const params = `"rid":"r","return_logprob":true,"top_logprobs_num":2,"return_text_in_logprobs":true,"sampling_params":{"max_new_tokens":9,"ignore_eos":true,"sampling_seed":5`
		var whole []object
		if a := post(t, g.url+"/generate", `{"text":["One","Two","Three"],`+params+`,"n":2}}`); json.Unmarshal(a.body, &whole) != nil || len(whole) != 6 {
			t.Fatalf("%s: %d %s", path, a.status, a.body)
		}
		for i, o := range whole {
			if *o.Index != i || o.Meta.ID != fmt.Sprintf("r_%d", i) || len(o.IDs) != 9 || len(o.Meta.Own) != 9 || len(o.Meta.Top) != 9 {
				t.Errorf("%s: answer %d: %+v", path, i, o)
				continue
			}
			text := ""
			for k, id := range o.IDs {
				own := o.Meta.Own[k]
				if own[1] != float64(id) || own[0].(float64) > 0 || len(o.Meta.Top[k]) != 2 {
					t.Errorf("%s: answer %d, id %d: %v, %v", path, i, id, own, o.Meta.Top[k])
				}
				text += own[2].(string)
			}
			if text != *o.Text {
				t.Errorf("%s: answer %d: %q and %q", path, i, text, *o.Text)
			}
			var one object
			if a := post(t, g.url+"/generate", fmt.Sprintf(`{"text":%q,%s}}`, []string{"One", "Two", "Three"}[i/2], params)); json.Unmarshal(a.body, &one) != nil {
				t.Fatalf("%s: %d %s", path, a.status, a.body)
			}
			if i%2 == 0 && (!slices.Equal(one.IDs, o.IDs) || fmt.Sprint(one.Meta.Own, one.Meta.Top) != fmt.Sprint(o.Meta.Own, o.Meta.Top)) {
				t.Errorf("%s: answer %d: %+v, alone %+v", path, i, o, one)
			}
		}
		var streamed [6]object
		a := post(t, g.url+"/generate", `{"text":["One","Two","Three"],"stream":true,"incremental_streaming_output":true,`+params+`,"n":2}}`)
		for line := range bytes.Lines(a.body) {
			data, ok := bytes.CutPrefix(line, []byte("data: {"))
			if !ok {
				continue
			}
			var o object
			if err := json.Unmarshal(append([]byte("{"), data...), &o); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
			to := &streamed[*o.Index]
			to.IDs, to.Meta.Own, to.Meta.Top = append(to.IDs, o.IDs...), append(to.Meta.Own, o.Meta.Own...), append(to.Meta.Top, o.Meta.Top...)
			if o.Meta.Finish != nil {
				to.Meta.Finish = o.Meta.Finish
			}
		}
		for i, o := range streamed {
			if !slices.Equal(o.IDs, whole[i].IDs) || fmt.Sprint(o.Meta.Own, o.Meta.Top) != fmt.Sprint(whole[i].Meta.Own, whole[i].Meta.Top) || o.Meta.Finish == nil {
				t.Errorf("%s: streamed answer %d: %+v, whole %+v", path, i, o, whole[i])
			}
		}
		if !bytes.HasSuffix(a.body, []byte("data: [DONE]\n\n")) {
			t.Errorf("%s: no end marker", path)
		}
		g.balanced()
	}
}

// The same over vLLM's engine core, whose ids are a sentence.
func TestGenerateVLLMCore(t *testing.T) {
	beside(t, light)
	c := newCores(t)
	_, env := shortTemp(t)
	at := freeAddress(t)
	g := startUnreadyWith(t, env, "serve", "--engine", "vllm-core=tcp://"+at+",model=weir-sim")
	core := c.start(coretest.Options{Handshake: "tcp://" + at})
	eventually(t, "ready", func() bool { return get(t, g.admin+"/readyz").status == http.StatusOK })
	var all sync.WaitGroup
	for i := range 256 {
		all.Go(func() {
			n := 1 + i%3
			stream, incremental := i%3 != 0, i%3 == 2
			got, err := nativeAnswer(post(t, g.url+"/generate", fmt.Sprintf(`{"text":"Say it.","stream":%v,"incremental_streaming_output":%v,"sampling_params":{"max_new_tokens":%d}}`,
				stream, incremental, n*len(c.ids))), stream, incremental)
			if err != nil || got.text != strings.Repeat(said, n) || !slices.Equal(got.ids, slices.Repeat(c.ids, n)) || got.done != stream || got.last.Meta.Finish.Type != "length" {
				t.Errorf("caller %d: %v, %q, %+v", i, err, got.text, got.last.Meta)
			}
		})
	}
	all.Wait()

	// An engine that dies in the middle leaves an answer that says so.
	c.hold(true)
	resp, err := http.Post(g.url+"/generate", "application/json", strings.NewReader(`{"text":"Say it.","stream":true,"sampling_params":{"max_new_tokens":50}}`))
	if err != nil {
		t.Fatal(err)
	}
	core.Close()
	wantAborted(t, read(resp), 1)
	g.balanced()
	g.interrupt()
}

// wantAborted wants a stream that ended with an abort on a broken connection,
// after at least so many ids that are counted exactly.
func wantAborted(t *testing.T, a answer, least int) {
	t.Helper()
	got, err := nativeAnswer(a, true, false)
	if f := got.last.Meta.Finish; err != nil || a.err == nil || got.done || f == nil || f.Type != "abort" || f.Message == "" || f.Status < 500 || len(got.ids) < least {
		t.Errorf("%v, read error %v: %.300s ... %+v", err, a.err, a.body, got.last.Meta)
	}
}

// A cut, a reset and a stall of the engine's, on both wires: before the first
// byte another engine answers, after it the answer says that it is not whole.
func TestGenerateFaults(t *testing.T) {
	t.Parallel()
	const ask = `{"text":"x","stream":true,"sampling_params":{"max_new_tokens":40,"ignore_eos":true}}`
	for _, path := range []string{"plane", "sglang"} {
		for _, fault := range []string{"cut,after=10", "reset,after=10", "cut,after=0"} {
			t.Run(path+" "+fault, func(t *testing.T) {
				beside(t, light)
				bad := startSim(t, "--fault", fault)
				g := startGateway(t, "serve", "--engine", bad.spec(path))
				if late := !strings.HasSuffix(fault, "=0"); late {
					wantAborted(t, post(t, g.url+"/generate", ask), 1)
				} else if a := post(t, g.url+"/generate", ask); a.status < 500 || !bytes.HasPrefix(a.body, []byte(`{"error":{"message":`)) {
					t.Errorf("nobody else can answer: %d %s", a.status, a.body)
				} else {
					two := startGateway(t, "serve", "--engine", bad.spec(path), "--engine", startSim(t).spec(path))
					eventually(t, "both ready", func() bool { return metric(t, two.admin, "weir_engine_ready") == 2 })
					for range 4 {
						if got, err := nativeAnswer(post(t, two.url+"/generate", ask), true, false); err != nil || !got.done || len(got.ids) != 40 {
							t.Errorf("%v: %+v", err, got)
						}
					}
				}
				if a := post(t, g.url+"/generate", `{"text":"x","sampling_params":{"max_new_tokens":40,"ignore_eos":true}}`); a.status < 500 {
					t.Errorf("not streamed: %d %s", a.status, a.body)
				}
				if ended := g.balanced(); ended["failed"]+ended["rejected"] != 2 {
					t.Errorf("%v", ended)
				}
			})
		}
	}
}

// /abort_request ends a request by its caller's id, and no other whose id begins
// so: what was generated by then is the answer, and the engine is free.
func TestGenerateAbort(t *testing.T) {
	beside(t, light)
	s := startSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "5ms")
	inner := startGateway(t, "serve", "--engine", s.spec("sglang"))
	g := startGateway(t, "serve", "--engine", "sglang="+inner.url)
	ask := func(rid string, stream bool, tokens int) answer {
		return post(t, g.url+"/generate", fmt.Sprintf(`{"text":"x","stream":%v,"rid":%q,"sampling_params":{"max_new_tokens":%d,"ignore_eos":true}}`, stream, rid, tokens))
	}
	var all sync.WaitGroup
	for _, stream := range []bool{false, true} {
		all.Go(func() {
			a := ask(fmt.Sprintf("conv-%v", stream), stream, 100_000)
			got, err := nativeAnswer(a, stream, false)
			if f := got.last.Meta.Finish; err != nil || a.status != http.StatusOK || a.err != nil || got.done != stream || f == nil || f.Type != "abort" || len(got.ids) == 0 {
				t.Errorf("%v, %v, %d: %.200s", err, a.err, a.status, a.body)
			}
		})
		all.Go(func() {
			if got, err := nativeAnswer(ask(fmt.Sprintf("conv-%v0", stream), stream, 1500), stream, false); err != nil || len(got.ids) != 1500 {
				t.Errorf("one that was not aborted: %v, %d ids", err, len(got.ids))
			}
		})
	}
	eventually(t, "running", func() bool { return engineState(t, s.admin).Running == 4 })
	for _, rid := range []string{"conv-true", "conv-false", "unknown"} {
		if a := post(t, g.url+"/abort_request", fmt.Sprintf(`{"rid":%q}`, rid)); a.status != http.StatusOK || len(a.body) > 0 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	all.Wait()
	eventually(t, "free", func() bool { return engineState(t, s.admin).Running == 0 })
	if st := engineState(t, s.admin); st.Aborted != 2 || st.Finished != 2 {
		t.Errorf("the engine: %+v", st)
	}
	for _, gateway := range []*gateway{g, inner} {
		if ended := gateway.balanced(); ended["finished"] != 4 {
			t.Errorf("%v", ended)
		}
	}
	if a := post(t, g.url+"/abort_request", `{"abort_all":true}`); a.status != http.StatusBadRequest {
		t.Errorf("abort_all: %d %s", a.status, a.body)
	}
}

// What the load generator measures of an engine it measures of the gateway, and
// every word of every stream is verified.
func TestGenerateBench(t *testing.T) {
	beside(t, heavy)
	s := startSim(t, fast...)
	for _, flags := range [][]string{nil, {"--incremental-streaming-output"}} {
		g := startGateway(t, append([]string{"serve", "--engine", s.spec("plane")}, flags...)...)
		wantClean(t, run(t, load.Plan{URL: g.url, API: load.Generate, Concurrency: 64, Requests: 128, OutputTokens: 16, Body: map[string]any{"ignore_eos": true}}), 128, 16)
		var info struct {
			Incremental bool `json:"incremental_streaming_output"`
		}
		if err := json.Unmarshal(get(t, g.url+"/server_info").body, &info); err != nil || info.Incremental != (flags != nil) {
			t.Errorf("%v %+v", err, info)
		}
	}
}

// What a stop string or a stop id cuts, what the caller's fields choose, what is
// refused and in what words; and which model serves a body that names none.
func TestGenerateForms(t *testing.T) {
	beside(t, light)
	s := startSim(t, fast...)
	other := startSim(t, append(fast, "--served-model-name", "other")...)
	for _, path := range []string{"plane", "sglang"} {
		g := startGateway(t, "serve", "--engine", s.spec(path))
		ask := func(fields, params string) native {
			t.Helper()
			a := post(t, g.url+"/generate", fmt.Sprintf(`{"text":"Once upon"%s,"sampling_params":{"max_new_tokens":12,"ignore_eos":true,"sampling_seed":3%s}}`, fields, params))
			var n native
			if err := json.Unmarshal(a.body, &n); err != nil || a.status != http.StatusOK {
				t.Fatalf("%v: %d %s", err, a.status, a.body)
			}
			return n
		}
		whole := ask("", "")
		word := strings.Fields(*whole.Text)[4]
		before, _, _ := strings.Cut(*whole.Text, word)
		if n := ask("", fmt.Sprintf(`,"stop":[%q]`, word)); *n.Text != before || n.Meta.Finish.Matched != word || n.Meta.Completion != len(n.IDs) || len(n.IDs) >= 12 {
			t.Errorf("%s: stop string: %q, %+v", path, *n.Text, n.Meta)
		}
		if n := ask("", fmt.Sprintf(`,"stop":%q,"no_stop_trim":true`, word)); *n.Text != before+word {
			t.Errorf("%s: stop string that stays: %q", path, *n.Text)
		}
		id := whole.IDs[4]
		if n := ask("", fmt.Sprintf(`,"stop_token_ids":[%d]`, id)); !slices.Equal(n.IDs, whole.IDs[:4]) || n.Meta.Finish.Matched != float64(id) || n.Meta.Completion != 5 || *n.Text == *whole.Text {
			t.Errorf("%s: stop id: %v of %v, %+v", path, n.IDs, whole.IDs, n.Meta)
		}
		if n := ask(`,"skip_tokenizer_init":true`, ""); n.Text != nil || !slices.Equal(n.IDs, whole.IDs) {
			t.Errorf("%s: ids alone: %+v", path, n)
		}
		for _, refused := range []string{`,"image_data":"x"`, `,"return_hidden_states":true`, `,"unknown":1`} {
			if a := post(t, g.url+"/generate", `{"text":"x"`+refused+`}`); a.status != http.StatusBadRequest || !bytes.Contains(a.body, []byte(`"param":"`+strings.Split(refused, `"`)[1])) {
				t.Errorf("%s: %d %s", refused, a.status, a.body)
			}
		}
	}
	both := startGateway(t, "serve", "--engine", s.spec("plane"), "--engine", other.spec("relay"))
	eventually(t, "both ready", func() bool { return metric(t, both.admin, "weir_engine_ready") == 2 })
	for body, want := range map[string]string{
		`{"text":"x"}`:                    "there are several; add a field model",
		`{"text":"x","model":"nobody"}`:   `there is no model \"nobody\"`,
		`{"text":"x","model":"other"}`:    "is not served by engine kind openai",
		`{"text":"x","model":"weir-sim"}`: `"output_ids":[`,
	} {
		if a := post(t, both.url+"/generate", body); !bytes.Contains(a.body, []byte(want)) {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	if a := get(t, both.url+"/model_info"); a.status != http.StatusBadRequest || !bytes.Contains(a.body, []byte("?model=NAME")) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := get(t, both.url+"/get_model_info?model=other"); a.status != http.StatusOK || !bytes.Contains(a.body, []byte(`"model_path":"other"`)) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := get(t, both.url+"/health_generate"); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A bound of null is what the context leaves beside the prompt, and one that is not
// there is 128, as the engine itself has it; each prompt has its own.
func TestGenerateToContext(t *testing.T) {
	beside(t, light)
	s := startSim(t, append(fast, "--context-length", "300")...)
	inner := startGateway(t, "serve", "--engine", s.spec("plane"))
	for _, spec := range []string{s.spec("plane"), s.spec("sglang"), "sglang=" + inner.url} {
		g := startGateway(t, "serve", "--engine", spec)
		for params, want := range map[string][]int{`"max_new_tokens":null,`: {297, 295}, "": {128, 128}} {
			ask := `{"input_ids":[[1,2,3],[4,5,6,7,8]],"sampling_params":{` + params + `"ignore_eos":true}}`
			var theirs, ours []native
			if a := post(t, s.sglang+"/generate", ask); json.Unmarshal(a.body, &theirs) != nil || len(theirs) != 2 {
				t.Fatalf("the engine itself: %d %.300s", a.status, a.body)
			}
			if a := post(t, g.url+"/generate", ask); json.Unmarshal(a.body, &ours) != nil || len(ours) != 2 {
				t.Fatalf("%s: %d %.300s", spec, a.status, a.body)
			}
			for i := range ours {
				if !slices.Equal(ours[i].IDs, theirs[i].IDs) || len(ours[i].IDs) != want[i] || ours[i].Meta.Finish.Type != "length" {
					t.Errorf("%s, %q: %d ids and %d of the engine itself, want %d; %+v", spec, params, len(ours[i].IDs), len(theirs[i].IDs), want[i], ours[i].Meta.Finish)
				}
			}
		}
	}
}
