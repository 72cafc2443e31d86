package chat

import (
	"bytes"
	"strings"

	"weir/internal/chat/jinja"
)

// form is how a template wants what the API has in one way and templates in two.
// An assistant's message of nothing but tool calls has null for content, and the
// arguments of its calls are JSON in a string. Most templates add content to
// text and so want "" (engines' own front ends give it), some take only null for
// a message of calls; most write arguments as JSON, some take them for the text
// they are.
type form struct {
	nullContent   bool // of a message of calls; otherwise it is ""
	textArguments bool
}

// The arguments of the call that findForm has a template write.
const (
	probeKey   = "weir_probe_key"
	probeValue = "weir probe value"
)

// findForm finds the form by rendering a call in each and looking for it in the
// text: what the template writes of a call it was written for is its arguments,
// and not as Python would print them. If none serves, as in a template that
// writes no calls, it is the first.
func findForm(t *jinja.Template, source string) form {
	forms := []form{{}, {nullContent: true}, {textArguments: true}, {nullContent: true, textArguments: true}}
	if !strings.Contains(source, "tool_calls") {
		return forms[0]
	}
	for _, f := range forms {
		out, err := t.Render(nil, f.probe(), jinja.Options{MaxOutput: 1 << 20, MaxSteps: 100_000, MaxAlloc: 16 << 20})
		if err == nil && bytes.Contains(out, []byte(probeKey)) && bytes.Contains(out, []byte(probeValue)) && !bytes.Contains(out, []byte("{'"+probeKey)) {
			return f
		}
	}
	return forms[0]
}

// probe gives a conversation with a call as a template's variables.
func (f form) probe() map[string]jinja.Value {
	const conversation = `{
		"messages": [
			{"role": "user", "content": "q"},
			{"role": "assistant", "content": null, "tool_calls": [{"id": "call00001", "type": "function",
				"function": {"name": "weir_probe", "arguments": "{\"` + probeKey + `\": \"` + probeValue + `\"}"}}]},
			{"role": "tool", "tool_call_id": "call00001", "name": "weir_probe", "content": "a"}
		],
		"tools": [{"type": "function", "function": {"name": "weir_probe", "description": "d",
			"parameters": {"type": "object", "properties": {}}}}],
		"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true}`
	decoded, err := jinja.DecodeJSON([]byte(conversation))
	if err != nil {
		panic("chat: the probe is not valid JSON: " + err.Error())
	}
	vars := make(map[string]jinja.Value)
	for name, v := range decoded.(*jinja.Dict).All() {
		vars[name] = v
	}
	vars["documents"] = jinja.None
	prepareMessages(vars["messages"].(*jinja.List), &f)
	return vars
}

// apply gives a message of the API's its form. It is the rendering's own.
func (f form) apply(m *jinja.Dict) {
	v, _ := m.Get("tool_calls")
	calls, _ := v.(*jinja.List)
	content, ok := m.Get("content")
	switch {
	case f.nullContent && calls != nil && len(calls.Items) > 0:
		if !ok || content == jinja.Str("") {
			m.Set("content", jinja.None)
		}
	case !ok:
		m.Set("content", jinja.Str(""))
	}
	if calls != nil && !f.textArguments {
		decodeArguments(calls)
	}
}

// decodeArguments replaces the arguments of calls that are a JSON object in a
// string. Anything else stays what it is, for the template to judge.
func decodeArguments(calls *jinja.List) {
	for _, c := range calls.Items {
		call, ok := c.(*jinja.Dict)
		if !ok {
			continue
		}
		v, _ := call.Get("function")
		fn, ok := v.(*jinja.Dict)
		if !ok {
			continue
		}
		v, _ = fn.Get("arguments")
		s, ok := v.(jinja.Str)
		if !ok {
			continue
		}
		if d, err := jinja.DecodeJSON([]byte(s)); err == nil {
			if d, ok := d.(*jinja.Dict); ok {
				fn.Set("arguments", d)
			}
		}
	}
}
