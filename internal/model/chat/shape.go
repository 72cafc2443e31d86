package chat

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir/internal/infer"
	"weir/internal/model/callid"
	"weir/internal/model/chat/jinja"
)

// speaker is whose a message is.
type speaker uint8

const (
	system speaker = iota
	developer
	user
	assistant
	tool
	speakers
)

func (s speaker) String() string {
	return [...]string{"system", "developer", "user", "assistant", "tool"}[s]
}

// speakerOf returns the speaker that a role names.
func speakerOf(role string) (s speaker, ok bool) {
	for s := range speakers {
		if s.String() == role {
			return s, true
		}
	}
	return 0, false
}

// place is what a message stands behind.
type place uint8

const (
	atStart place = iota
	afterSystem
	afterUser
	afterAnswer // of the assistant, without calls
	afterCall
	afterResult
	places
)

func (p place) String() string {
	return [...]string{"at the start", "behind a system message", "behind a user message", "behind an answer", "behind a call", "behind a tool's result"}[p]
}

// after returns the place behind a message without calls.
func (s speaker) after() place {
	return [...]place{afterSystem, afterSystem, afterUser, afterAnswer, afterResult}[s]
}

// A verdict says what a template does with something.
type verdict uint8

const (
	shown   verdict = iota
	lost            // it passes it over
	refused         // it fails
)

func (v verdict) String() string { return [...]string{"yes", "no", "refused"}[v] }

// beside is what becomes of the text of a message that has calls too.
type beside uint8

const (
	besideCalls      beside = iota
	beforeLaterCalls        // it is a message of its own, but for the first message with calls
	beforeCalls             // it is a message of its own
	withoutCalls            // it is left out and named
)

// shaped is a conversation in the form that a template takes.
type shaped struct {
	f     *form
	items []jinja.Value
	from  []int // the indices of items among the caller's messages

	behind    place                    // of the message that comes next
	ids       callid.History           // of the calls so far
	lastCall  jinja.Str                // the id of the latest one
	joined    map[*jinja.Dict][]string // the texts of messages that others were added to
	inParts   *jinja.Dict              // the latest message to which others were added as parts
	passed    []string                 // what was left out
	suspect   string                   // the first field that the template is known to refuse
	suspected string                   // what it is
}

// shape makes the messages, which are this rendering's own, such as the template takes.
// What the template passes over and has no other form is an error, except as passed names it.
// ids is the form of the calls' ids if canaries show none.
func (f *form) shape(l *jinja.List, ids callid.Form) (*shaped, error) {
	s := &shaped{f: f, items: make([]jinja.Value, 0, len(l.Items)), from: make([]int, 0, len(l.Items))}
	if s.ids.Form = ids; f.ids != callid.Any {
		s.ids.Form = f.ids
	}
	if s.ids.Form != callid.Any {
		s.keepIDs(l.Items)
	}
	for i := 0; i < len(l.Items); i++ {
		m := withoutNulls(l.Items[i].(*jinja.Dict))
		spell(m)
		var err error
		switch calls := callsOf(m); {
		case textOf(m, "role") != "assistant" || calls == nil || len(calls.Items) == 0:
			err = s.message(i, m)
		case f.oneByOne && len(calls.Items) > 1:
			i, err = s.oneByOne(i, m, calls, l.Items)
		default:
			err = s.call(i, m, calls)
		}
		if err != nil {
			return nil, err
		}
	}
	if f.inQuestion {
		if err := s.intoQuestion(); err != nil {
			return nil, err
		}
	}
	for i, it := range s.items {
		m := it.(*jinja.Dict)
		s.put(m)
		f.apply(m)
		s.items[i] = aliasReasoning(m)
	}
	return s, nil
}

// spell makes text of a refusal, which no template knows.
func spell(m *jinja.Dict) {
	eachPart(m, func(part *jinja.Dict) {
		if text, ok := part.Get("refusal"); ok && textOf(part, "type") == "refusal" {
			part.Set("type", jinja.Str("text"))
			part.Set("text", text)
		}
	})
	refusal := textOf(m, "refusal")
	if refusal == "" {
		return
	}
	if text, ok := jointText(m); ok {
		if text != "" {
			text += "\n\n"
		}
		m.Set("content", jinja.Str(text+refusal))
	}
}

func textOf(m *jinja.Dict, key string) string {
	v, _ := m.Get(key)
	s, _ := v.(jinja.Str)
	return string(s)
}

