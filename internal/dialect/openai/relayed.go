package openai

import (
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// Asks implements dialect.Judged.
func (e Endpoint) Asks() dialect.Asks { return relayed[e] }

// ask is a field that is judged where a request is relayed, on its endpoints.
func ask(on uint8, name string, needs infer.Carries, defaults ...string) asking {
	return asking{on, name, dialect.Ask{Needs: needs, Defaults: defaults}}
}

// askBy is ask of a field whose value says what it needs.
func askBy(on uint8, name string, read func(*dialect.Head, []byte) infer.Carries, defaults ...string) asking {
	return asking{on, name, dialect.Ask{Read: read, Defaults: defaults}}
}

type asking struct {
	on   uint8
	name string
	dialect.Ask
}

// askings are those fields of a relayed body whose loss its answer does not show: what
// it must match, how it is drawn, where it ends, what the prompt is made of. What was
// looked at, and where it stands in the engines' sources, is in docs/fields.md.
var askings = []asking{
	askBy(onBoth, "seed", dialect.AskSeed(infer.CarriesSeed)),
	ask(onBoth, "min_p", infer.CarriesMinP, "0"),
	ask(onBoth, "presence_penalty", infer.CarriesPenalties, "0"),
	ask(onBoth, "frequency_penalty", infer.CarriesPenalties, "0"),
	ask(onBoth, "repetition_penalty", infer.CarriesRepetitionPenalty, "1"),
	ask(onBoth, "logit_bias", infer.CarriesLogitBias, "{}"),
	ask(onBoth, "min_tokens", infer.CarriesMinTokens, "0"),
	ask(onChat, "logprobs", infer.CarriesLogprobs, "false"),
	ask(onCompletions, "logprobs", infer.CarriesLogprobs),

	askBy(onChat, "response_format", func(_ *dialect.Head, raw []byte) infer.Carries { return askFormat(raw) }),
	askBy(onCompletions, "response_format", func(_ *dialect.Head, raw []byte) infer.Carries {
		if needs := askFormat(raw); needs != 0 {
			return needs | infer.SpelledCompletionFormat
		}
		return 0
	}),
	askBy(onChat, "tool_choice", askForced),
	askBy(onChat, "parallel_tool_calls", askSingle),

	ask(onBoth, "guided_json", infer.SpelledGuided),
	ask(onBoth, "guided_regex", infer.SpelledGuided),
	ask(onBoth, "guided_choice", infer.SpelledGuided),
	ask(onBoth, "guided_grammar", infer.SpelledGuided),
	ask(onBoth, "structured_outputs", infer.SpelledStructured, "{}"),
	ask(onBoth, "regex", infer.CarriesRegex|infer.SpelledSGLang, `""`),
	ask(onBoth, "ebnf", infer.CarriesGrammar|infer.SpelledSGLang, `""`),
	ask(onCompletions, "json_schema", infer.CarriesJSONSchema|infer.SpelledSGLang, `""`),
	ask(onChat, "json_schema", infer.SpelledNowhere),
	ask(onBoth, "no_stop_trim", infer.SpelledSGLang, "false"),
	ask(onBoth, "stop_regex", infer.SpelledStopRegex, "[]", `""`),

	ask(onBoth, "bad_words", infer.SpelledVLLM, "[]"),
	ask(onBoth, "allowed_token_ids", infer.SpelledVLLM),
	ask(onBoth, "use_beam_search", infer.SpelledVLLM, "false"),
	ask(onBoth, "include_stop_str_in_output", infer.SpelledVLLM, "false"),
	ask(onBoth, "truncate_prompt_tokens", infer.SpelledVLLM),
	ask(onBoth, "thinking_token_budget", infer.SpelledVLLM),
	ask(onBoth, "repetition_detection", infer.SpelledVLLM),
	ask(onChat, "add_special_tokens", infer.SpelledVLLM, "false"),
	ask(onCompletions, "add_special_tokens", infer.SpelledVLLM, "true"),
	ask(onChat, "add_generation_prompt", infer.SpelledVLLM, "true"),
	ask(onChat, "documents", infer.SpelledVLLM, "[]"),

	ask(onChat, "functions", infer.SpelledNowhere, "[]"),
	ask(onChat, "function_call", infer.SpelledNowhere, `"auto"`, `"none"`),
	ask(onChat, "max_completion_tokens", infer.SpelledMaxCompletion),
	askBy(onCompletions, "max_completion_tokens", func(h *dialect.Head, _ []byte) infer.Carries {
		if h.Value("max_tokens") != nil {
			return 0 // that one is the bound
		}
		return infer.SpelledNowhere
	}),
	askBy(onCompletions, "best_of", func(h *dialect.Head, raw []byte) infer.Carries {
		if dialect.AsksForNothing(raw, []string{strconv.Itoa(h.N)}) {
			return 0
		}
		return infer.SpelledNowhere
	}),
	ask(onCompletions, "suffix", infer.SpelledSuffix, `""`),
}

// askFormat reads a response_format.
func askFormat(raw []byte) infer.Carries {
	switch dialect.AskType(raw) {
	case "json_object", "json_schema":
		return infer.CarriesJSONSchema
	case "structural_tag":
		return infer.CarriesStructuralTag
	}
	return 0
}

// askForced reads a tool_choice: a call that must come is held to a schema.
func askForced(_ *dialect.Head, raw []byte) infer.Carries {
	if dialect.KindOf(raw) == '{' || string(raw) == `"required"` {
		return infer.CarriesJSONSchema
	}
	return 0
}

// askSingle reads parallel_tool_calls, which says nothing where there are no tools.
func askSingle(h *dialect.Head, raw []byte) infer.Carries {
	if tools := h.Value("tools"); dialect.KindOf(raw) != 'f' || tools == nil || dialect.AsksForNothing(tools, []string{"[]"}) {
		return 0
	}
	return infer.SpelledSingleCall
}

// relayed finds an endpoint's field by its name.
var relayed = [numEndpoints]dialect.Asks{
	Chat:        asksOn(onChat),
	Completions: asksOn(onCompletions),
}

func asksOn(endpoint uint8) dialect.Asks {
	all := dialect.Asks{}
	for i := range askings {
		if a := &askings[i]; a.on&endpoint != 0 {
			all[a.name] = a.Ask
		}
	}
	return all
}
