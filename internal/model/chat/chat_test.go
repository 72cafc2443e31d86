package chat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir/internal/infer"
	"weir/internal/model/callid"
)

func mustParse(t *testing.T, source string) *Template {
	t.Helper()
	tmpl, err := Parse(source, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func render(t *testing.T, source string, in *Input) (string, error) {
	t.Helper()
	out, err := mustParse(t, source).Render(context.Background(), []byte("kept"), in)
	if err != nil {
		return "", err
	}
	s, ok := strings.CutPrefix(string(out), "kept")
	if !ok {
		t.Errorf("what stood in dst is gone: %q", out)
	}
	return s, nil
}

const plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"

func TestVariables(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		in     Input
		want   string
	}{
		"no tools is None":        {"{{ tools is none }}{{ documents is none }}", Input{Messages: []byte("[]")}, "TrueTrue"},
		"null tools is None":      {"{{ tools is none }}", Input{Messages: []byte("[]"), Tools: []byte("null")}, "True"},
		"kwargs":                  {"{{ enable_thinking }}{{ x }}", Input{Messages: []byte("[]"), Kwargs: []byte(`{"enable_thinking":false,"x":[1]}`)}, "False[1]"},
		"kwargs before tokens":    {"{{ bos_token }}", Input{Messages: []byte("[]"), Kwargs: []byte(`{"bos_token":"k"}`), SpecialTokens: map[string]string{"bos_token": "t"}}, "k"},
		"an empty token is unset": {"{{ pad_token is defined }}", Input{Messages: []byte("[]"), SpecialTokens: map[string]string{"pad_token": ""}}, "False"},
		"integers stay exact":     {"{{ messages[0].n|tojson }}", Input{Messages: []byte(`[{"n":9007199254740993000000001}]`)}, "9007199254740993000000001"},
		"key order stays":         {"{{ messages[0]|tojson }}", Input{Messages: []byte(`[{"z":1,"a":{"y":1,"b":2.0}}]`)}, `{"z": 1, "a": {"y": 1, "b": 2.0}}`},
		"generation prompt":       {plain, Input{Messages: []byte(`[{"role":"user","content":"q"}]`), AddGenerationPrompt: true}, "[user]q>"},
		"arguments as sent": {"{{ messages[0].tool_calls[0].function.arguments }}",
			Input{Messages: []byte(`[{"tool_calls":[{"function":{"arguments":"{\"a\": 1}"}}]}]`)}, `{"a": 1}`},
		"arguments decoded": {"{{ messages[0].tool_calls[0].function.arguments }}",
			Input{Messages: []byte(`[{"tool_calls":[{"function":{"arguments":"{\"a\": 1}"}}]}]`), FromAPI: true}, `{'a': 1}`},
		"arguments that are no object": {"{{ messages[0].tool_calls[0].function.arguments }}",
			Input{Messages: []byte(`[{"tool_calls":[{"function":{"arguments":"[1"}}]}]`), FromAPI: true}, `[1`},
		"null is left out": {"{{ messages[0].content is defined }}{{ messages[0].name is defined }}{{ messages[0].tool_calls is none }}",
			Input{Messages: []byte(`[{"content":null,"name":null,"tool_calls":[]}]`)}, "FalseFalseFalse"},
		"reasoning under its other names": {"{{ messages[0].reasoning_content }}{{ messages[0].thinking }}",
			Input{Messages: []byte(`[{"role":"assistant","reasoning":"r"}]`)}, "rr"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := render(t, c.source, &c.in)
			if err != nil || got != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// TestForm: whatever a template takes for content and arguments, a message of
// the API's with a call is written.
func TestForm(t *testing.T) {
	const calls = `"tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\": [1]}"}}]`
	const head = "{% for m in messages %}"
	const each = "{% for c in m.tool_calls %}{{ c.function.name }}"
	for name, c := range map[string]struct{ source, want string }{
		"content that is added to text": {
			head + "{{ m.content + '|' }}" + each + "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}", `hi||f{"x": [1]}`},
		"content that is looked into": {
			head + "{% if '#' not in m.content %}{{ m.content }}{% endif %}" + each + "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}", `hif{"x": [1]}`},
		"content that is printed": {
			head + "{{ m.content }}|" + each + "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}", `hi||f{"x": [1]}`},
		"calls of null content only": {
			head + "{% if m.content is none %}" + each + "{{ c.function.arguments|tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}", `hif{"x": [1]}`},
		"arguments that are text": {
			head + "{{ m.content }}" + each + "{{ '=' + c.function.arguments }}{% endfor %}{% endfor %}", `hif={"x": [1]}`},
		"arguments that are printed": {
			head + "{{ m.content }}" + each + "{{ c.function.arguments }}{% endfor %}{% endfor %}", `hif{"x": [1]}`},
		"arguments that are text, and calls of null content only": {
			head + "{% if m.content is none %}" + each + "{{ '=' + c.function.arguments }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}", `hif={"x": [1]}`},
		"arguments item by item": {
			head + "{{ m.content }}" + each + "{% for k, v in c.function.arguments|items %}<{{ k }}>{{ v }}{% endfor %}{% endfor %}{% endfor %}", `hif<x>[1]`},
	} {
		for _, content := range []string{`"content": null, `, `"content": "", `, ""} {
			messages := `[{"role": "user", "content": "hi"}, {"role": "assistant", ` + content + calls + `}]`
			got, err := render(t, c.source, &Input{Messages: []byte(messages), FromAPI: true})
			if err != nil || got != c.want {
				t.Errorf("%s, %s: got %q, %v; want %q", name, content, got, err, c.want)
			}
		}
	}
}

// What the API has and no template knows is made of what templates know.
func TestSpelled(t *testing.T) {
	const source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}<{{ c.function.name }} {{ c.function.arguments|tojson }}>{% endfor %}{% endfor %}"
	for messages, want := range map[string]string{
		`{"role":"user","content":[]}`:                                                                                                 "[user]",
		`{"role":"assistant","content":[]},{"role":"tool","content":[]}`:                                                               "[assistant][tool]",
		`{"role":"assistant","content":null,"refusal":"no"}`:                                                                           "[assistant]no",
		`{"role":"assistant","content":"a","refusal":"no"}`:                                                                            "[assistant]a\n\nno",
		`{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}`:                                                           "[assistant]no",
		`{"role":"assistant","content":null,"function_call":{"name":"f","arguments":""}},{"role":"function","name":"f","content":"4"}`: "[assistant]<f {}>[tool]4",
		`{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"x\": [1"}}]}`:                              `[assistant]<f "{\"x\": [1">`,
	} {
		if got, err := render(t, source, &Input{Messages: []byte("[" + messages + "]"), FromAPI: true}); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", messages, got, err, want)
		}
	}
}

// TestParts: whatever a template makes of a content of two texts, it says both, in
// messages of each role in which it says one: put together where it reads parts, as
// two lines where it does not.
func TestParts(t *testing.T) {
	const call = `{"role":"assistant","content":null,"tool_calls":[{"id":"call00001","type":"function","function":{"name":"f","arguments":"{}"}}]}`
	const user = `{"role":"user","content":"q"}`
	apart := map[string]string{ // by a template, in roles in which others are lines
		"gemma": "user assistant", "generation-rag": "system user tool", "glm-4.5": "system user assistant",
		"kimi-k2": "system user assistant tool", "llama4": "system user assistant tool", "mistral": "user",
		"qwen2-vl": "system user assistant tool", "qwen3-vl": "system user assistant tool",
	}
	files, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil || len(files) < len(apart) {
		t.Fatalf("%v: %v", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".jinja")
		tmpl := readTemplate(t, name)
		for role, conversation := range map[string]string{
			"system": `[{"role":"system",%s},` + user + `]`, "user": `[{"role":"user",%s}]`,
			"assistant": "[" + user + `,{"role":"assistant",%s},` + user + "]", "tool": "[" + user + "," + call + `,{"role":"tool","tool_call_id":"call00001","name":"f",%s}]`,
		} {
			say := func(content string) (string, error) {
				out, err := tmpl.Render(context.Background(), nil, &Input{
					Messages: fmt.Appendf(nil, conversation, `"content":`+content), AddGenerationPrompt: true, FromAPI: true,
					SpecialTokens: map[string]string{"bos_token": "<s>", "eos_token": "</s>"},
				})
				return string(out), err
			}
			lines, err := say(`"first one\nsecond one"`)
			got, gotErr := say(`[{"type":"text","text":"first one"},{"type":"text","text":"second one"}]`)
			reads := slices.Contains(strings.Fields(apart[name]), role)
			switch between := regexp.MustCompile(`(?s)first one(.*)second one`).FindStringSubmatch(got); {
			case (err == nil) != (gotErr == nil):
				t.Errorf("%s, %s: %v, as lines %v", name, role, gotErr, err)
			case err != nil: // it takes no message of this role
			case !reads && got != lines:
				t.Errorf("%s, %s: %q, want %q", name, role, got, lines)
			case reads && (between == nil || len(between[1]) > 2):
				t.Errorf("%s, %s: %q", name, role, got)
			}
		}
	}
}

// Parts that are not all texts stay what they are, for the template to place or to
// be refused, and so do texts of messages that are not the API's.
func TestPartsStay(t *testing.T) {
	const source = `{% for m in messages %}{{ m.content | tojson }}{% endfor %}`
	for messages, want := range map[string]string{
		`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`: `"a\nb"`,
		`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image"}]}]`:           `[{"type": "text", "text": "a"}, {"type": "image"}]`,
		`[{"role":"user","content":[{"type":"text","text":"a"}]}]`:                            `"a"`,
	} {
		if got, err := render(t, source, &Input{Messages: []byte(messages), FromAPI: true}); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", messages, got, err, want)
		}
		content := strings.NewReplacer(`[{"role":"user","content":`, "", "}]}]", "}]", ":", ": ", ",", ", ").Replace(messages)
		if got, err := render(t, source, &Input{Messages: []byte(messages)}); err != nil || got != content {
			t.Errorf("%s, not the API's: %q, %v; want %q", messages, got, err, content)
		}
	}
}

func TestInvalid(t *testing.T) {
	for name, c := range map[string]struct {
		source, param, says string
		in                  Input
	}{
		"no messages":               {plain, "messages", "required", Input{}},
		"messages of another type":  {plain, "messages", "array", Input{Messages: []byte(`{}`)}},
		"a message of another type": {plain, "messages[1]", "object", Input{Messages: []byte(`[{}, "x"]`)}},
		"broken JSON":               {plain, "messages", "not valid JSON", Input{Messages: []byte(`[{]`)}},
		"two values":                {plain, "messages", "not valid JSON", Input{Messages: []byte(`[] []`)}},
		"a lone surrogate":          {plain, "messages", "not valid JSON", Input{Messages: []byte(`[{"content":"\ud800"}]`)}},
		"tools":                     {plain, "tools[0]", "object", Input{Messages: []byte("[]"), Tools: []byte("[1]")}},
		"kwargs of another type":    {plain, "chat_template_kwargs", "object", Input{Messages: []byte("[]"), Kwargs: []byte("[1]")}},
		"kwargs set messages":       {plain, "chat_template_kwargs.messages", "field", Input{Messages: []byte("[]"), Kwargs: []byte(`{"messages":[]}`)}},
		"the template raises":       {"{{ raise_exception('no system role') }}", "messages", "no system role", Input{Messages: []byte("[]")}},
		"the template fails":        {"\n{{ messages[0].content.x.y }}", "messages", "line 2", Input{Messages: []byte("[]")}},
		"the template is endless": {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "messages", "bounds",
			Input{Messages: []byte("[]")}},
		"continue and generate": {plain, "continue_final_message", "both",
			Input{Messages: []byte(`[{"content":"x"}]`), ContinueFinalMessage: true, AddGenerationPrompt: true}},
		"continue nothing":    {plain, "continue_final_message", "empty", Input{Messages: []byte("[]"), ContinueFinalMessage: true}},
		"continue no content": {plain, "continue_final_message", "no content", Input{Messages: []byte(`[{"role":"assistant"}]`), ContinueFinalMessage: true}},
		"continue parts without text": {plain, "continue_final_message", "no text part",
			Input{Messages: []byte(`[{"content":[{"type":"image"}]}]`), ContinueFinalMessage: true}},
		"the template ignores content": {"x", "continue_final_message", "does not use content",
			Input{Messages: []byte(`[{"content":"x"}]`), ContinueFinalMessage: true}},
		"the template drops the end": {"{{ messages[0].content[:2] }}", "continue_final_message", "drops the end",
			Input{Messages: []byte(`[{"content":"long"}]`), ContinueFinalMessage: true}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(t, c.source, &c.in)
			var e *infer.Error
			if !errors.As(err, &e) || e.Code != infer.CodeInvalid || e.Param != c.param || !strings.Contains(e.Message, c.says) {
				t.Errorf("got %v (param %q), want an invalid %s that says %q", err, e.Param, c.param, c.says)
			}
		})
	}
}