// callsOf returns the calls of a message. A function_call, which the API had before, is one.
func callsOf(m *jinja.Dict) *jinja.List {
	v, _ := m.Get("tool_calls")
	calls, _ := v.(*jinja.List)
	if old, ok := m.Get("function_call"); ok && calls == nil {
		call := jinja.NewDict(3)
		call.Set("id", jinja.Str("call00000"))
		call.Set("type", jinja.Str("function"))
		call.Set("function", old)
		calls = &jinja.List{Items: []jinja.Value{call}}
		m.Set("tool_calls", calls)
	}
	return calls
}

// message adds a message without calls.
func (s *shaped) message(i int, m *jinja.Dict) error {
	if textOf(m, "role") == "function" { // as the API had it before
		if _, ok := m.Get("tool_call_id"); !ok {
			m.Set("tool_call_id", s.lastCall)
		}
		m.Set("role", jinja.Str("tool"))
	}
	who, known := speakerOf(textOf(m, "role"))
	if !known {
		s.add(i, m)
		return nil
	}
	if who == tool {
		s.answers(m)
	}
	if who == developer && s.f.at[developer][s.behind] != shown {
		who = system
		m.Set("role", jinja.Str("system"))
	}
	switch v := s.f.at[who][s.behind]; {
	case v == shown:
	case (who == system || who == developer) && len(s.items) > 0 && s.f.at[system][atStart] == shown && s.intoFirst(i, m):
		return nil
	case (who == user || who == assistant) && who.after() == s.behind && s.join(s.items[len(s.items)-1].(*jinja.Dict), m):
		return nil
	case v == lost:
		return passesOver(i, "role", fmt.Sprintf("is %q %s", who, s.behind))
	default:
		s.suspects(i, "role", fmt.Sprintf("is %q %s", who, s.behind))
	}
	s.add(i, m)
	s.behind = who.after()
	return nil
}

// add adds a message, which came with the i-th of the caller's.
func (s *shaped) add(i int, m *jinja.Dict) {
	s.items, s.from = append(s.items, m), append(s.from, i)
}

// intoFirst adds a later system message to the first one, which it makes if there is none.
func (s *shaped) intoFirst(i int, m *jinja.Dict) bool {
	first := s.items[0].(*jinja.Dict)
	if role := textOf(first, "role"); role == "system" || role == "developer" {
		return s.join(first, m)
	}
	if !isText(m) {
		return false
	}
	s.items, s.from = slices.Insert(s.items, 0, jinja.Value(m)), slices.Insert(s.from, 0, i)
	return true
}

// intoQuestion puts the text of the system message before the last message of the user's, as
// templates do that write it only if that message is the last of all.
func (s *shaped) intoQuestion() error {
	if len(s.items) == 0 {
		return nil
	}
	first := s.items[0].(*jinja.Dict)
	if textOf(first, "role") != "system" {
		return nil
	}
	s.put(first)
	instructions, ok := jointText(first)
	last := len(s.items) - 1
	for last > 0 && textOf(s.items[last].(*jinja.Dict), "role") != "user" {
		last--
	}
	if !ok || last == 0 {
		return passesOver(s.from[0], "content", "is no text, or has no user message behind it")
	}
	m := s.items[last].(*jinja.Dict)
	s.put(m)
	if text, alone := jointText(m); alone {
		m.Set("content", jinja.Str(instructions+"\n\n"+text))
	} else {
		m.Set("content", &jinja.List{Items: slices.Insert(partsOf(m), 0, jinja.Value(textPart(instructions)))})
	}
	s.items, s.from = s.items[1:], s.from[1:]
	return nil
}

// join adds the content of a message to that of another, behind an empty line. Texts are put
// together when all are known, because there may be thousands.
func (s *shaped) join(to, from *jinja.Dict) bool {
	added := s.joined[to]
	if text, ok := jointText(from); ok && (added != nil || to != s.inParts && isText(to)) {
		if s.joined == nil {
			s.joined = map[*jinja.Dict][]string{}
		}
		if added == nil {
			first, _ := jointText(to)
			added = []string{first}
		}
		s.joined[to] = append(added, text)
		return true
	}
	if callsOf(to) != nil || textOf(to, "role") != "user" {
		return false
	}
	s.put(to)
	s.inParts = to
	v, _ := to.Get("content")
	parts, ok := v.(*jinja.List)
	if !ok {
		parts = &jinja.List{Items: partsOf(to)}
		to.Set("content", parts)
	}
	parts.Items = append(parts.Items, partsOf(from)...)
	return true
}

