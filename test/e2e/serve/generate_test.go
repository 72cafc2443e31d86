package serve

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

	"weir/test/e2e/harness"
)

// 256 callers at once, whatever is behind: every id is the one that the engine
// itself answers with, every text is that of its ids, in all four forms of an
// answer; and so through two gateways, one behind the other's sglang adapter.
func TestGenerate(t *testing.T) {
	t.Parallel()
	model, err := harness.SimModel()
	if err != nil {
		t.Fatal(err)
	}
	s := harness.StartSim(t, append(harness.FastSim, "--incremental-streaming-output")...)
	inner := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"))
	for name, spec := range map[string]string{
		"plane": s.Spec("plane"), "sglang": s.Spec("sglang"), "weir behind weir": "sglang=" + inner.URL,
	} {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Heavy)
			g := harness.StartGateway(t, "serve", "--engine", spec)
			const tokens = 12
			callers := 256
			if testing.Short() {
				callers = 64 // of each form as many
			}
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
					want, err := harness.NativeAnswer(harness.Post(t, s.SGLang+"/generate", `{`+ask+`}`), false, false)
					if err != nil || want.Last.Meta.Finish == nil {
						t.Errorf("the engine itself: %v", err)
						return
					}
					stream, incremental, noText := i%4 != 0, i%4 >= 2, i%4 == 3
					a := harness.Post(t, g.URL+"/generate", fmt.Sprintf(`{%s,"rid":"caller-%d","stream":%v,"incremental_streaming_output":%v,"skip_tokenizer_init":%v}`,
						ask, i, stream, incremental, noText))
					got, err := harness.NativeAnswer(a, stream, incremental)
					switch f := got.Last.Meta.Finish; {
					case err != nil || a.Status != http.StatusOK || a.Err != nil || got.Done != stream:
						t.Errorf("caller %d: %d, %v, %v: %.300s", i, a.Status, a.Err, err, a.Body)
					case !slices.Equal(got.IDs, want.IDs) || !noText && got.Text != model.Tokenizer.Decode(want.IDs, true):
						t.Errorf("caller %d: %v and %q, want %v", i, got.IDs, got.Text, want.IDs)
					case f == nil || f.Type != want.Last.Meta.Finish.Type || f.Matched != want.Last.Meta.Finish.Matched:
						t.Errorf("caller %d ended with %+v, want %+v", i, f, want.Last.Meta.Finish)
					case got.Last.Meta.ID != fmt.Sprintf("caller-%d", i) || got.Last.Meta.Prompt != len(prompt) || got.Last.Meta.Completion != want.Last.Meta.Completion || got.Last.Meta.Latency <= 0:
						t.Errorf("caller %d: %+v, want %+v", i, got.Last.Meta, want.Last.Meta)
					}
				})
			}
			all.Wait()
			if ended := g.Balanced(); ended["finished"] != callers {
				t.Errorf("%v", ended)
			}
			g.Interrupt()
			for _, r := range g.Records()[:3] {
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
	harness.Beside(t, harness.Light)
	type object struct {
		harness.Native
		Index *int
		Meta  struct {
			ID     string
			Finish *struct{ Type string } `json:"finish_reason"`
			Own    [][]any                `json:"output_token_logprobs"`
			Top    [][][]any              `json:"output_top_logprobs"`
		} `json:"meta_info"`
	}
	s := harness.StartSim(t, append(harness.FastSim, "--incremental-streaming-output")...)
	for _, path := range []string{"plane", "sglang"} {
		g := harness.StartGateway(t, "serve", "--engine", s.Spec(path))
		const params = `"rid":"r","return_logprob":true,"top_logprobs_num":2,"return_text_in_logprobs":true,"sampling_params":{"max_new_tokens":9,"ignore_eos":true,"sampling_seed":5`
		var whole []object
		if a := harness.Post(t, g.URL+"/generate", `{"text":["One","Two","Three"],`+params+`,"n":2}}`); json.Unmarshal(a.Body, &whole) != nil || len(whole) != 6 {
			t.Fatalf("%s: %d %s", path, a.Status, a.Body)
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
			if a := harness.Post(t, g.URL+"/generate", fmt.Sprintf(`{"text":%q,%s}}`, []string{"One", "Two", "Three"}[i/2], params)); json.Unmarshal(a.Body, &one) != nil {
				t.Fatalf("%s: %d %s", path, a.Status, a.Body)
			}
			if i%2 == 0 && (!slices.Equal(one.IDs, o.IDs) || fmt.Sprint(one.Meta.Own, one.Meta.Top) != fmt.Sprint(o.Meta.Own, o.Meta.Top)) {
				t.Errorf("%s: answer %d: %+v, alone %+v", path, i, o, one)
			}
		}
		var streamed [6]object
		a := harness.Post(t, g.URL+"/generate", `{"text":["One","Two","Three"],"stream":true,"incremental_streaming_output":true,`+params+`,"n":2}}`)
		for line := range bytes.Lines(a.Body) {
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
		if !bytes.HasSuffix(a.Body, []byte("data: [DONE]\n\n")) {
			t.Errorf("%s: no end marker", path)
		}
		g.Balanced()
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
				harness.Beside(t, harness.Light)
				bad := harness.StartSim(t, "--fault", fault)
				g := harness.StartGateway(t, "serve", "--engine", bad.Spec(path))
				if late := !strings.HasSuffix(fault, "=0"); late {
					harness.WantAborted(t, harness.Post(t, g.URL+"/generate", ask), 1)
				} else if a := harness.Post(t, g.URL+"/generate", ask); a.Status < 500 || !bytes.HasPrefix(a.Body, []byte(`{"error":{"message":`)) {
					t.Errorf("nobody else can answer: %d %s", a.Status, a.Body)
				} else {
					two := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", bad.Spec(path), "--engine", harness.StartSim(t).Spec(path))
					harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, two.Admin, "weir_engine_ready") == 2 })
					for range 4 {
						if got, err := harness.NativeAnswer(harness.Post(t, two.URL+"/generate", ask), true, false); err != nil || !got.Done || len(got.IDs) != 40 {
							t.Errorf("%v: %+v", err, got)
						}
					}
				}
				if a := harness.Post(t, g.URL+"/generate", `{"text":"x","sampling_params":{"max_new_tokens":40,"ignore_eos":true}}`); a.Status < 500 {
					t.Errorf("not streamed: %d %s", a.Status, a.Body)
				}
				if ended := g.Balanced(); ended["failed"]+ended["rejected"] != 2 {
					t.Errorf("%v", ended)
				}
			})
		}
	}
}

