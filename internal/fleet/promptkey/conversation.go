package promptkey

import "weir/internal/fleet/kvindex"

// conversation writes a chat: its tools, what the system prompt is, its messages. blocks
// says that system stands beside the messages, and that what tools gave stands inside of
// them.
func (r *Reader) conversation(f [numFields][]byte, blocks bool) bool {
	if ids := f[fieldInputIDs]; !none(ids) {
		return r.ids(ids)
	}
	messages := f[fieldMessages]
	if none(messages) || messages[0] != '[' {
		return false
	}
	if !r.tools(f[fieldTools]) {
		return false
	}
	if docs := f[fieldDocuments]; !none(docs) {
		r.mark(markTool)
		r.value(docs)
	}
	if system := f[fieldSystem]; blocks && !none(system) {
		r.message(roleSystem)
		if !r.content(system, roleSystem, 0) {
			return false
		}
		r.spare = true // a system prompt of nothing is none
	}
	c := cursor{b: messages}
	c.open()
	for c.more() {
		if !r.chatMessage(&c) {
			return false
		}
	}
	r.ended()
	return !c.bad
}

// The members of a message.
const (
	msgRole = iota
	msgName
	msgCallID
	msgReasoning
	msgThinking
	msgContent
	msgCalls
	msgCall
	msgTools
	msgTask
)

func messageMember(name []byte) int {
	switch string(name) {
	case "role":
		return msgRole
	case "name":
		return msgName
	case "tool_call_id":
		return msgCallID
	case "reasoning_content", "reasoning":
		return msgReasoning
	case "thinking":
		return msgThinking
	case "content":
		return msgContent
	case "tool_calls":
		return msgCalls
	case "function_call":
		return msgCall
	case "tools":
		return msgTools
	case "task":
		return msgTask
	}
	return ignored
}

func (r *Reader) chatMessage(c *cursor) bool {
	m, _ := r.object(c, messageMember)
	if c.bad {
		return false
	}
	role := r.roleOf(m[msgRole])
	r.message(role)
	r.field('n', m[msgName])
	r.field('i', m[msgCallID])
	if !none(m[msgReasoning]) {
		r.field('r', m[msgReasoning])
	} else {
		r.field('r', m[msgThinking])
	}
	if !r.content(m[msgContent], role, 0) {
		return false
	}
	if calls := m[msgCalls]; !none(calls) {
		c := cursor{b: calls}
		if calls[0] != '[' {
			return false
		}
		c.open()
		for c.more() {
			if !r.toolCall(&c) {
				return false
			}
		}
	}
	if call := m[msgCall]; !none(call) {
		r.call(nil, call)
	}
	if !r.tools(m[msgTools]) {
		return false
	}
	r.field('k', m[msgTask])
	return true
}

// toolCall writes one of a message's tool_calls.
func (r *Reader) toolCall(c *cursor) bool {
	m, _ := r.object(c, func(name []byte) int {
		switch string(name) {
		case "id":
			return 0
		case "function", "custom":
			return 1
		}
		return ignored
	})
	if c.bad {
		return false
	}
	r.call(m[0], m[1])
	return true
}

// call writes a call whose function is an object with its name and arguments.
func (r *Reader) call(id, function []byte) {
	c := cursor{b: function}
	var m members
	if !none(function) {
		m, _ = r.object(&c, callMember)
	}
	r.writeCall(id, m[0], m[1])
}

func callMember(name []byte) int {
	switch string(name) {
	case "name":
		return 0
	case "arguments", "input":
		return 1
	}
	return ignored
}

func (r *Reader) writeCall(id, name, arguments []byte) {
	r.begun()
	r.mark(markCall)
	r.field('i', id)
	r.field('n', name)
	r.field('a', arguments)
}

// content writes what a message holds: a text, or parts.
func (r *Reader) content(raw, role []byte, depth int) bool {
	system := string(role) == "system"
	switch {
	case none(raw):
		return true
	case raw[0] == '"':
		r.part(raw, system)
		return true
	case raw[0] != '[':
		r.field('c', raw)
		return true
	}
	c := cursor{b: raw}
	c.open()
	for c.more() {
		if c.kind() != '{' {
			if raw := c.value(); !none(raw) && raw[0] == '"' {
				r.part(raw, system)
			} else {
				r.field('c', raw)
			}
			continue
		}
		if !r.contentPart(&c, role, depth) {
			return false
		}
	}
	return !c.bad
}

// The members of a part.
const (
	partType = iota
	partText
	partThinking
	partRefusal
	partID
	partName
	partInput
	partUseID
	partContent
	partError
	partImage
	partAudio
	partVideo
)

