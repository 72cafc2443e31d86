//go:build interop

package templates_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"weir/internal/model"
	"weir/internal/model/chat"
	"weir/internal/model/outputparse"
	"weir/test/e2e/harness"
)

var update = flag.Bool("update", false, "write what is found into formats.txt; read it before it is committed")

// call is a tool call with its arguments.
type call struct{ name, arguments string }

// json returns the call as the API has it, with an id as the model's template
// takes it: Kimi's holds the name, Mistral's has nine letters and digits.
func (c call) json(f outputparse.Format, i int) string {
	id := fmt.Sprintf("call%05d", i)
	if f.Tools() == "kimi-k2" {
		id = fmt.Sprintf("functions.%s:%d", c.name, i)
	}
	text, _ := json.Marshal(c.arguments)
	return fmt.Sprintf(`{"id": "%s", "type": "function", "function": {"name": "%s", "arguments": %s}}`, id, c.name, text)
}

const roundTripTools = `[
	{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object", "properties": {
		"city": {"type": "string", "description": "c"}, "days": {"type": "integer", "description": "c"}, "exact": {"type": "boolean", "description": "c"},
		"where": {"type": "object", "description": "c"}, "tags": {"type": "array", "description": "c", "items": {"type": "string"}}, "ratio": {"type": "number", "description": "c"}},
		"required": ["city"]}}},
	{"type": "function", "function": {"name": "note", "description": "d", "parameters": {"type": "object", "properties": {"text": {"type": "string", "description": "c"}}, "required": ["text"]}}}]`

// answers are what a model says, by name.
func answers() map[string][]call {
	return map[string][]call{
		"one":       {{"get_weather", `{"city": "Bern"}`}},
		"types":     {{"get_weather", `{"city": "Bern", "days": 3, "exact": true, "where": {"lat": 46.9, "of": ["a", {"b": null}]}, "tags": ["x", "y z"], "ratio": 0.5}`}},
		"text":      {{"note", `{"text": "He said \"no\",\nthen 'yes' – {x: [1]} \\ über 你好\n"}`}},
		"lookalike": {{"note", `{"text": "[1, 2]"}`}},
		"parallel":  {{"get_weather", `{"city": "Bern"}`}, {"note", `{"text": "b"}`}},
	}
}

// answered renders a conversation's answer as the history has it: the text that
// follows the prompt.
func answered(m *model.Folder, calls []call, content, reasoning string) (prompt, answer string, err error) {
	tmpl, err := m.Templates.Select("", true)
	if err != nil {
		return "", "", err
	}
	render := func(messages string, generate bool) (string, error) {
		out, err := tmpl.Render(context.Background(), nil, &chat.Input{
			Messages: []byte(messages), Tools: []byte(roundTripTools), AddGenerationPrompt: generate, FromAPI: true,
			SpecialTokens: map[string]string{"bos_token": "<s>", "eos_token": "</s>"}, Now: now(),
		})
		return string(out), err
	}
	var list []string
	for i, c := range calls {
		list = append(list, c.json(m.Format, i))
	}
	said, _ := json.Marshal(content)
	if content == "" {
		said = []byte("null")
	}
	thought, _ := json.Marshal(reasoning)
	if reasoning == "" {
		thought = []byte("null")
	}
	const asked = `[{"role": "user", "content": "Weather?"}`
	if prompt, err = render(asked+"]", true); err != nil {
		return "", "", err
	}
	whole, err := render(fmt.Sprintf(`%s, {"role": "assistant", "content": %s, "reasoning_content": %s, "tool_calls": [%s]}]`,
		asked, said, thought, strings.Join(list, ", ")), false)
	if err != nil {
		return "", "", err
	}
	at := 0
	for at < len(prompt) && at < len(whole) && prompt[at] == whole[at] {
		at++
	}
	if open := strings.LastIndexAny(whole[:at], "<[>]"); at < len(prompt) && open >= 0 && strings.ContainsRune("<[", rune(whole[open])) {
		at = open // a tag with which both go on differently
	}
	answer = whole[at:]
	for _, token := range m.Tokenizer.AddedTokens() {
		if !m.Format.Keeps(token.Content) {
			answer = strings.ReplaceAll(answer, token.Content, "")
		}
	}
	return whole[:at], answer, nil
}

