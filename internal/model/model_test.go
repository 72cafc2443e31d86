package model

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/model/callid"
	"weir/internal/model/chat"
	"weir/internal/model/outputparse"
	"weir/models"
)

// simModel is the built-in model folder, read once.
var simModel = sync.OnceValue(func() *Folder {
	m, err := Load(models.Sim())
	if err != nil {
		panic(err)
	}
	return m
})

// told is what a parser finds in an answer.
type told struct {
	content string
	calls   []string // name, arguments
}

func (t told) same(o told) bool { return t.content == o.content && slices.Equal(t.calls, o.calls) }

// TestRoundTrip: what the model's own template makes of an assistant's message is
// read as that message again.
func TestRoundTrip(t *testing.T) {
	m := simModel()
	value := rapid.Custom(func(t *rapid.T) any {
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			return rapid.Int32().Draw(t, "number")
		case 1:
			return rapid.SampledFrom([]any{true, false, nil}).Draw(t, "word")
		case 2:
			return []any{rapid.String().Draw(t, "item"), map[string]any{"x": "</tool_call>"}}
		}
		return rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"</tool_call>", "<tool_call>", `"}}`, "\\", "\n", "😀", "<think>"})).Draw(t, "text")
	})
	rapid.Check(t, func(rt *rapid.T) {
		content := strings.TrimSpace(rapid.StringOf(rapid.RuneFrom([]rune("ab <>{}/\n日"))).Draw(rt, "content"))
		var calls []map[string]any
		want := told{content: content}
		for range rapid.IntRange(0, 3).Draw(rt, "calls") {
			name := rapid.SampledFrom([]string{"f", "get_weather"}).Draw(rt, "name")
			arguments, err := json.Marshal(rapid.MapOfN(rapid.String(), value, 0, 4).Draw(rt, "arguments"))
			if err != nil {
				rt.Fatal(err)
			}
			calls = append(calls, map[string]any{"id": "x", "type": "function", "function": map[string]any{"name": name, "arguments": string(arguments)}})
			want.calls = append(want.calls, name+" "+string(arguments))
		}
		messages, err := json.Marshal([]any{map[string]any{"role": "user", "content": "hi"}, map[string]any{"role": "assistant", "content": content, "tool_calls": calls}})
		if err != nil {
			rt.Fatal(err)
		}
		text, err := m.Render(messages, nil, nil)
		if err != nil {
			rt.Fatal(err)
		}
		turn := strings.Split(text, "<|im_start|>assistant\n")[1]
		turn = strings.TrimSuffix(turn, "<|im_end|>\n")
		var got told
		p := outputparse.New(outputparse.Options{Format: m.Format, Calls: true})
		for _, e := range p.Append(nil, []byte(turn), true) {
			switch e.Kind {
			case outputparse.Content:
				got.content += string(e.Text)
			case outputparse.CallBegin:
				got.calls = append(got.calls, e.Name+" ")
			case outputparse.Arguments:
				got.calls[e.Call] += string(e.Text)
			case outputparse.CallEnd:
				name, arguments, _ := strings.Cut(got.calls[e.Call], " ")
				var v any
				if err := json.Unmarshal([]byte(arguments), &v); err != nil || !e.Valid {
					rt.Fatalf("%s: %v", arguments, err)
				}
				arguments2, _ := json.Marshal(v)
				got.calls[e.Call] = name + " " + string(arguments2)
			}
		}
		if !got.same(want) {
			rt.Fatalf("%q: %+v, want %+v", turn, got, want)
		}
	})
}

// A model's format is told from its folder, and may be set by name.
func TestParsersByName(t *testing.T) {
	for _, test := range []struct{ tools, reasoning, want, err string }{
		{"", "", "hermes think", ""},
		{"qwen3-coder", "", "qwen3-coder think", ""},
		{"none", "none", " ", ""},
		{"harmony", "", "harmony harmony", ""},
		{"muse-glimmer", "", "muse-glimmer muse-glimmer", ""},
		{"", "harmony", "hermes think", "both the same one"},
		{"hermès", "", "hermes think", `there is no tool-parser "hermès"; the choices are none, hermes, qwen3-coder, `},
		{"", "thinks", "hermes think", `there is no reasoning-parser "thinks"; the choices are none, think, `},
	} {
		m, err := Load(models.Sim())
		if err != nil {
			t.Fatal(err)
		}
		err = m.UseParsers(test.tools, test.reasoning)
		if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%q, %q: %v", test.tools, test.reasoning, err)
		}
		if got := m.Format.Tools() + " " + m.Format.Reasoning(); got != test.want {
			t.Errorf("%q, %q: %q", test.tools, test.reasoning, got)
		}
	}
}

