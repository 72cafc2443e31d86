package simserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/flags"
)

// generated is an object of /generate.
type generated struct {
	Text           *string        `json:"text"`
	OutputIDs      []uint32       `json:"output_ids"`
	PromptTokenIDs []uint32       `json:"prompt_token_ids"`
	Index          *int           `json:"index"`
	Error          jsontext.Value `json:"error"`
	Meta           struct {
		ID               string         `json:"id"`
		FinishReason     *sglangFinish  `json:"finish_reason"`
		PromptTokens     *int           `json:"prompt_tokens"`
		CompletionTokens int            `json:"completion_tokens"`
		CachedTokens     *int           `json:"cached_tokens"`
		WeightVersion    string         `json:"weight_version"`
		Retractions      int            `json:"num_retractions"`
		E2E              *float64       `json:"e2e_latency"`
		Sent             *float64       `json:"response_sent_to_client_ts"`
		QueueTime        *float64       `json:"queue_time"`
		ForwardEntry     *float64       `json:"forward_entry_time"`
		PrefillFinished  *float64       `json:"prefill_finished_time"`
		Received         *float64       `json:"request_received_ts"`
		Dispatched       *float64       `json:"api_server_dispatch_finish_ts"`
		Finished         *float64       `json:"request_finished_ts"`
		Throughput       *float64       `json:"decode_throughput"`
		InputLogprobs    [][]any        `json:"input_token_logprobs"`
		OutputLogprobs   [][]any        `json:"output_token_logprobs"`
		LogprobsLength   int            `json:"output_token_logprobs_length"`
		InputTop         [][][]any      `json:"input_top_logprobs"`
		OutputTop        [][][]any      `json:"output_top_logprobs"`
		OutputWanted     [][][]any      `json:"output_token_ids_logprobs"`
		Rest             jsontext.Value `json:",embed"`
	} `json:"meta_info"`
}

type sglangFinish struct {
	Type       string `json:"type"`
	Matched    any    `json:"matched"`
	Length     int    `json:"length"`
	Message    string `json:"message"`
	StatusCode *int   `json:"status_code"`
}

// generation is an answer of /generate: its objects in order.
type generatedAnswer struct {
	status int
	list   bool // it was a JSON array
	done   bool // [DONE] came
	raw    string
	all    []generated
}

func (a generatedAnswer) last() generated { return a.all[len(a.all)-1] }

// generate posts to /generate and reads the answer to its end.
func (b *bench) generate(body string, o ...string) generatedAnswer {
	b.t.Helper()
	method := http.MethodPost
	if len(o) > 0 {
		method = o[0]
	}
	req, _ := http.NewRequest(method, b.sglang+"/generate", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	resp, err := b.client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.readGenerated(resp)
}

func (b *bench) readGenerated(resp *http.Response) generatedAnswer {
	b.t.Helper()
	defer resp.Body.Close()
	a := generatedAnswer{status: resp.StatusCode}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			b.t.Fatal(err)
		}
		a.raw = string(body)
		if a.list = strings.HasPrefix(a.raw, "["); a.list {
			err = json.Unmarshal(body, &a.all)
		} else {
			a.all = make([]generated, 1)
			err = json.Unmarshal(body, &a.all[0])
		}
		if err != nil {
			b.t.Fatalf("%v: %s", err, body)
		}
		return a
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		a.raw += lines.Text() + "\n"
		switch data, ok := strings.CutPrefix(lines.Text(), "data: "); {
		case !ok && lines.Text() != "":
			b.t.Fatalf("line %q is no event", lines.Text())
		case data == "[DONE]":
			a.done = true
		case ok:
			var g generated
			if err := json.Unmarshal([]byte(data), &g); err != nil {
				b.t.Fatalf("%v: %s", err, data)
			}
			a.all = append(a.all, g)
		}
	}
	if err := lines.Err(); err != nil {
		b.t.Fatal(err)
	}
	return a
}

func sglangBench(t *testing.T, s flags.SGLang, o sim.Options) *bench {
	return start(t, Options{SGLang: s, Sim: o})
}

