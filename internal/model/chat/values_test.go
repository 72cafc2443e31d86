package chat

import (
	"encoding/json"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"weir/internal/infer"
)

// The values of a template have a bound near what it is given: a small request gives no template much memory,
// and published templates have room for long conversations.
func TestValuesNearText(t *testing.T) {
	small := &Input{Messages: []byte(`[{"role":"user","content":"hi"}]`), AddGenerationPrompt: true}
	for _, source := range []string{
		`{{ "a" * 1000000000 }}`,
		`{% set ns = namespace(s="aaaaaaaa") %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}`,
		`{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s|length }}`,
		`{% set ns = namespace(s="a"*10000) %}{% for i in range(9) %}{% set ns.s = ns.s.replace("a","aaaaaaaaaa") %}{% endfor %}{{ ns.s|length }}`,
		`{{ "x"|center(2000000000) }}`, `{{ ("a\n"*10000)|indent(1000000) }}`, `{{ "%2000000000d" % 1 }}`, `{{ [[[1]]]|tojson(indent=500000000) }}`,
	} {
		tmpl, err := Parse(source, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = tmpl.Render(t.Context(), nil, small)
		runtime.ReadMemStats(&after)
		if err == nil || infer.AsError(err).Code != infer.CodeInvalid || !strings.Contains(err.Error(), "chat template") {
			t.Errorf("%s: %v", source, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 6*allocLeast {
			t.Errorf("%s: %d MB were allocated", source, n>>20)
		}
	}
	var messages []map[string]any
	for i := range 101 { // 1 MB
		messages = append(messages, map[string]any{"role": []string{"user", "assistant"}[i%2], "content": strings.Repeat("word ", 2000)})
	}
	long, err := json.Marshal(messages)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil || len(paths) < 12 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".jinja")
		tmpl := readTemplate(t, name)
		tmpl.opt.MaxAlloc = allocTimes / 2 * len(long) // half of what it has, without the least
		if _, err := tmpl.Render(t.Context(), nil, &Input{Messages: long, AddGenerationPrompt: true, SpecialTokens: map[string]string{"bos_token": "<s>", "eos_token": "</s>"}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
