package anthropic

import (
	"weir/internal/api"
	"weir/internal/infer"
)

// Asks implements api.Judged.
func (e Endpoint) Asks() api.Asks {
	if e != Messages {
		return nil
	}
	return relayed
}

// relayed are the fields of a relayed body whose loss its answer does not show, as those
// of the other APIs (openai).
var relayed = api.Asks{
	"tool_choice": {Read: func(_ *api.Head, raw []byte) infer.Carries {
		if kind := api.AskType(raw); kind == "any" || kind == "tool" {
			return infer.CarriesJSONSchema // that a call must come to
		}
		return 0
	}},
	"output_config": {Path: "output_config.format", Read: askFormat},
	"output_format": {Needs: infer.CarriesJSONSchema | infer.SpelledNowhere},
}

// askFormat reads output_config, whose format the answer must have.
func askFormat(_ *api.Head, raw []byte) (needs infer.Carries) {
	if api.KindOf(raw) != '{' {
		return 0
	}
	_ = api.EachMember(raw, func(name string, value []byte) error {
		if name == "format" && api.AskType(value) != "" {
			needs = infer.CarriesJSONSchema | infer.SpelledOutputFormat
		}
		return nil
	})
	return needs
}
