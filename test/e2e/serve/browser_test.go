package serve

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// asPage sends a request as a browser does for a page of an origin.
func asPage(t *testing.T, method, url, origin, body string, headers ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", origin)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := harness.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// A chat in a browser asks first, then streams, and can read why it was refused. The
// admin listener answers no page of another origin.
func TestPagesOfOtherOrigins(t *testing.T) {
	harness.Beside(t, harness.Light)
	const page, other = "https://chat.example", "https://other.example"
	g := harness.StartGateway(t, "up", "--cors", page+",http://localhost:3000")
	ask := g.URL + "/v1/chat/completions"
	preflight := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type"}
	if r := asPage(t, "OPTIONS", ask, page, "", preflight...); r.StatusCode != 204 || r.Header.Get("Access-Control-Allow-Origin") != page || r.Header.Get("Access-Control-Allow-Headers") != "authorization,content-type" {
		t.Errorf("asked before: %d %v", r.StatusCode, r.Header)
	}
	r := asPage(t, "POST", ask, page, harness.AskStream, "Content-Type", "application/json", "Authorization", "Bearer none")
	if a := harness.Read(r); r.Header.Get("Access-Control-Allow-Origin") != page || !strings.Contains(r.Header.Get("Access-Control-Expose-Headers"), "X-Request-Id") {
		t.Errorf("stream: %v", r.Header)
	} else {
		harness.WantComplete(t, a)
	}
	// On a kept connection whose stream left net/http the next request is another page's.
	if r := asPage(t, "POST", ask, other, `{"model":"none"}`, "Content-Type", "application/json"); r.StatusCode != 404 || r.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("another page: %d %v", r.StatusCode, r.Header)
	}
	if r := asPage(t, "POST", ask, page, `{"model":"none"}`, "Content-Type", "application/json"); r.StatusCode != 404 || r.Header.Get("Access-Control-Allow-Origin") != page {
		t.Errorf("refused: %d %v", r.StatusCode, r.Header)
	}
	r = asPage(t, "OPTIONS", ask, other, "", preflight...)
	if b, _ := io.ReadAll(r.Body); r.StatusCode != 403 || r.Header.Get("Access-Control-Allow-Origin") != "" || !strings.Contains(string(b), "--cors "+other) {
		t.Errorf("another page asked before: %d %v %s", r.StatusCode, r.Header, b)
	}
	for _, path := range []string{"/metrics", "/requests", "/engines"} {
		for _, method := range []string{"GET", "OPTIONS"} {
			if r := asPage(t, method, g.Admin+path, page, "", preflight...); r.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s %s of the admin listener: %v", method, path, r.Header)
			}
		}
	}
	g.Interrupt()
}