// put gives a message the texts that were joined to it.
func (s *shaped) put(m *jinja.Dict) {
	if texts := s.joined[m]; texts != nil {
		m.Set("content", jinja.Str(strings.Join(texts, "\n\n")))
		delete(s.joined, m)
	}
}

// isText reports whether the content of a message without calls is text only.
func isText(m *jinja.Dict) bool {
	_, ok := jointText(m)
	return ok
}

// partsOf returns the content of a message as parts of its own.
func partsOf(m *jinja.Dict) []jinja.Value {
	v, _ := m.Get("content")
	if l, ok := v.(*jinja.List); ok {
		return slices.Clone(l.Items)
	}
	return []jinja.Value{textPart(textOf(m, "content"))}
}

func textPart(text string) *jinja.Dict {
	part := jinja.NewDict(2)
	part.Set("type", jinja.Str("text"))
	part.Set("text", jinja.Str(text))
	return part
}

// jointText returns the content of a message without calls as one text, if it is text only.
func jointText(m *jinja.Dict) (text string, ok bool) {
	if _, calls := m.Get("tool_calls"); calls {
		return "", false
	}
	v, _ := m.Get("content")
	switch v := v.(type) {
	case jinja.Str:
		return string(v), true
	case *jinja.List:
		return linesOf(v)
	}
	return "", v == nil
}

// call adds a message with calls.
func (s *shaped) call(i int, m *jinja.Dict, calls *jinja.List) error {
	if s.f.calls == lost {
		return passesOver(i, "tool_calls", "has calls of tools")
	}
	if n := len(calls.Items); n > 1 && s.f.parallel == lost {
		return passesOver(i, "tool_calls", fmt.Sprintf("has %d calls", n))
	} else if s.f.calls == refused || n > 1 && s.f.parallel == refused {
		s.suspects(i, "tool_calls", fmt.Sprintf("has %s", count(n, "call")))
	}
	apart := s.f.beside > beforeLaterCalls || s.f.beside == beforeLaterCalls && s.ids.Calls > 0
	if v, _ := m.Get("content"); apart && v != nil && v != jinja.Str("") {
		if s.f.beside == withoutCalls {
			s.passed = append(s.passed, fmt.Sprintf("messages[%d].content", i))
		} else {
			text := jinja.NewDict(2)
			text.Set("role", jinja.Str("assistant"))
			text.Set("content", v)
			s.add(i, text)
		}
		m.Set("content", jinja.Str(""))
	}
	for _, c := range calls.Items {
		if call, ok := c.(*jinja.Dict); ok {
			s.rename(call)
		}
	}
	s.add(i, m)
	s.behind = afterCall
	return nil
}

func count(n int, of string) string {
	if n != 1 {
		of += "s"
	}
	return strconv.Itoa(n) + " " + of
}

// oneByOne adds the calls of a message each with its result behind it, and returns the index
// of the last message that it has added.
func (s *shaped) oneByOne(i int, m *jinja.Dict, calls *jinja.List, all []jinja.Value) (last int, err error) {
	end := i + 1
	for end < len(all) && slices.Contains([]string{"tool", "function"}, textOf(all[end].(*jinja.Dict), "role")) {
		end++
	}
	of := map[string][]int{} // the results of a call
	for k := i + 1; k < end; k++ {
		id := textOf(all[k].(*jinja.Dict), "tool_call_id")
		of[id] = append(of[id], k)
	}
	delete(of, "")
	added := make([]bool, end-i)
	result := func(k int) error {
		added[k-i] = true
		return s.message(k, withoutNulls(all[k].(*jinja.Dict)))
	}
	for n, c := range calls.Items {
		id := ""
		if call, ok := c.(*jinja.Dict); ok {
			id = textOf(call, "id")
		}
		one, own := m, &jinja.List{Items: []jinja.Value{c}}
		if n > 0 { // the first has what is beside the calls
			one = jinja.NewDict(3)
			one.Set("role", jinja.Str("assistant"))
		}
		one.Set("tool_calls", own)
		if err := s.call(i, one, own); err != nil {
			return 0, err
		}
		for _, k := range of[id] {
			if err := result(k); err != nil {
				return 0, err
			}
		}
		delete(of, id)
	}
	for k := i + 1; k < end; k++ {
		if !added[k-i] {
			if err := result(k); err != nil {
				return 0, err
			}
		}
	}
	return end - 1, nil
}

