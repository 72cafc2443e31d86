package serve

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// templateModels returns --model for folders of the simulated model with other chat templates.
func templateModels(t *testing.T, names ...string) (args []string) {
	t.Helper()
	sim, err := filepath.Abs("../../../models/weir-sim")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		dir := t.TempDir()
		for _, file := range []string{"tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"} {
			if err := os.Symlink(filepath.Join(sim, file), filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
		}
		source, err := os.ReadFile("../../../internal/model/chat/testdata/templates/" + name + ".jinja")
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "chat_template.jinja"), source, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, "--model", name+"="+dir)
	}
	return args
}

// What a request says reaches the prompt in a form that the model's chat template takes, is named
// as left out, or is refused by name.
func TestWhatWasAskedReachesTheModel(t *testing.T) {
	harness.Beside(t, harness.Light)
	plane, _ := harness.StartWire(t, "weir")
	args := append([]string{"serve", "--engine", "weir=" + plane}, templateModels(t, "qwen3", "deepseek-v3", "gpt-oss", "qwen3-coder", "llama3.1")...)
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
