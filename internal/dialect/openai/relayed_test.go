package openai

import (
	"testing"

	"weir/internal/infer"
)

// Each need of a body that is relayed to an engine's own API, and the field that it comes from.
func TestAsks(t *testing.T) {
	for _, c := range []struct {
		e      Endpoint
		fields string
		want   infer.Carries
		path   string
	}{
		{Chat, `"seed":7`, infer.CarriesSeed, "seed"},
		{Chat, `"seed":null`, 0, ""},
		{Chat, `"seed":7,"temperature":0`, 0, ""},
		{Chat, `"seed":7,"temperature":0e3`, 0, ""},
		{Chat, `"seed":7,"temperature":null,"top_k":1`, 0, ""},
		{Chat, `"seed":7,"temperature":0,"temperature":1`, infer.CarriesSeed, "seed"}, // the last one counts
		{Chat, `"min_p":0.0,"repetition_penalty":1.0,"logit_bias":{},"min_tokens":0,"logprobs":false,"presence_penalty":0`, 0, ""},
		{Chat, `"min_p":0.1,"repetition_penalty":1.1`, infer.CarriesMinP | infer.CarriesRepetitionPenalty, "min_p"},
		{Chat, `"response_format":{"json_schema":{"type":"text"},"type":"json_schema"}`, infer.CarriesJSONSchema, "response_format"},
		{Chat, `"response_format":{"type":"structural_tag"}`, infer.CarriesStructuralTag, "response_format"},
		{Chat, `"response_format":{"type":"text"}`, 0, ""},
		{Chat, `"response_format":"json_object"`, 0, ""}, // for the engine to refuse
		{Completions, `"response_format":{"type":"json_object"}`, infer.CarriesJSONSchema | infer.SpelledCompletionFormat, "response_format"},
		{Chat, `"tool_choice":{"type":"function","function":{"name":"a"}}`, infer.CarriesJSONSchema, "tool_choice"},
		{Chat, `"tool_choice":1`, 0, ""},
		{Chat, `"parallel_tool_calls":false`, 0, ""},
		{Chat, `"parallel_tool_calls":false,"tools":[ ]`, 0, ""},
		{Chat, `"parallel_tool_calls":false,"tools":[{}]`, infer.SpelledSingleCall, "parallel_tool_calls"},
		{Chat, `"guided_choice":["a"],"structured_outputs":{}`, infer.SpelledGuided, "guided_choice"},
		{Chat, `"json_schema":"{}"`, infer.SpelledNowhere, "json_schema"},
		{Completions, `"json_schema":"{}"`, infer.CarriesJSONSchema | infer.SpelledSGLang, "json_schema"},
		{Completions, `"max_completion_tokens":9`, infer.SpelledNowhere, "max_completion_tokens"},
		{Completions, `"max_completion_tokens":9,"max_tokens":9`, 0, ""},
		{Chat, `"max_completion_tokens":9`, infer.SpelledMaxCompletion, "max_completion_tokens"},
		{Completions, `"best_of":2`, infer.SpelledNowhere, "best_of"},
		{Completions, `"best_of":2,"n":2`, 0, ""},
		{Completions, `"logprobs":0,"echo":true,"suffix":""`, infer.CarriesLogprobs, "logprobs"},
		{Completions, `"add_special_tokens":true,"bad_words":[],"use_beam_search":false,"stop_regex":""`, 0, ""},
		{Chat, `"add_special_tokens":true`, infer.SpelledVLLM, "add_special_tokens"},
		{Chat, `"user":"u","metadata":{},"store":true,"service_tier":"x","prediction":{},"unheard_of":1`, 0, ""},
		{Other, `"seed":7,"guided_json":{}`, 0, ""},
	} {
		h, err := c.e.ParseHead([]byte(`{"model":"m",` + c.fields + `}`))
		if err != nil {
			t.Fatal(err)
		}
		asks := c.e.Asks()
		path, _ := h.Asking(asks, infer.CarriesAnything)
		if got := h.Needs(asks); got != c.want || path != c.path {
			t.Errorf("%s %s: asks for %q by %q, want %q by %q", c.e, c.fields, got, path, c.want, c.path)
		}
	}
}

// For any body, its needs are found without a panic, and each names a field of the body.
func FuzzAsks(f *testing.F) {
	f.Add(`{"model":"m","seed":1,"temperature":0,"response_format":{"type":"json_schema"},"tool_choice":"required","tools":[1],"parallel_tool_calls":false}`)
	f.Add(`{"model":"m","max_completion_tokens":1,"best_of":0,"tool_choice":{},"response_format":1,"regex":[],"ebnf":""}`)
	f.Fuzz(func(t *testing.T, body string) {
		for _, e := range []Endpoint{Chat, Completions} {
			h, err := e.ParseHead([]byte(body))
			if err != nil {
				continue
			}
			needs := h.Needs(e.Asks())
			path, lacks := h.Asking(e.Asks(), needs)
			if (needs != 0) != (path != "" && lacks != 0) || needs&^infer.CarriesAnything != 0 {
				t.Fatalf("asks for %s by %q, which asks for %s", needs, path, lacks)
			}
		}
	})
}

// Judging a relayed body costs little beside reading its head.
func BenchmarkAsks(b *testing.B) {
	h, err := Chat.ParseHead([]byte(`{"model":"m","stream":true,"temperature":0.7,"top_p":1,"max_tokens":100,"seed":7,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if h.Needs(Chat.Asks()) != infer.CarriesSeed {
			b.Fatal("the seed was not found")
		}
	}
}
