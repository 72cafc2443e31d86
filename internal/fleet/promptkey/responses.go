package promptkey

// The members of an item.
const (
	itemType = iota
	itemRole
	itemContent
	itemName
	itemCallID
	itemArguments
	itemOutput
	itemSummary
)

func itemMember(name []byte) int {
	switch string(name) {
	case "type":
		return itemType
	case "role":
		return itemRole
	case "content":
		return itemContent
	case "name":
		return itemName
	case "call_id":
		return itemCallID
	case "arguments":
		return itemArguments
	case "output":
		return itemOutput
	case "summary":
		return itemSummary
	case "id", "status", "phase", "caller", "encrypted_content", "async":
		return ignored
	}
	return rest
}

// responses writes the conversation of a request whose messages are items, as the chat
// that it stands for: reasoning, text and calls of the model are one message.
func (r *Reader) responses(f [numFields][]byte) bool {
	input := f[fieldInput]
	if none(input) || !none(f[fieldElsewhere]) || !none(f[fieldPrompt]) || !r.tools(f[fieldTools]) {
		return false
	}
	if instructions := f[fieldInstructions]; !none(instructions) {
		r.message(roleSystem)
		if !r.content(instructions, roleSystem, 0) {
			return false
		}
	}
	switch input[0] {
	case '"':
		r.message(roleUser)
		r.part(input, false)
		r.ended()
		return true
	case '[':
	default:
		return false
	}
	c := cursor{b: input}
	c.open()
	reasoned := false // the message under way is an assistant's and has reasoning alone
	for c.more() {
		m, digest := r.object(&c, itemMember)
		if c.bad {
			return false
		}
		was := reasoned
		reasoned = false
		switch string(r.spelled(m[itemType])) {
		case "", "message":
			role := r.roleOf(m[itemRole])
			if !was || string(role) != "assistant" {
				r.message(role)
			}
			if !r.content(m[itemContent], role, 0) {
				return false
			}
		case "reasoning":
			text := m[itemContent]
			if none(text) {
				text = m[itemSummary]
			}
			if none(text) {
				reasoned = was
				continue
			}
			r.message(roleAssistant)
			r.thoughts(text)
			reasoned = true
		case "function_call":
			if !r.within {
				r.message(roleAssistant)
			}
			r.writeCall(m[itemCallID], m[itemName], m[itemArguments])
		case "function_call_output":
			r.message(roleTool)
			r.field('n', m[itemName])
			r.field('i', m[itemCallID])
			if !r.content(m[itemOutput], roleTool, 0) {
				return false
			}
		case "item_reference":
			return false // the engine alone knows it
		default:
			r.message(r.roleOf(m[itemRole]))
			r.field('t', m[itemType])
			r.field('n', m[itemName])
			r.field('i', m[itemCallID])
			r.field('a', m[itemArguments])
			r.field('o', m[itemOutput])
			r.field('c', m[itemContent])
			r.begun()
			r.rest(digest)
		}
	}
	r.ended()
	return !c.bad
}

// thoughts writes reasoning: a text, or parts with their text.
func (r *Reader) thoughts(raw []byte) {
	if raw[0] != '[' {
		r.field('r', raw)
		return
	}
	c := cursor{b: raw}
	c.open()
	for c.more() {
		if c.kind() != '{' {
			r.field('r', c.value())
			continue
		}
		if m, _ := r.object(&c, partMember); !c.bad {
			r.field('r', m[partText])
		}
	}
}
