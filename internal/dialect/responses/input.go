package responses

import (
	"fmt"
	"slices"
	"strings"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// input makes the messages of a chat of a request's input. Text moves from raw
// string to raw string, its escapes as they are.
//
// Items of the model, which are reasoning, assistant messages and function
// calls, become one assistant message as long as they come in the order in which
// such a message has them. Reasoning after anything else, or a message after a
// message, begins another one. Text after a call joins the text before it, since
// a message has its text in one place.
type input struct {
	d     *decoding
	given bool

	lead []byte // the text of the system messages that come first
	led  bool   // something else has come
	out  []byte // messages, each with a comma before it

	// The assistant message under way. Texts are insides of raw strings.
	last      part // the latest of it
	reasoning []byte
	content   []byte
	owned     bool // content is no part of the body
	calls     []byte

	callIDs map[string]bool // of the function calls so far
}

// part is a part of an assistant message.
type part uint8

const (
	partNone part = iota
	partReasoning
	partContent
	partCall
)

func (in *input) take(raw []byte) error {
	if err := dialect.CheckStrict("input", raw); err != nil {
		return err
	}
	in.given = true
	switch dialect.KindOf(raw) {
	case '"':
		if len(raw) == len(`""`) {
			return infer.Invalid("input", "input is empty; send a string, or an array with at least one item")
		}
		in.message("user", inside(raw))
		return nil
	case '[':
	default:
		return dialect.WrongType("input", "a string or an array of items", raw)
	}
	in.callIDs = map[string]bool{}
	count := 0
	err := dialect.EachItem(raw, func(i int, item []byte) error {
		count++
		return in.item(fmt.Sprintf("input[%d]", i), item)
	})
	if err == nil && count == 0 {
		return infer.Invalid("input", "input is empty; send at least one item")
	}
	return err
}

// inside returns the inside of a raw string.
func inside(raw []byte) []byte { return raw[1 : len(raw)-1] }

// item reads one item, its type first.
func (in *input) item(path string, raw []byte) error {
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(path, "an object", raw)
	}
	kind, err := typeOf(path, raw)
	if err != nil {
		return err
	}
	switch kind {
	case "":
		if !isEasy(raw) {
			return infer.Invalid(path+".type", "%s.type is required: send message, function_call, custom_tool_call, an output of either or reasoning", path)
		}
		return in.takeMessage(path, raw)
	case "message":
		return in.takeMessage(path, raw)
	case "function_call", "custom_tool_call":
		return in.takeCall(path, raw, kind)
	case "function_call_output", "custom_tool_call_output":
		return in.takeCallOutput(path, raw)
	case "reasoning":
		return in.takeReasoning(path, raw)
	case "item_reference":
		return &infer.Error{Code: infer.CodeUnsupported, Param: path + ".type",
			Message: fmt.Sprintf("%s.type \"item_reference\" is not supported: weir keeps no items; send the item itself", path)}
	}
	return &infer.Error{Code: infer.CodeUnsupported, Param: path + ".type",
		Message: fmt.Sprintf("%s.type %q is not supported by engine kind %q; messages, function_call, custom_tool_call, their outputs and reasoning are", path, dialect.Clip(kind, 32), in.d.Kind)}
}

// isEasy reports whether an item without a type is to be read as a message: it has a role, or
// nothing that only items of other types have.
func isEasy(raw []byte) bool {
	role, other := false, false
	_ = dialect.EachMember(raw, func(name string, _ []byte) error {
		role = role || name == "role"
		other = other || slices.Contains([]string{"call_id", "arguments", "input", "output", "summary", "encrypted_content"}, name)
		return nil
	})
	return role || !other
}

// itemMembers are the names that a member of an item may have.
var itemMembers = func() (names []string) {
	for i := range innerFields {
		if name, ok := strings.CutPrefix(innerFields[i].Name, "input[]."); ok && !strings.ContainsAny(name, ".[ ") {
			names = append(names, name)
		}
	}
	return names
}()

