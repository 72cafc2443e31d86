package sglangserver

import (
	"strings"
	"testing"

	"weir/internal/infer"
)

// The server's own API reads more fields with each release. Fields that it never reads are lost in
// each, and flags lose further ones.
func TestAPILacks(t *testing.T) {
	const never = infer.SpelledGuided | infer.SpelledStructured | infer.SpelledVLLM | infer.SpelledResponses | infer.SpelledNowhere | infer.SpelledSuffix
	const flags = `"skip_tokenizer_init":false,"enable_deterministic_inference":true`
	for _, c := range []struct {
		info string
		want infer.Carries
		says string
	}{
		{`{"version":"0.5.23",` + flags + `}`, never, "is SGLang 0.5.23, whose API has no such field"},
		{`{` + flags + `}`, never, "is SGLang, whose API"},
		{`{"version":"0.5.23",` + flags + `,"completion_template":"deepseek_coder"}`, never &^ infer.SpelledSuffix, ""},
		{`{"version":"0.5.23","skip_tokenizer_init":false,"grammar_backend":"none"}`, never | infer.CarriesGuides | infer.CarriesSeed, "--grammar-backend none"},
		{`{"version":"0.5.22",` + flags + `}`, never | infer.SpelledOutputFormat, "output_config.format; 0.5.23 and later"},
		{`{"version":"0.5.17",` + flags + `}`, never | infer.SpelledOutputFormat | infer.SpelledTextFormat, "text.format; 0.5.18 and later"},
		{`{"version":"0.5.9",` + flags + `}`, never | infer.SpelledOutputFormat | infer.SpelledTextFormat | infer.SpelledSingleCall | infer.CarriesRepetitionPenalty, "0.5.10"},
		{`{"version":"0.5.6",` + flags + `}`, never | infer.SpelledOutputFormat | infer.SpelledTextFormat | infer.SpelledSingleCall | infer.CarriesRepetitionPenalty | infer.CarriesSeed, "seed; 0.5.7"},
		{`{"version":"0.4.0",` + flags + `}`, never | infer.SpelledOutputFormat | infer.SpelledTextFormat | infer.SpelledSingleCall | infer.CarriesSeed | infer.SpelledStopRegex |
			infer.SpelledCompletionFormat | infer.CarriesLogitBias | infer.SpelledMaxCompletion | infer.CarriesMinP | infer.CarriesGuides, "0.4.1"},
		{`{"version":"0.5.1"}`, 0, ""}, // some other server
	} {
		m, err := Parse([]byte(c.info))
		if err != nil {
			t.Fatal(err)
		}
		lacks := m.APILacks()
		var why strings.Builder
		for _, l := range lacks {
			why.WriteString(l.Why + "\n")
		}
		if got := infer.CarriesAnything &^ infer.CarriesAnything.Without(lacks); got != c.want || !strings.Contains(why.String(), c.says) {
			t.Errorf("%s: lacks %s, want %s, for\n%s", c.info, got, c.want, &why)
		}
	}
}
