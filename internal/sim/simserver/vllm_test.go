package simserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/flags"
)

// completed is an event or an answer of the OpenAI API with what engines add.
type completed struct {
	ID             string         `json:"id"`
	Model          string         `json:"model"`
	PromptTokenIDs jsontext.Value `json:"prompt_token_ids"`
	Usage          *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Metrics jsontext.Value `json:"metrics"`
	Choices []struct {
		Index          int            `json:"index"`
		Text           string         `json:"text"`
		FinishReason   *string        `json:"finish_reason"`
		StopReason     jsontext.Value `json:"stop_reason"`
		MatchedStop    jsontext.Value `json:"matched_stop"`
		TokenIDs       []uint32       `json:"token_ids"`
		PromptTokenIDs []uint32       `json:"prompt_token_ids"`
		PromptLogprobs jsontext.Value `json:"prompt_logprobs"`
		Delta          struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"delta"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Logprobs *struct {
			Content []struct {
				Token       string           `json:"token"`
				Logprob     float64          `json:"logprob"`
				Bytes       []int            `json:"bytes"`
				TopLogprobs []jsontext.Value `json:"top_logprobs"`
			} `json:"content"`
			TextOffset    []int                `json:"text_offset"`
			TokenLogprobs []float64            `json:"token_logprobs"`
			Tokens        []string             `json:"tokens"`
			TopLogprobs   []map[string]float64 `json:"top_logprobs"`
		} `json:"logprobs"`
	} `json:"choices"`
}

// complete posts to an OpenAI endpoint and gives the answer, or its events.
func (b *bench) complete(url, body string) (all []completed, done bool) {
	b.t.Helper()
	resp, err := b.client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		b.t.Fatalf("%s: %v %s", resp.Status, err, text)
	}
	for event := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		if event = strings.TrimPrefix(event, "data: "); event == "[DONE]" {
			done = true
			continue
		}
		var c completed
		if err := json.Unmarshal([]byte(event), &c); err != nil {
			b.t.Fatalf("%v: %s", err, event)
		}
		all = append(all, c)
	}
	return all, done
}

const hello = `"messages":[{"role":"user","content":"hello"}]`

// Both engines say what the plain server says, whole and streamed, in their own
// shapes.
func TestEngineVoices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{VLLM: flags.VLLM{PerRequestMetrics: true, PromptTokensDetails: true}, SGLang: flags.SGLang{CacheReport: true},
			Sim: sim.Options{KVTokens: 4096, PageSize: 1}})
		plain, err := b.post(context.Background(), chat, `{`+hello+`,"max_tokens":20,"ignore_eos":true}`)
		if err != nil {
			t.Fatal(err)
		}
		for voice, base := range map[string]string{"vllm": b.vllm, "sglang": b.sglang} {
			for _, stream := range []bool{false, true} {
				all, done := b.complete(base+chat, fmt.Sprintf(`{%s,"max_tokens":20,"ignore_eos":true,"stream":%v,"stream_options":{"include_usage":true},"return_token_ids":true,"logprobs":true,"top_logprobs":2}`, hello, stream))
				if done != stream {
					t.Errorf("%s: done %v", voice, done)
				}
				var text string
				var ids []uint32
				var logprobs, finishes int
				for i, c := range all {
					for _, choice := range c.Choices {
						text += choice.Delta.Content + choice.Message.Content
						ids = append(ids, choice.TokenIDs...)
						if choice.FinishReason != nil {
							finishes++
							if *choice.FinishReason != "length" {
								t.Errorf("%s: finish_reason %q", voice, *choice.FinishReason)
							}
						}
						if l := choice.Logprobs; l != nil {
							logprobs += len(l.Content)
							if len(l.Content[0].TopLogprobs) != 2 || len(l.Content[0].Bytes) != 4 {
								t.Errorf("%s: log probabilities %+v", voice, l)
							}
						}
						if role := choice.Delta.Role; (role == "assistant") != (stream && i == 0) {
							t.Errorf("%s, event %d: role %q", voice, i, role)
						}
					}
				}
				if text != plain.text[0] || finishes != 1 || logprobs != 20 || voice == "vllm" && len(ids) != 20 {
					t.Errorf("%s, stream %v: %q, %d ids, %d log probabilities, %d ends", voice, stream, text, len(ids), logprobs, finishes)
				}
				last := all[len(all)-1]
				if u := last.Usage; u == nil || u.CompletionTokens != 20 || u.PromptTokens != plain.usage.PromptTokens {
					t.Errorf("%s, stream %v: usage %+v", voice, stream, u)
				}
				if u := last.Usage; u != nil && (u.Details == nil || u.Details.CachedTokens == 0) {
					t.Errorf("%s, stream %v: nothing was found in the cache: %+v", voice, stream, u)
				}
				var m map[string]float64
				if voice == "vllm" && (json.Unmarshal(last.Metrics, &m) != nil || m["time_to_first_token_ms"] <= 0 || m["generation_time_ms"] < 18 || m["mean_itl_ms"] < 0.9 || m["tokens_per_second"] <= 0 || m["queue_time_ms"] < 0) {
					t.Errorf("metrics %s", last.Metrics)
				}
			}
		}
	})
}

