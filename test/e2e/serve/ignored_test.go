package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/anthropic"
	"weir/internal/dialect/openai"
	"weir/internal/dialect/responses"
	"weir/test/e2e/harness"
)

// send posts a body with header fields, and gives the answer with its head.
func send(t *testing.T, url, body string, fields ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := harness.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, answer
}

// ignored returns the names in a response's head.
func ignored(resp *http.Response) []string {
	value := resp.Header.Get("Weir-Ignored")
	if value == "" {
		return nil
	}
	return strings.Split(value, ", ")
}

// dialect is an API with a body that asks for next to nothing, %s standing for more
// fields.
type dialectCase struct {
	path, body string
	rows       []dialect.Field
	on         uint8
}

var dialects = []dialectCase{
	{"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"x"}],"max_tokens":1%s}`, openai.Fields(), 1 << openai.Chat},
	{"/v1/completions", `{"model":"weir-sim","prompt":"x","max_tokens":1%s}`, openai.Fields(), 1 << openai.Completions},
	{"/v1/responses", `{"model":"weir-sim","input":"x","max_output_tokens":1%s}`, responses.Fields(), 0},
	{"/v1/messages", `{"model":"weir-sim","messages":[{"role":"user","content":"x"}],"max_tokens":1%s}`, anthropic.Fields(), 1 << anthropic.Messages},
	{"/v1/messages/count_tokens", `{"model":"weir-sim","messages":[{"role":"user","content":"x"}]%s}`, anthropic.Fields(), 1 << anthropic.CountTokens},
}

// ask fills a dialect's body; a field that it has already takes the place of that.
func (d *dialectCase) ask(fields string) string {
	body := fmt.Sprintf(d.body, "")
	for _, at := range regexp.MustCompile(`"(\w+)":("[^"]*"|\d+|\[[^\]]*\]),?`).FindAllStringSubmatch(body, -1) {
		if strings.Contains(fields, `,"`+at[1]+`":`) {
			body = strings.Replace(body, at[0], "", 1)
		}
	}
	body = strings.TrimRight(strings.TrimSuffix(body, "}"), ",")
	if body == "{" {
		fields = fields[1:]
	}
	return body + fields + "}"
}

// fault reads an error in the dialect's shape, and gives the field that it names.
func (d *dialectCase) fault(t *testing.T, resp *http.Response, answer []byte) (param, message string) {
	t.Helper()
	if strings.HasPrefix(d.path, "/v1/messages") {
		var e struct {
			Type  string
			Error struct{ Type, Message string }
		}
		if err := json.Unmarshal(answer, &e); err != nil || e.Type != "error" || e.Error.Type != "invalid_request_error" {
			t.Errorf("%s: %d %s", d.path, resp.StatusCode, answer)
		}
		param, _, _ = strings.Cut(e.Error.Message, " ")
		return strings.TrimSuffix(param, ":"), e.Error.Message
	}
	var e harness.APIError
	if err := json.Unmarshal(answer, &e); err != nil || e.Error.Param == nil {
		t.Errorf("%s: %d %s", d.path, resp.StatusCode, answer)
		return "", ""
	}
	return *e.Error.Param, e.Error.Message
}

// Every field of every table with values of every wrong type: a 400 in the caller's
// dialect that names the field and nothing else, or an answer whose head names it, as
// the table says; and nothing that is no sentence.
func TestWrongTypes(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, append([]string{"up"}, harness.FastSim...)...)
	values := []string{`[[["odd"]]]`, `{"odd":[7]}`, `"odd"`, `-7.5`, `true`}
	for _, d := range dialects {
		asked := 0
		for i := range d.rows {
			f := &d.rows[i]
			if strings.ContainsAny(f.Name, ".[ ") || f.On != 0 && f.On&d.on == 0 {
				continue
			}
			for _, value := range values {
				if strings.HasSuffix(f.Name, "json") || f.Name == "json_schema" {
					value = strings.Replace(value, `{"odd":[7]}`, "7", 1) // an object is of the right type
				}
				asked++
				resp, answer := send(t, g.URL+d.path, d.ask(fmt.Sprintf(`,%q:%s`, f.Name, value)))
				switch named := slices.Contains(ignored(resp), f.Name); {
				case resp.StatusCode == 200 && f.Treatment == dialect.Ignored && !named:
					t.Errorf("%s: %s: %s is not named: %v", d.path, f.Name, value, resp.Header)
				case resp.StatusCode == 200 && f.Treatment == dialect.Refused && !slices.Contains(f.Defaults, value):
					t.Errorf("%s: %s: %s was taken: %s", d.path, f.Name, value, answer)
				case resp.StatusCode == 200:
				case resp.StatusCode == 404 && f.Name == "model":
				case resp.StatusCode != 400 || f.Treatment == dialect.Ignored || named:
					t.Errorf("%s: %s: %s: %d %s, ignored %v", d.path, f.Name, value, resp.StatusCode, answer, ignored(resp))
				default:
					param, message := d.fault(t, resp, answer)
					if !strings.HasPrefix(param, f.Name) || !strings.Contains(message, f.Name) || strings.Contains(message, "there is no field") {
						t.Errorf("%s: %s: %s: param %q: %s", d.path, f.Name, value, param, message)
					}
				}
			}
		}
		if asked < 50 {
			t.Errorf("%s: only %d values were asked for", d.path, asked)
		}
	}
	g.Balanced()
	g.Interrupt()
}