// folder makes a model's folder of a template. The vocabulary has nothing but the
// special tokens of Llama's, where it is one of Llama's.
func folder(t *testing.T, p published) *model.Folder {
	t.Helper()
	type object = map[string]any
	added := []object{}
	if strings.Contains(p.name, "llama") {
		for i, token := range []string{"<|python_tag|>", "<|python_start|>", "<|python_end|>", "<|eot|>", "<|eot_id|>"} {
			added = append(added, object{"id": 1 + i, "content": token, "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false})
		}
	}
	vocabulary, err := json.Marshal(object{"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil,
		"pre_tokenizer": nil, "post_processor": nil, "decoder": nil,
		"model": object{"type": "BPE", "dropout": nil, "unk_token": "<unk>", "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "vocab": object{"<unk>": 0}, "merges": []string{}}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(fstest.MapFS{
		"tokenizer.json":      {Data: vocabulary},
		"chat_template.jinja": {Data: []byte(p.source)},
	})
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	return m
}

// readCalls returns the calls that the parser finds.
func readCalls(f outputparse.Format, prompt, answer string) (calls []call, valid bool) {
	p := outputparse.New(outputparse.Options{Format: f, Calls: true, Tools: outputparse.ReadTools([]byte(roundTripTools)), Prompt: []byte(prompt)})
	valid = true
	for _, e := range p.Append(nil, []byte(answer), true) {
		switch e.Kind {
		case outputparse.CallBegin:
			calls = append(calls, call{name: e.Name})
		case outputparse.Arguments:
			calls[len(calls)-1].arguments += string(e.Text)
		case outputparse.CallEnd:
			valid = valid && e.Valid
		}
	}
	return calls, valid
}

func sameCalls(a, b []call) bool {
	return slices.EqualFunc(a, b, func(a, b call) bool {
		var x, y any
		return a.name == b.name && json.Unmarshal([]byte(a.arguments), &x) == nil && json.Unmarshal([]byte(b.arguments), &y) == nil && reflect.DeepEqual(x, y)
	})
}

// TestRoundTrip: what a published template writes of a call in the history, the
// parser that weir chooses for that template reads as the same call. Which it
// chooses, and what does not come back, is in formats.txt.
func TestRoundTrip(t *testing.T) {
	harness.Beside(t, harness.Light)
	var table bytes.Buffer
	for _, p := range publishedTemplates(t) {
		m := folder(t, p)
		f := m.Format
		tools, thoughts := f.Tools(), f.Reasoning()
		if tools == "" {
			tools = "-"
		}
		if thoughts == "" {
			thoughts = "-"
		}
		var lost []string
		written := 0
		all := answers()
		names := []string{"one", "types", "text", "lookalike", "parallel"}
		for _, name := range names {
			for _, with := range []struct{ kind, content, reasoning string }{{"", "", ""}, {" after content", "Let me see.", ""}, {" after reasoning", "", "I should look."}} {
				prompt, answer, err := answered(m, all[name], with.content, with.reasoning)
				if err != nil || !strings.Contains(answer, all[name][0].name) {
					continue
				}
				written++
				got, valid := readCalls(f, prompt, answer)
				if !valid || !sameCalls(got, all[name]) {
					lost = append(lost, name+with.kind)
					t.Logf("%s (%s), %s%s: %q\n got %q", p.name, tools, name, with.kind, answer, got)
				}
			}
		}
		fmt.Fprintf(&table, "%s: %s %s, %d written", p.name, tools, thoughts, written)
		switch {
		case len(lost) > 0 && len(lost) == written:
			table.WriteString(", none read")
		case len(lost) > 0:
			fmt.Fprintf(&table, ", lost: %s", strings.Join(lost, ", "))
		}
		table.WriteByte('\n')
	}
	if *update {
		if err := os.WriteFile("formats.txt", table.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := read(t, "formats.txt"); !bytes.Equal(table.Bytes(), want) {
		t.Errorf("got\n%swant\n%s", table.Bytes(), want)
	}
}