// /abort_request ends a request by its caller's id, and no other whose id begins
// so: what was generated by then is the answer, and the engine is free.
func TestGenerateAbort(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "5ms")
	inner := harness.StartGateway(t, "serve", "--engine", s.Spec("sglang"), "--allow-abort")
	g := harness.StartGateway(t, "serve", "--engine", "sglang="+inner.URL, "--allow-abort")
	off := harness.StartGateway(t, "serve", "--engine", s.Spec("sglang"))
	if a := harness.Post(t, off.URL+"/abort_request", `{"rid":"conv"}`); a.Status != http.StatusNotFound || !strings.Contains(string(a.Body), "--allow-abort") {
		t.Errorf("where it is off: %d %s", a.Status, a.Body)
	}
	ask := func(rid string, stream bool, tokens int) harness.Answer {
		return harness.Post(t, g.URL+"/generate", fmt.Sprintf(`{"text":"x","stream":%v,"rid":%q,"sampling_params":{"max_new_tokens":%d,"ignore_eos":true}}`, stream, rid, tokens))
	}
	var all sync.WaitGroup
	for _, stream := range []bool{false, true} {
		all.Go(func() {
			a := ask(fmt.Sprintf("conv-%v", stream), stream, 100_000)
			got, err := harness.NativeAnswer(a, stream, false)
			if f := got.Last.Meta.Finish; err != nil || a.Status != http.StatusOK || a.Err != nil || got.Done != stream || f == nil || f.Type != "abort" || len(got.IDs) == 0 {
				t.Errorf("%v, %v, %d: %.200s", err, a.Err, a.Status, a.Body)
			}
		})
		all.Go(func() {
			if got, err := harness.NativeAnswer(ask(fmt.Sprintf("conv-%v0", stream), stream, 1500), stream, false); err != nil || len(got.IDs) != 1500 {
				t.Errorf("one that was not aborted: %v, %d ids", err, len(got.IDs))
			}
		})
	}
	harness.Eventually(t, "running", func() bool { return harness.EngineState(t, s.Admin).Running == 4 })
	for _, rid := range []string{"conv-true", "conv-false", "unknown"} {
		if a := harness.Post(t, g.URL+"/abort_request", fmt.Sprintf(`{"rid":%q}`, rid)); a.Status != http.StatusOK || len(a.Body) > 0 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	all.Wait()
	harness.Eventually(t, "free", func() bool { return harness.EngineState(t, s.Admin).Running == 0 })
	if st := harness.EngineState(t, s.Admin); st.Aborted != 2 || st.Finished != 2 {
		t.Errorf("the engine: %+v", st)
	}
	for _, gateway := range []*harness.Gateway{g, inner} {
		if ended := gateway.Balanced(); ended["finished"] != 4 {
			t.Errorf("%v", ended)
		}
	}
	if a := harness.Post(t, g.URL+"/abort_request", `{"abort_all":true}`); a.Status != http.StatusBadRequest {
		t.Errorf("abort_all: %d %s", a.Status, a.Body)
	}
}