func partMember(name []byte) int {
	switch string(name) {
	case "type":
		return partType
	case "text":
		return partText
	case "thinking":
		return partThinking
	case "refusal":
		return partRefusal
	case "id":
		return partID
	case "name":
		return partName
	case "input":
		return partInput
	case "tool_use_id":
		return partUseID
	case "content":
		return partContent
	case "is_error":
		return partError
	case "image_url":
		return partImage
	case "audio_url":
		return partAudio
	case "video_url":
		return partVideo
	case "cache_control", "citations", "annotations", "logprobs", "signature", "caller", "index":
		return ignored
	}
	return rest
}

var textKind = []byte("text")

func (r *Reader) contentPart(c *cursor, role []byte, depth int) bool {
	m, digest := r.object(c, partMember)
	if c.bad {
		return false
	}
	kind := r.spelled(m[partType])
	if len(kind) == 0 && !none(m[partText]) {
		kind = textKind
	}
	switch string(kind) {
	case "text", "input_text", "output_text", "summary_text", "reasoning_text":
		r.part(m[partText], string(role) == "system")
	case "refusal":
		r.part(m[partRefusal], false)
	case "thinking":
		if !none(m[partThinking]) {
			r.field('r', m[partThinking])
		} else {
			r.field('r', m[partText])
		}
	case "redacted_thinking":
	case "tool_use":
		r.writeCall(m[partID], m[partName], m[partInput])
	case "tool_result":
		return r.toolResult(&m, role, depth)
	default:
		// The meaning of this value depends on its type. All of it counts.
		for at, raw := range m {
			if none(raw) {
				continue
			}
			if at >= partImage && at <= partVideo && raw[0] == '{' {
				raw = r.url(raw, &digest)
			}
			digest += r.digest(kvindex.Block(at+1), raw, 0)
		}
		r.begun()
		r.medium(digest)
	}
	return true
}

// url returns the URL of an object that has one, and adds what else is in it to a
// digest.
func (r *Reader) url(raw []byte, digest *uint64) []byte {
	m, more := r.object(&cursor{b: raw}, func(name []byte) int {
		switch string(name) {
		case "url":
			return 0
		case "detail":
			return 1
		}
		return rest
	})
	*digest += more
	if detail := m[1]; !none(detail) && string(r.spelled(detail)) != "auto" {
		*digest += r.digest(1, detail, 0)
	}
	if none(m[0]) {
		return nil
	}
	return m[0]
}

// toolResult writes a tool's message, which stands inside of another, whose rest begins
// again behind it.
func (r *Reader) toolResult(m *members, role []byte, depth int) bool {
	if depth == maxDepth {
		return false
	}
	r.role = nil // of the message, if it has nothing yet
	r.message(roleTool)
	r.field('i', m[partUseID])
	if e := m[partError]; len(e) > 0 && e[0] == 't' {
		r.field('e', e)
	}
	if !r.content(m[partContent], roleTool, depth+1) {
		return false
	}
	r.begun()
	r.role, r.spare = role, true
	return true
}

// tools writes definitions.
func (r *Reader) tools(raw []byte) bool {
	if none(raw) {
		return true
	}
	if raw[0] != '[' {
		return false
	}
	c := cursor{b: raw}
	c.open()
	for c.more() {
		if c.kind() != '{' {
			return false
		}
		m, digest := r.object(&c, toolMember)
		r.mark(markTool)
		if function := m[toolFunction]; !none(function) {
			kind := m[toolType]
			inner := cursor{b: function}
			var more uint64
			m, more = r.object(&inner, toolMember)
			m[toolType], digest = kind, digest+more
			if inner.bad {
				return false
			}
		}
		switch kind := m[toolType]; string(r.spelled(kind)) {
		case "", "function", "custom":
		default:
			r.field('t', kind)
		}
		r.field('n', m[toolName])
		r.field('d', m[toolDescription])
		r.field('p', m[toolParameters])
		r.rest(digest)
	}
	return !c.bad
}

// The members of a tool, and of the function inside of it.
const (
	toolType = iota
	toolName
	toolDescription
	toolParameters
	toolFunction
)

func toolMember(name []byte) int {
	switch string(name) {
	case "type":
		return toolType
	case "name":
		return toolName
	case "description":
		return toolDescription
	case "parameters", "input_schema":
		return toolParameters
	case "function":
		return toolFunction
	case "cache_control", "eager_input_streaming":
		return ignored
	}
	return rest
}
