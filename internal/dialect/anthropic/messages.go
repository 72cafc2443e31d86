package anthropic

import (
	"fmt"
	"strings"

	"weir/internal/dialect"
	"weir/internal/infer"
)

func takeMessages(d *decoding, raw []byte) error {
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType("messages", "an array of messages", raw)
	}
	d.messages = raw
	return d.CheckStrict("messages", raw)
}

func takeSystem(d *decoding, raw []byte) error {
	if dialect.KindOf(raw) == '[' && raw[dialect.SkipSpace(raw, 1)] == ']' {
		return nil // as clients send it that have no system prompt
	}
	d.system = raw
	return d.CheckStrict("system", raw)
}

// conversation writes the system prompt and the messages in the shape that chat
// templates take.
func (d *decoding) conversation() error {
	c := conversation{d: d, out: append(make([]byte, 0, len(d.system)+len(d.messages)+64), '[')}
	if d.system != nil {
		if err := c.content("system", "system", d.system); err != nil {
			return err
		}
		c.end("system")
	}
	count := 0
	last := ""
	err := dialect.EachItem(d.messages, func(i int, item []byte) (err error) {
		count++
		last, err = c.message(fmt.Sprintf("messages[%d]", i), item)
		return err
	})
	switch {
	case err != nil:
		return err
	case count == 0:
		return infer.Invalid("messages", "messages is empty; send at least one message")
	case last == "assistant" && c.calls > 0:
		return infer.Invalid("messages", "messages ends with the assistant's tool_use; send a tool_result for it in a user message")
	}
	d.Messages = append(c.out, ']')
	d.ContinueFinalMessage = last == "assistant"
	return nil
}

// conversation writes messages. The parts of the message under way are JSON
// texts without their quotes.
type conversation struct {
	d   *decoding
	out []byte

	body, result dialect.Content // of the message, and of the tool's result at hand
	reasoning    []byte
	thoughts     int // blocks of it
	toolCalls    []byte
	calls        int
	results      int // written for the message under way
}

// message reads one message and gives its role.
func (c *conversation) message(path string, raw []byte) (role string, err error) {
	if dialect.KindOf(raw) != '{' {
		return "", dialect.WrongType(path, "an object", raw)
	}
	var content []byte
	err = dialect.EachMember(raw, func(name string, value []byte) (err error) {
		switch name {
		case "role":
			role, err = dialect.StringOf(path+".role", value)
		case "content":
			content = value
		default:
			err = c.d.within("messages[]."+name, path+"."+dialect.Clip(name, 64), value, "role", "content")
		}
		return err
	})
	switch {
	case err != nil:
		return "", err
	case role == "":
		return "", infer.Invalid(path+".role", "%s.role is required", path)
	case role != "user" && role != "assistant" && role != "system":
		return "", infer.Invalid(path+".role", "%s.role must be user, assistant or system, found %q", path, dialect.Clip(role, 32))
	case content == nil:
		return "", infer.Invalid(path+".content", "%s.content is required", path)
	}
	if err := c.content(path+".content", role, content); err != nil {
		return "", err
	}
	c.end(role)
	return role, nil
}

// content reads a message's content: its text, or its blocks.
func (c *conversation) content(path, role string, raw []byte) error {
	c.body.Reset()
	c.reasoning, c.toolCalls = c.reasoning[:0], c.toolCalls[:0]
	c.thoughts, c.calls, c.results = 0, 0, 0
	switch dialect.KindOf(raw) {
	case '"':
		c.body.AddText(raw[1 : len(raw)-1])
		return nil
	case '[':
		return dialect.EachItem(raw, func(i int, item []byte) error {
			return c.block(fmt.Sprintf("%s[%d]", path, i), role, item)
		})
	}
	return dialect.WrongType(path, "a string or an array of blocks", raw)
}

// end writes the message, or what is left of it behind the tools' results.
func (c *conversation) end(role string) {
	if c.body.Empty() && c.results > 0 {
		return
	}
	c.comma()
	c.out = c.body.Append(append(append(append(c.out, `{"role":"`...), role...), `","content":`...))
	if c.thoughts > 0 {
		c.out = append(append(append(c.out, `,"reasoning_content":"`...), c.reasoning...), '"')
	}
	if c.calls > 0 {
		c.out = append(append(append(c.out, `,"tool_calls":[`...), c.toolCalls...), ']')
	}
	c.out = append(c.out, '}')
}

