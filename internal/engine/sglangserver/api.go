package sglangserver

import (
	"fmt"

	"weir/internal/infer"
)

// APILacks returns what the server's own API loses of requests that are relayed to it,
// and why: the capabilities that its modes disable for every request, and the fields
// that its API silently ignores.
func (m *Mode) APILacks() []infer.Lack {
	if !m.Known() {
		return nil
	}
	lacks := m.Lacks()
	lack := func(what infer.Carries, format string, args ...any) {
		lacks = append(lacks, infer.Lack{What: what, Why: fmt.Sprintf(format, args...)})
	}
	name := "SGLang"
	if m.Version != "" {
		name += " " + m.Version
	}
	lack(infer.SpelledGuided|infer.SpelledStructured, "is %s, whose API has no such field and passes over it; it reads response_format, regex and ebnf", name)
	lack(infer.SpelledVLLM|infer.SpelledResponses|infer.SpelledNowhere, "is %s, whose API has no such field and passes over it", name)
	if m.CompletionTemplate == "" {
		lack(infer.SpelledSuffix, "runs without --completion-template, and passes over a suffix then")
	}
	for _, f := range []struct {
		what  infer.Carries
		field string
		since [3]int
	}{
		{infer.CarriesMinP, "min_p", [3]int{0, 4, 1}},
		{infer.SpelledMaxCompletion, "max_completion_tokens", [3]int{0, 4, 7}},
		{infer.CarriesLogitBias, "logit_bias", [3]int{0, 4, 8}},
		{infer.SpelledCompletionFormat, "response_format of completions", [3]int{0, 5, 2}},
		{infer.SpelledStopRegex, "stop_regex", [3]int{0, 5, 3}},
		{infer.CarriesSeed, "seed", [3]int{0, 5, 7}},
		{infer.SpelledSingleCall, "parallel_tool_calls", [3]int{0, 5, 10}},
		{infer.SpelledTextFormat, "text.format", [3]int{0, 5, 18}},
		{infer.SpelledOutputFormat, "output_config.format", [3]int{0, 5, 23}},
	} {
		if m.before(f.since[:]...) {
			lack(f.what, "is %s, whose API passes over %s; %d.%d.%d and later read it", name, f.field, f.since[0], f.since[1], f.since[2])
		}
	}
	return lacks
}