// The answer is the same however it is asked for: as text or ids, whole or streamed, cumulatively
// or not; and counts and ids agree at every event.
func TestGenerate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cumulative, incremental := sglangBench(t, flags.SGLang{}, sim.Options{}), sglangBench(t, flags.SGLang{Incremental: true}, sim.Options{})
		const params = `"sampling_params":{"max_new_tokens":30,"ignore_eos":true,"temperature":0}`
		whole := cumulative.generate(`{"text":"abc",` + params + `}`)
		if whole.status != 200 || whole.list || *whole.last().Meta.PromptTokens != 3 || whole.last().Meta.CompletionTokens != 30 || len(whole.last().OutputIDs) != 30 {
			t.Fatalf("%s", whole.raw)
		}
		if r := whole.last().Meta.FinishReason; r.Type != "length" || r.Length != 30 {
			t.Errorf("finish_reason %+v", r)
		}
		if n, err := cumulative.verify(*whole.last().Text); n != 30 || err != nil {
			t.Errorf("%d words, %v", n, err)
		}
		if ids := cumulative.generate(`{"input_ids":[97,98,99],`+params+`,"return_prompt_token_ids":true}`, http.MethodPut); *ids.last().Text != *whole.last().Text || !slices.Equal(ids.last().PromptTokenIDs, []uint32{97, 98, 99}) {
			t.Errorf("as ids: %s", ids.raw)
		}
		for name, b := range map[string]*bench{"cumulative": cumulative, "incremental": incremental} {
			a := b.generate(`{"text":"abc","stream":true,"rid":"mine",` + params + `}`)
			if !a.done || len(a.all) < 2 {
				t.Fatalf("%s: %s", name, a.raw)
			}
			var text string
			var ids []uint32
			for i, g := range a.all {
				if name == "cumulative" {
					text, ids = *g.Text, g.OutputIDs
				} else {
					text, ids = text+*g.Text, append(ids, g.OutputIDs...)
				}
				if g.Meta.ID != "mine" || g.Meta.CompletionTokens != len(ids) || *g.Meta.PromptTokens != 3 || g.Meta.CachedTokens == nil || g.Meta.WeightVersion != "default" || g.Index != nil {
					t.Errorf("%s, event %d: %+v, %d ids so far", name, i, g, len(ids))
				}
				if last := i == len(a.all)-1; (g.Meta.FinishReason != nil) != last || (g.Meta.E2E != nil) != last || (g.Meta.Sent != nil) != (i == 0) {
					t.Errorf("%s, event %d of %d: %+v", name, i, len(a.all), g.Meta)
				}
				if g.Meta.QueueTime != nil || g.Meta.Received != nil {
					t.Errorf("%s: stamps without --enable-metrics", name)
				}
			}
			if text != *whole.last().Text || !slices.Equal(ids, whole.last().OutputIDs) {
				t.Errorf("%s: %q %v", name, text, ids)
			}
		}
	})
}

// max_new_tokens is 128 where nobody says.
func TestGenerateDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sglangBench(t, flags.SGLang{}, sim.Options{})
		a := b.generate(`{"text":"abc","sampling_params":{"ignore_eos":true}}`)
		if a.last().Meta.CompletionTokens != 128 || a.last().Meta.FinishReason.Length != 128 {
			t.Errorf("%+v", a.last().Meta)
		}
		if len(a.last().Meta.ID) != 32 {
			t.Errorf("rid %q", a.last().Meta.ID)
		}
		none := b.generate(`{"text":"abc","sampling_params":{"max_new_tokens":0}}`)
		if m := none.last().Meta; m.CompletionTokens != 0 || len(none.last().OutputIDs) != 0 || m.FinishReason.Type != "length" {
			t.Errorf("%s", none.raw)
		}
	})
}

// A stop id and a stop string are cut from the text, unless no_stop_trim is set, and the
// ids of both are sent.
func TestGenerateStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, incremental := range []bool{false, true} {
			b := sglangBench(t, flags.SGLang{Incremental: incremental}, sim.Options{})
			const params = `"max_new_tokens":30`
			whole := b.generate(`{"text":"abc","sampling_params":{` + params + `}}`).last()
			at := slices.IndexFunc(whole.OutputIDs, func(id uint32) bool { return slices.Index(whole.OutputIDs, id) >= 5 })
			id := whole.OutputIDs[at]
			for _, stream := range []bool{false, true} {
				for _, keep := range []bool{false, true} {
					collect := func(more string) (text string, ids []uint32, last generated) {
						a := b.generate(fmt.Sprintf(`{"text":"abc","stream":%v,"sampling_params":{%s,"no_stop_trim":%v,%s}}`, stream, params, keep, more))
						for _, g := range a.all {
							if incremental {
								text, ids = text+*g.Text, append(ids, g.OutputIDs...)
							} else {
								text, ids = *g.Text, g.OutputIDs
							}
						}
						return text, ids, a.last()
					}
					shown := at
					if keep {
						shown++
					}
					text, ids, last := collect(fmt.Sprintf(`"stop_token_ids":[%d]`, id))
					if m := last.Meta; m.CompletionTokens != at+1 || m.FinishReason.Type != "stop" || m.FinishReason.Matched != float64(id) {
						t.Errorf("stop id, stream %v: %+v, want %d tokens and %d", stream, m, at+1, id)
					}
					if !slices.Equal(ids, whole.OutputIDs[:at+1]) || text != (*whole.Text)[:4*shown] {
						t.Errorf("stop id, stream %v, keep %v: %v %q", stream, keep, ids, text)
					}

					// It ends in the tenth word.
					stop := (*whole.Text)[4*9-2 : 4*9+2]
					end := strings.Index(*whole.Text, stop)
					n := (end+len(stop)-1)/4 + 1
					if keep {
						end += len(stop)
					}
					text, ids, last = collect(fmt.Sprintf(`"stop":[%q]`, stop))
					if m := last.Meta; m.CompletionTokens != n || m.FinishReason.Matched != stop || text != (*whole.Text)[:end] || !slices.Equal(ids, whole.OutputIDs[:n]) {
						t.Errorf("stop string, stream %v, keep %v: %q %v %+v", stream, keep, text, ids, m)
					}
				}
			}
			// The model's own end id is one too.
			end := b.generate(`{"text":"abc","sampling_params":{"max_new_tokens":10000}}`).last()
			if m := end.Meta; m.FinishReason.Type != "stop" || m.FinishReason.Matched != 257.0 && m.FinishReason.Matched != 258.0 || len(end.OutputIDs) != m.CompletionTokens {
				t.Errorf("end id: %+v, %d ids", m, len(end.OutputIDs))
			}
		}
	})
}