// identified returns the id and the tool of a call.
func identified(call jinja.Value) (id, tool string) {
	d, ok := call.(*jinja.Dict)
	if !ok {
		return "", ""
	}
	if v, _ := d.Get("function"); v != nil {
		if fn, ok := v.(*jinja.Dict); ok {
			tool = textOf(fn, "name")
		}
	}
	return textOf(d, "id"), tool
}

// keepIDs notes the ids of calls that stay.
func (s *shaped) keepIDs(messages []jinja.Value) {
	for _, it := range messages {
		if calls := callsOf(it.(*jinja.Dict)); calls != nil {
			for _, call := range calls.Items {
				s.ids.Keep(identified(call))
			}
		}
	}
}

// rename gives a call an id that the template takes.
func (s *shaped) rename(call *jinja.Dict) {
	id, name := identified(call)
	became := s.ids.Call(id, name)
	if s.lastCall = jinja.Str(became); became != id {
		call.Set("id", s.lastCall)
	}
}

// answers names the call that a result belongs to as its id became.
func (s *shaped) answers(m *jinja.Dict) {
	id := textOf(m, "tool_call_id")
	if became := s.ids.Result(id); became != id {
		m.Set("tool_call_id", jinja.Str(became))
	}
}

// passesOver refuses what the template would leave out of the prompt.
func passesOver(i int, field, what string) error {
	at := fmt.Sprintf("messages[%d].%s", i, field)
	return &infer.Error{Code: infer.CodeInvalid, Param: at, Cause: ErrPassesOver,
		Message: at + " " + what + ", which the model's chat template passes over: it would not reach the model; leave it out, or send it as text of a user message"}
}

// checkTexts renders a conversation with marks for its texts, and looks for them in the prompt.
func (t *Template) checkTexts(ctx context.Context, in *Input) error {
	vars, s, err := in.variables(&t.form, t.tmpl.Names)
	if err != nil {
		return err
	}
	const before = "weir canary "
	var from []int // by the number of a mark
	mark := func(of *jinja.Dict, key string, k int) {
		if textOf(of, key) != "" {
			of.Set(key, jinja.Str(before+strconv.Itoa(len(from))+"."))
			from = append(from, s.from[k])
		}
	}
	for k, it := range s.items {
		m := it.(*jinja.Dict)
		mark(m, "content", k)
		eachPart(m, func(part *jinja.Dict) { mark(part, "text", k) })
	}
	out, err := t.render(ctx, nil, in, vars)
	if err != nil { // of the marks it says nothing
		if ctx.Err() != nil {
			return infer.AsError(ctx.Err())
		}
		return nil
	}
	there := make([]bool, len(from))
	for at := bytes.Index(out, []byte(before)); at >= 0; at = bytes.Index(out, []byte(before)) {
		out = out[at+len(before):]
		number, _, _ := bytes.Cut(out[:min(len(out), 16)], []byte("."))
		if n, err := strconv.Atoi(string(number)); err == nil && n < len(there) {
			there[n] = true
		}
	}
	if n := slices.Index(there, false); n >= 0 {
		return passesOver(from[n], "content", "is of a conversation with an end")
	}
	return nil
}

// suspects notes what the template will fail on, if it does.
func (s *shaped) suspects(i int, field, what string) {
	if s.suspect == "" {
		s.suspect, s.suspected = fmt.Sprintf("messages[%d].%s", i, field), what
	}
}

// blame names the field that made a template fail.
func (s *shaped) blame(err error) error {
	e := infer.AsError(err)
	if s == nil || s.suspect == "" || e.Code != infer.CodeInvalid || e.Param != "messages" {
		return err
	}
	named := *e
	named.Param = s.suspect
	named.Message = s.suspect + " " + s.suspected + ", which the model's chat template refuses: " + e.Message
	return &named
}

// fillTools gives tools what the template needs of them and the API does not.
func (f *form) fillTools(tools *jinja.List) {
	for _, it := range tools.Items {
		v, _ := it.(*jinja.Dict).Get("function")
		fn, ok := v.(*jinja.Dict)
		if !ok {
			continue
		}
		if v, _ := fn.Get("description"); f.fillDescription && (v == nil || v == jinja.None) {
			fn.Set("description", jinja.Str(""))
		}
		if v, _ := fn.Get("parameters"); f.fillParameters && (v == nil || v == jinja.None) {
			schema := jinja.NewDict(2)
			schema.Set("type", jinja.Str("object"))
			schema.Set("properties", jinja.NewDict(0))
			fn.Set("parameters", schema)
		}
	}
}
