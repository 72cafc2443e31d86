package chat

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"weir/internal/infer"
	"weir/internal/model/callid"
)

// Marks are the texts of canaries that must stand in the prompt.
const (
	markSystem  = "weir canary of a system message"
	markUser    = "weir canary of a question"
	markAnswer  = "weir canary of an answer"
	markThought = "weir canary of a thought"
	markResult  = "weir canary of a result"
	markSecond  = "weir canary of a second one"
	markHere    = "weir canary of what is asked about"

	otherName = "weir_other"
	otherKey  = "weir_other_key"

	firstID  = "call00001"
	secondID = "call00002"
	longID   = "call_0123456789abcdef"
)

// said is a message of text.
func said(role, text string) string {
	return fmt.Sprintf(`{"role": %q, "content": %q}`, role, text)
}

// gave is a tool's result.
func gave(id, text string) string {
	return fmt.Sprintf(`{"role": "tool", "tool_call_id": %q, "name": %q, "content": %q}`, id, probeName, text)
}

// called is a call as a message has it, without a comma.
func called(id, name, arguments string) string {
	return fmt.Sprintf(`{"id": %q, "type": "function", "function": {"name": %q, "arguments": %q}}`, id, name, arguments)
}

// calling is a message with calls and what else it has, each member with a comma behind it.
func calling(members string, calls ...string) string {
	return `{"role": "assistant", ` + members + `"tool_calls": [` + strings.Join(calls, ", ") + `]}`
}

const noContent = `"content": null, `

func content(text string) string   { return fmt.Sprintf(`"content": %q, `, text) }
func reasoning(text string) string { return fmt.Sprintf(`"reasoning_content": %q, `, text) }

// looking finds the form of a template by rendering canaries: conversations in which each text
// is a mark that the prompt must contain.
type looking struct {
	*Template
	tools string
}

// try renders a conversation and looks for marks.
func (l *looking) try(marks []string, messages ...string) verdict {
	out, err := l.render(messages...)
	if err != nil {
		if infer.AsError(err).Cause == ErrPassesOver {
			return lost
		}
		return refused
	}
	for _, mark := range marks {
		if !bytes.Contains(out, []byte(mark)) {
			return lost
		}
	}
	return shown
}

func (l *looking) render(messages ...string) ([]byte, error) {
	in := probeInput(strings.Join(messages, ", "), true)
	in.Tools = []byte(l.tools)
	return l.Render(context.Background(), nil, in)
}

// with tries the same with a change of the form, which it keeps if all is shown.
func (l *looking) with(change func(*form), all func() verdict) verdict {
	before := l.form
	change(&l.form)
	v := all()
	if v != shown {
		l.form = before
	}
	return v
}

// first returns the first of several verdicts that is not shown.
func first(tries ...func() verdict) verdict {
	for _, try := range tries {
		if v := try(); v != shown {
			return v
		}
	}
	return shown
}

// look returns the form of a template.
func look(t *Template) form {
	l := &looking{Template: &Template{source: t.source, tmpl: t.tmpl, opt: probeOptions()}}
	question := func() verdict {
		out, err := l.render(said("user", markUser))
		switch {
		case err != nil:
			return refused
		case !bytes.Contains(out, []byte(markUser)) || l.form.onlyParts && bytes.Contains(out, []byte("type")):
			return lost
		}
		return shown
	}
	base, v := "", question()
	if v == refused { // it may be a template for tools alone
		if l.tools = probeTools; question() != refused {
			base, v = probeTools, question()
		}
	}
	if l.tools = base; v != shown && l.with(func(f *form) { f.onlyParts = true }, question) == refused && v == refused {
		l.form.refuseAll()
		return l.form
	}
	l.tools = probeTools
	l.form.calls = l.lookAtCalls()
	l.form.partRoles = l.findPartRoles()
	l.form.tools = l.lookAtTools()
	l.tools = base
	l.form.at = l.lookAtPlaces()
	if l.lookAtEnds() != shown {
		l.form.unsure = l.with(func(f *form) { f.inQuestion = true }, l.lookAtEnds) != shown
	}
	l.lookAtDropped()
	return l.form
}

// refuseAll is the form of a template that renders nothing.
func (f *form) refuseAll() {
	for s := range f.at {
		for p := range f.at[s] {
			f.at[s][p] = refused
		}
	}
	f.calls, f.parallel, f.tools = refused, refused, refused
}

