package chat

import "weir/internal/chat/jinja"

// reasoningFields are the names under which a message's reasoning comes. The
// first is the one templates read.
func reasoningFields() [3]string { return [3]string{"reasoning_content", "thinking", "reasoning"} }

// prepareMessages does to the messages what transformers does before it
// renders, and decodes the arguments of tool calls where asked. The messages
// are this rendering's own.
func prepareMessages(l *jinja.List, decodeArguments bool) {
	for i, it := range l.Items {
		m := it.(*jinja.Dict)
		if decodeArguments {
			decodeToolArguments(m)
		}
		l.Items[i] = aliasReasoning(m)
	}
}

// aliasReasoning gives a message's reasoning, whichever name it came under,
// the name that templates read, and thinking for those that read that.
func aliasReasoning(m *jinja.Dict) *jinja.Dict {
	for _, name := range reasoningFields() {
		v, ok := m.Get(name)
		if !ok || v == jinja.None {
			continue
		}
		out := jinja.NewDict(m.Len() + 2)
		out.Set("thinking", v)
		for k, v := range m.All() {
			out.Set(k, v)
		}
		out.Set("reasoning_content", v)
		return out
	}
	return m
}

// decodeToolArguments replaces arguments that are a JSON object in a string.
// Anything else stays what it is, for the template to judge.
func decodeToolArguments(m *jinja.Dict) {
	v, _ := m.Get("tool_calls")
	calls, ok := v.(*jinja.List)
	if !ok {
		return
	}
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
