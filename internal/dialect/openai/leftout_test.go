package openai

import (
	"slices"
	"strings"
	"testing"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// A field that asks for a service beside the answer is left out and named. The rest of the request
// is unchanged.
func TestLeftOut(t *testing.T) {
	const tools = `"tools":[{"type":"custom","custom":{"name":"c"}},{"type":"function","function":{"name":"f","strict":true}},{"type":"function","function":{"name":"g"}}]`
	const schema = `"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}`
	image := func(detail string) string {
		return `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}},{"type":"image_url","image_url":{"url":"https://h/a.png","detail":` + detail + `}}]}]}`
	}
	seen := map[string]bool{}
	for _, test := range []struct {
		body, ignored string
		check         func(r *dialect.Request) bool
	}{
		{chatBody(``), "", nil},
		{chatBody(`"store":true,"verbosity":"low","prediction":{"type":"content","content":"x"}`), "store verbosity prediction", nil},
		{chatBody(`"store":false,"service_tier":"auto","metadata":{ },"verbosity":"medium","user":null,"prompt_cache_options":{"mode":"implicit"}`), "", nil},
		{chatBody(`"session_id":"s","chat_id":"c"`), "session_id chat_id", nil},
		{chatBody(`"stream":true,"stream_options":{"include_obfuscation":true}`), obfuscation, nil},
		{chatBody(`"stream":true,"stream_options":{"continuous_usage_stats":true}`), continuousUsage, func(r *dialect.Request) bool { return !r.CountAlong }},
		{chatBody(`"stream":true,"stream_options":{"continuous_usage_stats":true,"include_usage":true}`), "", func(r *dialect.Request) bool { return r.CountAlong }},
		{completionBody(`"stream":true,"stream_options":{"continuous_usage_stats":true,"include_usage":true}`), "", func(r *dialect.Request) bool { return r.CountAlong }},
		{chatBody(tools), customTool + " " + strictTool, func(r *dialect.Request) bool {
			return len(r.Tools) > 0 && !strings.Contains(string(r.Tools), "custom") && strings.Contains(string(r.Tools), `"f"`) && strings.Contains(string(r.Tools), `"g"`)
		}},
		{chatBody(`"tools":[{"type":"custom","custom":{"name":"c"}}]`), customTool, func(r *dialect.Request) bool { return r.Tools == nil }},
		{chatBody(tools + `,"tool_choice":"none"`), customTool, func(r *dialect.Request) bool { return r.Tools == nil }},
		{chatBody(tools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"g"}},{"type":"custom","custom":{"name":"c"}}]}}`), customTool, func(r *dialect.Request) bool {
			return string(r.Tools) == `[{"type":"function","function":{"name":"g"}}]` && !r.ForcedAny
		}},
		{chatBody(tools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"g"}}]}}`), customTool, func(r *dialect.Request) bool {
			return r.ForcedAny && strings.Contains(r.Guide.Text, `"g"`) && !strings.Contains(r.Guide.Text, `"f"`)
		}},
		// The forced tool wins over the format, in whatever order they come.
		{chatBody(tools + `,"tool_choice":{"type":"function","function":{"name":"f"}},` + schema), customTool + " response_format", func(r *dialect.Request) bool { return r.Guide.Text == dialect.AnyObject && r.ForcedTool == "f" }},
		{chatBody(schema + `,"tool_choice":"required",` + tools), customTool + " response_format", func(r *dialect.Request) bool { return r.ForcedAny && strings.Contains(r.Guide.Text, "minItems") }},
		{chatBody(schema + `,"tool_choice":"auto",` + tools), customTool + " " + strictTool, func(r *dialect.Request) bool { return r.Guide.Text == `{"type":"object"}` }},
		{image(`"high"`), cacheBreakpoint + " " + imageDetail, func(r *dialect.Request) bool { return len(r.Media) == 1 }},
		{image(`"auto"`), cacheBreakpoint, nil},
		{`{"model":"m","messages":[{"role":"assistant","content":"a","annotations":[{"type":"url_citation"}]},{"role":"user","content":"b"}]}`, "messages[].annotations", nil},
		{`{"model":"m","messages":[{"role":"assistant","content":"a","provider_specific_fields":{"refusal":null}},{"role":"user","content":"b"}]}`, "messages[].provider_specific_fields", nil},
	} {
		endpoint := Chat
		if strings.Contains(test.body, `"prompt":`) {
			endpoint = Completions
		}
		r, err := decodeFor(infer.CarriesAll, endpoint, test.body)
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
			continue
		}
		if got := strings.Join(r.LeftOut.Ignored(), " "); got != test.ignored || test.check != nil && !test.check(r) {
			t.Errorf("%s: ignored %q, want %q; %+v", test.body, got, test.ignored, r)
		}
		for _, name := range r.LeftOut.Ignored() {
			seen[name] = true
		}
	}
	for _, f := range innerFields {
		if f.Treatment == Ignored && !seen[f.Name] {
			t.Errorf("nothing here has %s left out", f.Name)
		}
	}
}

// A part that is refused is refused for its reason.
func TestPartsRefused(t *testing.T) {
	for _, f := range innerFields {
		kind, ok := strings.CutPrefix(f.Name, "messages[].content[] ")
		if !ok || f.Treatment != Refused {
			continue
		}
		_, err := decodeFor(infer.CarriesAll, Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"`+kind+`","`+kind+`":{}}]}]}`)
		hint := f.Note
		if hint == "" {
			hint = "leave it out"
		}
		wantError(t, err, infer.CodeUnsupported, "messages[0].content[0].type", `messages[0].content[0].type "`+kind+`" is not supported by engine kind "able"; `+hint)
	}
}

// With Lax, what no table has is passed over wherever it stands, and named.
func TestLax(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a","x":1}],"y":2}],"z":3,"best_of":2,
		"stream":true,"stream_options":{"u":1},"response_format":{"type":"text","v":1},
		"tools":[{"type":"odd"},{"type":"function","w":1,"function":{"name":"f","k":1}}],"tool_choice":{"type":"function","function":{"name":"f","q":1},"p":1}}`
	h, err := Chat.ParseHead([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Chat.Request(h, "able", infer.CarriesAll); err == nil {
		t.Error("not refused")
	}
	h.Lax = true
	r, err := Chat.Request(h, "able", infer.CarriesAll)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"messages[0].content[0].x", "messages[0].y", "z", "best_of", "stream_options.u", "response_format.v",
		"tools[0].type", "tools[1].w", "tools[1].function.k", "tool_choice.p", "tool_choice.function.q"}
	if !slices.Equal(r.LeftOut.Unknown(), want) || string(r.Tools) != `[{"type":"function","w":1,"function":{"name":"f","k":1}}]` {
		t.Errorf("passed %q, want %q; tools %s", r.LeftOut.Unknown(), want, r.Tools)
	}
}
