package gateway

import (
	"strings"
	"testing"

	"weir/internal/engine"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/models"
)

// A field that was left out of a request is named in the head of its answer, whole or streamed, in
// every dialect, and counted. Without such a field nothing is named.
func TestIgnored(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		calls := 0
		for _, test := range []struct {
			path, body string
			headers    []string
			want       string
			answered   bool // by weir itself
		}{
			{chatPath, askChat(``), nil, "", false},
			{chatPath, askStream(``), nil, "", false},
			{chatPath, askChat(`,"store":false,"user":null`), nil, "", false},
			{chatPath, askChat(`,"store":true,"verbosity":"low"`), nil, "store, verbosity", false},
			{chatPath, askStream(`,"prediction":{},"user":"u"`), nil, "prediction, user", false},
			{messagesPath, askMessage(`,"stream":true,"metadata":{"user_id":"u"}`), []string{"Anthropic-Beta", "new-2099-01-01"}, "metadata, header anthropic-beta", false},
			{messagesPath, askMessage(``), []string{"anthropic-version", "2023-06-01"}, "", false},
			{"/v1/responses", `{"model":"` + models.SimName + `","input":"a","text":{"verbosity":"high"},"client_metadata":{"a":"b"}}`, nil, "text.verbosity, client_metadata", false},
			{"/tokenize", `{"model":"` + models.SimName + `","prompt":"a","user":"u"}`, nil, "user", true},
			{"/detokenize", `{"model":"` + models.SimName + `","tokens":[1],"user":"u"}`, nil, "user", true},
			{"/generate", `{"model":"` + models.SimName + `","text":"a","no_logs":true}`, nil, "no_logs", false},
		} {
			c := b.post(test.path, test.body, test.headers...)
			if !test.answered {
				calls++
				e.call(t, calls).end(infer.ReasonStop)
			}
			a := c.answer()
			if got := strings.Join(a.header.Values("Weir-Ignored"), "|"); a.status != 200 || got != test.want {
				t.Errorf("%s %s: status %d, ignored %q, want %q: %s", test.path, test.body, a.status, got, test.want, a.body)
			}
		}
		a := b.post(chatPath, askChat(`,"stores":true`)).answer()
		if a.status != 400 || a.header.Get("Weir-Ignored") != "" || !strings.Contains(string(a.body), "did you mean store?") {
			t.Errorf("unknown: status %d, %v: %s", a.status, a.header, a.body)
		}
		if series, n := b.metric("weir_ignored_fields_total"), b.sum("weir_ignored_fields_total"); len(series) != 9 || n != 11 {
			t.Errorf("%v of what was ignored, in all %v; want 9 series, 11", series, n)
		}
	})
}

// With PassUnknown fields that no table has are named, as far as a header may hold them.
func TestPassUnknown(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Prepare: prepare.Options{PassUnknown: true}}, []any{e}, func(t *testing.T, b *bench) {
		many := ""
		for i := range 60 {
			many += `,"` + strings.Repeat(string(rune('a'+i%26)), 40) + string(rune('0'+i/26)) + `":1`
		}
		for i, test := range []struct{ body, want string }{
			{`,"stores":true,"a\r\nb, c":{}`, "stores, a??b??c"},
			{`,"temperature":null,"é":1`, "?"},
			{many, ""},
		} {
			c := b.post(chatPath, askChat(test.body))
			e.call(t, i+1).end(infer.ReasonStop)
			a := c.answer()
			got := a.header.Get("Weir-Ignored")
			if a.status != 200 || test.want != "" && got != test.want {
				t.Errorf("%s: status %d, %q: %s", test.body, a.status, got, a.body)
			}
			if test.want == "" && (len(got) > 1024 || !strings.HasSuffix(got, " more") || strings.Count(got, ", ") < 20) {
				t.Errorf("%d bytes: %s", len(got), got)
			}
		}
		if all := b.metric("weir_ignored_fields_total"); len(all) != 1 || all[0].labels["field"] != "unknown" {
			t.Errorf("%v of what was ignored, want one series of what is unknown", all)
		}
	})
}

