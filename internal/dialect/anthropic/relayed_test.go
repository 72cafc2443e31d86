package anthropic

import (
	"testing"

	"weir/internal/infer"
)

// Each need of a body that is relayed to an engine's own /v1/messages, and the field that it comes
// from.
func TestAsks(t *testing.T) {
	for _, c := range []struct {
		fields string
		want   infer.Carries
		path   string
	}{
		{`"output_config":{"effort":"low","format":{"schema":{},"type":"json_schema"}}`, infer.CarriesJSONSchema | infer.SpelledOutputFormat, "output_config.format"},
		{`"output_config":{"effort":"low","format":null}`, 0, ""},
		{`"output_config":1`, 0, ""},
		{`"output_format":{"type":"json_schema"}`, infer.CarriesJSONSchema | infer.SpelledNowhere, "output_format"},
		{`"tool_choice":{"type":"any"}`, infer.CarriesJSONSchema, "tool_choice"},
		{`"tool_choice":{"type":"auto"}`, 0, ""},
		{`"tool_choice":"any"`, 0, ""},
		{`"thinking":{"type":"enabled","budget_tokens":1024},"metadata":{},"top_k":5`, 0, ""}, // a budget is a hint there
	} {
		h, err := Messages.ParseHead([]byte(`{"model":"m",` + c.fields + `}`))
		if err != nil {
			t.Fatal(err)
		}
		path, _ := h.Asking(Messages.Asks(), infer.CarriesAnything)
		if got := h.Needs(Messages.Asks()); got != c.want || path != c.path {
			t.Errorf("%s: asks for %q by %q, want %q by %q", c.fields, got, path, c.want, c.path)
		}
		if needs := h.Needs(CountTokens.Asks()); needs != 0 {
			t.Errorf("counting tokens of %s asks for %s", c.fields, needs)
		}
	}
}
