package responses

import (
	"testing"

	"weir/internal/infer"
)

// Each need of a body that is relayed to an engine's own /v1/responses, and the field that it comes
// from.
func TestAsks(t *testing.T) {
	for _, c := range []struct {
		fields string
		want   infer.Carries
		path   string
	}{
		{`"text":{"verbosity":"low","format":{"name":"x","type":"json_schema"}}`, infer.CarriesJSONSchema | infer.SpelledTextFormat, "text.format"},
		{`"text":{"format":{"type":"json_object"}}`, infer.CarriesJSONSchema | infer.SpelledTextFormat, "text.format"},
		{`"text":{"format":{"type":"text"}}`, 0, ""},
		{`"text":{"format":"json_object"}`, 0, ""},
		{`"text":[]`, 0, ""},
		{`"tool_choice":"required"`, infer.CarriesJSONSchema, "tool_choice"},
		{`"tool_choice":{"type":"function","name":"f"}`, infer.CarriesJSONSchema, "tool_choice"},
		{`"tool_choice":{"type":"web_search"}`, 0, ""},
		{`"tool_choice":7`, 0, ""},
		{`"seed":7`, infer.CarriesSeed | infer.SpelledResponses, "seed"},
		{`"seed":7,"temperature":0.00`, 0, ""},
		{`"response_format":{"type":"json_object"}`, infer.SpelledNowhere, "response_format"},
		{`"max_tokens":9`, infer.SpelledNowhere, "max_tokens"},
		{`"max_tokens":9,"max_output_tokens":9`, 0, ""},
		{`"min_p":0,"logit_bias":{},"ignore_eos":false,"metadata":{},"store":false,"unheard_of":1`, 0, ""},
	} {
		h, err := Endpoint{}.ParseHead([]byte(`{"model":"m",` + c.fields + `}`))
		if err != nil {
			t.Fatal(err)
		}
		asks := Endpoint{}.Asks()
		path, _ := h.Asking(asks, infer.CarriesAnything)
		if got := h.Needs(asks); got != c.want || path != c.path {
			t.Errorf("%s: asks for %q by %q, want %q by %q", c.fields, got, path, c.want, c.path)
		}
	}
}
