package sglang

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// decode takes a body through both steps.
func decode(body string, carries infer.Carries) (*dialect.Request, error) {
	e := New(Options{})
	h, err := e.ParseHead([]byte(body))
	if err != nil {
		return nil, err
	}
	return e.Request(h, "weir", carries)
}

func pointer[T any](v T) *T { return &v }

func TestRequest(t *testing.T) {
	names := &dialect.FieldNames{Prompt: "input_ids", MaxTokens: "sampling_params.max_new_tokens", MinTokens: "sampling_params.min_new_tokens",
		StopIDs: "sampling_params.stop_token_ids", LogitBias: "sampling_params.logit_bias", Seed: "sampling_params.sampling_seed", Choices: "sampling_params.n", Logprobs: "top_logprobs_num", LogprobsFrom: "logprob_start_len"}
	text := *names
	text.Prompt = "text"
	textNames := &text
	for _, c := range []struct {
		body string
		want dialect.Request
	}{
		{`{"text":"Hi"}`, dialect.Request{Prompt: "Hi", MaxTokens: 128, Fields: textNames}},
		{`{"input_ids":[1,2,3],"sampling_params":null,"rid":null,"lora_path":null}`, dialect.Request{PromptIDs: []uint32{1, 2, 3}, MaxTokens: 128, Fields: names}},
		{`{"input_ids":[[1,2]],"rid":["a"],"sampling_params":[{"max_new_tokens":3}]}`, dialect.Request{PromptIDs: []uint32{1, 2}, MaxTokens: 3, Fields: names}},
		{
			`{"text":["a","b","c"],"return_logprob":[true],"top_logprobs_num":2,"logprob_start_len":-1,"sampling_params":{"n":2}}`,
			dialect.Request{Prompt: "a", MorePrompts: []dialect.Prompt{{Text: "b"}, {Text: "c"}}, N: 2, Logprobs: pointer(2), MaxTokens: 128, Fields: textNames},
		},
		{`{"text":"a","return_logprob":true,"logprob_start_len":[2]}`, dialect.Request{Prompt: "a", Logprobs: pointer(0), LogprobsFrom: pointer(2), MaxTokens: 128, Fields: textNames}},
		{`{"text":"a","logprob_start_len":2}`, dialect.Request{Prompt: "a", MaxTokens: 128, Fields: textNames}},
		{`{"input_ids":[[1],[2,3]]}`, dialect.Request{PromptIDs: []uint32{1}, MorePrompts: []dialect.Prompt{{IDs: []uint32{2, 3}}}, MaxTokens: 128, Fields: names}},
		{`{"text":["a"],"stream":true,"sampling_params":{"max_new_tokens":0}}`, dialect.Request{Prompt: "a", MaxTokens: 1, Stream: true, Fields: textNames}},
		{`{"text":["a","b"],"sampling_params":{"max_new_tokens":null,"min_new_tokens":200}}`, dialect.Request{Prompt: "a", MorePrompts: []dialect.Prompt{{Text: "b"}}, MinTokens: 200, Fields: textNames}},
		{
			`{"input_ids":[7],"model":"m","skip_tokenizer_init":true,"return_logprob":false,"top_logprobs_num":5,"sampling_params":{
			"max_new_tokens":16,"min_new_tokens":2,"temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1,"frequency_penalty":-1,
			"presence_penalty":1,"repetition_penalty":1.5,"logit_bias":{"9":-100,"3":1.5},"sampling_seed":-9007199254740993,
			"stop":["a","b"],"stop_token_ids":[4,5],"no_stop_trim":true,"ignore_eos":true,"skip_special_tokens":false,
			"spaces_between_special_tokens":true,"json_schema":"{\"type\":\"object\"}","regex":null}}`,
			dialect.Request{
				Model: "m", PromptIDs: []uint32{7}, MaxTokens: 16, MinTokens: 2, IgnoreEOS: true, Stop: []string{"a", "b"}, StopIDs: []uint32{4, 5},
				NoText: true, ShowSpecial: true, IncludeStop: true, Fields: names,
				Guide: &infer.Guide{Kind: infer.GuideJSONSchema, Text: `{"type":"object"}`},
				Sampling: infer.Sampling{
					Temperature: pointer(0.5), TopP: pointer(0.9), TopK: pointer(-1), Seed: pointer(int64(-9007199254740993)), MinP: pointer(0.1),
					PresencePenalty: pointer(1.0), FrequencyPenalty: pointer(-1.0), RepetitionPenalty: pointer(1.5),
					LogitBias: []infer.Bias{{ID: 3, Value: 1.5}, {ID: 9, Value: -100}},
				},
			},
		},
	} {
		got, err := decode(c.body, infer.CarriesAll)
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		c.want.Tokens, c.want.Repeats = true, true
		if diff := cmp.Diff(&c.want, got, cmpopts.IgnoreFields(dialect.Request{}, "Encoder"), cmpopts.IgnoreUnexported(dialect.Request{})); diff != "" {
			t.Errorf("%s:\n%s", c.body, diff)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		body, param, says string
		code              infer.Code
	}{
		{`{}`, "text", "text or input_ids is required", infer.CodeInvalid},
		{`{"text":"a","input_ids":[1]}`, "input_ids", "give one of them", infer.CodeInvalid},
		{`{"text":""}`, "text", "is empty", infer.CodeInvalid},
		{`{"input_ids":[]}`, "input_ids", "is empty", infer.CodeInvalid},
		{`{"input_ids":[[]]}`, "input_ids[0]", "is empty", infer.CodeInvalid},
		{`{"input_ids":[1,-2]}`, "input_ids[1]", "a token id", infer.CodeInvalid},
		{`{"input_ids":[1,[2]]}`, "input_ids[1]", "a token id", infer.CodeInvalid},
		{`{"input_ids":"1"}`, "input_ids", "array of token ids, found a string", infer.CodeInvalid},
		{`{"text":["a",""]}`, "text[1]", "is empty", infer.CodeInvalid},
		{`{"text":[]}`, "text", "is empty", infer.CodeInvalid},
		{`{"input_ids":[[1],2]}`, "input_ids[1]", "found a number", infer.CodeInvalid},
		{`{"text":["a","b"],"sampling_params":{"n":65}}`, "sampling_params.n", "130 answers", infer.CodeInvalid},
		{`{"text":"a","return_logprob":true,"logprob_start_len":0,"image_data":"https://h/a.png"}`, "logprob_start_len", "image_data", infer.CodeUnsupported},
		{`{"text":"a","return_logprob":true,"logprob_start_len":-2}`, "logprob_start_len", "between -1", infer.CodeInvalid},
		{`{"text":"a","return_logprob":true,"top_logprobs_num":21}`, "top_logprobs_num", "between 0 and 20", infer.CodeInvalid},
		{`{"text":"a","rid":""}`, "rid", "is empty", infer.CodeInvalid},
		{`{"text":"a","rid":"` + strings.Repeat("r", 257) + `"}`, "rid", "257 bytes", infer.CodeInvalid},
		{`{"text":"a","sampling_params":[{},{}]}`, "sampling_params", "2 items", infer.CodeUnsupported},
		{`{"text":"a","sampling_params":{"temperature":-1}}`, "sampling_params.temperature", "between 0", infer.CodeInvalid},
		{`{"text":"a","sampling_params":{"top_k":0}}`, "sampling_params.top_k", "at least 1", infer.CodeInvalid},
		{`{"text":"a","sampling_params":{"max_new_tokens":4,"min_new_tokens":5}}`, "sampling_params.min_new_tokens", "above the limit of 4", infer.CodeInvalid},
		{`{"text":"a","sampling_params":{"n":0}}`, "sampling_params.n", "between 1 and 128", infer.CodeInvalid},
		{`{"text":"a","sampling_params":{"max_tokens":5}}`, "sampling_params.max_tokens", "no field", infer.CodeUnsupported},
		{`{"text":"a","sampling_params":{"temprature":1}}`, "sampling_params.temprature", "did you mean sampling_params.temperature?", infer.CodeUnsupported},
		{`{"text":"a","temperature":1}`, "temperature", "send sampling_params.temperature", infer.CodeUnsupported},
		{`{"text":"a","sampling_params":{"rid":"x"}}`, "sampling_params.rid", "send rid beside it", infer.CodeUnsupported},
		{`{"text":"a","return_hidden_states":true}`, "return_hidden_states", "is not supported by engine kind \"weir\"", infer.CodeUnsupported},
		{`{"text":"a","sampling_params":{"regex":"a","ebnf":"b"}}`, "sampling_params.ebnf", "give one of them", infer.CodeInvalid},
		{`{"text":"a","sampling_params":{"top_p":1,"top_p":1}}`, "sampling_params.top_p", "given twice", infer.CodeInvalid},
		{`{"text":"a","text":"b"}`, "text", "given twice", infer.CodeInvalid},
		{`{"text":"a","stream":true,"stream":false}`, "stream", "given twice", infer.CodeInvalid},
		{`{"text":"\ud800"}`, "text", "surrogate", infer.CodeInvalid},
		{`{"text":"a"`, "", "line 1, column 12", infer.CodeInvalid},
	} {
		_, err := decode(c.body, infer.CarriesAll)
		var e *infer.Error
		if !errors.As(err, &e) || e.Code != c.code || e.Param != c.param || !strings.Contains(e.Message, c.says) {
			t.Errorf("%.80s: %v; want %s of %q with %q", c.body, err, c.code, c.param, c.says)
		}
	}
}

// Each field is treated as the table says.
func TestFieldTable(t *testing.T) {
	with := func(name, value string) string {
		body := map[string]json.RawMessage{"text": json.RawMessage(`"a"`)}
		if param, ok := strings.CutPrefix(name, samplingPath); ok {
			name, value = "sampling_params", fmt.Sprintf("{%q:%s}", param, value)
		}
		if name == "input_ids" {
			delete(body, "text")
		}
		body[name] = json.RawMessage(value)
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	good := map[string]string{
		"model": `"m"`, "stream": "true", "text": `"b"`, "input_ids": "[1]", "sampling_params": "{}", "rid": `"r"`,
		"sampling_params.stop": `["x"]`, "sampling_params.stop_token_ids": "[1]", "sampling_params.logit_bias": `{"1":2}`,
		"sampling_params.json_schema": `{"type":"object"}`, "sampling_params.regex": `"a"`, "sampling_params.ebnf": `"a"`,
		"sampling_params.structural_tag": `"{}"`, "sampling_params.repetition_penalty": "1.5",
		"image_data": `"data:image/png;base64,iVBORw0KGgo="`, "audio_data": `["http://a/b.wav"]`, "video_data": `[["https://a/b.mp4"]]`,
	}
	seen := map[string]bool{}
	for _, f := range Fields() {
		if seen[f.Name] {
			t.Errorf("%s is there twice", f.Name)
		}
		seen[f.Name] = true
		if _, err := decode(with(f.Name, "null"), 0); err != nil && f.Name != "input_ids" && f.Name != "text" && f.Name != "model" {
			t.Errorf("%s: null: %v", f.Name, err)
		}
		for _, d := range f.Defaults {
			if _, err := decode(with(f.Name, d), 0); err != nil {
				t.Errorf("%s: its default %s: %v", f.Name, d, err)
			}
		}
		value := `{"odd":[1]}`
		switch f.Treatment {
		case dialect.Carried:
			if f.Note == "" {
				t.Errorf("%s: nothing says what it may be", f.Name)
			}
			value = good[f.Name]
			if value == "" && strings.HasPrefix(f.Note, "a boolean") {
				value = "true"
			} else if value == "" {
				value = "1"
			}
			if _, err := decode(with(f.Name, value), infer.CarriesAll); err != nil {
				t.Errorf("%s: %s: %v", f.Name, value, err)
			}
			if _, err := decode(with(f.Name, `{"odd":[1]}`), infer.CarriesAll); err == nil && f.Name != "sampling_params.json_schema" {
				t.Errorf("%s: takes anything", f.Name)
			}
			if f.Needs == 0 {
				continue
			}
			fallthrough
		case dialect.Refused:
			var e *infer.Error
			if _, err := decode(with(f.Name, value), 0); !errors.As(err, &e) || e.Code != infer.CodeUnsupported || e.Param != f.Name {
				t.Errorf("%s: %s: %v", f.Name, value, err)
			}
		case dialect.Ignored:
			if _, err := decode(with(f.Name, value), 0); err != nil {
				t.Errorf("%s: %v", f.Name, err)
			}
		}
	}
}

// Any body is a request in the bounds that engines rely on, or an error that
// says what is wrong; and what it holds changes nothing that is not its own.
func FuzzRequest(f *testing.F) {
	f.Add(`{"text":"a","sampling_params":{"max_new_tokens":3,"stop":["x"]},"stream":true}`)
	f.Add(`{"input_ids":[[1,2,3]],"rid":["r"],"sampling_params":[{"logit_bias":{"1":2}}]}`)
	f.Add(`{"input_ids":[1.5e3],"sampling_params":{"json_schema":{"a":1}}}`)
	f.Fuzz(func(t *testing.T, body string) {
		before := body
		r, err := decode(body, infer.CarriesAll)
		if body != before {
			t.Fatal("the body was changed")
		}
		if err != nil {
			var e *infer.Error
			if !errors.As(err, &e) || e.Message == "" || (e.Code != infer.CodeInvalid && e.Code != infer.CodeUnsupported) {
				t.Fatalf("%q: %v", body, err)
			}
			if b := (&endpoint{}).AppendError(nil, e); !json.Valid(b) {
				t.Fatalf("%q: its error is no JSON: %s", body, b)
			}
			return
		}
		s := &r.Sampling
		switch {
		case (r.Prompt == "") == (len(r.PromptIDs) == 0):
			t.Fatalf("%q: prompt %q and ids %v", body, r.Prompt, r.PromptIDs)
		case r.MaxTokens < 1 || r.MaxTokens > math.MaxInt32 || r.MinTokens < 0:
			t.Fatalf("%q: limits %d, %d", body, r.MaxTokens, r.MinTokens)
		case s.Temperature != nil && !(*s.Temperature >= 0), s.TopP != nil && !(*s.TopP > 0 && *s.TopP <= 1), s.TopK != nil && *s.TopK < 1 && *s.TopK != -1:
			t.Fatalf("%q: %+v", body, s)
		}
		a := r.Encoder(dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{1}})
		b := a.AppendStart(nil, 0)
		b = a.AppendTokens(b, 0, []byte("x"), dialect.Tokens{IDs: []uint32{5}})
		b = a.AppendFinish(b, 0, dialect.Finish{Reason: infer.ReasonStop, Tokens: 1})
		b = a.AppendEnd(b, infer.Usage{PromptTokens: 1, CompletionTokens: 1, CachedTokens: -1})
		if !r.Stream && !json.Valid(b) {
			t.Fatalf("%q: its answer is no JSON: %s", body, b)
		}
	})
}

// An abort names one request, or is refused with an error for its caller.
func FuzzAbort(f *testing.F) {
	for _, s := range []string{`{"rid":"a"}`, `{"rid":"","abort_all":false}`, `{"abort_all":true}`, `{"rid":null}`, `{"rid":"a","rid":"b"}`, `[]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := ParseAbort(body)
		var refused *infer.Error
		if err == nil && a.All || err != nil && !errors.As(err, &refused) {
			t.Fatalf("%q: %+v, %v", body, a, err)
		}
	})
}