func (c *conversation) comma() {
	if len(c.out) > 1 {
		c.out = append(c.out, ',')
	}
}

// block reads one block of a message's content.
func (c *conversation) block(path, role string, raw []byte) error {
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(path, "an object", raw)
	}
	b := block{d: c.d, path: path, raw: raw}
	kind, err := b.kind()
	if err != nil {
		return err
	}
	only := ""
	switch kind {
	case "text":
		text, err := b.text()
		if err == nil {
			c.body.AddText(text[1 : len(text)-1])
		}
		return err
	case "tool_use", "thinking", "redacted_thinking":
		only = "assistant"
	case "tool_result", "image":
		only = "user"
	default:
		if f := inner("messages[].content[] " + kind); f != nil {
			return &infer.Error{Code: infer.CodeUnsupported, Param: path + ".type",
				Message: fmt.Sprintf("%s.type %q is not supported by %s; %s", path, kind, c.d.carrier(), f.Note)}
		}
		return &infer.Error{Code: infer.CodeUnsupported, Param: path + ".type",
			Message: fmt.Sprintf("%s.type %q is not supported by %s; text, image, tool_use, tool_result, thinking and redacted_thinking are", path, dialect.Clip(kind, 32), c.d.carrier())}
	}
	if role != only {
		return infer.Invalid(path+".type", "%s.type is %q, which belongs in a message of role %s", path, kind, only)
	}
	switch kind {
	case "redacted_thinking":
		c.d.Ignore(redactedThinking)
	case "tool_use":
		return c.toolUse(&b)
	case "tool_result":
		return c.toolResult(&b)
	case "image":
		return c.image(&b, &c.body)
	case "thinking":
		thinking, err := b.thinking()
		if err != nil {
			return err
		}
		if c.thoughts > 0 {
			c.reasoning = append(c.reasoning, `\n`...)
		}
		c.reasoning = append(c.reasoning, thinking[1:len(thinking)-1]...)
		c.thoughts++
	}
	return nil
}

// toolUse adds a call of the assistant's.
func (c *conversation) toolUse(b *block) error {
	var id, name, input []byte
	err := b.fields(func(field string, value []byte) bool {
		switch field {
		case "id":
			id = value
		case "name":
			name = value
		case "input":
			input = value
		default:
			return false
		}
		return true
	})
	if err == nil {
		err = b.want("id", "a string", '"', id)
	}
	if err == nil {
		err = b.want("name", "a string", '"', name)
	}
	if err == nil {
		err = b.want("input", "an object", '{', input)
	}
	if err != nil {
		return err
	}
	if c.calls > 0 {
		c.toolCalls = append(c.toolCalls, ',')
	}
	c.toolCalls = append(append(c.toolCalls, `{"id":`...), id...)
	c.toolCalls = append(append(c.toolCalls, `,"type":"function","function":{"name":`...), name...)
	c.toolCalls = dialect.AppendString(append(c.toolCalls, `,"arguments":`...), string(input))
	c.toolCalls = append(c.toolCalls, `}}`...)
	c.calls++
	return nil
}

// toolResult writes a tool's message. What is before it in the same message keeps
// its place.
func (c *conversation) toolResult(b *block) error {
	var id, content []byte
	failed := false
	var wrong error
	err := b.fields(func(field string, value []byte) bool {
		switch field {
		case "tool_use_id":
			id = value
		case "content":
			content = value
		case "is_error":
			if dialect.KindOf(value) != 'n' {
				failed, wrong = dialect.BoolOf(b.path+".is_error", value)
			}
		default:
			return false
		}
		return true
	})
	if err == nil {
		err = wrong
	}
	if err == nil {
		err = b.want("tool_use_id", "a string", '"', id)
	}
	if err != nil {
		return err
	}
	if !c.body.Empty() {
		c.end("user")
		c.body.Reset()
	}
	c.results++
	c.result.Reset()
	prefix := ""
	if failed {
		prefix = "Error: "
	}
	if err := c.resultContent(b.path+".content", prefix, content); err != nil {
		return err
	}
	c.comma()
	c.out = append(append(c.out, `{"role":"tool","tool_call_id":`...), id...)
	c.out = append(c.result.Append(append(c.out, `,"content":`...)), '}')
	return nil
}