// Clients send fields that nothing here can do. They are left out and named, or refused with
// the nearest name, in the caller's dialect: tools of other kinds, 200 tools, names at their
// limits, unknown words of include and unknown betas.
func TestLeftOut(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, append([]string{"up"}, harness.FastSim...)...)
	list := func(n int, one func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = one(i)
		}
		return strings.Join(all, ",")
	}
	long := strings.Repeat("n", 128)
	chatTool := func(name string) string { return `{"type":"function","function":{"name":"` + name + `"}}` }
	respTool := func(name string) string { return `{"type":"function","name":"` + name + `"}` }
	messTool := func(name string) string { return `{"name":"` + name + `","input_schema":{"type":"object"}}` }
	const schema = `{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}`
	for _, test := range []struct {
		dialect      int
		fields       string
		head         []string
		ignored      string
		param, words string // of a refusal
		holds, lacks string // of the answer
	}{
		{0, `,"store":true,"verbosity":"low","prediction":{"type":"content","content":"x"},"service_tier":"flex"`, nil, "store verbosity prediction service_tier", "", "", "", ""},
		{0, `,"session_id":"s","chat_id":"c","metadata":{"a":"b"}`, nil, "session_id chat_id metadata", "", "", "", ""},
		{0, `,"stores":true`, nil, "", "stores", "did you mean store?", "", ""},
		{0, `,"tools":[` + list(200, func(i int) string { return chatTool(fmt.Sprint("f", i)) }) + `]`, nil, "", "", "", "", ""},
		{0, `,"tools":[` + chatTool(long) + `]`, nil, "", "", "", "", ""},
		{0, `,"tools":[` + chatTool(long+"n") + `]`, nil, "", "tools[0].function.name", "1 to 128", "", ""},
		{0, `,"tools":[` + chatTool("") + `]`, nil, "", "tools[0].function.name", "1 to 128", "", ""},
		{0, `,"tools":[` + list(1025, func(i int) string { return chatTool(fmt.Sprint("f", i)) }) + `]`, nil, "", "tools", "at most 1024", "", ""},
		{0, `,"tools":[` + chatTool("f") + `],"max_tokens":200,"tool_choice":{"type":"function","function":{"name":"f"}},"response_format":` + schema, nil, "response_format", "", "", `"finish_reason":"tool_calls"`, ""},
		{0, `,"tools":[{"type":"custom","custom":{"name":"c"}}],"tool_choice":"required"`, nil, "", "tool_choice", "runs none of those in tools (c)", "", ""},
		{2, `,"tools":[{"type":"namespace","name":"n","tools":[]},{"type":"web_search"},` + respTool("f") + `],"client_metadata":{"a":"b"},"truncation":"auto"`, nil, "tools[] web_search* client_metadata truncation", "", "", `"name":"f"`, "web_search"},
		{2, `,"tools":[{"type":"namespace","name":"n","tools":[` + respTool("f") + `,{"type":"custom","name":"c"}]},` + respTool("f") + `],"max_output_tokens":200,"tool_choice":{"type":"function","namespace":"n","name":"f"}`, nil, "tools[].tools[] custom", "", "", `"name":"f","namespace":"n"`, ""},
		{2, `,"tools":[{"type":"custom","name":"p","format":{"type":"grammar","syntax":"lark","definition":"start: X"}},{"type":"custom","name":"c"}],"max_output_tokens":200,"tool_choice":"required"`, nil, "tools[].format grammar", "", "", `"type":"custom_tool_call"`, `"name":"p"`},
		{2, `,"tools":[{"type":"custom","name":"c","format":{"type":"xml"}}]`, nil, "", "tools[0].format.type", "must be text or grammar", "", ""},
		{2, `,"tools":[` + list(200, func(i int) string { return respTool(fmt.Sprint("f", i)) }) + `]`, nil, "", "", "", `"name":"f199"`, ""},
		{2, `,"tools":[` + respTool(long+"n") + `]`, nil, "", "tools[0].name", "1 to 128", "", ""},
		{2, `,"tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search_preview"}`, nil, "", "tool_choice.type", "forces a tool", "", ""},
		{2, `,"tools":[{"type":"web_serch"}]`, nil, "", "tools[0].type", "did you mean web_search?", "", ""},
		{2, `,"include":["file_search_call.results"]`, nil, "include[] file_search_call.results", "", "", "", ""},
		{2, `,"include":["file_search_call.result"]`, nil, "", "include[0]", "did you mean file_search_call.results?", "", ""},
		{2, `,"include":["anything"]`, nil, "", "include[0]", "it must be one of message.output_text.logprobs", "", ""},
		{2, `,"tools":[` + respTool("f") + `],"max_output_tokens":200,"tool_choice":"required","text":{"format":{"type":"json_object"}}`, nil, "text.format", "", "", `"type":"function_call"`, ""},
		{3, `,"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]},"metadata":{"user_id":"u"}`, []string{"anthropic-beta", "claude-code-20250219,never-heard-of-2099-01-01"}, "context_management metadata header anthropic-beta", "", "", "", ""},
		{3, `,"tools":[{"type":"web_search_20990101","name":"web_search"},` + messTool("f") + `]`, nil, "tools[] web_search_*", "", "", "", ""},
		{3, `,"tools":[{"type":"web_search_20990101","name":"web_search"},` + messTool("f") + `],"tool_choice":{"type":"tool","name":"web_search"}`, nil, "", "tool_choice.name", "cannot run", "", ""},
		{3, `,"tools":[` + list(200, func(i int) string { return messTool(fmt.Sprint("f", i)) }) + `]`, nil, "", "", "", "", ""},
		{3, `,"tools":[` + messTool(long+"n") + `]`, nil, "", "tools[0].name", "1 to 128", "", ""},
		{3, `,"tools":[` + messTool("f") + `],"max_tokens":200,"tool_choice":{"type":"any"},"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}`, nil, "output_config.format", "", "", `"stop_reason":"tool_use"`, ""},
		{3, `,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"cache_contrl":1`, nil, "", "cache_contrl", "did you mean cache_control?", "", ""},
		{4, `,"context_management":{"edits":[{}]}`, nil, "context_management", "", "", "input_tokens", ""},
	} {
		d := &dialects[test.dialect]
		resp, answer := send(t, g.URL+d.path, d.ask(test.fields), test.head...)
		fields := test.fields[:min(len(test.fields), 200)]
		if test.param != "" {
			param, message := d.fault(t, resp, answer)
			if resp.StatusCode != 400 || param != test.param && !strings.HasPrefix(message, test.param) && !strings.Contains(message, `"`+test.param+`"`) || !strings.Contains(message, test.words) {
				t.Errorf("%s: %s: %d, param %q: %s", d.path, fields, resp.StatusCode, param, message)
			}
			continue
		}
		if got := strings.Join(ignored(resp), " "); resp.StatusCode != 200 || got != test.ignored || !strings.Contains(string(answer), test.holds) || test.lacks != "" && strings.Contains(string(answer), test.lacks) {
			t.Errorf("%s: %s: %d, ignored %q, want %q: %s", d.path, fields, resp.StatusCode, got, test.ignored, answer)
		}
	}
	if n := harness.Metric(t, g.Admin, "weir_ignored_fields_total", `api="openai"`, `field="store"`); n != 1 {
		t.Errorf("store was left out %v times, want once", n)
	}

	// Streams name it before their first byte, and have the usage so far where it is asked for.
	chat := &dialects[0]
	resp, answer := send(t, g.URL+chat.path, chat.ask(`,"max_tokens":5,"ignore_eos":true,"store":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`))
	if got := ignored(resp); !slices.Equal(got, []string{"store"}) {
		t.Errorf("a stream: ignored %q", got)
	}
	counts := []int{}
	for _, found := range regexp.MustCompile(`"finish_reason":(?:null|"\w+")}\],"usage":{"prompt_tokens":(\d+),"completion_tokens":(\d+),"total_tokens":(\d+)}}`).FindAllSubmatch(answer, -1) {
		var prompt, completion, total int
		fmt.Sscan(string(found[1]), &prompt)
		fmt.Sscan(string(found[2]), &completion)
		fmt.Sscan(string(found[3]), &total)
		if prompt == 0 || prompt+completion != total {
			t.Errorf("%s", found[0])
		}
		counts = append(counts, completion)
	}
	if n := len(counts); n < 3 || !slices.IsSorted(counts) || counts[0] != 0 || counts[n-1] != 5 || strings.Contains(string(answer), `"usage":null`) {
		t.Errorf("usage so far %v: %s", counts, answer)
	}
	g.Balanced()
	g.Interrupt()
}

// With --unknown-fields warn what no table has is named and passed over.
func TestUnknownFields(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, append([]string{"up", "--unknown-fields", "warn"}, harness.FastSim...)...)
	for i := range dialects {
		d := &dialects[i]
		resp, answer := send(t, g.URL+d.path, d.ask(`,"never_heard_of":{"a":1},"inje\r\ncted: x":1`))
		if got := ignored(resp); resp.StatusCode != 200 || !slices.Equal(got, []string{"never_heard_of", "inje??cted??x"}) || resp.Header.Get("cted") != "" {
			t.Errorf("%s: %d, ignored %q: %s", d.path, resp.StatusCode, got, answer)
		}
	}
	g.Interrupt()
}

// A relay leaves nothing out and names nothing: the engine gets every byte.
func TestRelayIgnoresNothing(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", s.Spec("openai"))
	resp, answer := send(t, g.URL+"/v1/chat/completions", dialects[0].ask(`,"user":"u"`))
	if resp.StatusCode != 200 || resp.Header.Get("Weir-Ignored") != "" {
		t.Errorf("%d, %v: %s", resp.StatusCode, resp.Header, answer)
	}
	g.Interrupt()
}
