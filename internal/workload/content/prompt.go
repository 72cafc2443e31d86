package content

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// AskError reports an unsupported part of a request.
type AskError struct {
	Param  string // the field, as the OpenAI API calls it
	Reason string
}

// Error implements error.
func (e *AskError) Error() string { return e.Reason }

func askError(param, format string, args ...any) error {
	return &AskError{Param: param, Reason: fmt.Sprintf(format, args...)}
}

// reading is the parsed prompt.
type reading struct {
	s      *Speaker
	prompt []uint32

	chat bool
	// from is where the answer begins in a chat, and where it can begin at the
	// earliest in any other prompt.
	from      int
	answered  bool // the last message is a tool's result
	echo      []uint32
	directive directive
}

// directive is an instruction in a prompt about the answer: a first line [weir-sim {...}]
// of the last message, or of a prompt that is not a chat. The chat template of weir-sim
// writes one into a last system message for chat_template_kwargs.
type directive struct {
	Ask
	tool string // the one to call
}

const (
	directiveOpen    = "[weir-sim "
	directiveClose   = "]"
	longestDirective = 256 << 10 // bytes
)

// read parses a prompt. It looks at the end of a chat and at its first message, not at all
// of its text.
func (s *Speaker) read(prompt []uint32) (reading, error) {
	in := reading{s: s, prompt: prompt}
	at := len(prompt) - 1
	for at >= 0 && prompt[at] != s.turn {
		at--
	}
	if at >= 0 {
		if role, body := s.message(prompt[at:]); role == "assistant" {
			in.chat, in.from = true, len(prompt)-len(body)
			return in, in.readChat(at)
		}
	}
	// Ids without text, such as a token of beginning, may precede a directive.
	for in.from < len(prompt) && len(s.Text(prompt[in.from])) == 0 {
		in.from++
	}
	body, err := in.take(prompt[in.from:])
	in.from = len(prompt) - len(body)
	return in, err
}

// message parts a turn from its header to its end: the role and what follows.
func (s *Speaker) message(turn []uint32) (role string, body []uint32) {
	var head []byte
	for i, id := range turn[1:] {
		head = append(head, s.any(id)...)
		if n := bytes.IndexByte(head, '\n'); n >= 0 {
			return string(head[:n]), turn[i+2:]
		}
		if len(head) > 64 {
			break
		}
	}
	return "", nil
}

// readChat reads the last messages before the answer, whose header is at end.
func (in *reading) readChat(end int) error {
	role, body, end := in.before(end)
	if role == "system" {
		rest, err := in.take(body)
		if err != nil {
			return err
		}
		if len(rest) < len(body) {
			role, body, end = in.before(end)
		}
	}
	in.answered = role == "tool" || role == "user" && in.s.begins(body, "<tool_response>")
	for first := true; role != ""; role, body, end = in.before(end) {
		if role != "user" || in.s.begins(body, "<tool_response>") {
			first = false
			continue
		}
		if in.echo = body; first {
			var err error
			if in.echo, err = in.take(body); err != nil {
				return err
			}
		}
		break
	}
	return nil
}

// before returns the message that ends before end, and where it begins.
func (in *reading) before(end int) (role string, body []uint32, begin int) {
	for begin = end - 1; begin >= 0 && in.prompt[begin] != in.s.turn; begin-- {
	}
	if begin < 0 {
		return "", nil, 0
	}
	role, body = in.s.message(in.prompt[begin:end])
	if i := slices.Index(body, in.s.endTurn); i >= 0 {
		body = body[:i]
	}
	return role, body, begin
}

// any returns the bytes of an id, even of one that must not be generated.
func (s *Speaker) any(id uint32) []byte {
	if int64(id) >= int64(s.o.Size) {
		return nil
	}
	return s.o.Text(id)
}

// begins reports whether ids begin with a text.
func (s *Speaker) begins(ids []uint32, text string) bool {
	var b []byte
	for _, id := range ids {
		if b = append(b, s.any(id)...); len(b) >= len(text) {
			break
		}
	}
	return strings.HasPrefix(string(b), text)
}

