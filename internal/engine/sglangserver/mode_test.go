package sglangserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/internal/infer"
)

const deterministic = `"enable_deterministic_inference":true`

// The word of a process is the same however its members are ordered, and another one for another start.
func TestStarted(t *testing.T) {
	var words []string
	for _, startup := range []string{`{"a":1.5,"b":{}}`, `{"b":{}, "a":1.5}`, `{"a":1.25,"b":{}}`, `1700000000.5`, `null`, `"x"`} {
		m, err := Parse([]byte(`{"skip_tokenizer_init":false,"startup_time":` + startup + `}`))
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, m.Started())
	}
	if words[0] != words[1] || words[0] == words[2] || words[0] == "" || words[3] == "" || words[4]+words[5] != "" {
		t.Errorf("%q", words)
	}
}

// The fields that flags and releases of a server take from requests.
func TestLacks(t *testing.T) {
	for _, c := range []struct {
		info string
		want infer.Carries
		why  []string
	}{
		{`{"version":"0.5.23","skip_tokenizer_init":false,"grammar_backend":"xgrammar","speculative_algorithm":null,` + deterministic + `}`, 0, nil},
		{`{"version":"0.5.23","skip_tokenizer_init":false,"grammar_backend":"xgrammar"}`, infer.CarriesSeed, []string{"--enable-deterministic-inference"}},
		{`{"version":"0.5.23","skip_tokenizer_init":true,"grammar_backend":"xgrammar",` + deterministic + `}`, infer.CarriesGuides | infer.CarriesMinTokens,
			[]string{"--skip-tokenizer-init", "--skip-tokenizer-init"}},
		{`{"version":"0.5.23","skip_tokenizer_init":false,"grammar_backend":"none",` + deterministic + `}`, infer.CarriesGuides, []string{"--grammar-backend none"}},
		{`{"version":"0.5.23","skip_tokenizer_init":false,"grammar_backend":"xgrammar",` + deterministic + `,"internal_states":[{"grammar_backend":"none"}]}`,
			infer.CarriesGuides, []string{"xgrammar"}},
		{`{"version":"0.5.23","skip_tokenizer_init":false,"grammar_backend":"outlines",` + deterministic + `}`,
			infer.CarriesGrammar | infer.CarriesStructuralTag, []string{"outlines"}},
		{`{"version":"0.5.23","skip_tokenizer_init":false,"speculative_algorithm":"EAGLE",` + deterministic + `}`, infer.CarriesMinP, []string{"EAGLE"}},
		{`{"version":"0.5.3.post3","skip_tokenizer_init":false,"speculative_algorithm":"EAGLE3",` + deterministic + `}`,
			infer.CarriesMinP | infer.CarriesLogitBias | infer.CarriesRepetitionPenalty, []string{"EAGLE3", "0.5.4", "0.5.10"}},
		{`{"version":"0.5.23","skip_tokenizer_init":false,"speculative_algorithm":"UNO",` + deterministic + `}`,
			infer.CarriesGuides | infer.CarriesMinTokens | infer.CarriesMinP | infer.CarriesPenalties | infer.CarriesRepetitionPenalty | infer.CarriesLogitBias | infer.CarriesLogprobs | infer.CarriesPromptLogprobs,
			[]string{"UNO"}},
		{`{"version":"0.5.9","skip_tokenizer_init":false,` + deterministic + `}`, infer.CarriesRepetitionPenalty, []string{"0.5.10"}},
		{`{"version":"0.5.10","skip_tokenizer_init":false,` + deterministic + `}`, 0, nil},
		{`{"version":"0.5.10rc1","skip_tokenizer_init":false,` + deterministic + `}`, 0, nil},
		{`{"version":"0.4.6.post5","skip_tokenizer_init":false}`, infer.CarriesGuides | infer.CarriesSeed | infer.CarriesRepetitionPenalty,
			[]string{"0.4.7", "--enable-deterministic-inference", "0.5.10"}},
		{`{"version":"0.4.3","skip_tokenizer_init":false,` + deterministic + `}`, infer.CarriesGuides, []string{"0.4.7"}},
		{`{"version":"unknown","skip_tokenizer_init":false,` + deterministic + `}`, 0, nil},
		{`{"version":"1.2.3"}`, 0, nil}, // some other server
	} {
		m, err := Parse([]byte(c.info))
		if err != nil {
			t.Fatal(err)
		}
		lacks := m.Lacks()
		if got := infer.CarriesAll &^ infer.CarriesAll.Without(lacks); got != c.want || len(lacks) != len(c.why) {
			t.Errorf("%s: lacks %s for %v, want %s", c.info, got, lacks, c.want)
			continue
		}
		for i := range lacks {
			if !strings.Contains(lacks[i].Why, c.why[i]) {
				t.Errorf("%s: %q does not say %q", c.info, lacks[i].Why, c.why[i])
			}
		}
	}
	if _, err := Parse([]byte(`[]`)); err == nil {
		t.Error("a list is taken for a server's word")
	}
}

