package responses

import (
	"weir/internal/dialect"
	"weir/internal/infer"
)

// Asks implements dialect.Judged.
func (Endpoint) Asks() dialect.Asks { return relayed }

// relayed are the fields of a relayed body whose loss its answer does not show, as those
// of the other APIs (openai). Both engines' own /v1/responses take any other field, and
// pass over it.
var relayed = dialect.Asks{
	"text":               {Path: "text.format", Read: askText},
	"tool_choice":        {Read: askForced},
	"min_p":              {Needs: infer.CarriesMinP, Defaults: []string{"0"}},
	"presence_penalty":   {Needs: infer.CarriesPenalties, Defaults: []string{"0"}},
	"frequency_penalty":  {Needs: infer.CarriesPenalties, Defaults: []string{"0"}},
	"repetition_penalty": {Needs: infer.CarriesRepetitionPenalty, Defaults: []string{"1"}},

	"seed":                       {Read: dialect.AskSeed(infer.CarriesSeed | infer.SpelledResponses)},
	"logit_bias":                 {Needs: infer.CarriesLogitBias | infer.SpelledResponses, Defaults: []string{"{}"}},
	"stop_token_ids":             {Needs: infer.SpelledResponses, Defaults: []string{"[]"}},
	"ignore_eos":                 {Needs: infer.SpelledResponses, Defaults: []string{"false"}},
	"include_stop_str_in_output": {Needs: infer.SpelledResponses, Defaults: []string{"false"}},
	"structured_outputs":         {Needs: infer.SpelledResponses | infer.SpelledStructured, Defaults: []string{"{}"}},

	// Fields of the other APIs.
	"response_format":       {Needs: infer.SpelledNowhere, Defaults: []string{`{"type":"text"}`}},
	"max_tokens":            {Read: unbounded},
	"max_completion_tokens": {Read: unbounded},
	"min_tokens":            {Needs: infer.SpelledNowhere, Defaults: []string{"0"}},
	"regex":                 {Needs: infer.SpelledNowhere},
	"ebnf":                  {Needs: infer.SpelledNowhere},
	"json_schema":           {Needs: infer.SpelledNowhere},
	"guided_json":           {Needs: infer.SpelledGuided},
	"guided_regex":          {Needs: infer.SpelledGuided},
	"guided_choice":         {Needs: infer.SpelledGuided},
	"guided_grammar":        {Needs: infer.SpelledGuided},
}

// askText reads text, whose format the answer must have.
func askText(_ *dialect.Head, raw []byte) (needs infer.Carries) {
	if dialect.KindOf(raw) != '{' {
		return 0
	}
	_ = dialect.EachMember(raw, func(name string, value []byte) error {
		if name != "format" {
			return nil
		}
		switch dialect.AskType(value) {
		case "json_object", "json_schema":
			needs = infer.CarriesJSONSchema | infer.SpelledTextFormat
		}
		return nil
	})
	return needs
}

// askForced reads a tool_choice: a call of a function that must come is held to a
// schema.
func askForced(_ *dialect.Head, raw []byte) infer.Carries {
	if string(raw) == `"required"` || dialect.AskType(raw) == "function" {
		return infer.CarriesJSONSchema
	}
	return 0
}

// unbounded reads a bound in another API's words, which is none.
func unbounded(h *dialect.Head, _ []byte) infer.Carries {
	if h.Value("max_output_tokens") != nil {
		return 0
	}
	return infer.SpelledNowhere
}