// judgeOrRefuse judges a field of innerFields in an object that does not have it as one
// that is carried.
func (d *decoding) judgeOrRefuse(name, path string, raw []byte) error {
	if inner(name).Treatment == dialect.Carried {
		return d.unsupported(path)
	}
	return d.judge(name, path, raw)
}

// members walks an item. It passes over what an answer's items have and no
// template would render: their id and status.
func (in *input) members(path string, raw []byte, visit func(name, at string, value []byte) (known bool, err error)) error {
	return dialect.EachMember(raw, func(name string, value []byte) error {
		at := path + "." + dialect.Clip(name, 64)
		switch name {
		case "type":
			return nil
		case "id", "status":
			if k := dialect.KindOf(value); k != '"' && k != 'n' {
				return dialect.WrongType(at, "a string", value)
			}
			return nil
		}
		known, err := visit(name, at, value)
		if err != nil || known || dialect.KindOf(value) == 'n' {
			return err
		}
		if inner("input[]."+name) != nil {
			return in.d.judgeOrRefuse("input[]."+name, at, value)
		}
		return in.d.UnknownMember(at, itemMembers...)
	})
}

func (in *input) takeMessage(path string, raw []byte) error {
	var role string
	var content []byte
	err := in.members(path, raw, func(name, at string, value []byte) (bool, error) {
		switch name {
		case "role":
			word, err := dialect.StringOf(at, value)
			role = word
			return true, err
		case "content":
			content = value
			return true, nil
		case "phase": // of a message that came before a call, or after all of them
			return dialect.KindOf(value) == '"', nil
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	switch role {
	case "user", "assistant", "system", "developer":
	case "":
		return infer.Invalid(path+".role", "%s.role is required", path)
	default:
		return infer.Invalid(path+".role", "%s.role must be user, assistant, system or developer, found %q", path, dialect.Clip(role, 32))
	}
	if content == nil {
		return infer.Invalid(path+".content", "%s.content is required", path)
	}
	if role == "user" {
		c, err := in.rich(path+".content", content)
		if err == nil {
			in.user(c)
		}
		return err
	}
	text, err := in.text(path+".content", content)
	if err != nil {
		return err
	}
	if role != "assistant" {
		in.message(role, text)
		return nil
	}
	switch in.last {
	case partContent:
		in.flush()
	case partCall:
		in.own()
		in.content = append(in.content, text...)
		return nil
	}
	in.content, in.owned, in.last = text, false, partContent
	return nil
}

// own makes the content its own, to be appended to: it may be a part of the body.
func (in *input) own() {
	if !in.owned {
		in.content, in.owned = slices.Clone(in.content), true
	}
}

// text returns the inside of a raw string with the text of a content: a string, or
// parts, which are lines then.
func (in *input) text(path string, raw []byte) ([]byte, error) {
	switch dialect.KindOf(raw) {
	case '"':
		return inside(raw), nil
	case '[':
	default:
		return nil, dialect.WrongType(path, "a string or an array of parts", raw)
	}
	var text []byte
	count := 0
	err := dialect.EachItem(raw, func(i int, item []byte) error {
		part, err := in.textPart(fmt.Sprintf("%s[%d]", path, i), item)
		switch count++; count {
		case 1:
			text = part
		case 2: // a copy, because the first is a part of the body
			text = slices.Concat(text, []byte(`\n`), part)
		default:
			text = append(append(text, `\n`...), part...)
		}
		return err
	})
	return text, err
}

func (in *input) textPart(path string, raw []byte) ([]byte, error) {
	if dialect.KindOf(raw) != '{' {
		return nil, dialect.WrongType(path, "an object", raw)
	}
	kind, err := typeOf(path, raw)
	switch {
	case err != nil:
		return nil, err
	case kind == "":
		return nil, infer.Invalid(path+".type", "%s.type is required: send \"input_text\"", path)
	case kind != "input_text" && kind != "output_text" && kind != "text" && kind != "summary_text" && kind != "reasoning_text" && kind != "refusal":
		return nil, &infer.Error{Code: infer.CodeUnsupported, Param: path + ".type",
			Message: fmt.Sprintf("%s.type %q is not supported by engine kind %q; only input_text and output_text are here", path, dialect.Clip(kind, 32), in.d.Kind)}
	}
	var text []byte
	member := "text"
	if kind == "refusal" {
		member = kind
	}
	err = dialect.EachMember(raw, func(name string, value []byte) error {
		at := path + "." + dialect.Clip(name, 64)
		switch name {
		case "type", "logprobs": // what an answer's part has, too
			return nil
		case member:
			if dialect.KindOf(value) != '"' {
				return dialect.WrongType(at, "a string", value)
			}
			text = value
			return nil
		case "annotations":
			return in.d.judge(annotations, at, value)
		case "prompt_cache_breakpoint":
			return in.d.judge(cacheBreakpoint, at, value)
		}
		if dialect.KindOf(value) != 'n' {
			return in.d.UnknownMember(at, "text", "type", "annotations")
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case text == nil:
		return nil, infer.Invalid(path+"."+member, "%s.%s is required", path, member)
	}
	return inside(text), nil
}

// takeCall reads a call of an earlier answer: of a function, whose arguments it has, or of a
// custom tool, whose text was an argument as the model wrote it.
func (in *input) takeCall(path string, raw []byte, kind string) error {
	var id, name, space, arguments []byte
	said := "arguments"
	if kind == "custom_tool_call" {
		said = "input"
	}
	err := in.members(path, raw, func(field, at string, value []byte) (bool, error) {
		switch field {
		case "call_id":
			id = value
		case "name":
			name = value
		case "namespace":
			if space = value; dialect.KindOf(value) == 'n' {
				return true, nil
			}
		case said:
			arguments = value
		default:
			return false, nil
		}
		if dialect.KindOf(value) != '"' {
			return true, dialect.WrongType(at, "a string", value)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		raw  []byte
	}{{"call_id", id}, {"name", name}, {said, arguments}} {
		if f.raw == nil {
			return infer.Invalid(path+"."+f.name, "%s.%s is required", path, f.name)
		}
	}
	if in.callIDs[string(dialect.Spelled(id))] {
		return infer.Invalid(path+".call_id", "%s.call_id is that of an earlier call; each has its own", path)
	}
	in.callIDs[string(dialect.Spelled(id))] = true
	if said == "input" {
		text, err := dialect.StringOf(path+".input", arguments)
		if err != nil {
			return err
		}
		arguments = dialect.AppendString(nil, string(appendCustomArguments(nil, text)))
	}
	in.calls = append(in.calls, `,{"id":`...)
	in.calls = append(append(in.calls, id...), `,"type":"function","function":{"name":`...)
	in.calls = append(append(in.calls, joined(space, name)...), `,"arguments":`...)
	in.calls = append(append(in.calls, arguments...), `}}`...)
	in.last = partCall
	return nil
}

// takeCallOutput reads what came of a call, or what a tool says without having been called,
// which has no call_id, and a name for it.
func (in *input) takeCallOutput(path string, raw []byte) error {
	var id, name, space, output []byte
	err := in.members(path, raw, func(field, at string, value []byte) (bool, error) {
		var to *[]byte
		switch field {
		case "call_id":
			to = &id
		case "name":
			to = &name
		case "namespace":
			to = &space
		case "output":
			output = value
			return true, nil
		default:
			return false, nil
		}
		switch dialect.KindOf(value) {
		case 'n':
		case '"':
			*to = value
		default:
			return true, dialect.WrongType(at, "a string", value)
		}
		return true, nil
	})
	switch {
	case err != nil:
		return err
	case id == nil && name == nil:
		return infer.Invalid(path+".call_id", "%s.call_id is required: send that of the function_call, or the name of the tool whose output nobody called for", path)
	case output == nil:
		return infer.Invalid(path+".output", "%s.output is required", path)
	case id != nil && !in.callIDs[string(dialect.Spelled(id))]:
		return infer.Invalid(path+".call_id", "%s.call_id is that of no function_call before it; weir keeps no answers, so input must hold the call too", path)
	}
	c, err := in.rich(path+".output", output)
	if err != nil {
		return err
	}
	in.flush()
	in.out = append(in.out, `,{"role":"tool"`...)
	if id != nil {
		in.out = append(append(in.out, `,"tool_call_id":`...), id...)
	}
	if name != nil {
		in.out = append(append(in.out, `,"name":`...), joined(space, name)...)
	}
	in.out = append(c.Append(append(in.out, `,"content":`...)), '}')
	return nil
}

func (in *input) takeReasoning(path string, raw []byte) error {
	var content, summary []byte
	sealed := false
	err := in.members(path, raw, func(name, at string, value []byte) (known bool, err error) {
		var to *[]byte
		switch name {
		case "content":
			to = &content
		case "summary":
			to = &summary
		case "encrypted_content":
			if k := dialect.KindOf(value); k != '"' && k != 'n' {
				return true, dialect.WrongType(at, "a string", value)
			}
			sealed = len(value) > len(`""`) && dialect.KindOf(value) == '"'
			return true, nil
		default:
			return false, nil
		}
		switch {
		case dialect.KindOf(value) == 'n', dialect.AsksForNothing(value, []string{"[]"}):
			return true, nil
		case dialect.KindOf(value) != '[':
			return true, dialect.WrongType(at, "an array of parts", value)
		}
		*to, err = in.text(at, value)
		return true, err
	})
	if err != nil {
		return err
	}
	text := content
	if len(text) == 0 {
		text = summary
	}
	if len(text) == 0 && sealed {
		return &infer.Error{Code: infer.CodeUnsupported, Param: path + ".encrypted_content",
			Message: fmt.Sprintf("%s.encrypted_content cannot be read here, and there is no content beside it; leave the item out", path)}
	}
	if len(text) == 0 {
		return nil
	}
	if in.last != partNone {
		in.flush()
	}
	in.reasoning, in.last = text, partReasoning
	return nil
}

// message adds a message that is not the model's. System messages that come
// first are one, for most templates know one only.
func (in *input) message(role string, text []byte) {
	if role == "developer" {
		role = "system" // which templates know, and which says the same
	}
	in.flush()
	if role == "system" && !in.led {
		if in.lead != nil {
			in.lead = append(in.lead, `\n\n`...)
		}
		in.lead = append(in.lead, text...)
		return
	}
	in.led = true
	in.out = append(append(in.out, `,{"role":"`...), role...)
	in.appendText(`","content":"`, text)
	in.out = append(in.out, '}')
}

// flush adds the assistant message under way. One of calls alone has null for
// content, as the chat API has it.
func (in *input) flush() {
	if in.last == partNone {
		return
	}
	in.led = true
	in.out = append(in.out, `,{"role":"assistant","content":`...)
	if in.content == nil && in.calls != nil {
		in.out = append(in.out, "null"...)
	} else {
		in.appendText(`"`, in.content)
	}
	if in.reasoning != nil {
		in.appendText(`,"reasoning_content":"`, in.reasoning)
	}
	if in.calls != nil {
		in.out = append(append(append(in.out, `,"tool_calls":[`...), in.calls[1:]...), ']')
	}
	in.out = append(in.out, '}')
	in.last, in.reasoning, in.content, in.owned, in.calls = partNone, nil, nil, false, nil
}

func (in *input) appendText(head string, text []byte) {
	in.out = append(append(append(in.out, head...), text...), '"')
}

// messages returns the conversation with the instructions, a raw string, before it.
func (in *input) messages(instructions []byte) []byte {
	in.flush()
	lead := in.lead
	if instructions != nil && len(inside(instructions)) > 0 {
		lead = inside(instructions)
		if in.lead != nil {
			lead = append(append(lead[:len(lead):len(lead)], `\n\n`...), in.lead...)
		}
	}
	all := append(make([]byte, 0, len(lead)+len(in.out)+64), '[')
	if lead != nil {
		all = append(append(append(all, `{"role":"system","content":"`...), lead...), `"}`...)
		all = append(all, in.out...)
	} else {
		all = append(all, in.out[min(1, len(in.out)):]...)
	}
	return append(all, ']')
}