func TestContinue(t *testing.T) {
	for name, c := range map[string]struct{ source, messages, want string }{
		"spacing kept":    {plain + "<end>", `[{"role":"a","content":"Roses "}]`, "[a]Roses "},
		"spacing trimmed": {"{% for m in messages %}{{ m.content|trim }}{% endfor %}<end>", `[{"content":"x"},{"content":" Roses "}]`, "xRoses"},
		"the last text part": {"{% for m in messages %}{% for p in m.content %}{{ p.text or '#' }}{% endfor %}<end>{% endfor %}",
			`[{"content":[{"text":"a"},{"text":"b "},{"image":1}]}]`, "ab "},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := render(t, c.source, &Input{Messages: []byte(c.messages), ContinueFinalMessage: true})
			if err != nil || got != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := mustParse(t, plain).Render(ctx, nil, &Input{Messages: []byte("[]")})
	var e *infer.Error
	if !errors.As(err, &e) || e.Code != infer.CodeCancelled {
		t.Errorf("got %v, want cancelled", err)
	}
}

func TestSet(t *testing.T) {
	named, err := ParseConfig([]byte(`[{"name":"default","template":"d"},{"name":"tool_use","template":"t"},{"name":"rag","template":"r"}]`))
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSet(named, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		tools bool
		want  string
	}{{"", false, "d"}, {"", true, "t"}, {"rag", true, "r"}, {"default", true, "d"}} {
		tmpl, err := s.Select(c.name, c.tools)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.Render(context.Background(), nil, &Input{Messages: []byte("[]")}); err != nil || string(got) != c.want {
			t.Errorf("%q, tools %v: got %q, %v; want %q", c.name, c.tools, got, err, c.want)
		}
	}
	if _, err := s.Select("none such", false); err == nil || !strings.Contains(err.Error(), "default, rag, tool_use") {
		t.Errorf("got %v, want the names there are", err)
	}
	if named, err = ParseConfig([]byte(`"one"`)); err != nil || len(named) != 1 || named[0] != (Named{"default", "one"}) {
		t.Errorf("a single template: %v, %v", named, err)
	}
	for _, bad := range []string{"1", `[1]`, `[{"name":"x"}]`, `{`} {
		if _, err := ParseConfig([]byte(bad)); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
	if _, err := ParseSet([]Named{{"x", "{% if %}"}}, Options{}); err == nil || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("got %v, want it to name the template", err)
	}
	if _, err := ParseSet([]Named{{"x", ""}, {"x", ""}}, Options{}); err == nil {
		t.Error("a name given twice: no error")
	}
}

// TestNoTemplate: a model without a template is an error that says so.
func TestNoTemplate(t *testing.T) {
	named, err := ParseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSet(named, Options{})
	if !errors.Is(err, ErrNoTemplate) {
		t.Errorf("got %v, want ErrNoTemplate", err)
	}
	_, err = s.Select("", false)
	var e *infer.Error
	if !errors.Is(err, ErrNoTemplate) || !errors.As(err, &e) || e.Code != infer.CodeInvalid {
		t.Errorf("got %v, want an invalid request for ErrNoTemplate", err)
	}
}

// Any names of templates in a folder are refused or render, and render a conversation the same
// twice.
func FuzzSet(f *testing.F) {
	f.Add([]byte(`"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"`))
	f.Add([]byte(`[{"name":"default","template":"{{ messages[0].content | trim }}"},{"name":"tool_use","template":"{{ tools | tojson }}"}]`))
	f.Add([]byte(`"{% set ns = namespace(x=0) %}{% for m in messages %}{% set ns.x = ns.x + 1 %}{% if m.tool_calls %}{{ raise_exception('no') }}{% endif %}{% endfor %}{{ ns.x }}"`))
	f.Fuzz(func(t *testing.T, entry []byte) {
		named, err := ParseConfig(entry)
		if err != nil || len(named) == 0 {
			return
		}
		set, err := ParseSet(named, Options{})
		if err != nil {
			return
		}
		_ = set.Samples()
		tmpl, err := set.Select("", false)
		if err != nil {
			return
		}
		in := &Input{Messages: []byte(`[{"role":"system","content":"be"},{"role":"user","content":[{"type":"text","text":"hi"}]}]`), AddGenerationPrompt: true, FromAPI: true}
		first, err := tmpl.Render(t.Context(), nil, in)
		again, errAgain := tmpl.Render(t.Context(), nil, in)
		if !bytes.Equal(first, again) || (err == nil) != (errAgain == nil) || err != nil && !errors.As(err, new(*infer.Error)) {
			t.Fatalf("%q, %v; then %q, %v", first, err, again, errAgain)
		}
	})
}

// Ids of calls, and those of their results, become such as canaries show the template to take, or
// else such as CallIDs tells.
func TestCallIDs(t *testing.T) {
	const head = "{% for m in messages %}{{ m.role[0] }} {{ m.content }}{% for c in m.tool_calls %}"
	const name = "{{ c.function.name }}="
	const end = "{{ c.id }}{{ c.function.arguments }} {% endfor %}{{ m.tool_call_id }} {% endfor %}"
	const nine = "{% if c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}"
	const conversation = `[{"role": "user", "content": "q"},
		{"role": "assistant", "content": null, "tool_calls": [
			{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
			{"id": "functions.f:1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
			{"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
		{"role": "tool", "tool_call_id": "call_2", "content": "r"}, {"role": "tool", "tool_call_id": "call_1", "content": "r"},
		{"role": "tool", "tool_call_id": "functions.f:1", "content": "r"}]`
	for what, c := range map[string]struct {
		source string
		told   callid.Form
		want   string
	}{
		"any":         {head + name + end, callid.Any, `f=call_1\{\} f=functions.f:1\{\} g=call_2\{\}  t rcall_2 t rcall_1 t rfunctions.f:1 $`},
		"told typed":  {head + name + end, callid.Typed, `f=functions.f:0\{\} f=functions.f:1\{\} g=functions.g:2\{\}  t rfunctions.g:2 t rfunctions.f:0 t rfunctions.f:1 $`},
		"told short":  {head + name + end, callid.Short, `f=\w{9}\{\} f=\w{9}\{\} g=\w{9}\{\}  t r\w{9} t r\w{9} t r\w{9} $`},
		"shown typed": {head + end, callid.Short, `a functions.f:0\{\} functions.f:1\{\} functions.g:2\{\}  t rfunctions.g:2 t rfunctions.f:0 t rfunctions.f:1 $`},
		"shown short": {head + name + nine + end, callid.Typed, `f=\w{9}\{\} f=\w{9}\{\} g=\w{9}\{\}  t r\w{9} t r\w{9} t r\w{9} $`},
	} {
		t.Run(what, func(t *testing.T) {
			in := &Input{Messages: []byte(conversation), FromAPI: true, CallIDs: c.told}
			got, err := render(t, c.source, in)
			if err != nil || !regexp.MustCompile(c.want).MatchString(got) || in.Calls != 3 {
				t.Errorf("got %q, %d calls, %v; want %s", got, in.Calls, err, c.want)
			}
		})
	}
}
