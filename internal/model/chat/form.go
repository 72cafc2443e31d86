package chat

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"weir/internal/model/chat/jinja"
)

// form is how a template wants what the API has in one way and templates in two.
// An assistant's message of nothing but tool calls has null for content, and the
// arguments of its calls are JSON in a string. Most templates add content to
// text and so want "" (engines' own front ends give it), some take only null for
// a message of calls; most write arguments as JSON, some take them for the text
// they are. Texts that come as an array of parts are put together by some
// templates, by many of them in messages of some roles only; others print the
// array, or leave it out, or fail.
type form struct {
	nullContent   bool // of a message of calls; otherwise it is ""
	textArguments bool
	// partRoles are the roles in whose messages the template puts texts together.
	// In others they are one text, each a line.
	partRoles []string
}

// The call that a template is asked to write, to see how it does.
const (
	probeName  = "weir_probe"
	probeKey   = "weir_probe_key"
	probeValue = "weir probe value"
	probeArgs  = `{"` + probeKey + `": "` + probeValue + `"}`
	probeTools = `[{"type": "function", "function": {"name": "` + probeName + `", "description": "d", "parameters": {"type": "object", "properties": {}}}}]`
	probeUser  = `{"role": "user", "content": "q"}`
)

func probeAnswer(id string) string {
	return fmt.Sprintf(`{"role": "assistant", "content": null, "tool_calls": [{"id": %q, "type": "function", "function": {"name": %q, "arguments": %q}}]}`,
		id, probeName, probeArgs)
}

// probeOptions bound what looking at a template may cost.
func probeOptions() Options {
	return Options{MaxOutput: 1 << 20, MaxSteps: 100_000, MaxAlloc: 16 << 20}
}

// findForm finds the form by rendering a call in each and looking for it in the
// text: what the template writes of a call it was written for is its arguments,
// and not as Python would print them. If none serves, as in a template that
// writes no calls, it is the first.
func (t *Template) findForm() form {
	forms := []form{{}, {nullContent: true}, {textArguments: true}, {nullContent: true, textArguments: true}}
	if !strings.Contains(t.source, "tool_calls") {
		return forms[0]
	}
	const result = `{"role": "tool", "tool_call_id": "call00001", "name": "` + probeName + `", "content": "a"}`
	for _, f := range forms {
		probe := &Template{source: t.source, tmpl: t.tmpl, form: f, opt: probeOptions()}
		out, err := probe.Render(context.Background(), nil, probeInput(probeUser+", "+probeAnswer("call00001")+", "+result, true))
		if err == nil && bytes.Contains(out, []byte(probeKey)) && bytes.Contains(out, []byte(probeValue)) && !bytes.Contains(out, []byte("{'"+probeKey)) {
			return f
		}
	}
	return forms[0]
}

// findPartRoles finds the roles by rendering a message of two texts of each, and
// looking for both, with nothing of the array between them.
func (t *Template) findPartRoles() (roles []string) {
	const first, second = "weir_first_text", "weir_second_text"
	parts := func(role, rest string) string {
		return `{"role": "` + role + `", "content": [{"type": "text", "text": "` + first + `"}, {"type": "text", "text": "` + second + `"}]` + rest + `}`
	}
	f := t.form
	f.partRoles = []string{"system", "developer", "user", "assistant", "tool"}
	probe := &Template{source: t.source, tmpl: t.tmpl, form: f, opt: probeOptions()}
	for _, role := range f.partRoles {
		var messages string
		switch role {
		case "user":
			messages = parts(role, "")
		case "assistant":
			messages = probeUser + ", " + parts(role, "") + ", " + probeUser
		case "tool":
			messages = probeUser + ", " + probeAnswer("call00001") + ", " + parts(role, `, "tool_call_id": "call00001", "name": "`+probeName+`"`)
		default:
			messages = parts(role, "") + ", " + probeUser
		}
		out, err := probe.Render(context.Background(), nil, probeInput(messages, true))
		if err != nil {
			continue
		}
		_, after, shown := bytes.Cut(out, []byte(first))
		between, _, both := bytes.Cut(after, []byte(second))
		if shown && both && !bytes.Contains(between, []byte("type")) {
			roles = append(roles, role)
		}
	}
	return roles
}

func probeInput(messages string, generate bool) *Input {
	return &Input{
		Messages: []byte("[" + messages + "]"), Tools: []byte(probeTools), AddGenerationPrompt: generate, FromAPI: true,
		SpecialTokens: map[string]string{"bos_token": "<s>", "eos_token": "</s>"},
	}
}

// Sample is an answer that calls a tool, as a template writes it in a
// conversation, which is how the model was trained to write it.
type Sample struct {
	Prompt, Answer string
	Tools          []byte // the request's
	Name           string // of the one that is called
	Arguments      string
}

// Samples returns the answers that the template for tools writes: one with an id that
// most templates take, one with an id as Kimi has it, which holds the name. There are
// none of a template that writes no calls.
func (s *Set) Samples() []Sample {
	t, err := s.Select("", true)
	if err != nil || !strings.Contains(t.source, "tool_calls") {
		return nil
	}
	probe := &Template{source: t.source, tmpl: t.tmpl, form: t.form, opt: probeOptions()}
	prompt, err := probe.Render(context.Background(), nil, probeInput(probeUser, true))
	if err != nil {
		return nil
	}
	var all []Sample
	for _, id := range []string{"call00001", "functions." + probeName + ":0"} {
		whole, err := probe.Render(context.Background(), nil, probeInput(probeUser+", "+probeAnswer(id), false))
		if err != nil {
			continue
		}
		at := answerAt(prompt, whole)
		if answer := string(whole[at:]); strings.Contains(answer, probeName) && strings.Contains(answer, probeValue) {
			all = append(all, Sample{Prompt: string(whole[:at]), Answer: answer, Tools: []byte(probeTools), Name: probeName, Arguments: probeArgs})
		}
	}
	return all
}

// answerAt returns where the answer begins in a conversation that ends with it: as far
// as it is the prompt, but not within a tag with which both go on differently.
func answerAt(prompt, whole []byte) int {
	at := 0
	for at < len(prompt) && at < len(whole) && prompt[at] == whole[at] {
		at++
	}
	if open := bytes.LastIndexAny(whole[:at], "<[>]"); at < len(prompt) && open >= 0 && (whole[open] == '<' || whole[open] == '[') {
		return open
	}
	return at
}

// apply gives a message of the API's its form. It is the rendering's own.
func (f *form) apply(m *jinja.Dict) {
	v, _ := m.Get("tool_calls")
	calls, _ := v.(*jinja.List)
	content, ok := m.Get("content")
	if parts, several := content.(*jinja.List); several {
		f.joinTexts(m, parts)
	}
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

// joinTexts makes one text of the parts of a message, if all are texts and the
// template does not put them together itself.
func (f *form) joinTexts(m *jinja.Dict, parts *jinja.List) {
	role, _ := m.Get("role")
	if name, ok := role.(jinja.Str); ok && slices.Contains(f.partRoles, string(name)) {
		return
	}
	var lines []string
	for _, it := range parts.Items {
		part, ok := it.(*jinja.Dict)
		if !ok {
			return
		}
		kind, _ := part.Get("type")
		v, _ := part.Get("text")
		text, ok := v.(jinja.Str)
		if !ok || kind != jinja.Str("text") {
			return
		}
		lines = append(lines, string(text))
	}
	m.Set("content", jinja.Str(strings.Join(lines, "\n")))
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