// take reads a directive on the first line of a message and returns the rest, or the whole
// message if there is none. A second directive overrides the first.
func (in *reading) take(body []uint32) ([]uint32, error) {
	if !in.s.begins(body, directiveOpen) {
		return body, nil
	}
	var line []byte
	rest := body
	for len(rest) > 0 && !bytes.ContainsRune(line, '\n') && len(line) < longestDirective {
		line = append(line, in.s.any(rest[0])...)
		rest = rest[1:]
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	text, ok := strings.CutSuffix(strings.TrimRight(strings.TrimPrefix(string(line), directiveOpen), " \r"), directiveClose)
	if !ok {
		return body, nil
	}
	v, err := parseValue([]byte(text))
	if err != nil {
		return nil, askError("messages", "[weir-sim ...]: %v; it holds a JSON object", err)
	}
	if v.kind != '{' {
		return nil, askError("messages", "[weir-sim ...] must hold a JSON object")
	}
	for _, m := range v.members {
		if err := in.directive.set(m.name, m.value); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

func (d *directive) set(name string, v value) (err error) {
	word := ""
	if v.kind == '"' {
		word = v.text()
	}
	switch name {
	case "content":
		if d.Mode, err = ParseMode(word); err != nil {
			return askError("content", "[weir-sim ...]: content: %v", err)
		}
	case "think":
		switch v.kind {
		case 't':
			d.Think = EffortMedium
		case 'f':
			d.Think = EffortNone
		default:
			if d.Think, err = ParseEffort(word); err != nil {
				return askError("think", "[weir-sim ...]: think: %v", err)
			}
		}
	case "schema":
		if d.Schema, err = CompileSchema(v.raw); err != nil {
			return askError("schema", "[weir-sim ...]: schema: %v", err)
		}
	case "tool_choice":
		return d.setChoice(word, v)
	case "calls":
		if d.Calls, err = count(v, "", "calls"); err != nil || d.Calls < 1 || d.Calls > maxCalls {
			return askError("calls", "[weir-sim ...]: calls must be an integer from 1 to %d", maxCalls)
		}
	default:
		return askError("messages", "[weir-sim ...]: no %q; there are content, think, schema, tool_choice and calls", name)
	}
	return nil
}

// setChoice reads tool_choice as the OpenAI API has it, or a tool's name.
func (d *directive) setChoice(word string, v value) error {
	switch word {
	case "auto":
	case "none":
		d.Choice = ChoiceNone
	case "required":
		d.Choice = ChoiceRequired
	case "":
		f, _ := v.get("function")
		name, _ := f.get("name")
		if name.kind != '"' || name.text() == "" {
			return askError("tool_choice", "tool_choice must be auto, none, required or name a function")
		}
		word = name.text()
		fallthrough
	default:
		d.Choice, d.tool = ChoiceRequired, word
	}
	return nil
}

// tools reads the tools that the first message offers: JSON objects between
// <tools> and </tools>, in a message of the system's that speaks of <tool_call>,
// as templates of the Hermes form write them.
func (in *reading) tools() ([]Tool, error) {
	if !in.chat || in.s.toolCall == noToken {
		return nil, nil
	}
	begin := max(0, slices.Index(in.prompt, in.s.turn))
	end := slices.Index(in.prompt[begin:], in.s.endTurn)
	if end < 0 {
		return nil, nil
	}
	role, body := in.s.message(in.prompt[begin : begin+end])
	if role != "system" || !slices.Contains(body, in.s.toolCall) {
		return nil, nil
	}
	var text []byte
	for _, id := range body {
		text = append(text, in.s.any(id)...)
	}
	_, list, ok := bytes.Cut(text, []byte("<tools>\n"))
	if !ok {
		return nil, nil
	}
	var tools []Tool
	d := jsontext.NewDecoder(bytes.NewReader(list))
	for d.PeekKind() == '{' {
		raw, err := d.ReadValue()
		if err != nil {
			return nil, nil // no tools, but a text about them
		}
		t, err := ParseTool(raw, fmt.Sprintf("tools[%d]", len(tools)))
		if err != nil {
			return nil, err
		}
		tools = append(tools, t)
	}
	return tools, nil
}

// ParseTool reads one of a request's tools, an object of type function; param
// is its place, for errors.
func ParseTool(raw []byte, param string) (Tool, error) {
	v, err := parseValue(raw)
	if err != nil {
		return Tool{}, askError(param, "%s is not valid: %v", param, err)
	}
	if kind, ok := v.get("type"); ok && (kind.kind != '"' || kind.text() != "function") {
		return Tool{}, askError(param+".type", "%s.type is %s; only function is supported", param, kind.raw)
	}
	if f, ok := v.get("function"); ok {
		v, param = f, param+".function"
	}
	name, _ := v.get("name")
	if name.kind != '"' || name.text() == "" {
		return Tool{}, askError(param+".name", "%s.name must be a non-empty string", param)
	}
	t := Tool{Name: name.text()}
	p, ok := v.get("parameters")
	if !ok || p.kind == 'n' {
		return t, nil
	}
	if t.Parameters, err = compileSchema(p, true); err != nil {
		return Tool{}, askError(param+".parameters", "%s.parameters: %v", param, err)
	}
	return t, nil
}
