package chat

import (
	"slices"

	"weir/internal/model/callid"
	"weir/internal/model/chat/jinja"
)

// reasoningFields are the names under which a message's reasoning comes. The
// first is the one templates read.
func reasoningFields() [3]string { return [3]string{"reasoning_content", "thinking", "reasoning"} }

// prepareMessages does to the messages what transformers does before it
// renders, and gives a conversation of the API's the form of the template if there is one. The
// messages and tools are this rendering's own.
func prepareMessages(l, tools *jinja.List, f *form, ids callid.Form) (*shaped, error) {
	if f == nil {
		for i, it := range l.Items {
			l.Items[i] = aliasReasoning(withoutNulls(it.(*jinja.Dict)))
		}
		return nil, nil
	}
	s, err := f.shape(l, ids)
	if err != nil {
		return nil, err
	}
	if l.Items = s.items; tools != nil {
		if f.tools == refused {
			s.suspect, s.suspected = "tools", "is given"
		}
		f.fillTools(tools)
		if f.toolsAfterSystem {
			l.Items = systemFirst(l.Items)
		}
	}
	return s, nil
}

// systemFirst returns messages of which the first is a system message.
func systemFirst(messages []jinja.Value) []jinja.Value {
	if len(messages) > 0 {
		switch first := messages[0].(*jinja.Dict); textOf(first, "role") {
		case "developer":
			first.Set("role", jinja.Str("system"))
			return messages
		case "system":
			return messages
		}
	}
	empty := jinja.NewDict(2)
	empty.Set("role", jinja.Str("system"))
	empty.Set("content", jinja.Str(""))
	return slices.Insert(messages, 0, jinja.Value(empty))
}

// withoutNulls leaves out what is null in a message: many templates would write
// "None", or fail, where they take a key that is not there for nothing.
func withoutNulls(m *jinja.Dict) *jinja.Dict {
	nulls := 0
	for _, v := range m.All() {
		if v == jinja.None {
			nulls++
		}
	}
	if nulls == 0 {
		return m
	}
	out := jinja.NewDict(m.Len() - nulls)
	for k, v := range m.All() {
		if v != jinja.None {
			out.Set(k, v)
		}
	}
	return out
}

// aliasReasoning returns a message's reasoning, whichever name it came under, the name
// that templates read, and thinking for those that read that.
func aliasReasoning(m *jinja.Dict) *jinja.Dict {
	for _, name := range reasoningFields() {
		v, ok := m.Get(name)
		if !ok {
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