// Batches have an index in streams and are lists otherwise; rids are the
// caller's, its beginning, or made up.
func TestGenerateBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sglangBench(t, flags.SGLang{Incremental: true}, sim.Options{})
		const params = `{"max_new_tokens":8,"ignore_eos":true}`
		single := map[string]string{}
		for _, text := range []string{"abc", "xyz"} {
			single[text] = *b.generate(`{"text":"` + text + `","sampling_params":` + params + `}`).last().Text
		}
		for body, rids := range map[string][]string{
			`"text":["abc","xyz"],"rid":["a","b"],"sampling_params":` + params:                                                               {"a", "b"},
			`"text":["abc","xyz"],"rid":"c","sampling_params":[` + params + `,` + params + `]`:                                               {"c_0", "c_1"},
			`"input_ids":[[97,98,99],[120,121,122]],"rid":["d","e"],"return_logprob":[true,false],"sampling_params":` + params:               {"d", "e"},
			`"input_ids":[[97,98,99],[120,121,122]],"rid":["d","e"],"logprob_start_len":[-1,0],"lora_path":null,"sampling_params":` + params: {"d", "e"},
		} {
			whole := b.generate(`{` + body + `}`)
			if !whole.list || len(whole.all) != 2 {
				t.Fatalf("%s: %s", body, whole.raw)
			}
			stream := b.generate(`{"stream":true,` + body + `}`)
			texts := make([]string, 2)
			for _, g := range stream.all {
				if g.Index == nil || g.Meta.ID != rids[*g.Index] {
					t.Fatalf("%s: %s", body, stream.raw)
				}
				texts[*g.Index] += *g.Text
			}
			for i, g := range whole.all {
				want := single[[]string{"abc", "xyz"}[i]]
				if *g.Text != want || texts[i] != want || g.Meta.ID != rids[i] || g.Index != nil {
					t.Errorf("%s, item %d: %q and %q, want %q", body, i, *g.Text, texts[i], want)
				}
			}
		}
		// n > 1: a list, each with an id of its own, prompt by prompt.
		n := b.generate(`{"text":"abc","rid":"mine","sampling_params":{"n":2,"max_new_tokens":8,"ignore_eos":true}}`)
		if !n.list || len(n.all) != 2 || *n.all[0].Text != single["abc"] || *n.all[1].Text == single["abc"] || n.all[0].Meta.ID == "mine" || n.all[0].Meta.ID == n.all[1].Meta.ID {
			t.Errorf("n: %s", n.raw)
		}
		one := b.generate(`{"text":["abc"],"sampling_params":` + params + `}`)
		if !one.list {
			t.Errorf("a list of one: %s", one.raw)
		}
	})
}

func TestGenerateErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sglangBench(t, flags.SGLang{}, sim.Options{ContextLength: 200})
		for body, part := range map[string]string{
			`{}`:                           "text",
			`{"text":"a","input_ids":[1]}`: "either",
			`{"text":7}`:                   "text",
			`{"text":["a",7]}`:             "text",
			`{"text":[]}`:                  "text",
			`{"input_ids":[]}`:             "empty",
			`{"input_ids":["a"]}`:          "input_ids",
			`{"text":"a","rid":["b","c"]}`: "rid",
			`{"text":"a","rid":7}`:         "rid",
			`{"text":"a","sampling_params":{"top_p":0}}`:              "top_p",
			`{"text":"a","sampling_params":{"top_p":1.5}}`:            "top_p",
			`{"text":"a","sampling_params":{"temperature":-1}}`:       "temperature",
			`{"text":"a","sampling_params":{"min_p":2}}`:              "min_p",
			`{"text":"a","sampling_params":{"top_k":0}}`:              "top_k",
			`{"text":"a","sampling_params":{"frequency_penalty":3}}`:  "frequency_penalty",
			`{"text":"a","sampling_params":{"presence_penalty":-3}}`:  "presence_penalty",
			`{"text":"a","sampling_params":{"repetition_penalty":0}}`: "repetition_penalty",
			`{"text":"a","sampling_params":{"max_new_tokens":-1}}`:    "max_new_tokens",
			`{"text":"a","sampling_params":{"min_new_tokens":200}}`:   "min_new_tokens",
			`{"text":"a","sampling_params":{"n":0}}`:                  "n is 0",
			`{"text":"a","sampling_params":{"max_tokens":5}}`:         "max_tokens",
			`{"text":"a","sampling_params":{"stop":[""]}}`:            "stop",
			`{"text":"a","sampling_params":{"stop_regex":"x"}}`:       "stop_regex",
			`{"text":"a","sampling_params":{"regex":"x","ebnf":"y"}}`: "exclude",
			`{"text":"a","sampling_params":{"logit_bias":{"x":1}}}`:   "logit_bias",
			`{"text":"a","sampling_params":{"stream_interval":0}}`:    "stream_interval",
			`{"text":["a","b"],"sampling_params":[{}]}`:               "sampling_params",
			`{"text":["a","b"],"sampling_params":[{"n":1},{"n":2}]}`:  "same",
			`{"text":"a","input_embeds":[[1.0]]}`:                     "input_embeds",
			`{"text":"a","image_data":"x"}`:                           "image_data",
			`{"text":"a","top_logprobs_num":99}`:                      "top_logprobs_num",
			`{"text":"a","logprob_start_len":-2}`:                     "logprob_start_len",
			`{"text":"a","token_ids_logprob":"x"}`:                    "token_ids_logprob",
			`{"text":"a","priority":3}`:                               "priority",
			`{"text":"a","lora_path":"none"}`:                         "none",
			`{"text":"a","routed_dp_rank":3}`:                         "rank",
			`{"text":"a","sampling_params":{"max_new_tokens":200}}`:   "Requested token count exceeds the model's maximum context length",
			`{"text":"` + strings.Repeat("x", 300) + `"}`:             "The input (300 tokens) is longer than the model's context length (200 tokens).",
		} {
			whole := b.generate(body)
			var message struct{ Error struct{ Message string } }
			if err := json.Unmarshal([]byte(whole.raw), &message, json.MatchCaseInsensitiveNames(true)); err != nil || whole.status != 400 || !strings.Contains(message.Error.Message, part) {
				t.Errorf("%s: %d %s", body, whole.status, whole.raw)
			}
			// A stream has begun whatever is wrong.
			stream := b.generate(`{"stream":true,` + body[1:])
			if body == "{}" {
				stream = b.generate(`{"stream":true}`)
			}
			var e struct {
				Message, Type string
				Code          int
				Retryable     *bool
			}
			if len(stream.all) != 1 || json.Unmarshal(stream.all[0].Error, &e, json.MatchCaseInsensitiveNames(true)) != nil ||
				stream.status != 200 || !stream.done || e.Code != 400 || e.Type != "invalid_request_error" || e.Retryable == nil || !strings.Contains(e.Message, part) {
				t.Errorf("%s, stream: %d %s", body, stream.status, stream.raw)
			}
		}
		// A body that cannot be read has no stream to say so in.
		for _, body := range []string{`{"text":`, `[]`, `{"stream":"yes"}`} {
			if a := b.generate(body); a.status != 400 || !strings.Contains(a.raw, `"object":"error"`) {
				t.Errorf("%s: %d %s", body, a.status, a.raw)
			}
		}
		resp, err := b.client.Post(b.sglang+"/generate", "text/plain", strings.NewReader(`{"text":"a"}`))
		if err != nil {
			t.Fatal(err)
		}
		if a := b.readGenerated(resp); a.status != 400 || !strings.Contains(a.raw, "application/json") {
			t.Errorf("not JSON: %d %s", a.status, a.raw)
		}
		if s := b.e.State(); s.Received != s.Rejected {
			t.Errorf("state %+v", s)
		}
	})
}