// Stop strings and stop ids cut an answer, fields choose its members, and bad requests are
// refused with the right message. The default model serves a body that names none.
func TestGenerateForms(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	other := harness.StartSim(t, append(harness.FastSim, "--served-model-name", "other")...)
	for _, path := range []string{"plane", "sglang"} {
		g := harness.StartGateway(t, "serve", "--engine", s.Spec(path))
		ask := func(fields, params string) harness.Native {
			t.Helper()
			a := harness.Post(t, g.URL+"/generate", fmt.Sprintf(`{"text":"Once upon"%s,"sampling_params":{"max_new_tokens":12,"ignore_eos":true,"sampling_seed":3%s}}`, fields, params))
			var n harness.Native
			if err := json.Unmarshal(a.Body, &n); err != nil || a.Status != http.StatusOK {
				t.Fatalf("%v: %d %s", err, a.Status, a.Body)
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
		if n := ask("", fmt.Sprintf(`,"stop_token_ids":[%d]`, id)); !slices.Equal(n.IDs, whole.IDs[:5]) || n.Meta.Finish.Matched != float64(id) || n.Meta.Completion != 5 || *n.Text == *whole.Text {
			t.Errorf("%s: stop id: %v of %v, %+v", path, n.IDs, whole.IDs, n.Meta)
		}
		if n := ask(`,"skip_tokenizer_init":true`, ""); n.Text != nil || !slices.Equal(n.IDs, whole.IDs) {
			t.Errorf("%s: ids alone: %+v", path, n)
		}
		for _, refused := range []string{`,"image_data":"x"`, `,"return_hidden_states":true`, `,"unknown":1`} {
			if a := harness.Post(t, g.URL+"/generate", `{"text":"x"`+refused+`}`); a.Status != http.StatusBadRequest || !bytes.Contains(a.Body, []byte(`"param":"`+strings.Split(refused, `"`)[1])) {
				t.Errorf("%s: %d %s", refused, a.Status, a.Body)
			}
		}
	}
	both := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", s.Spec("plane"), "--engine", other.Spec("relay"))
	harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, both.Admin, "weir_engine_ready") == 2 })
	for body, want := range map[string]string{
		`{"text":"x"}`:                    "there are several; add a field model",
		`{"text":"x","model":"nobody"}`:   `there is no model \"nobody\"`,
		`{"text":"x","model":"other"}`:    "is not served by engine kind openai",
		`{"text":"x","model":"weir-sim"}`: `"output_ids":[`,
	} {
		if a := harness.Post(t, both.URL+"/generate", body); !bytes.Contains(a.Body, []byte(want)) {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	if a := harness.Get(t, both.URL+"/model_info"); a.Status != http.StatusBadRequest || !bytes.Contains(a.Body, []byte("?model=NAME")) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := harness.Get(t, both.URL+"/get_model_info?model=other"); a.Status != http.StatusOK || !bytes.Contains(a.Body, []byte(`"model_path":"other"`)) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := harness.Get(t, both.URL+"/health_generate"); a.Status != http.StatusOK {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

// A bound of null is what the context leaves beside the prompt, and one that is not
// there is 128, as the engine itself has it; each prompt has its own.
func TestGenerateToContext(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, append(harness.FastSim, "--decode-cost", "1ms", "--context-length", "300")...)
	inner := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"))
	for _, spec := range []string{s.Spec("plane"), s.Spec("sglang"), "sglang=" + inner.URL} {
		g := harness.StartGateway(t, "serve", "--engine", spec)
		for params, want := range map[string][]int{`"max_new_tokens":null,`: {297, 295}, "": {128, 128}} {
			ask := `{"input_ids":[[1,2,3],[4,5,6,7,8]],"sampling_params":{` + params + `"ignore_eos":true}}`
			var theirs, ours []harness.Native
			if a := harness.Post(t, s.SGLang+"/generate", ask); json.Unmarshal(a.Body, &theirs) != nil || len(theirs) != 2 {
				t.Fatalf("the engine itself: %d %.300s", a.Status, a.Body)
			}
			if a := harness.Post(t, g.URL+"/generate", ask); json.Unmarshal(a.Body, &ours) != nil || len(ours) != 2 {
				t.Fatalf("%s: %d %.300s", spec, a.Status, a.Body)
			}
			for i := range ours {
				if !slices.Equal(ours[i].IDs, theirs[i].IDs) || len(ours[i].IDs) != want[i] || ours[i].Meta.Finish.Type != "length" {
					t.Errorf("%s, %q: %d ids and %d of the engine itself, want %d; %+v", spec, params, len(ours[i].IDs), len(theirs[i].IDs), want[i], ours[i].Meta.Finish)
				}
			}
		}
	}
}