// vLLM tells the ids of the prompt once, at the beginning, and sends the id
// that stopped the output; it says by what it stopped unless by an end id.
func TestVLLMCompletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		whole, _ := b.complete(b.vllm+"/v1/completions", `{"prompt":"abc","max_tokens":20,"ignore_eos":true,"return_token_ids":true,"logprobs":1}`)
		c := whole[0].Choices[0]
		if len(c.TokenIDs) != 20 || !slices.Equal(c.PromptTokenIDs, []uint32{97, 98, 99}) || string(c.PromptLogprobs) != "null" || string(c.StopReason) != "null" || string(whole[0].Metrics) != "null" {
			t.Errorf("%+v", whole[0])
		}
		if l := c.Logprobs; len(l.Tokens) != 20 || l.Tokens[1] != c.Text[4:8] || l.TextOffset[2] != 8 || len(l.TopLogprobs[0]) != 1 || l.TokenLogprobs[3] > 0 {
			t.Errorf("%+v", l)
		}
		at := slices.IndexFunc(c.TokenIDs, func(id uint32) bool { return slices.Index(c.TokenIDs, id) >= 5 })
		id := c.TokenIDs[at]
		for _, include := range []bool{false, true} {
			stream, done := b.complete(b.vllm+"/v1/completions", fmt.Sprintf(`{"prompt":"abc","max_tokens":20,"ignore_eos":true,"return_token_ids":true,"stop_token_ids":[%d],"include_stop_str_in_output":%v,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`, id, include))
			var text string
			var ids []uint32
			for i, e := range stream {
				if e.Usage == nil {
					t.Fatalf("event %d has no usage", i)
				}
				for _, choice := range e.Choices {
					text, ids = text+choice.Text, append(ids, choice.TokenIDs...)
					if (choice.PromptTokenIDs != nil) != (i == 0) || e.Usage.CompletionTokens != len(ids) {
						t.Errorf("event %d: %+v, %d ids so far", i, e, len(ids))
					}
					if last := choice.FinishReason != nil; last != (string(choice.StopReason) == fmt.Sprint(id)) {
						t.Errorf("event %d: stop_reason %s", i, choice.StopReason)
					}
				}
			}
			n := 4 * at
			if include {
				n += 4
			}
			if !done || text != c.Text[:n] || !slices.Equal(ids, c.TokenIDs[:at+1]) {
				t.Errorf("include %v: %q %v", include, text, ids)
			}
		}
		stopped, _ := b.complete(b.vllm+"/v1/completions", fmt.Sprintf(`{"prompt":"abc","max_tokens":20,"ignore_eos":true,"stop":%q}`, c.Text[10:14]))
		if got := stopped[0].Choices[0]; string(got.StopReason) != fmt.Sprintf("%q", c.Text[10:14]) || *got.FinishReason != "stop" || got.Text != c.Text[:10] {
			t.Errorf("%+v", got)
		}
		ended, _ := b.complete(b.vllm+"/v1/completions", `{"prompt":"abc","max_tokens":10000,"return_token_ids":true}`)
		if got := ended[0].Choices[0]; string(got.StopReason) != "null" || *got.FinishReason != "stop" || len(got.TokenIDs) != ended[0].Usage.CompletionTokens {
			t.Errorf("%+v", got)
		}
		// Nobody said how many.
		if short, _ := b.complete(b.vllm+"/v1/completions", `{"prompt":"abc","ignore_eos":true}`); short[0].Usage.CompletionTokens != 16 {
			t.Errorf("%+v", short[0].Usage)
		}
	})
}

