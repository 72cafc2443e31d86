package serve

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// templateModels returns --model for folders of the simulated model with other chat templates.
func templateModels(t *testing.T, names ...string) (args []string) {
	t.Helper()
	for _, name := range names {
		source, err := os.ReadFile("../../../internal/model/chat/testdata/templates/" + name + ".jinja")
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, "--model", name+"="+templateModel(t, string(source)))
	}
	return args
}

// templateModel returns a folder of the simulated model with another chat template.
func templateModel(t *testing.T, source string) (dir string) {
	t.Helper()
	sim, err := filepath.Abs("../../../models/weir-sim")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for _, file := range []string{"tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"} {
		if err := os.Symlink(filepath.Join(sim, file), filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What a request says reaches the prompt in a form that the model's chat template takes, is named
// as left out, or is refused by name.
func TestWhatWasAskedReachesTheModel(t *testing.T) {
	harness.Beside(t, harness.Light)
	plane, _ := harness.StartWire(t, "weir")
	args := append([]string{"serve", "--engine", "weir=" + plane}, templateModels(t, "qwen3", "deepseek-v3", "gpt-oss", "qwen3-coder", "llama3.1", "mistral")...)
	g := harness.StartGateway(t, args...)
	const (
		user = `{"role":"user","content":"hi"}`
		tool = `"tools":[{"type":"function","function":{"name":"bash"}}]`
		cut  = `{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"bash","arguments":"{\"command\": \"mkdir -p /tmp"}}]},{"role":"tool","tool_call_id":"c","content":"not run"}`
		two  = `{"role":"assistant","content":"I look","tool_calls":[{"id":"a","type":"function","function":{"name":"bash","arguments":""}},{"id":"b","type":"function","function":{"name":"dash","arguments":"{}"}}]},` +
			`{"role":"tool","tool_call_id":"b","content":"second"},{"role":"tool","tool_call_id":"a","content":"first"}`
	)
	for _, test := range []struct{ model, fields, prompt, ignored, refused string }{
		{"qwen3", `"messages":[{"role":"developer","content":"BANANA"},` + user + `]`, "system\nBANANA", "", ""},
		{"gpt-oss", `"messages":[` + user + `,{"role":"system","content":"BANANA"}]`, "BANANA", "", ""},
		{"deepseek-v3", `"messages":[` + user + `],` + tool, "hi", "tools", ""},
		{"gpt-oss", `"messages":[` + user + `],` + tool, "type bash =", "", ""},
		{"qwen3-coder", `"messages":[` + user + `,` + cut + `,` + user + `],` + tool, "mkdir -p /tmp", "", ""},
		{"llama3.1", `"messages":[` + user + `,` + two + `]`, "dash", "", ""},
		{"mistral", `"messages":[` + user + `,{"role":"assistant","content":"I look","tool_calls":[{"id":"toolu_1","type":"function","function":{"name":"bash","arguments":"{}"}}]},{"role":"tool","tool_call_id":"toolu_1","content":"second"}],` + tool, "second", "messages[].content", ""},
		{"weir-sim", `"messages":[` + user + `,{"role":"assistant","content":[]},` + user + `]`, "hi", "", ""},
		{"gpt-oss", `"messages":[` + user + `,{"role":"tool","tool_call_id":"x","content":"r"}]`, "", "", "messages[1].role"},
	} {
		var got struct {
			Tokens []uint32
			Prompt string
			Error  struct{ Param string }
		}
		resp, answer := send(t, g.URL+"/tokenize", `{"model":"`+test.model+`",`+test.fields+`}`)
		if err := json.Unmarshal(answer, &got); err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		if refused := test.refused != ""; resp.StatusCode != 200 != refused || got.Error.Param != test.refused || strings.Join(ignored(resp), " ") != test.ignored {
			t.Errorf("%s, %s: status %d, ignored %q: %.300s", test.model, test.fields, resp.StatusCode, ignored(resp), answer)
			continue
		} else if refused {
			continue
		}
		ids, err := json.Marshal(map[string]any{"model": test.model, "tokens": got.Tokens})
		if err != nil {
			t.Fatal(err)
		}
		if a := harness.Post(t, g.URL+"/detokenize", string(ids)); json.Unmarshal(a.Body, &got) != nil || !strings.Contains(got.Prompt, test.prompt) {
			t.Errorf("%s, %s: %q is not in %s", test.model, test.fields, test.prompt, a.Body)
		}
	}
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"weir-sim","max_tokens":2,"messages":[{"role":"user","content":[]},{"role":"assistant","content":[]},{"role":"user","content":"b"}]}`,
		"/v1/messages":         `{"model":"weir-sim","max_tokens":2,"messages":[{"role":"user","content":[]}]}`,
		"/v1/responses":        `{"model":"weir-sim","max_output_tokens":2,"input":[{"role":"user","content":[]},{"type":"function_call","call_id":"a","name":"f","arguments":""},{"type":"function_call_output","call_id":"a","output":[]}]}`,
	} {
		if a := harness.Post(t, g.URL+path, body); a.Status != 200 {
			t.Errorf("%s: status %d, %s", path, a.Status, a.Body)
		}
	}
}

// Ids of calls are such as the model's template takes: those of an answer, and those that come from
// elsewhere in the history.
func TestCallIDs(t *testing.T) {
	kimi := "kimi=" + templateModel(t, `{% if tools %}<|im_start|>system
{{ tools|tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'tool' %}Return of {{ m.tool_call_id }}
{% endif %}{{ m.content }}{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments|tojson }}<|tool_call_end|>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`)
	plane, _ := harness.StartWire(t, "weir", "--content", "echo", "--model", kimi)
	g := harness.StartGateway(t, "serve", "--engine", "weir="+plane, "--model", kimi+",tool-parser=kimi-k2")
	const (
		tools   = `"tools":[{"type":"function","function":{"name":"get_weather","description":"d","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}],"tool_choice":"required"`
		asked   = `{"role":"user","content":"[{\"name\": \"get_weather\", \"parameters\": {\"city\": \"P\"}}]"}`
		foreign = `{"role":"assistant","content":null,"tool_calls":[{"id":"toolu_9","type":"function","function":{"name":"get_weather","arguments":"{}"}},{"id":"functions.get_weather:0","type":"function","function":{"name":"get_weather","arguments":"{}"}}]},` +
			`{"role":"tool","tool_call_id":"functions.get_weather:0","content":"a"},{"role":"tool","tool_call_id":"toolu_9","content":"b"}`
	)
	for _, test := range []struct{ messages, id string }{
		{asked, "functions.get_weather:0"}, {foreign + "," + asked, "functions.get_weather:2"},
	} {
		a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"kimi","max_tokens":50,"messages":[`+test.messages+`],`+tools+`}`)
		if !strings.Contains(string(a.Body), `"id":"`+test.id+`"`) {
			t.Errorf("no call %s: %s", test.id, a.Body)
		}
	}
	var got struct {
		Tokens []uint32
		Prompt string
	}
	if a := harness.Post(t, g.URL+"/tokenize", `{"model":"kimi","messages":[`+foreign+`]}`); json.Unmarshal(a.Body, &got) != nil {
		t.Fatalf("%s", a.Body)
	}
	ids, err := json.Marshal(map[string]any{"model": "kimi", "tokens": got.Tokens})
	if err != nil {
		t.Fatal(err)
	}
	a := harness.Post(t, g.URL+"/detokenize", string(ids))
	if json.Unmarshal(a.Body, &got) != nil || !strings.Contains(got.Prompt, "Return of functions.get_weather:0\na") || !strings.Contains(got.Prompt, "Return of functions.get_weather:1\nb") {
		t.Errorf("%s", a.Body)
	}
}

// A template that fails on everything, a parser of another model, and tools that are wrong, many or
// none of the answer's, are said at start, refused by name or served.
func TestBadTemplatesAndTools(t *testing.T) {
	raises := "raises=" + templateModel(t, "{{ raise_exception('never') }}")
	plane, _ := harness.StartWire(t, "weir", "--content", "echo")
	other, _ := harness.StartWire(t, "weir", "--content", "echo", "--model", raises)
	g := harness.StartGateway(t, "serve", "--engine", "weir="+plane, "--engine", "weir="+other, "--model", "weir-sim=../../../models/weir-sim", "--model", raises, "--model", "wrong=../../../models/weir-sim,tool-parser=kimi-k2")
	for _, said := range []string{
		"raises: its chat template fails on every conversation, so that each chat is refused",
		"wrong: its tool-parser kimi-k2 reads none of the calls that its chat template writes; hermes does",
	} {
		if !strings.Contains(g.Output(), said) {
			t.Errorf("%q is not in %s", said, g.Output())
		}
	}
	tool := func(name string) string {
		return `{"type":"function","function":{"name":"` + name + `","parameters":{"type":"object","properties":{}}}}`
	}
	thousand := tool("t0")
	for i := 1; i < 1000; i++ {
		thousand += "," + tool(fmt.Sprintf("t%d", i))
	}
	const chats = "/v1/chat/completions"
	for _, test := range []struct {
		model, path, text, tools string
		status                   int
		want                     string
	}{
		{"raises", chats, "a", "", 400, `refuses: never"`},
		{"raises", "/v1/messages", "a", "", 400, `refuses: never"`},
		{"raises", "/v1/completions", "a", "", 200, `"finish_reason"`},
		{"weir-sim", chats, "a", tool("天気"), 400, `"param":"tools[0].function.name"`},
		{"weir-sim", chats, "a", tool("a") + "," + tool("a"), 400, `"param":"tools[1].function.name"`},
		{"weir-sim", chats, `<tool_call>\n{\"name\": \"t999\", \"arguments\": {}}\n</tool_call>`, thousand, 200, `"name":"t999","arguments":"{}"`},
		{"weir-sim", chats, `<tool_call>\n{\"name\": \"天気\", \"arguments\": {}}\n</tool_call>`, tool("a"), 200, `"name\": \"天気`},
		{"weir-sim", chats, `<tool_call></tool_call>`, tool("a"), 200, `"content":"","refusal":null},"logprobs":null,"finish_reason":"stop"`},
		{"weir-sim", chats, `<tool_call><tool_call>`, tool("a"), 200, `"content":"<tool_call><tool_call>"`},
		{"weir-sim", chats, `</tool_call>`, tool("a"), 200, `"content":"</tool_call>"`},
		{"weir-sim", chats, `<think></think>`, tool("a"), 200, `"content":""`},
		{"weir-sim", "/v1/messages", `<think></think>`, "", 200, `"stop_reason":"end_turn"`},
		{"weir-sim", "/v1/responses", `<think></think>`, "", 200, `"status":"completed"`},
	} {
		asks := map[string]string{"/v1/completions": `"prompt":"a","max_tokens":3`, "/v1/responses": `"input":"` + test.text + `"`}[test.path]
		if asks == "" {
			asks = `"max_tokens":60,"messages":[{"role":"user","content":"` + test.text + `"}]`
		}
		if test.tools != "" {
			asks += `,"tools":[` + test.tools + `]`
		}
		if a := harness.Post(t, g.URL+test.path, `{"model":"`+test.model+`",`+asks+`}`); a.Status != test.status || !strings.Contains(string(a.Body), test.want) {
			t.Errorf("%s, %s: status %d, want %d with %s: %s", test.path, test.text, a.Status, test.status, test.want, a.Body)
		}
	}
}