// A full queue is a 503, and, once a stream was asked for, a 200 whose first
// event says so.
func TestGenerateOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sglangBench(t, flags.SGLang{}, sim.Options{MaxRunning: 1, MaxQueued: 1})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan struct{}, 2)
		for i := range 2 {
			go func() {
				defer func() { ended <- struct{}{} }()
				b.post(ctx, b.sglang+"/generate", `{"text":"a","stream":true,"sampling_params":{"max_new_tokens":100000,"ignore_eos":true}}`)
			}()
			b.settle("a request", func(s engine.State) bool { return s.Running == 1 && s.Waiting == i })
		}
		whole := b.generate(`{"text":"a"}`)
		if whole.status != 503 || whole.raw != `{"object":"error","message":"The request queue is full.","type":"503","param":null,"code":503}` {
			t.Errorf("%d %s", whole.status, whole.raw)
		}
		stream := b.generate(`{"text":"a","rid":"r","stream":true}`)
		if len(stream.all) != 1 || stream.status != 200 || !stream.done {
			t.Fatalf("%d %s", stream.status, stream.raw)
		}
		g := stream.last()
		if r := g.Meta.FinishReason; r.Type != "abort" || *r.StatusCode != 503 || r.Message != "The request queue is full." || g.Meta.PromptTokens != nil || g.Meta.CachedTokens != nil || len(g.OutputIDs) != 0 || *g.Text != "" || g.Meta.ID != "r" {
			t.Errorf("%s", stream.raw)
		}
		// On the OpenAI endpoints it is an error event.
		chatted, err := b.post(ctx, b.sglang+chat, `{"messages":[{"role":"user","content":"x"}],"stream":true}`)
		if err != nil || chatted.status != 200 || !chatted.terminated || chatted.errorMessage != "The request queue is full." {
			t.Errorf("%+v, %v", chatted, err)
		}
		resp, err := b.client.Post(b.vllm+chat, "application/json", strings.NewReader(`{"messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
			t.Errorf("as vLLM: %s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
		}
		refused, err := b.post(ctx, b.sglang+chat, `{"messages":[{"role":"user","content":"x"}]}`)
		if err != nil || refused.status != 503 {
			t.Errorf("%+v, %v", refused, err)
		}
		cancel()
		<-ended
		<-ended
	})
}

// Aborting goes by the beginning of ids, so that one takes others along.
func TestAbortRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sglangBench(t, flags.SGLang{Incremental: true}, sim.Options{})
		answers := map[string]chan generatedAnswer{}
		begin := func(rid string, stream bool) {
			answer := make(chan generatedAnswer, 1)
			answers[rid] = answer
			go func() {
				answer <- b.generate(fmt.Sprintf(`{"text":"a","rid":%q,"stream":%v,"sampling_params":{"max_new_tokens":100000,"ignore_eos":true}}`, rid, stream))
			}()
		}
		abort := func(body string) {
			t.Helper()
			resp, err := b.client.Post(b.sglang+"/abort_request", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || len(text) != 0 {
				t.Errorf("abort: %d %q", resp.StatusCode, text)
			}
		}
		begin("conv-1", true)
		begin("conv-10", false)
		begin("conv-2", true)
		b.settle("tokens", func(s engine.State) bool { return s.Running == 3 && s.GeneratedTokens > 30 })
		// The same id again, while the first is under way.
		if a := b.generate(`{"text":"a","rid":"conv-2"}`); a.status != 400 || !strings.Contains(a.raw, "Duplicate request ID detected") {
			t.Errorf("duplicate: %s", a.raw)
		}
		if a := b.generate(`{"text":["a","b"],"rid":["x","conv-2"]}`); a.status != 400 {
			t.Errorf("duplicate in a batch: %s", a.raw)
		}
		if a := b.generate(`{"text":"a","rid":"x","sampling_params":{"max_new_tokens":1}}`); a.status != 200 {
			t.Errorf("the other id of that batch is still taken: %s", a.raw)
		}
		abort(`{"rid":""}`)
		abort(`{"rid":"other"}`)
		if s := b.e.State(); s.Running != 3 {
			t.Errorf("state %+v", s)
		}
		abort(`{"rid":"conv-1"}`)
		for _, rid := range []string{"conv-1", "conv-10"} {
			a := <-answers[rid]
			g := a.last()
			if r := g.Meta.FinishReason; a.status != 200 || r.Type != "abort" || r.StatusCode != nil || *g.Meta.PromptTokens != 1 {
				t.Errorf("%s: %d %.300s", rid, a.status, a.raw)
			}
			n := 0
			for _, g := range a.all {
				n += len(g.OutputIDs)
			}
			if n != g.Meta.CompletionTokens || n == 0 {
				t.Errorf("%s: %d ids, completion_tokens %d", rid, n, g.Meta.CompletionTokens)
			}
		}
		b.settle("conv-2 alone", func(s engine.State) bool { return s.Running == 1 && s.Aborted == 2 && s.Finished == 1 })
		abort(`{"abort_all":true}`)
		<-answers["conv-2"]
		// Its id is free again.
		if a := b.generate(`{"text":"a","rid":"conv-2","sampling_params":{"max_new_tokens":2}}`); a.status != 200 {
			t.Errorf("again: %s", a.raw)
		}
	})
}

// With --enable-metrics each event tells what is known of the stages, and the
// last one the server's own times. All are on one clock and in order.
func TestGenerateStamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sglangBench(t, flags.SGLang{Metrics: true, Incremental: true}, sim.Options{})
		began := time.Now()
		before := float64(began.UnixNano()) / 1e9
		a := b.generate(`{"text":"abc","stream":true,"sampling_params":{"max_new_tokens":20,"ignore_eos":true}}`)
		took := time.Since(began)
		after := float64(time.Now().UnixNano()) / 1e9
		for i, g := range a.all {
			m := g.Meta
			if m.QueueTime == nil || m.ForwardEntry == nil || m.PrefillFinished == nil || *m.QueueTime < 0 {
				t.Fatalf("event %d: %s", i, a.raw)
			}
			last := i == len(a.all)-1
			for _, p := range []*float64{m.Received, m.Dispatched, m.Finished, m.Throughput, m.E2E} {
				if (p != nil) != last {
					t.Errorf("event %d of %d: %+v", i, len(a.all), m)
				}
			}
			if (m.Sent != nil) != (i == 0 || last) {
				t.Errorf("event %d of %d tells when the first was sent: %v", i, len(a.all), m.Sent)
			}
		}
		m := a.last().Meta
		stamps := []float64{before, *m.Received, *m.ForwardEntry - *m.QueueTime, *m.ForwardEntry, *m.PrefillFinished, *m.Sent, *m.Finished, after}
		if !slices.IsSorted(stamps) {
			t.Errorf("stamps go back: %v", stamps)
		}
		if *m.Dispatched < *m.Received || *m.Dispatched > *m.Finished || *m.E2E <= 0 || *m.E2E != took.Seconds() || *m.Throughput <= 0 {
			t.Errorf("%+v", m)
		}
	})
}

// Log probabilities are the same on every way of asking, in lists as long as
// what they are of; in incremental streams they are slices of the whole.
func TestGenerateLogprobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cumulative, incremental := sglangBench(t, flags.SGLang{}, sim.Options{}), sglangBench(t, flags.SGLang{Incremental: true}, sim.Options{})
		const body = `"text":"abcd","return_logprob":true,"logprob_start_len":1,"top_logprobs_num":2,"token_ids_logprob":[300,301],"return_text_in_logprobs":true,"sampling_params":{"max_new_tokens":12,"ignore_eos":true}`
		whole := cumulative.generate(`{` + body + `}`).last()
		m := whole.Meta
		if len(m.OutputLogprobs) != 12 || m.LogprobsLength != 12 || len(m.OutputTop) != 12 || len(m.OutputTop[0]) != 2 || len(m.OutputWanted) != 12 || len(m.OutputWanted[0]) != 2 {
			t.Fatalf("%+v", m)
		}
		if len(m.InputLogprobs) != 3 || m.InputLogprobs[0][0] != nil || m.InputTop[0] != nil || m.InputLogprobs[1][1] != 99.0 || m.InputLogprobs[1][2] != "c" {
			t.Errorf("of the prompt: %v %v", m.InputLogprobs, m.InputTop)
		}
		for i, entry := range m.OutputLogprobs {
			lp := entry[0].(float64)
			if lp > 0 || lp < -2 || entry[1] != float64(whole.OutputIDs[i]) || entry[2] != (*whole.Text)[4*i:4*i+4] {
				t.Errorf("entry %d: %v", i, entry)
			}
			if diff := cmp.Diff(entry, m.OutputTop[i][0]); diff != "" || m.OutputTop[i][1][0].(float64) >= lp {
				t.Errorf("top %d: %v of %v", i, m.OutputTop[i], entry)
			}
		}
		all := incremental.generate(`{"stream":true,` + body + `}`)
		var logprobs [][]any
		var top [][][]any
		for _, g := range all.all {
			logprobs, top = append(logprobs, g.Meta.OutputLogprobs...), append(top, g.Meta.OutputTop...)
			if len(g.Meta.OutputLogprobs) != len(g.OutputIDs) || g.Meta.LogprobsLength != len(logprobs) {
				t.Errorf("%d ids and %d log probabilities, length %d", len(g.OutputIDs), len(g.Meta.OutputLogprobs), g.Meta.LogprobsLength)
			}
		}
		if diff := cmp.Diff(m.OutputLogprobs, logprobs) + cmp.Diff(m.OutputTop, top); diff != "" {
			t.Errorf("incremental: %s", diff)
		}
		last := cumulative.generate(`{"stream":true,` + body + `}`).last()
		if diff := cmp.Diff(m.OutputLogprobs, last.Meta.OutputLogprobs); diff != "" {
			t.Errorf("cumulative: %s", diff)
		}
		// An end id has one too.
		end := cumulative.generate(`{"text":"abc","return_logprob":true,"sampling_params":{"max_new_tokens":10000}}`).last()
		if len(end.Meta.OutputLogprobs) != end.Meta.CompletionTokens || len(end.OutputIDs) != end.Meta.CompletionTokens || end.Meta.OutputLogprobs[0][2] != nil || len(end.Meta.InputLogprobs) != 0 {
			t.Errorf("%d log probabilities, %d ids, %+v", len(end.Meta.OutputLogprobs), len(end.OutputIDs), end.Meta.FinishReason)
		}
	})
}

func TestSkipTokenizer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sglangBench(t, flags.SGLang{SkipTokenizer: true}, sim.Options{})
		for _, stream := range []bool{false, true} {
			a := b.generate(fmt.Sprintf(`{"input_ids":[97],"stream":%v,"sampling_params":{"max_new_tokens":5,"ignore_eos":true}}`, stream))
			if a.last().Text != nil || len(a.last().OutputIDs) != 5 {
				t.Errorf("%s", a.raw)
			}
		}
		for _, body := range []string{`{"text":"a"}`, `{"input_ids":[97],"sampling_params":{"stop":"x"}}`} {
			if a := b.generate(body); a.status != 400 || !strings.Contains(a.raw, "--skip-tokenizer-init") {
				t.Errorf("%s", a.raw)
			}
		}
	})
}

// A health check generates a token, and never answers before a second is over.
func TestSGLangHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sglangBench(t, flags.SGLang{}, sim.Options{})
		for _, path := range []string{"/health", "/health_generate"} {
			before, began := b.e.State(), time.Now()
			resp, err := b.client.Get(b.sglang + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if took := time.Since(began); resp.StatusCode != 200 || took != time.Second {
				t.Errorf("%s: %s after %v", path, resp.Status, took)
			}
			if s := b.e.State(); s.GeneratedTokens != before.GeneratedTokens+1 || s.Finished != before.Finished+1 {
				t.Errorf("%s: %+v", path, s)
			}
		}
	})
}

// Cumulative streams hold at each event all of what came before.
func TestCumulativeEventsGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sglangBench(t, flags.SGLang{}, sim.Options{})
		a := b.generate(`{"text":"abc","stream":true,"sampling_params":{"max_new_tokens":40,"ignore_eos":true}}`)
		for i := 1; i < len(a.all); i++ {
			before, now := a.all[i-1], a.all[i]
			if !strings.HasPrefix(*now.Text, *before.Text) || len(now.OutputIDs) <= len(before.OutputIDs) || !slices.Equal(now.OutputIDs[:len(before.OutputIDs)], before.OutputIDs) {
				t.Errorf("event %d: %+v after %+v", i, now, before)
			}
		}
	})
}

// A request that was sent back to the queue says so when it ends. One that is
// aborted there repeats its last id and all of its text; one that is aborted
// while it runs does not.
func TestGenerateRetracted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, incremental := range []bool{false, true} {
			b := sglangBench(t, flags.SGLang{Incremental: incremental}, sim.Options{
				KVTokens: 700, PageSize: 1, Cost: sim.Constant{Prefill: time.Millisecond, Decode: 2 * time.Millisecond},
			})
			begin := func() []chan generatedAnswer {
				var answers []chan generatedAnswer
				for _, rid := range []string{"a", "b"} {
					answer := make(chan generatedAnswer, 1)
					answers = append(answers, answer)
					go func() {
						answer <- b.generate(fmt.Sprintf(`{"text":%q,"rid":%q,"stream":true,"sampling_params":{"max_new_tokens":400,"ignore_eos":true}}`, rid, rid))
					}()
				}
				b.settle("a retraction", func(engine.State) bool {
					ranks := b.e.run.Ranks()
					return ranks[0].Retracted == 1 && ranks[0].Running == 1
				})
				return answers
			}
			collect := func(a generatedAnswer) (text string, ids []uint32) {
				for _, g := range a.all {
					if g.Meta.PromptTokens == nil {
						continue
					}
					if incremental {
						text, ids = text+*g.Text, append(ids, g.OutputIDs...)
					} else {
						text, ids = *g.Text, g.OutputIDs
					}
				}
				return text, ids
			}
			retracted := 0
			for _, answer := range begin() {
				a := <-answer
				m := a.last().Meta
				if _, ids := collect(a); len(ids) != 400 || m.CompletionTokens != 400 || m.FinishReason.Type != "length" {
					t.Errorf("incremental %v: %d ids, %+v", incremental, len(ids), m)
				}
				retracted += m.Retractions
			}
			if retracted == 0 {
				t.Error("none was retracted")
			}

			answers := begin()
			resp, err := b.client.Post(b.sglang+"/abort_request", "application/json", strings.NewReader(`{"abort_all":true}`))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			queued := 0
			for _, answer := range answers {
				a := <-answer
				text, ids := collect(a)
				last := a.last()
				if last.Meta.FinishReason.Type != "abort" || last.Meta.CompletionTokens != len(ids) || !a.done {
					t.Errorf("incremental %v: %d ids, %+v", incremental, len(ids), last.Meta)
				}
				if last.Meta.PromptTokens != nil {
					continue
				}
				queued++
				if !slices.Equal(last.OutputIDs, ids[len(ids)-1:]) || *last.Text != text || last.Meta.CachedTokens != nil {
					t.Errorf("incremental %v: the abort has %v of %v, and %q of %q", incremental, last.OutputIDs, ids, *last.Text, text)
				}
			}
			if queued != 1 {
				t.Errorf("%d were aborted in the queue, want 1", queued)
			}
		}
	})
}

// Without what a guide or min_new_tokens needs, the front end or the scheduler gives the
// request up; up to some releases it is the engine's end.
func TestWithoutTokenizerOrGrammar(t *testing.T) {
	const schema, minimum = `"json_schema":"{}"`, `"min_new_tokens":2`
	skip, none := flags.SGLang{SkipTokenizer: true}, flags.SGLang{Grammar: "none"}
	for _, c := range []struct {
		options         flags.SGLang
		version, params string
		dies            bool
		abort           bool // by the scheduler, in the stream
		says            string
	}{
		{skip, "0.5.23", schema, false, true, "--grammar-backend none"}, // so the real one says
		{none, "0.5.23", schema, false, true, "--grammar-backend none"},
		{none, "0.5.23", `"regex":"a+"`, false, true, "--grammar-backend none"},
		{none, "0.5.3.post3", schema, false, true, "--grammar-backend none"},
		{none, "0.5.3", schema, true, false, "grammar"},
		{skip, "0.4.10.post2", schema, true, false, "grammar"},
		{skip, "0.5.14", minimum, false, false, "--skip-tokenizer-init"},
		{skip, "0.5.13.post1", minimum, true, false, "tokenizer"},
		{skip, "0.5.13", `"stop":["x"]`, true, false, "tokenizer"},
		{none, "0.5.3", minimum, false, false, ""},
	} {
		for _, stream := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				name := fmt.Sprintf("%+v %s %s, stream %t", c.options, c.version, c.params, stream)
				o := c.options
				o.Version = c.version
				b := sglangBench(t, o, sim.Options{})
				body := fmt.Sprintf(`{"input_ids":[97],"stream":%t,"sampling_params":{"max_new_tokens":5,%s}}`, stream, c.params)
				if c.dies {
					resp, err := b.client.Post(b.sglang+"/generate", "application/json", strings.NewReader(body))
					if err == nil {
						_, err = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
					synctest.Wait()
					if died := b.e.Died(); err == nil || died == nil || !strings.Contains(died.Error(), c.says) {
						t.Errorf("%s: %v, died of %v", name, err, died)
					}
					return
				}
				a := b.generate(body)
				if b.e.Died() != nil || !strings.Contains(a.raw, c.says) || (a.status == 200) != (stream || c.says == "") {
					t.Errorf("%s: %d %s", name, a.status, a.raw)
				}
				if c.abort && stream {
					m := a.last().Meta
					if m.FinishReason.Type != "abort" || m.FinishReason.StatusCode == nil || *m.FinishReason.StatusCode != 400 || *m.PromptTokens != 1 || m.CompletionTokens != 1 {
						t.Errorf("%s: %s", name, a.raw)
					}
				}
			})
		}
	}
}

// A seed is heeded with --enable-deterministic-inference only, and with ignore_eos no
// stop id is.
func TestWhatSGLangPassesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, heeds := sglangBench(t, flags.SGLang{}, sim.Options{}), sglangBench(t, flags.SGLang{Deterministic: true}, sim.Options{})
		ask := func(b *bench, seed int) string {
			return *b.generate(fmt.Sprintf(`{"text":"abc","sampling_params":{"max_new_tokens":5,"ignore_eos":true,"sampling_seed":%d}}`, seed)).last().Text
		}
		if ask(plain, 1) != ask(plain, 2) || ask(heeds, 1) == ask(heeds, 2) {
			t.Errorf("seeds: %q, %q; heeded %q, %q", ask(plain, 1), ask(plain, 2), ask(heeds, 1), ask(heeds, 2))
		}
		whole := plain.generate(`{"text":"abc","sampling_params":{"max_new_tokens":5,"ignore_eos":true}}`).last().OutputIDs
		for eos, want := range map[bool]int{true: 5, false: 2} {
			a := plain.generate(fmt.Sprintf(`{"text":"abc","sampling_params":{"max_new_tokens":5,"min_new_tokens":0,"ignore_eos":%t,"stop_token_ids":[%d],"no_stop_trim":true}}`, eos, whole[1]))
			if n := len(a.last().OutputIDs); n != want {
				t.Errorf("ignore_eos %t: %d ids, want %d: %s", eos, n, want, a.raw)
			}
		}
	})
}
