package chat

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"weir/internal/model/callid"
	"weir/internal/model/chat/jinja"
)

// form is how a template wants what the API has in one way and templates in several. An
// assistant's message of nothing but tool calls has null for content, and the arguments of its
// calls are JSON in a string. Most templates add content to text and so want "" (engines' own
// front ends give it), some take only null for a message of calls; most write arguments as
// JSON, some take them for the text they are. Texts that come as an array of parts are put
// together by some templates, by many of them in messages of some roles only; others print the
// array, or leave it out, or fail. Many templates pass over messages of some roles, or in some
// places, or fail there. The zero value is a template that takes everything.
//
// A form is found by rendering canaries when the template is loaded (canary.go).
type form struct {
	nullContent   bool // of a message of calls; otherwise it is ""
	textArguments bool
	onlyParts     bool // a text alone is passed over: it comes as a part
	// partRoles are the roles in whose messages the template puts texts together.
	// In others they are one text, each a line.
	partRoles []string

	at              [speakers][places]verdict // of a message as it is
	inQuestion      bool                      // the system message is put before the last question
	calls, parallel verdict
	oneByOne        bool        // calls are apart, each with its result
	ids             callid.Form // callid.Any: canaries show none
	beside          beside
	wrapArguments   bool // arguments that are no object are put into one

	tools                           verdict
	toolsAfterSystem                bool // a system message must come before them
	fillDescription, fillParameters bool // of a tool without
	dropped                         []string

	// unsure: a conversation may lose what the places do not tell of, and so each is rendered
	// a second time, with marks for its texts.
	unsure bool
}

// The call that a template is asked to write, to see how it does.
const (
	probeName   = "weir_probe"
	probeKey    = "weir_probe_key"
	probeValue  = "weir probe value"
	probeNumber = "20731"
	probeArgs   = `{"` + probeKey + `": "` + probeValue + `"}`
	probeTools  = `[{"type": "function", "function": {"name": "` + probeName + `", "description": "d", "parameters": {"type": "object", "properties": {}}}}]`
	probeUser   = `{"role": "user", "content": "q"}`
)

func probeAnswer(id, args string) string {
	return fmt.Sprintf(`{"role": "assistant", "content": null, "tool_calls": [{"id": %q, "type": "function", "function": {"name": %q, "arguments": %q}}]}`,
		id, probeName, args)
}

// probeOptions bound what looking at a template may cost.
func probeOptions() Options {
	return Options{MaxOutput: 1 << 20, MaxSteps: 100_000, MaxAlloc: 16 << 20}
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
// most templates take, one with an id as Kimi has it, which holds the name, and one with a
// number, because some templates leave out the quotes of strings. There are
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
	for _, c := range []struct{ id, args, value string }{
		{"call00001", probeArgs, probeValue},
		{"functions." + probeName + ":0", probeArgs, probeValue},
		{"call00001", `{"` + probeKey + `": ` + probeNumber + `}`, probeNumber},
	} {
		whole, err := probe.Render(context.Background(), nil, probeInput(probeUser+", "+probeAnswer(c.id, c.args), false))
		if err != nil {
			continue
		}
		at := answerAt(prompt, whole)
		if answer := string(whole[at:]); strings.Contains(answer, probeName) && strings.Contains(answer, c.value) {
			all = append(all, Sample{Prompt: string(whole[:at]), Answer: answer, Tools: []byte(probeTools), Name: probeName, Arguments: c.args})
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
	calls := callsOf(m)
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
	if v, _ := m.Get("content"); f.onlyParts {
		if text, ok := v.(jinja.Str); ok {
			m.Set("content", &jinja.List{Items: []jinja.Value{textPart(string(text))}})
		}
	}
	if calls != nil {
		f.giveArguments(calls)
	}
}

// joinTexts makes one text of the parts of a message, if all are texts and the
// template does not put them together itself. No parts are an empty text.
func (f *form) joinTexts(m *jinja.Dict, parts *jinja.List) {
	if len(parts.Items) > 0 && callsOf(m) == nil && slices.Contains(f.partRoles, textOf(m, "role")) {
		return // beside calls many want a text
	}
	if text, ok := linesOf(parts); ok {
		m.Set("content", jinja.Str(text))
	}
}

// linesOf returns the texts of parts as lines, if all are texts.
func linesOf(parts *jinja.List) (text string, ok bool) {
	var lines []string
	for _, it := range parts.Items {
		part, ok := it.(*jinja.Dict)
		if !ok {
			return "", false
		}
		kind, _ := part.Get("type")
		v, _ := part.Get("text")
		text, ok := v.(jinja.Str)
		if !ok || kind != jinja.Str("text") {
			return "", false
		}
		lines = append(lines, string(text))
	}
	return strings.Join(lines, "\n"), true
}

// invalidArguments is the name under which arguments that are no object are put into one, as
// Anthropic's documentation proposes it.
const invalidArguments = "INVALID_JSON"

// giveArguments gives calls their arguments as the template takes them: as the text of the API,
// or the object that it is. A call without arguments has an empty object.
func (f *form) giveArguments(calls *jinja.List) {
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
		if v == nil || v == jinja.None {
			v = jinja.Str("")
		}
		if d, ok := v.(*jinja.Dict); ok && f.textArguments { // as some clients send them
			if text, err := jinja.JSON(d); err == nil {
				fn.Set("arguments", jinja.Str(text))
			}
			continue
		}
		s, ok := v.(jinja.Str)
		if !ok {
			continue
		}
		if strings.TrimSpace(string(s)) == "" {
			s = "{}"
			fn.Set("arguments", s)
		}
		if f.textArguments {
			continue
		}
		if d, err := jinja.DecodeJSON([]byte(s)); err == nil {
			if d, ok := d.(*jinja.Dict); ok {
				fn.Set("arguments", d)
				continue
			}
		}
		if f.wrapArguments {
			d := jinja.NewDict(1)
			d.Set(invalidArguments, s)
			fn.Set("arguments", d)
		}
	}
}