// What the chat template has no place for is left out and named, or refused by the name of the
// caller's field: tools, the text of a message with calls, calls.
func TestTemplateWithoutAPlace(t *testing.T) {
	load := func(template string) *model.Folder {
		m, err := model.Load(folder(t, map[string]func(string) string{"chat_template.jinja": func(string) string { return template }}))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	textOnly := load("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
	callsAlone := load(`{{ tools|tojson }}{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}
<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments|tojson }}}</tool_call>{% endfor %}{% else %}{{ m.role }}: {{ m.content }}
{% if m.role == 'assistant' and loop.previtem and loop.previtem.role == 'user' and not loop.last and loop.nextitem.role != 'user' %}{{ raise_exception('an answer is followed by a user') }}{% endif %}{% endif %}{% endfor %}`)
	const (
		asked  = `,"messages":[{"role":"user","content":"a"}`
		called = `,{"role":"assistant","content":"I look","tool_calls":[{"id":"c","type":"function","function":{"name":"get_weather","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"r"}]`
		item   = `,"input":[{"role":"user","content":"a"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"r"}]`
	)
	for _, test := range []struct {
		folder              *model.Folder
		path, body          string
		ignored, param, say string
	}{
		{textOnly, chatPath, asked + `]` + askTools, "tools", "", ""},
		{textOnly, messagesPath, asked + `],"max_tokens":9,"tools":[{"name":"f","input_schema":{"type":"object"}}]`, "tools", "", ""},
		{textOnly, "/v1/responses", `,"input":"a","tools":[{"type":"function","name":"f","parameters":{"type":"object"}}]`, "tools", "", ""},
		{textOnly, "/tokenize", asked + `]` + askTools, "tools", "", ""},
		{textOnly, chatPath, asked + `]` + askTools + `,"tool_choice":"none"`, "", "", ""},
		{textOnly, chatPath, asked + `]` + askTools + `,"tool_choice":"required"`, "", "tool_choice", "no place for tools"},
		{textOnly, chatPath, asked + `]` + askTools + `,"tool_choice":{"type":"function","function":{"name":"get_weather"}}`, "", "tool_choice", "no place for tools"},
		{textOnly, chatPath, asked + called, "", "messages[1].tool_calls", "passes over"},
		{textOnly, "/v1/responses", item, "", "input", "input: a message's tool_calls has calls of tools"},
		{callsAlone, chatPath, asked + called + askTools, "messages[].content", "", ""},
		{callsAlone, "/tokenize", asked + called + askTools, "messages[].content", "", ""},
		{callsAlone, chatPath, asked + `]` + askTools, "", "", ""},
	} {
		e := &tokenEngine{name: "a", facts: &engine.Facts{Carries: infer.CarriesAll}}
		inBubble(t, Options{Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: test.folder}}}, []any{e}, func(t *testing.T, b *bench) {
			c := b.post(test.path, `{"model":"`+models.SimName+`"`+test.body+`}`)
			if test.param == "" && test.path != "/tokenize" {
				e.call(t, 1).end(infer.ReasonStop)
			}
			a := c.answer()
			got := a.header.Get("Weir-Ignored")
			switch {
			case test.param == "" && (a.status != 200 || got != test.ignored || b.sum("weir_ignored_fields_total") != float64(min(1, len(got)))):
				t.Errorf("%s %s: status %d, ignored %q, want %q: %s", test.path, test.body, a.status, got, test.ignored, a.body)
			case test.param != "" && (a.status != 400 || !strings.Contains(string(a.body), `"param":"`+test.param+`"`) || !strings.Contains(string(a.body), test.say)):
				t.Errorf("%s %s: status %d, want %s: %s", test.path, test.body, a.status, test.param, a.body)
			}
		})
	}
}

// Tools that the chat template has no place for reach an engine that takes the request as it came.
func TestToolsWithoutAPlaceAreRelayed(t *testing.T) {
	m, err := model.Load(folder(t, map[string]func(string) string{"chat_template.jinja": func(string) string {
		return "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
	}}))
	if err != nil {
		t.Fatal(err)
	}
	mixed(t, Options{Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: m}}}, func(t *testing.T, b *bench, ids *tokenEngine, relay *relayEngine) {
		for n := range 2 {
			c := b.post(chatPath, askStream(askTools))
			f := relay.latest(t, n+1)
			if got := string(f.req.Body); got != askStream(askTools) || ids.count() != 0 {
				t.Errorf("the relay was given %s, and %d requests went to the other engine", got, ids.count())
			}
			f.send(relayedChat("b"))
			f.end()
			if c.wantWhole("b", "stop"); c.answer().header.Get(prepare.IgnoredHeader) != "" {
				t.Error("something is said to be left out")
			}
		}
	})
}
