package sglang

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/sglangserver"
	"weir/internal/infer"
)

func ptr[T any](v T) *T { return &v }

// serverOf is a server that carries so much and says nothing else.
func serverOf(carries infer.Carries) *server {
	return &server{carries: carries, mode: &sglangserver.Mode{}}
}

// Every field of a request is in what is sent, under the engine's name for it.
func TestAppendRequest(t *testing.T) {
	full := &infer.Request{
		ID: "0123", Model: "tuned \"x\"", Prompt: []uint32{1, 4294967295}, MaxTokens: 9, MinTokens: 2, IgnoreEOS: true, StopIDs: []uint32{7},
		Sampling: infer.Sampling{Temperature: ptr(0.5), TopP: ptr(1e-9), TopK: ptr(40), Seed: ptr(int64(-1 << 62)), MinP: ptr(0.1), PresencePenalty: ptr(-1.0),
			FrequencyPenalty: ptr(2.0), RepetitionPenalty: ptr(1.5), LogitBias: []infer.Bias{{ID: 3, Value: 1.5}, {ID: 7, Value: -100}}},
		Guide: &infer.Guide{Kind: infer.GuideJSONSchema, Text: `{"a":"\u00e9"}`},
	}
	for _, c := range []struct {
		req  *infer.Request
		want string
	}{
		{&infer.Request{ID: "0123", Prompt: []uint32{5}, MaxTokens: 1}, `{"rid":"0123","stream":true,"input_ids":[5],"sampling_params":{"max_new_tokens":1}}`},
		{full, `{"rid":"0123","lora_path":"tuned \"x\"","stream":true,"input_ids":[1,4294967295],"sampling_params":{"max_new_tokens":9,"min_new_tokens":2,
			"ignore_eos":true,"stop_token_ids":[7],"temperature":0.5,"top_p":1e-9,"top_k":40,"sampling_seed":-4611686018427387904,"min_p":0.1,
			"presence_penalty":-1,"frequency_penalty":2,"repetition_penalty":1.5,"logit_bias":{"3":1.5,"7":-100},"json_schema":"{\"a\":\"\\u00e9\"}"}}`},
		{&infer.Request{ID: "0123", Prompt: []uint32{5}, MaxTokens: 1, Priority: ptr(int64(-1 << 62))},
			`{"rid":"0123","priority":-4611686018427387904,"stream":true,"input_ids":[5],"sampling_params":{"max_new_tokens":1}}`},
		{&infer.Request{ID: "0123", Prompt: []uint32{5}, MaxTokens: 1, Sampling: infer.Sampling{TopK: ptr(0)}},
			`{"rid":"0123","stream":true,"input_ids":[5],"sampling_params":{"max_new_tokens":1,"top_k":-1}}`},
	} {
		srv := serverOf(infer.CarriesAll)
		srv.adapters = map[string]bool{c.req.Model: c.req.Model != ""}
		b, bad := srv.appendRequest(nil, c.req, -1)
		if bad != nil {
			t.Fatal(bad)
		}
		var got, want any
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if _, bad := serverOf(Carries).appendRequest(nil, &infer.Request{ID: "x", Prompt: []uint32{1}, MaxTokens: 1, Priority: new(int64)}, -1); bad == nil || bad.Code != infer.CodeUnsupported {
		t.Errorf("a priority for a server that heeds none: %v", bad)
	}
	for _, req := range []*infer.Request{{ID: "x", Prompt: []uint32{1}}, {ID: "x", Prompt: []uint32{1}, MaxTokens: 1, MinTokens: 2}} {
		if _, bad := serverOf(infer.CarriesAll).appendRequest(nil, req, -1); bad == nil || bad.Code != infer.CodeInvalid {
			t.Errorf("%+v: %v", req, bad)
		}
	}
}

// A choice is the regular expression that matches just its texts.
func TestAppendChoice(t *testing.T) {
	choices := []string{"a.b", "", "[x]", "é|"}
	var got struct{ Regex string }
	b := append([]byte(`{"x":1`), appendGuide(nil, &infer.Guide{Kind: infer.GuideChoice, Choices: choices})...)
	if err := json.Unmarshal(append(b, '}'), &got); err != nil {
		t.Fatal(err)
	}
	r := regexp.MustCompile("^" + got.Regex + "$")
	for _, text := range choices {
		if !r.MatchString(text) {
			t.Errorf("%s does not match %q", got.Regex, text)
		}
	}
	for _, text := range []string{"acb", "x", "a"} {
		if r.MatchString(text) {
			t.Errorf("%s matches %q", got.Regex, text)
		}
	}
}

func TestFields(t *testing.T) {
	enginetest.Fields(t, "../../../docs/engines.md", "sglang", func(req *infer.Request) ([]byte, *infer.Error) {
		srv := serverOf(infer.CarriesAll)
		srv.mode.Version = "0.5.23"
		return srv.appendRequest(nil, req, -1)
	})
}

// The additions of the model's folder: end ids if the server does not know all of them, and the
// defaults that the server's other API takes from there.
func TestAdditions(t *testing.T) {
	yes, no := true, false
	request := func(set func(r *infer.Request)) *infer.Request {
		r := &infer.Request{ID: "0", Prompt: []uint32{1, 2, 3}, MaxTokens: 9}
		if set != nil {
			set(r)
		}
		return r
	}
	minTokens := func(r *infer.Request) { r.MinTokens, r.StopIDs = 2, []uint32{8, 5} }
	for _, c := range []struct {
		name string
		mode sglangserver.Mode
		set  func(r *infer.Request)
		want string
	}{
		{"a server that knows all", sglangserver.Mode{Version: "0.5.23", SkipTokenizer: &no}, minTokens, `"max_new_tokens":9,"min_new_tokens":2,"stop_token_ids":[8,5]`},
		{"a release that holds back the tokenizer's own", sglangserver.Mode{Version: "0.5.18", SkipTokenizer: &no}, minTokens, `"max_new_tokens":9,"min_new_tokens":2,"stop_token_ids":[8,5,6]`},
		{"ids are collected", sglangserver.Mode{Version: "0.5.3", SkipTokenizer: &no}, func(r *infer.Request) { r.Portion = 8 }, `"max_new_tokens":9,"stream_interval":8`},
		{"by a release that refuses what it does not know", sglangserver.Mode{Version: "0.5.2", SkipTokenizer: &no}, func(r *infer.Request) { r.Portion = 8 }, `"max_new_tokens":9`},
		{"by a release that is not known", sglangserver.Mode{SkipTokenizer: &no}, func(r *infer.Request) { r.Portion = 8 }, `"max_new_tokens":9`},
		{"and of nothing to hold back", sglangserver.Mode{Version: "0.5.18", SkipTokenizer: &no}, nil, `"max_new_tokens":9`},
		{"without a tokenizer", sglangserver.Mode{Version: "0.5.23", SkipTokenizer: &yes}, nil, `"max_new_tokens":9,"stop_token_ids":[5,6]`},
		{"without a tokenizer, to go on", sglangserver.Mode{Version: "0.5.23", SkipTokenizer: &yes}, func(r *infer.Request) { r.IgnoreEOS = true }, `"max_new_tokens":9,"ignore_eos":true`},
		{"defaults of the model", sglangserver.Mode{Version: "0.5.23", SkipTokenizer: &no, Defaults: "model"}, func(r *infer.Request) { r.Sampling.TopP = ptr(0.25) },
			`"max_new_tokens":9,"temperature":0.5,"top_p":0.25,"top_k":20`},
		{"but what the operator prefers", sglangserver.Mode{Version: "0.5.23", SkipTokenizer: &no, Defaults: "model", Preferred: []byte(`{"temperature":0.1}`)}, nil,
			`"max_new_tokens":9,"top_p":0.75,"top_k":20`},
		{"defaults of the API", sglangserver.Mode{Version: "0.5.23", SkipTokenizer: &no, Defaults: "openai"}, nil, `"max_new_tokens":9`},
	} {
		e := &Engine{opts: Options{Additions: func(model string) engine.Additions {
			if model != "m" {
				t.Errorf("asked for model %q", model)
			}
			return engine.Additions{EndIDs: []uint32{5, 6}, Defaults: engine.Defaults{Temperature: ptr(0.5), TopP: ptr(0.75), TopK: ptr(20)}}
		}}}
		srv := serverOf(infer.CarriesAll)
		srv.mode = &c.mode
		e.add(srv, &engine.Facts{Models: []string{"m"}})
		b, bad := srv.appendRequest(nil, request(c.set), -1)
		if want := `{"rid":"0","stream":true,"input_ids":[1,2,3],"sampling_params":{` + c.want + `}}`; bad != nil || string(b) != want {
			t.Errorf("%s: %s, %v; want %s", c.name, b, bad, want)
		}
	}
	srv := serverOf(infer.CarriesAll)
	srv.mode.MaxInput = 3
	if _, bad := srv.appendRequest(nil, request(nil), -1); bad == nil || bad.Code != infer.CodeContext {
		t.Errorf("a prompt that the server would cut: %v", bad)
	}
}

// A guide behind reasoning is asked for by name, and refused where the server cannot.
func TestReasoningBeforeAGuide(t *testing.T) {
	no := false
	send := func(version, parser string, r infer.Reasoning) (string, *infer.Error) {
		srv := serverOf(infer.CarriesAll)
		srv.mode = &sglangserver.Mode{Version: version, SkipTokenizer: &no, ReasoningParser: parser}
		b, bad := srv.appendRequest(nil, &infer.Request{ID: "0123", Prompt: []uint32{5}, MaxTokens: 1, Guide: &infer.Guide{Kind: infer.GuideRegex, Text: "a", Reasoning: r}}, -1)
		return string(b), bad
	}
	const guided = `"stream":true,"input_ids":[5],"sampling_params":{"max_new_tokens":1,"regex":"a"}}`
	for r, want := range map[infer.Reasoning]string{infer.NoReasoning: `{"rid":"0123",` + guided, infer.OpenReasoning: `{"rid":"0123","require_reasoning":true,` + guided} {
		if got, bad := send("0.5.23", "qwen3", r); bad != nil || got != want {
			t.Errorf("%s, %v; want %s", got, bad, want)
		}
	}
	if got, bad := send("0.5.23", "", infer.OpenReasoning); bad == nil || !bad.Retryable || !strings.Contains(bad.Message, "--reasoning-parser") {
		t.Errorf("%s, %v", got, bad)
	}
}