// Where the server's own API draws by the model's defaults, and which of them the
// operator has set otherwise.
func TestFromModel(t *testing.T) {
	for info, want := range map[string]string{
		`{}`:                             "[] false",
		`{"sampling_defaults":"openai"}`: "[] false",
		`{"sampling_defaults":"model"}`:  "[] true",
		`{"sampling_defaults":"model","preferred_sampling_params":null}`:                             "[] true",
		`{"sampling_defaults":"model","preferred_sampling_params":{"top_p":0.5,"temperature":1}}`:    "[temperature top_p] true",
		`{"sampling_defaults":"model","preferred_sampling_params":"{\"min_p\": 0.5, \"top_k\": 3}"}`: "[min_p top_k] true",
	} {
		m, err := Parse([]byte(info))
		if err != nil {
			t.Fatal(err)
		}
		except, ok := m.FromModel()
		if got := fmt.Sprint(except, ok); got != want {
			t.Errorf("%s: %s, want %s", info, got, want)
		}
	}
}

func TestVersions(t *testing.T) {
	for text, want := range map[string][]int{"0.5.3.post1": {0, 5, 3}, "0.5.10rc1": {0, 5, 10}, "0.5.24.dev7+g0123": {0, 5, 24}, "1.0": nil, "": nil, "x.y.z": nil} {
		got, ok := parseVersion(text)
		if ok != (want != nil) || ok && !slices.Equal(got, want) {
			t.Errorf("%q: %v, %t; want %v", text, got, ok, want)
		}
	}
}

// Any answer of a server is judged without a panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":"0.5.23","skip_tokenizer_init":true,"grammar_backend":"none","speculative_algorithm":"EAGLE","disaggregation_mode":"prefill","internal_states":[{"grammar_backend":"xgrammar"}]}`))
	f.Add([]byte(`{"version":"0.3.6.post1","skip_tokenizer_init":false,"sampling_defaults":"model","preferred_sampling_params":{"temperature":0.5},"max_req_input_len":10}`))
	f.Add([]byte(`{"skip_tokenizer_init":null,"preferred_sampling_params":"{\"top_p\":1}"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data)
		if err != nil {
			return
		}
		for _, lack := range m.Lacks() {
			if lack.What == 0 || lack.Why == "" || !m.Known() {
				t.Fatalf("%+v of %+v", lack, m)
			}
		}
		_ = m.Fault()
		_, _ = m.FromModel()
	})
}

// Reasoning comes before a guide where the server can be asked for that, and the guide
// is refused where it would be lost, or would be the reasoning's.
func TestReasons(t *testing.T) {
	guide := func(r infer.Reasoning) *infer.Request {
		return &infer.Request{Guide: &infer.Guide{Kind: infer.GuideJSONSchema, Reasoning: r}}
	}
	for _, c := range []struct {
		version, parser string
		req             *infer.Request
		require         bool
		refused         string
	}{
		{"0.5.23", "qwen3", guide(infer.OwnReasoning), true, ""},
		{"0.5.23", "qwen3", guide(infer.OpenReasoning), true, ""},
		{"0.5.23", "qwen3", guide(infer.NoReasoning), false, ""},
		{"0.5.7", "qwen3", guide(infer.OpenReasoning), true, ""},
		{"0.5.6", "qwen3", guide(infer.OpenReasoning), false, ""}, // it always waits
		{"0.5.6.post2", "qwen3", guide(infer.OwnReasoning), false, ""},
		{"0.5.6", "qwen3", guide(infer.NoReasoning), false, "0.5.7 and later"},
		{"0.5.23", "", guide(infer.OpenReasoning), false, "without --reasoning-parser"},
		{"0.5.23", "", guide(infer.OwnReasoning), false, ""},
		{"0.5.6", "", guide(infer.NoReasoning), false, ""},
		{"0.5.6", "qwen3", &infer.Request{}, false, ""},
	} {
		skips := false
		m := &Mode{Version: c.version, SkipTokenizer: &skips, ReasoningParser: c.parser}
		require, err := m.Reasons(c.req)
		switch {
		case (err != nil) != (c.refused != ""), err != nil && !strings.Contains(err.Message, c.refused), err != nil && err.Lacks != infer.CarriesJSONSchema:
			t.Errorf("%+v: %v", c, err)
		case require != c.require:
			t.Errorf("%+v: asks for reasoning: %t", c, require)
		}
	}
	if require, err := new(Mode).Reasons(guide(infer.OpenReasoning)); require || err != nil {
		t.Errorf("of a server that does not say: %t, %v", require, err)
	}
}