// resultContent reads the content of a tool's result, which may be nothing. The
// prefix is in one text with what comes first.
func (c *conversation) resultContent(path string, prefix string, raw []byte) error {
	text := func(inside []byte) {
		c.result.AddText(append([]byte(prefix), inside...))
		prefix = ""
	}
	switch {
	case raw == nil || dialect.KindOf(raw) == 'n':
		text(nil)
		return nil
	case dialect.KindOf(raw) == '"':
		text(raw[1 : len(raw)-1])
		return nil
	case dialect.KindOf(raw) != '[':
		return dialect.WrongType(path, "a string or an array of blocks", raw)
	}
	err := dialect.EachItem(raw, func(i int, item []byte) error {
		b := block{d: c.d, path: fmt.Sprintf("%s[%d]", path, i), raw: item}
		if dialect.KindOf(item) != '{' {
			return dialect.WrongType(b.path, "an object", item)
		}
		kind, err := b.kind()
		if err != nil {
			return err
		}
		switch kind {
		case "text":
			inside, err := b.text()
			if err != nil {
				return err
			}
			text(inside[1 : len(inside)-1])
			return nil
		case "image":
			if prefix != "" {
				text(nil)
			}
			return c.image(&b, &c.result)
		}
		return &infer.Error{Code: infer.CodeUnsupported, Param: b.path + ".type",
			Message: fmt.Sprintf("%s.type %q is not supported by %s; of a tool's result only blocks of type \"text\" and \"image\" are", b.path, dialect.Clip(kind, 32), c.d.carrier())}
	})
	if err == nil && prefix != "" {
		text(nil)
	}
	return err
}

// blockMembers are the names that a member of a block may have.
var blockMembers = func() (names []string) {
	for i := range innerFields {
		if name, ok := strings.CutPrefix(innerFields[i].Name, "messages[].content[]."); ok {
			names = append(names, name)
		}
	}
	return names
}()

// block is a content block that is being read.
type block struct {
	d    *decoding
	path string
	raw  []byte
}

// fields shows each field but the type; those that take does not know must be
// such as change nothing.
func (b *block) fields(take func(name string, value []byte) bool) error {
	return dialect.EachMember(b.raw, func(name string, value []byte) error {
		if name == "type" || name == "signature" || take(name, value) {
			return nil
		}
		of := "messages[].content[]."
		if strings.HasPrefix(b.path, "system[") {
			of = "system[]."
		}
		return b.d.within(of+name, b.path+"."+dialect.Clip(name, 64), value, blockMembers...)
	})
}

// want checks a field that is required.
func (b *block) want(name, what string, kind byte, raw []byte) error {
	path := b.path + "." + name
	switch {
	case raw == nil:
		return infer.Invalid(path, "%s is required", path)
	case byte(dialect.KindOf(raw)) != kind:
		return dialect.WrongType(path, what, raw)
	}
	return nil
}

// text returns the JSON string of a text block, and thinking that of a thinking
// block.
func (b *block) text() ([]byte, error)     { return b.string("text") }
func (b *block) thinking() ([]byte, error) { return b.string("thinking") }

func (b *block) string(name string) (text []byte, err error) {
	err = b.fields(func(field string, value []byte) bool {
		if field == name {
			text = value
		}
		return field == name
	})
	if err == nil {
		err = b.want(name, "a string", '"', text)
	}
	return text, err
}

// kind returns the block's type.
func (b *block) kind() (kind string, err error) {
	err = dialect.EachMember(b.raw, func(name string, value []byte) (err error) {
		if name == "type" {
			kind, err = dialect.StringOf(b.path+".type", value)
		}
		return err
	})
	if err == nil && kind == "" {
		err = infer.Invalid(b.path+".type", "%s.type is required", b.path)
	}
	return kind, err
}
