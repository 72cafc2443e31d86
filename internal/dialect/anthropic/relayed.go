package anthropic

import (
	"weir/internal/dialect"
	"weir/internal/infer"
)

// Asks implements dialect.Judged.
func (e Endpoint) Asks() dialect.Asks {
	if e != Messages {
		return nil
	}
	return relayed
}

// relayed are the fields of a relayed body whose loss its answer does not show, as those
// of the other APIs (openai).
var relayed = dialect.Asks{
	"tool_choice": {Read: func(_ *dialect.Head, raw []byte) infer.Carries {
		if kind := dialect.AskType(raw); kind == "any" || kind == "tool" {
			return infer.CarriesJSONSchema // that a call must come to
		}
		return 0
	}},
	"output_config": {Path: "output_config.format", Read: askFormat},
	"output_format": {Needs: infer.CarriesJSONSchema | infer.SpelledNowhere},
}

// askFormat reads output_config, whose format the answer must have.
func askFormat(_ *dialect.Head, raw []byte) (needs infer.Carries) {
	if dialect.KindOf(raw) != '{' {
		return 0
	}
	_ = dialect.EachMember(raw, func(name string, value []byte) error {
		if name == "format" && dialect.AskType(value) != "" {
			needs = infer.CarriesJSONSchema | infer.SpelledOutputFormat
		}
		return nil
	})
	return needs
}