// SGLang answers to any name, has an id for each choice, and tells what matched.
func TestSGLangCompletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{LoRAs: []string{"fine"}}})
		all, _ := b.complete(b.sglang+"/v1/completions", `{"model":"anything","prompt":"abc","max_tokens":6,"ignore_eos":true,"n":2,"stream":true}`)
		ids := map[string]int{}
		for _, c := range all {
			if c.Model != "anything" {
				t.Errorf("model %q", c.Model)
			}
			for _, choice := range c.Choices {
				if was, ok := ids[c.ID]; ok && was != choice.Index {
					t.Errorf("id %s of two choices", c.ID)
				}
				ids[c.ID] = choice.Index
			}
		}
		if len(ids) != 2 {
			t.Errorf("ids %v", ids)
		}
		named, _ := b.complete(b.sglang+"/v1/completions", `{"prompt":"abc","rid":"mine","max_tokens":6,"ignore_eos":true,"return_token_ids":true}`)
		if c := named[0]; c.ID != "mine" || len(c.Choices[0].TokenIDs) != 6 || len(c.Choices[0].PromptTokenIDs) != 3 || string(c.Choices[0].MatchedStop) != "null" {
			t.Errorf("%+v", c)
		}
		// A chat whose prompt is given as ids.
		one, _ := b.complete(b.sglang+chat, `{"messages":[{"role":"user","content":"x"}],"input_ids":[97,98,99],"max_tokens":6,"ignore_eos":true}`)
		if one[0].Choices[0].Message.Content != named[0].Choices[0].Text || one[0].Usage.PromptTokens != 3 {
			t.Errorf("%+v", one[0])
		}
		ended, _ := b.complete(b.sglang+chat, `{`+hello+`,"stream":true}`)
		last := ended[len(ended)-1].Choices[0]
		if *last.FinishReason != "stop" || string(last.MatchedStop) != "257" && string(last.MatchedStop) != "258" || last.Delta.Content != "" {
			t.Errorf("%+v", last)
		}
		// An adapter, by either way of naming it.
		for _, body := range []string{`"model":"weir-sim:fine"`, `"lora_path":"fine"`} {
			if a, err := b.post(context.Background(), b.sglang+chat, `{`+hello+`,"max_tokens":2,`+body+`}`); err != nil || a.status != 200 {
				t.Errorf("%s: %+v, %v", body, a, err)
			}
		}
		if a, _ := b.post(context.Background(), b.sglang+chat, `{`+hello+`,"model":"weir-sim:other"}`); a.status != 400 {
			t.Errorf("%+v", a)
		}
		if a, _ := b.post(context.Background(), b.vllm+chat, `{`+hello+`,"model":"fine","max_tokens":2}`); a.status != 200 {
			t.Errorf("%+v", a)
		}
	})
}

