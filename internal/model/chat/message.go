package chat

import "weir/internal/model/chat/jinja"

// reasoningFields are the names under which a message's reasoning comes. The
// first is the one templates read.
func reasoningFields() [3]string { return [3]string{"reasoning_content", "thinking", "reasoning"} }

// prepareMessages does to the messages what transformers does before it
// renders, and gives messages of the API's a form if there is one. The messages
// are this rendering's own.
func prepareMessages(l *jinja.List, f *form) {
	for i, it := range l.Items {
		m := withoutNulls(it.(*jinja.Dict))
		if f != nil {
			f.apply(m)
		}
		l.Items[i] = aliasReasoning(m)
	}
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