// lookAtCalls finds in which form the template writes a call: what it writes of a call it was
// written for is its arguments, and not as Python would print them.
func (l *looking) lookAtCalls() verdict {
	call := func(id string) func() verdict {
		return func() verdict {
			out, err := l.render(said("user", markUser), calling(noContent, called(id, probeName, probeArgs)), gave(id, markResult))
			switch {
			case err != nil:
				return refused
			case !bytes.Contains(out, []byte(probeKey)) || !bytes.Contains(out, []byte(probeValue)) || bytes.Contains(out, []byte("{'"+probeKey)):
				return lost
			}
			return shown
		}
	}
	v := call(firstID)()
	if v != shown && !strings.Contains(l.source, "tool_calls") {
		l.form.parallel = lost
		return lost
	}
	for _, f := range []form{{nullContent: true}, {textArguments: true}, {nullContent: true, textArguments: true}} {
		if v == shown {
			break
		}
		if w := l.with(func(g *form) { g.nullContent, g.textArguments = f.nullContent, f.textArguments }, call(firstID)); w < v {
			v = w
		}
	}
	if v != shown {
		l.form.parallel = v
		return v
	}
	l.lookAtIDs(call(longID))
	l.lookAtArguments()
	l.lookAtParallel()
	l.lookAtBeside()
	return shown
}

func (l *looking) lookAtIDs(call func() verdict) {
	named := func() verdict {
		return l.try([]string{otherName}, said("user", markUser), calling(noContent, called(firstID, otherName, "{}")), gave(firstID, markResult))
	}
	switch {
	case call() != shown:
		l.with(func(f *form) { f.ids = callid.Short }, call)
	case named() != shown:
		l.with(func(f *form) { f.ids = callid.Typed }, named)
	}
}

// lookAtArguments finds what becomes of arguments that are no object, as those of a call that
// was cut are.
func (l *looking) lookAtArguments() {
	cut := func() verdict {
		return l.try([]string{probeValue}, said("user", markUser), calling(noContent, called(firstID, probeName, `{"`+probeKey+`": "`+probeValue)), gave(firstID, markResult))
	}
	if cut() != shown {
		l.with(func(f *form) { f.wrapArguments = true }, cut)
	}
}

func (l *looking) lookAtParallel() {
	both := func() verdict {
		return l.try([]string{markUser, probeValue, otherName, otherKey, markResult, markSecond, markAnswer}, said("user", markUser),
			calling(noContent, called(firstID, probeName, probeArgs), called(secondID, otherName, `{"`+otherKey+`": "v"}`)),
			gave(firstID, markResult), gave(secondID, markSecond), said("assistant", markAnswer), said("user", markHere))
	}
	if l.form.parallel = both(); l.form.parallel != shown {
		l.form.parallel = l.with(func(f *form) { f.oneByOne = true; f.parallel = shown }, both)
	}
}

// lookAtBeside finds what becomes of the text of a message with calls.
func (l *looking) lookAtBeside() {
	one := called(firstID, probeName, probeArgs)
	marks := []string{markUser, markAnswer, probeValue}
	all := func() verdict {
		return first(
			func() verdict {
				return l.try(marks, said("user", markUser), calling(content(markAnswer), one), gave(firstID, markResult))
			},
			func() verdict {
				return l.try(append(marks, markSecond, markHere, otherName), said("user", markUser), calling(content(markAnswer), one), gave(firstID, markResult),
					said("assistant", markSecond), said("user", markUser), calling(content(markHere), called(secondID, otherName, "{}")), gave(secondID, markResult))
			},
			func() verdict {
				return l.try(marks, said("user", markUser), calling(content(markAnswer)+reasoning(markThought), one), gave(firstID, markResult))
			})
	}
	if all() == shown {
		return
	}
	for _, b := range []beside{beforeLaterCalls, beforeCalls} {
		if l.with(func(f *form) { f.beside = b }, all) == shown {
			return
		}
	}
	l.form.beside = withoutCalls
}