// Errors have each engine's shape.
func TestEngineErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{ContextLength: 100}})
		for _, c := range []struct {
			url, kind, body string
			status          int
			want            string
		}{
			{b.vllm + chat, "", `{` + hello + `,"model":"other"}`, 404, `{"error":{"message":"the model \"other\" does not exist; this engine serves \"weir-sim\"","type":"NotFoundError","param":"model","code":404}}`},
			{b.vllm + chat, "", `{` + hello + `,"n":0}`, 400, `"type":"BadRequestError","param":"n","code":400}}`},
			{b.vllm + chat, "", `{` + hello + `,"top_logprobs":3}`, 400, `"param":"top_logprobs"`},
			{b.vllm + chat, "", `{` + hello + `,"logprobs":true,"top_logprobs":50}`, 400, `"param":"top_logprobs"`},
			{b.vllm + chat, "", `{` + hello + `,"logprobs":3}`, 400, `"param":"logprobs"`},
			{b.vllm + "/v1/completions", "", `{"prompt":"a","logprobs":true}`, 400, `"param":"logprobs"`},
			{b.vllm + chat, "", `{` + hello + `,"max_tokens":300}`, 400, `"type":"BadRequestError","param":"max_tokens"`},
			{b.vllm + chat, "", `{` + hello + `,"priority":3}`, 400, `"param":"priority"`},
			{b.vllm + chat, "text/plain", `{` + hello + `}`, 400, "application/json"},
			{b.vllm + "/nothing", "", `{}`, 404, `"code":404`},
			{b.vllm + "/tokenize", "", `{}`, 400, "messages"},
			{b.vllm + "/tokenize", "", `{"prompt":"\u0000"}`, 400, `"param":"prompt"`},
			{b.vllm + "/tokenize", "", `{"prompt":"a","return_token_strs":true}`, 400, "return_token_strs"},
			{b.vllm + "/detokenize", "", `{}`, 400, "tokens"},
			{b.vllm + "/detokenize", "", `{"tokens":[99999]}`, 400, "vocabulary"},
			{b.sglang + chat, "", `{` + hello + `,"n":0}`, 400, `{"object":"error","message":"n is 0; it must be between 1 and 128","type":"BadRequestError","param":null,"code":400}`},
			{b.sglang + chat, "text/plain", `{` + hello + `}`, 400, `"object":"error"`},
			{b.sglang + "/v1/completions", "", `{"prompt":""}`, 400, `"object":"error"`},
			{b.sglang + "/abort_request", "text/plain", `{}`, 400, `"object":"error"`},
			{b.sglang + "/nothing", "", `{}`, 404, `{"detail":"Not Found"}`},
			{b.sglang + "/v1/completions", "", `{"prompt":"a","echo":true}`, 400, "echo"},
			{b.vllm + "/v1/completions", "", `{"prompt":"a","prompt_logprobs":1}`, 400, `"param":"prompt_logprobs"`},
			{b.sglang + "/v1/tokenize", "", `{}`, 400, "either"},
			{b.sglang + "/v1/tokenize", "", `{"prompt":"\u0000"}`, 400, "NUL"},
			{b.sglang + "/v1/detokenize", "", `{"tokens":"x"}`, 400, "tokens"},
			{b.sglang + "/v1/detokenize", "", `{"tokens":[99999]}`, 400, "vocabulary"},
		} {
			kind := c.kind
			if kind == "" {
				kind = "application/json"
			}
			resp, err := b.client.Post(c.url, kind, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != c.status || !strings.Contains(string(text), c.want) {
				t.Errorf("%s %s: %d %s", c.url, c.body, resp.StatusCode, text)
			}
		}
	})
}

