package outputparse

import (
	"slices"
	"strings"
	"testing"
)

// TestDetect: each format is told by what its models' templates write, or by the
// vocabulary where they have no template.
func TestDetect(t *testing.T) {
	for _, test := range []struct {
		template string
		vocab    []string
		want     string
	}{
		{`<|im_start|>{{ m.content }}`, nil, " "},
		{``, nil, " "},
		{`'<tool_call>\n{"name": "' ~ c.name`, nil, "hermes "},
		{`<tool_call> ... '<think>\n' + reasoning`, []string{"<think>", "<tool_call>"}, "hermes think"},
		{`'<tool_call>\n<function=' + tool_call.name + '>'`, nil, "qwen3-coder "},
		{`{{ '\n<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key><think></think>`, nil, "glm-4.5 think"},
		{`<minimax:tool_call>\n<invoke name="' + name + '"><think>`, nil, "minimax-m2 think"},
		{`'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\n' + '` + "```json" + `'</think>`, nil, "deepseek-v3 think"},
		{`'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>'</think>`, nil, "deepseek-v3.1 think"},
		{``, []string{"｜DSML｜", "<think>", "</think>"}, "deepseek-v3.2 think"},
		{`<|tool_calls_section_begin|>`, nil, "kimi-k2 "},
		{`<|tool_calls_section_begin|> ... <think>`, nil, "kimi-k2 think"},
		{`{{- "[TOOL_CALLS] [" }}`, nil, "mistral "},
		{``, []string{"[TOOL_CALLS]", "[ARGS]", "[THINK]"}, "mistral mistral"},
		{`<|python_tag|>`, []string{"<|python_tag|>"}, "llama3-json "},
		{`'<|header_start|>' ... '<|python_start|>'`, []string{"<|python_start|>", "<|python_end|>"}, "pythonic "},
		{`<|start|>assistant<|channel|>analysis<|message|>`, nil, "harmony harmony"},
		{`<|start|>assistant to=f<|message|><atem:function_calls>`, nil, "muse-glimmer muse-glimmer"},
		{`◁think▷`, nil, " kimi-vl"},
		{`'<|tool_call_start|>[' + calls`, nil, "pythonic "},
		{`'<|channel>thought\n' + reasoning`, nil, " gemma4"},
		{``, []string{"<|START_THINKING|>", "<|END_THINKING|>"}, " cohere"},
		{`'<seed:tool_call>\n<function=' + name ... '<seed:think>'`, nil, "qwen3-coder seed"},
	} {
		f := Detect(test.template, func(token string) bool { return slices.Contains(test.vocab, token) })
		if got := f.Tools() + " " + f.Reasoning(); got != test.want {
			t.Errorf("%q and %q: %q, want %q", test.template, test.vocab, got, test.want)
		}
	}
}

// TestKeeps: the special tokens that markers consist of stay in the text, and
// those that no marker has do not.
func TestKeeps(t *testing.T) {
	for _, test := range []struct{ tools, reasoning, kept, skipped string }{
		{"hermes", "think", "<tool_call> </tool_call> <think> </think>", "<|im_end|> <tool_response> <s> </s> <|endoftext|>"},
		{"deepseek-v3.2", "think", "｜DSML｜ <think>", "<｜end▁of▁sentence｜> <｜User｜>"},
		{"deepseek-v3", "", "<｜tool▁calls▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜> <think>"},
		{"mistral", "mistral", "[TOOL_CALLS] [ARGS] [CALL_ID] [THINK] [/THINK]", "[INST] </s> [TOOL_RESULTS]"},
		{"pythonic", "", "<|python_start|> <|python_end|> <|tool_call_start|> <|tool_call_end|>", "<|eom|> <|eot|>"},
		{"llama3-json", "", "<|python_tag|>", "<|eom_id|> <|eot_id|> <|begin_of_text|>"},
		{"kimi-k2", "", "<|tool_calls_section_begin|> <|tool_call_argument_begin|> <|tool_call_end|>", "<|im_end|> [EOS]"},
		{"json", "cohere", "<|tool_call|> <|action_start|> <|plugin|> <|START_ACTION|> <|END_THINKING|>", "<|START_RESPONSE|> <|end_of_text|>"},
		{"gemma4", "gemma4", "<|tool_call> <tool_call|> <|\"|> <|channel> <channel|>", "<|tool_response> <turn|>"},
		{"muse-glimmer", "muse-glimmer", "<|start|> <|message|> <|eom|> <|eot|> <atem:invoke", "<|end_of_text|>"},
		{"harmony", "harmony", "<|start|> <|channel|> <|constrain|> <|message|> <|end|> <|return|> <|call|>", "<|endoftext|> <|startoftext|>"},
	} {
		f, ok := Named(test.tools, test.reasoning)
		if !ok {
			t.Fatal(test.tools)
		}
		for _, token := range strings.Fields(test.kept) {
			if !f.Keeps(token) {
				t.Errorf("%s leaves %s out", test.tools, token)
			}
		}
		for _, token := range strings.Fields(test.skipped) {
			if f.Keeps(token) {
				t.Errorf("%s keeps %s", test.tools, token)
			}
		}
		if f.Keeps("") {
			t.Errorf("%s keeps a token without text", test.tools)
		}
	}
}

// TestNamed: every name is known with itself, and syntaxes with messages go with themselves alone.
func TestNamed(t *testing.T) {
	for _, tools := range append(ToolNames(), "") {
		for _, reasoning := range append(ReasoningNames(), "") {
			f, ok := Named(tools, reasoning)
			whole := func(name string) bool { return name == "harmony" || name == "muse-glimmer" }
			if want := tools == reasoning || !whole(tools) && !whole(reasoning); ok != want {
				t.Errorf("%q with %q: %v", tools, reasoning, ok)
			}
			if ok && (f.Tools() != tools || f.Reasoning() != reasoning) {
				t.Errorf("%q with %q is %q with %q", tools, reasoning, f.Tools(), f.Reasoning())
			}
		}
	}
	if _, ok := Named("no-such", ""); ok {
		t.Error("no-such is known")
	}
}