// findPartRoles finds the roles whose texts the template puts together, by rendering a message
// of two texts of each, and looking for both, with nothing of the array between them.
func (l *looking) findPartRoles() (roles []string) {
	const first, second = "weir_first_text", "weir_second_text"
	parts := func(role, rest string) string {
		return `{"role": "` + role + `", "content": [{"type": "text", "text": "` + first + `"}, {"type": "text", "text": "` + second + `"}]` + rest + `}`
	}
	before := l.form.partRoles
	l.form.partRoles = []string{"system", "developer", "user", "assistant", "tool"}
	defer func() { l.form.partRoles = before }()
	for _, role := range l.form.partRoles {
		messages := []string{parts(role, "")}
		switch role {
		case "user":
		case "assistant":
			messages = []string{probeUser, messages[0], probeUser}
		case "tool":
			messages = []string{probeUser, calling(noContent, called(firstID, probeName, probeArgs)), parts(role, `, "tool_call_id": "`+firstID+`", "name": "`+probeName+`"`)}
		default:
			messages = append(messages, probeUser)
		}
		out, err := l.render(messages...)
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

// lookAtTools finds whether the template tells the model of tools.
func (l *looking) lookAtTools() verdict {
	told := func() verdict {
		v := first(
			func() verdict { return l.try([]string{probeName, markUser}, said("user", markUser)) },
			func() verdict {
				return l.try([]string{probeName, markUser, markSecond}, said("user", markUser), said("assistant", markAnswer), said("user", markSecond))
			})
		instructed := func(marks ...string) verdict {
			return l.try(append(marks, markSystem, markUser), said("system", markSystem), said("user", markUser))
		}
		if v == shown && instructed(probeName) == lost {
			// Tools must not take the place of a system message that the template writes without.
			tools := l.tools
			l.tools = ""
			if alone := instructed(); alone == shown {
				v = lost
			}
			l.tools = tools
		}
		return v
	}
	v := told()
	if v != shown {
		v = min(v, l.with(func(f *form) { f.toolsAfterSystem = true }, told))
	}
	if v != shown {
		return v
	}
	for _, t := range []struct {
		change func(*form)
		tools  string
	}{
		{func(f *form) { f.fillDescription = true }, `[{"type": "function", "function": {"name": "` + probeName + `", "parameters": {"type": "object", "properties": {}}}}]`},
		{func(f *form) { f.fillParameters = true }, `[{"type": "function", "function": {"name": "` + probeName + `", "description": "d"}}]`},
	} {
		l.tools = t.tools
		if told() != shown {
			l.with(t.change, told)
		}
	}
	l.tools = probeTools
	return shown
}

// lookAtPlaces finds whether the template takes a message of each speaker in each place. A
// message is shown if nothing else is lost by it.
func (l *looking) lookAtPlaces() (at [speakers][places]verdict) {
	one := calling(noContent, called(firstID, probeName, probeArgs))
	if l.form.calls != shown { // results may be taken all the same
		one = said("assistant", markAnswer)
	}
	before := [places][]string{
		nil, {said("system", markSystem)}, {said("user", markUser)}, {said("user", markUser), said("assistant", markAnswer)},
		{said("user", markUser), one}, {said("user", markUser), one, gave(firstID, markResult)},
	}
	marks := [places][]string{nil, {markSystem}, {markUser}, {markUser, markAnswer}, {markUser}, {markUser, markResult}}
	look := func(s speaker, p place, lead bool) {
		before, marks := before[p], marks[p]
		if lead {
			before, marks = slices.Insert(slices.Clone(before), 0, said("system", markSystem)), append(slices.Clone(marks), markSystem)
		}
		at[s][p] = max(at[s][p], l.lookAt(s, p, before, marks))
	}
	for s := range speakers {
		for p := range places {
			// A later instruction must not take the place of the first.
			if look(s, p, false); s <= developer && p > afterSystem && at[system][atStart] == shown {
				look(s, p, true)
			}
		}
	}
	return at
}

// lookAt finds whether the template takes a message of a speaker in a place, behind those given.
func (l *looking) lookAt(s speaker, p place, before, marks []string) verdict {
	message := said(s.String(), markHere)
	if s == tool {
		message = gave(firstID, markHere)
	}
	conversation, want := append(slices.Clone(before), message), append(slices.Clone(marks), markHere)
	asLast := func() verdict { return l.try(want, conversation...) }
	asked := func() verdict {
		return l.try(append(want, markSecond), append(conversation, said("user", markSecond))...)
	}
	answered := func() verdict {
		return l.try(append(want, markSecond, markThought), append(conversation, said("assistant", markSecond), said("user", markThought))...)
	}
	switch {
	case s == user || p == afterCall && s != tool:
		return asLast()
	case s == tool:
		return first(asLast, answered)
	case p == atStart || p == afterSystem || s == assistant:
		return asked()
	}
	return first(asked, asLast, answered)
}

// lookAtEnds finds whether what a conversation ends with makes the template pass over what came
// before, which the places do not tell: some write the system message with the last question only.
func (l *looking) lookAtEnds() verdict {
	marks := []string{markUser, markAnswer}
	messages := []string{said("user", markUser), said("assistant", markAnswer)}
	if l.form.at[system][atStart] == shown {
		marks, messages = append(marks, markSystem), slices.Insert(messages, 0, said("system", markSystem))
	}
	if v := l.try(marks, messages...); v == lost || l.form.calls != shown {
		return v
	}
	messages = append(messages[:len(messages)-1], calling(content(markAnswer), called(firstID, probeName, probeArgs)), gave(firstID, markResult))
	if l.form.beside == withoutCalls {
		marks = slices.DeleteFunc(marks, func(m string) bool { return m == markAnswer })
	}
	return l.try(append(marks, markResult), messages...)
}

// lookAtDropped notes what the template passes over by design.
func (l *looking) lookAtDropped() {
	note := func(what string, v verdict) {
		if v != shown {
			l.form.dropped = append(l.form.dropped, what)
		}
	}
	thought := []string{markThought}
	note("reasoning of earlier turns", l.try(thought, said("user", markUser), `{"role": "assistant", `+reasoning(markThought)+`"content": "`+markAnswer+`"}`, said("user", markHere)))
	if l.form.calls == shown {
		note("reasoning of this turn", l.try(thought, said("user", markUser), calling(noContent+reasoning(markThought), called(firstID, probeName, probeArgs)), gave(firstID, markResult)))
	}
	note("name", l.try([]string{markSecond}, `{"role": "user", "name": "`+markSecond+`", "content": "`+markUser+`"}`))
}