func (b *bench) get(url string) (int, string) {
	b.t.Helper()
	resp, err := b.client.Get(url)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// The facts that the engines report about themselves.
func TestEngineInfo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{SGLang: flags.SGLang{Metrics: true, WeightVersion: "v7"}, VLLM: flags.VLLM{LoadTracking: true},
			Sim: sim.Options{KVTokens: 4096, PageSize: 16, LoRAs: []string{"fine"}, DPSize: 2}})
		for range 2 {
			b.generate(`{"text":"` + strings.Repeat("x", 100) + `","sampling_params":{"max_new_tokens":10,"ignore_eos":true},"routed_dp_rank":1}`)
		}
		for url, parts := range map[string][]string{
			b.sglang + "/v1/models":                       {`"id":"weir-sim"`, `"parent":null`, `"id":"fine"`, `"parent":"weir-sim"`, `"owned_by":"sglang"`},
			b.vllm + "/v1/models":                         {`"owned_by":"vllm"`, `"root":"weir-sim"`},
			b.sglang + "/server_info":                     {`"weight_version":"v7"`, `"dp_size":2`, `"page_size":16`, `"internal_states":[{`, `"version":"` + flags.SGLangVersion + `"`},
			b.sglang + "/get_server_info":                 {`"served_model_name":"weir-sim"`},
			b.sglang + "/model_info":                      {`"is_generation":true`, `"weight_version":"v7"`},
			b.sglang + "/get_model_info":                  {`"model_path":"weir-sim"`},
			b.sglang + "/v1/loads":                        {`"dp_rank":0`, `"dp_rank":1`, `"num_running_reqs":0`, `"max_total_num_tokens":4096`, `"queues":{`, `"version":`},
			b.sglang + "/v1/loads?dp_rank=1&include=core": {`"loads":[{`, `"dp_rank":1`},
			b.sglang + "/v1/loads?format=prometheus":      {"sglang_num_running_reqs{dp_rank=\"0\"} 0\n", "sglang_max_total_num_tokens{dp_rank=\"1\"} 4096\n"},
			b.sglang + "/get_load":                        {`[{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,`},
			b.vllm + "/version":                           {`{"version":"` + flags.VLLMVersion + `"}`},
			b.vllm + "/load":                              {`{"server_load":0}`},
			b.vllm + "/health":                            {``},
			b.vllm + "/ping":                              {``},
			b.sglang + "/metrics": {"sglang:generation_tokens_total{engine_type=\"unified\",is_streaming=\"false\",model_name=\"weir-sim\"} 20", "sglang:cached_tokens_total{cache_source=\"device\",engine_type=\"unified\",model_name=\"weir-sim\"} 96", "sglang:num_requests_total{engine_type=\"unified\",is_streaming=\"false\",model_name=\"weir-sim\"} 2",
				"sglang:time_to_first_token_seconds_count{engine_type=\"unified\",is_streaming=\"false\",model_name=\"weir-sim\"} 2", "sglang:inter_token_latency_seconds_count{engine_type=\"unified\",model_name=\"weir-sim\"} 18", "sglang:num_running_reqs{dp_rank=\"1\",engine_type=\"unified\",model_name=\"weir-sim\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"} 0"},
			b.vllm + "/metrics": {"vllm:generation_tokens_total{engine=\"0\",model_name=\"weir-sim\"} 20", "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"weir-sim\"} 96",
				"vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"weir-sim\"} 2", "vllm:e2e_request_latency_seconds_bucket", "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"weir-sim\"} 0"},
		} {
			status, text := b.get(url)
			for _, part := range parts {
				if status != 200 || !strings.Contains(text, part) {
					t.Errorf("%s: %d, no %s in %s", url, status, part, text)
				}
			}
		}
		for _, url := range []string{"/v1/loads?dp_rank=7", "/v1/loads?include=x", "/v1/loads?format=xml"} {
			if status, text := b.get(b.sglang + url); status != 400 {
				t.Errorf("%s: %d %s", url, status, text)
			}
		}
		if status, text := b.get(b.sglang + "/v1/loads?dp_rank=1"); strings.Contains(text, `"dp_rank":0`) {
			t.Errorf("%d %s", status, text)
		}
		// Tokens and back.
		for _, c := range []struct{ url, body, want string }{
			{b.vllm + "/tokenize", `{"prompt":"abc"}`, `{"count":3,"max_model_len":131072,"tokens":[97,98,99],"token_strs":null}`},
			{b.vllm + "/detokenize", `{"tokens":[97,98,99,200]}`, "{\"prompt\":\"abc\ufffd\"}"},
			{b.sglang + "/v1/tokenize", `{"prompt":"abc"}`, `"tokens":[97,98,99]`},
			{b.sglang + "/v1/tokenize", `{"prompt":["abc","x"]}`, `"tokens":[[97,98,99],[120]]`},
			{b.sglang + "/v1/tokenize", `{"messages":[{"role":"user","content":"x"}]}`, `"count":7`},
			{b.sglang + "/v1/detokenize", `{"tokens":[97,98]}`, `{"text":"ab"}`},
			{b.sglang + "/v1/detokenize", `{"tokens":[[97],[98]]}`, `{"text":["a","b"]}`},
		} {
			resp, err := b.client.Post(c.url, "application/json", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 200 || !strings.Contains(string(text), c.want) {
				t.Errorf("%s %s: %s", c.url, c.body, text)
			}
		}
		// The cache is emptied, and the prompt is computed again.
		if status, text := b.get(b.sglang + "/flush_cache"); status != 200 || text == "" {
			t.Errorf("flush: %d %s", status, text)
		}
		a := b.generate(`{"text":"` + strings.Repeat("x", 100) + `","sampling_params":{"max_new_tokens":1},"routed_dp_rank":1}`)
		if *a.last().Meta.CachedTokens != 0 {
			t.Errorf("%s", a.raw)
		}
	})
}