// How much a model is to reason goes to the variable that its template reads.
func TestEffortVariable(t *testing.T) {
	think, _ := outputparse.Named("hermes", "think")
	for _, test := range []struct {
		source       string
		format       outputparse.Format
		effort, want string
	}{
		{"{{ reasoning_effort }}{{ enable_thinking }}", think, "none", `reasoning_effort="none"`},
		{"{% if enable_thinking %}{% endif %}", think, "none", "enable_thinking=false"},
		{"{% if enable_thinking %}{% endif %}", think, "high", "enable_thinking=true"},
		{"{% if thinking %}{% endif %}", think, "high", "thinking=true"},
		{"{% if thinking %}{% endif %}", outputparse.Format{}, "high", "="},
		{"{% if message.thinking %}{% endif %}", think, "high", "="},
		{"{{ my_reasoning_effort }}", think, "high", "="},
	} {
		set, err := chat.ParseSet([]chat.Named{{Name: "default", Source: test.source}}, chat.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m := &Folder{Templates: set, Format: test.format}
		if name, value := m.EffortVariable(test.effort); name+"="+value != test.want {
			t.Errorf("%s, %q: %s=%s, want %s", test.source, test.effort, name, value, test.want)
		}
	}
	harmony, _ := outputparse.Named("harmony", "harmony")
	for effort, want := range map[string]bool{"low": true, "medium": true, "high": true, "none": false, "minimal": false} {
		if got := (&Folder{Format: harmony}).KnowsEffort(effort); got != want {
			t.Errorf("harmony, %q: %v", effort, got)
		}
	}
	if !(&Folder{Format: think}).KnowsEffort("minimal") {
		t.Error("think knows any word")
	}
}

// Whether an answer begins with reasoning shows in how its prompt ends, and where that
// shows nothing, in what the template does when there is to be none.
func TestReasoning(t *testing.T) {
	const (
		byItself = "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
		opens    = "{{ messages[0].content }}{% if thinking %}<think>\n{% else %}</think>{% endif %}"
	)
	for _, test := range []struct {
		source, reasoning, prompt string
		want                      infer.Reasoning
	}{
		{byItself, "think", "user: hi\nassistant: ", infer.OwnReasoning},
		{byItself, "think", "assistant: <think>\n\n</think>\n\n", infer.NoReasoning},
		{byItself, "think", "assistant: <think>\n", infer.OpenReasoning},
		{byItself, "none", "assistant: <think>\n", infer.NoReasoning},
		{byItself, "mistral", "assistant: ", infer.NoReasoning}, // whose words these are not
		{opens, "think", "assistant: <think>\n", infer.OpenReasoning},
		{opens, "think", "assistant: </think>", infer.NoReasoning},
		{opens, "think", "assistant: ", infer.NoReasoning},
		{"x", "think", "x", infer.NoReasoning}, // it may or may not
	} {
		m, err := Load(models.Sim())
		if err != nil {
			t.Fatal(err)
		}
		if m.Templates, err = chat.ParseSet([]chat.Named{{Name: "default", Source: test.source}}, chat.Options{}); err != nil {
			t.Fatal(err)
		}
		if err := m.UseParsers("none", test.reasoning); err != nil {
			t.Fatal(err)
		}
		if got := m.Reasoning([]byte(test.prompt)); got != test.want {
			t.Errorf("%s, %s, %q: %d, want %d", test.source, test.reasoning, test.prompt, got, test.want)
		}
	}
}

// An answer's first end is the one that the tokenizer names.
func TestEndIDs(t *testing.T) {
	own, ok := simModel().Tokenizer.ID(simModel().EOSToken)
	if !ok {
		t.Fatal("the built-in model names no end")
	}
	read := *simModel().Model
	read.EOS = []uint32{own + 1, own, own + 2}
	if got := (&Folder{Model: &read}).EndIDs(); !slices.Equal(got, []uint32{own, own + 1, own + 2}) || read.EOS[0] != own+1 {
		t.Errorf("%v of %v", got, read.EOS)
	}
	read.EOSToken = ""
	if got := (&Folder{Model: &read}).EndIDs(); !slices.Equal(got, read.EOS) {
		t.Errorf("%v of %v, without one of its own", got, read.EOS)
	}
}

// writing is a chat template that writes calls in a shape.
func writing(shape string) string {
	return "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}" + shape + "{% endfor %}{% endfor %}"
}

// The parser of a model is the one that reads what its template writes.
func TestChooseFormat(t *testing.T) {
	const object = `{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments|tojson }}}`
	for _, test := range []struct{ shape, want string }{
		{"<tool_calls>[" + object + "]</tool_calls>", "json"},
		{"<|tool_call|>[" + object + "]", "json"},
		{"<function_call> " + object, "json"},
		{"<|action_start|><|plugin|>\n" + object + "<|action_end|>", "json"},
		{`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{{ c.function.name }}", "parameters": {{ c.function.arguments|tojson }}}]<|END_ACTION|>`, "json"},
		{object, "llama3-json"},
		{"[" + object + "]", "llama3-json"},
		{"functools[" + object + "]", "llama3-json"},
		{`<|tools_prefix|>[{"{{ c.function.name }}": {{ c.function.arguments|tojson }}}]<|tools_suffix|>`, "apertus"},
		{`<|tool_call>call:{{ c.function.name }}{ {%- for k, v in c.function.arguments.items() %}{{ k }}:{% if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v }}{% endif %}{% endfor -%} }<tool_call|>`, "gemma4"},
		{"<start_function_call>call:{{ c.function.name }}{ {%- for k, v in c.function.arguments.items() %}{{ k }}:<escape>{{ v }}<escape>{% endfor -%} }<end_function_call>", "functiongemma"},
		{"[{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v|tojson }}{% endfor %})]", "pythonic"},
		{"[{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %})]", "pythonic"}, // without quotes
		{"{{ c.function.name }} with {{ c.function.arguments|tojson }}", ""},
	} {
		m, err := Load(models.Sim())
		if err == nil {
			m.Templates, err = chat.ParseSet([]chat.Named{{Name: "default", Source: writing(test.shape)}}, chat.Options{})
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := m.chooseFormat(outputparse.Format{}).Tools(); got != test.want {
			t.Errorf("%s is read by %q, want %q", test.shape, got, test.want)
		}
	}
}

// A folder says that its template renders nothing, and that its parser of calls is another model's.
func TestNotes(t *testing.T) {
	load := func(source, tools string) *Folder {
		m, err := Load(models.Sim())
		if err == nil && source != "" {
			m.Templates, err = chat.ParseSet([]chat.Named{{Name: "default", Source: source}}, chat.Options{})
		}
		if err == nil {
			err = m.UseParsers(tools, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, test := range []struct{ source, tools, want string }{
		{"", "", ""}, {"", "hermes", ""}, {"", "none", ""},
		{"", "kimi-k2", "its tool-parser kimi-k2 reads none of the calls that its chat template writes; hermes does"},
		{"{{ raise_exception('never') }}", "", "its chat template fails on every conversation, so that each chat is refused"},
		{"{% for m in messages %}{{ m.content }}{% endfor %}", "hermes", ""}, // it writes none
		{writing("{{ c.function.name }} with {{ c.function.arguments|tojson }}"), "none",
			"no tool-parser reads the calls that its chat template writes, so that chats with tools are refused, unless tool_choice forces a call"},
	} {
		if got := strings.Join(load(test.source, test.tools).Notes(), "|"); got != test.want {
			t.Errorf("%q, %q: %q, want %q", test.source, test.tools, got, test.want)
		}
	}
}

// The ids of an answer's calls are such as the template takes in the next request, whichever parser
// reads the answer.
func TestCallIDs(t *testing.T) {
	const nine = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{% if c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ c.function.name }} {{ c.function.arguments }}{% endfor %}{% endfor %}"
	for _, test := range []struct {
		source, tools string
		want          callid.Form
	}{
		{"", "", callid.Any}, {"", "kimi-k2", callid.Typed}, {"", "mistral", callid.Short}, {nine, "hermes", callid.Short}, {nine, "kimi-k2", callid.Short},
	} {
		m, err := Load(models.Sim())
		if err == nil && test.source != "" {
			m.Templates, err = chat.ParseSet([]chat.Named{{Name: "default", Source: test.source}}, chat.Options{})
		}
		if err == nil {
			err = m.UseParsers(test.tools, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := m.CallIDs(); got != test.want {
			t.Errorf("%.20q, %q: %d, want %d", test.source, test.tools, got, test.want)
		}
	}
}