// The requests that Open WebUI 0.9 and LibreChat (@librechat/agents 3.9, which is LangChain) send
// for a chat, for a title and for the list of models are answered. Clients whose base URL is
// slightly wrong get an error that names the right one.
func TestChatsRequests(t *testing.T) {
	const chatWeather = `{"type":"function","function":{"name":"weather","description":"w","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}`
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up", "--cors", "any", "--alias", "gpt-4o-mini,chat")
	for name, c := range map[string]struct{ path, body, part string }{
		"open webui, a chat":  {"/v1/chat/completions", `{"stream":true,"model":"weir-sim","messages":[{"role":"user","content":"Hello"}],"stream_options":{"include_usage":true}}`, "data: [DONE]"},
		"open webui, a title": {"/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"### Task:\nGenerate a title"}],"stream":false,"max_tokens":1000}`, `"finish_reason"`},
		"librechat, a chat":   {"/v1/chat/completions", `{"model":"chat","user":"6567a1","temperature":1,"top_p":1,"presence_penalty":0,"frequency_penalty":0,"n":1,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}],"max_tokens":40}`, "data: [DONE]"},
		"librechat, a title":  {"/v1/chat/completions", `{"model":"gpt-4o-mini","temperature":0.2,"n":1,"messages":[{"role":"user","content":"Title?"}],"tools":[{"type":"function","function":{"name":"extract","description":"d","parameters":{"type":"object","properties":{"title":{"type":"string"}},"required":["title"],"additionalProperties":false,"$schema":"http://json-schema.org/draft-07/schema#"}}}],"tool_choice":{"type":"function","function":{"name":"extract"}}}`, `"name":"extract"`},
		// Taken from the wire (@librechat/agents 3.2.21), and from Open WebUI 0.12's own conversion.
		"librechat, a structured title": {"/v1/chat/completions", `{"model":"weir-sim","temperature":1,"top_p":1,"user":"u","stream":true,"response_format":{"type":"json_schema","json_schema":{"name":"extract","schema":{"type":"object","properties":{"title":{"type":"string","description":"d"}},"required":["title"]}}},"stream_options":{"include_usage":true},"max_tokens":400,"messages":[{"role":"user","content":"Title?"}]}`, "data: [DONE]"},
		"librechat, a tool's output":    {"/v1/chat/completions", `{"model":"weir-sim","user":"u","stream":true,"tools":[` + chatWeather + `],"stream_options":{"include_usage":true},"reasoning_effort":"low","max_completion_tokens":50,"messages":[{"role":"system","content":"Be brief"},{"role":"user","content":"Hello"},{"role":"assistant","content":"","tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\" a\"}"}}]},{"role":"tool","content":"sunny","name":"weather","tool_call_id":"call_1"}]}`, "data: [DONE]"},
		"librechat, over responses": {"/v1/responses", `{"model":"weir-sim","user":"u","stream":true,"tools":[{"type":"function","name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}},"description":"w","strict":null}],"text":{"verbosity":"low"},"max_output_tokens":400,"reasoning":{"effort":"low","summary":"auto"},"input":[{"type":"message","role":"system","content":"Be brief"},{"type":"message","role":"user","content":"Hello"},` +
			`{"id":"rs_1","type":"reasoning","status":"completed","summary":[{"type":"summary_text","text":" a"}],"content":[],"encrypted_content":null},{"id":"fc_1","type":"function_call","status":"completed","arguments":"{}","call_id":"call_1","name":"weather"},{"type":"function_call_output","call_id":"call_1","output":"sunny"}]}`, "event: response."},
		"open webui, a tool's output": {"/v1/chat/completions", `{"stream":true,"model":"weir-sim","messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":"","tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"weather","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call_1","content":"sunny"}],"tools":[` + chatWeather + `],"stream_options":{"include_usage":true},"user":{"name":"n","id":"i","email":"e","role":"admin"},"max_tokens":40,"min_p":0.1,"stop":["</x>"]}`, "data: [DONE]"},
		"open webui, over responses": {"/v1/responses", `{"stream":true,"model":"weir-sim","max_output_tokens":40,"instructions":"Be brief","tools":[{"type":"function","name":"weather","description":"w","parameters":{"type":"object"},"strict":false}],"tool_choice":{"type":"function","name":"weather"},"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hello"}]},` +
			`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]},{"type":"function_call","call_id":"call_1","name":"weather","arguments":"{}"},{"type":"function_call_output","call_id":"call_1","output":"sunny"}]}`, "event: response."},
	} {
		if a := harness.Post(t, g.URL+c.path, c.body); a.Status != 200 || !strings.Contains(string(a.Body), c.part) {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	g.WantModels("chat gpt-4o-mini weir-sim")
	for path, part := range map[string]string{
		"/v1/models/":               "did you mean /v1/models?",
		"/v1/v1/models":             "Leave /v1 out of the base URL",
		"/v1/models/gpt-4o-mini":    `"id":"gpt-4o-mini"`,
		"/v1/models/gpt-5":          "there is no model \\\"gpt-5\\\"",
		"/v1/chat/completions/chat": "/v1/chat/completions/chat",
	} {
		if a := harness.Get(t, g.URL+path); !strings.Contains(string(a.Body), part) {
			t.Errorf("GET %s: %d %s", path, a.Status, a.Body)
		}
	}
	if a := harness.Post(t, g.URL+"/v1/v1/chat/completions", harness.AskStream); a.Status != 404 || !strings.Contains(string(a.Body), "did you mean /v1/chat/completions? Leave /v1 out of the base URL") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	g.Interrupt()
}