// An engine with requests refuses to empty its cache, and counts them.
func TestEngineUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{VLLM: flags.VLLM{LoadTracking: true}})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.post(ctx, b.vllm+chat, `{`+hello+`,"ignore_eos":true,"stream":true}`)
		}()
		b.settle("tokens", func(s engine.State) bool { return s.GeneratedTokens > 5 })
		for url, want := range map[string]string{
			b.vllm + "/load":          `{"server_load":1}`,
			b.vllm + "/metrics":       `vllm:num_requests_running{engine="0",model_name="weir-sim"} 1`,
			b.sglang + "/v1/loads":    `"num_running_reqs":1`,
			b.sglang + "/flush_cache": "not flushed",
		} {
			if status, text := b.get(url); !strings.Contains(text, want) || (status == 400) != strings.HasSuffix(url, "flush_cache") {
				t.Errorf("%s: %d %s", url, status, text)
			}
		}
		if status, _ := b.get(b.sglang + "/metrics"); status != http.StatusNotFound {
			t.Errorf("/metrics without --enable-metrics: %d", status)
		}
		cancel()
		<-ended
		b.settle("rest", func(s engine.State) bool { return s.Running == 0 })
	})
}

// On vLLM the lowest priority comes first, and a header names the DP rank.
func TestVLLMPlacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{MaxRunning: 1, DPSize: 2, PriorityScheduling: true, PreemptionThreshold: new(1000)}})
		var order []string
		var mu sync.Mutex
		var all sync.WaitGroup
		for i, priority := range []string{"0", "5", "-5"} {
			all.Go(func() {
				body := fmt.Sprintf(`{%s,"max_tokens":100,"ignore_eos":true,"priority":%s}`, hello, priority)
				if a, err := b.post(context.Background(), b.vllm+chat, body, "X-Data-Parallel-Rank", "1"); err != nil || a.status != 200 {
					t.Errorf("priority %s: %+v, %v", priority, a, err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, priority)
			})
			b.settle("a request of rank 1", func(engine.State) bool {
				ranks := b.e.run.Ranks()
				return ranks[0].Running+ranks[0].Waiting == 0 && ranks[1].Running == 1 && ranks[1].Waiting == i
			})
		}
		all.Wait()
		if want := []string{"0", "-5", "5"}; !slices.Equal(order, want) {
			t.Errorf("they ended in the order %v, want %v", order, want)
		}
		if a, err := b.post(context.Background(), b.vllm+chat, `{`+hello+`}`, "X-Data-Parallel-Rank", "x"); err != nil || a.status != 400 {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// vLLM, and SGLang on /generate, send the head of a stream before they have
// anything to say; the OpenAI endpoints of SGLang wait for the first event.
func TestHeadOfAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		for url, early := range map[string]bool{b.vllm + chat: true, b.sglang + "/generate": true, b.sglang + chat: false, b.openai + chat: false} {
			b.faults("stall")
			before := b.e.State()
			ctx, cancel := context.WithCancel(context.Background())
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"text":"a","stream":true,`+hello+`}`))
			req.Header.Set("Content-Type", "application/json")
			head := make(chan error, 1)
			go func() {
				resp, err := b.client.Do(req)
				head <- err
				if err == nil {
					<-ctx.Done()
					resp.Body.Close()
				}
			}()
			b.settle("a request that runs", func(s engine.State) bool { return s.Received == before.Received+1 && s.Running == 1 })
			if early {
				if err := <-head; err != nil {
					t.Errorf("%s: %v", url, err)
				}
				cancel()
			} else {
				// It has had its prompt computed, and nothing has come.
				b.settle("a stall", func(s engine.State) bool { return s.Steps > before.Steps })
				cancel()
				if err := <-head; err == nil {
					t.Errorf("%s: the head came before anything else", url)
				}
			}
			b.settle("rest", func(s engine.State) bool { return s.Running == 0 })
		}
		b.faults()
	})
}
