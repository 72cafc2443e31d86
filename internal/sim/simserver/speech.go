package simserver

import (
	"regexp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/sim/simserver/web"
)

// speech parses an output's text as it comes: reasoning between <think> and </think> at its
// beginning, calls between <tool_call> and </tool_call>, and the rest. Real engines do the
// same to their output. Unparsable text is passed on as text, in order.
type speech struct {
	tools bool // calls are taken apart

	state speechState
	held  string // not yet told
	calls int    // begun
	scan  jsonScan
}

type speechState uint8

const (
	atBeginning speechState = iota
	inReasoning
	afterReasoning // white space is dropped
	inText
	atCall // after <tool_call>
	inArguments
	atCallEnd
	afterCall // white space is dropped
)

// part is the content of one event.
type part struct {
	kind partKind
	text string // of a beginning call, its name
	call int    // its number, from 0
}

type partKind uint8

const (
	partText partKind = iota
	partReasoning
	partCall      // a call begins
	partArguments // more of the call's arguments
)

const (
	thinkOpen  = "<think>\n"
	thinkClose = "\n</think>"
	callOpen   = "<tool_call>"
	callClose  = "</tool_call>"
)

// callHead matches what stands before a call's arguments.
var callHead = regexp.MustCompile(`^\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*`)

// longestHead bounds what may stand there, with a name of 1024 bytes.
const longestHead = 1100

// push adds text and returns the parts that are certain; ended means that no more text
// follows.
func (s *speech) push(text string, ended bool) []part {
	s.held += text
	var parts []part
	for s.step(&parts, ended) {
	}
	if ended && s.held != "" {
		switch s.state {
		case inReasoning:
			tell(&parts, part{kind: partReasoning, text: s.held})
		case atCall:
			tell(&parts, part{text: callOpen + s.held})
		case afterReasoning, afterCall, atCallEnd:
		default:
			tell(&parts, part{text: s.held})
		}
		s.held = ""
	}
	return parts
}

// tell appends a part, or joins it to the previous one if both are of the same kind.
func tell(parts *[]part, p part) {
	if p.text == "" && p.kind != partCall {
		return
	}
	if n := len(*parts); n > 0 && (*parts)[n-1].kind == p.kind && p.kind != partCall && (*parts)[n-1].call == p.call {
		(*parts)[n-1].text += p.text
		return
	}
	*parts = append(*parts, p)
}

// step parses on and reports whether it can continue at once.
func (s *speech) step(parts *[]part, ended bool) bool {
	switch s.state {
	case atBeginning:
		switch {
		case strings.HasPrefix(s.held, thinkOpen):
			s.held, s.state = s.held[len(thinkOpen):], inReasoning
		case strings.HasPrefix(thinkOpen, s.held) && !ended:
			return false
		default:
			s.state = inText
		}
	case inReasoning:
		before, after, found := strings.Cut(s.held, thinkClose)
		if !found {
			s.tellBut(parts, part{kind: partReasoning}, thinkClose)
			return false
		}
		tell(parts, part{kind: partReasoning, text: before})
		s.held, s.state = after, afterReasoning
	case afterReasoning, afterCall:
		if s.held = strings.TrimLeft(s.held, "\n"); s.held == "" {
			return false
		}
		s.state = inText
	case inText:
		if !s.tools {
			tell(parts, part{text: s.held})
			s.held = ""
			return false
		}
		before, after, found := strings.Cut(s.held, callOpen)
		if !found {
			s.tellBut(parts, part{}, callOpen)
			return false
		}
		tell(parts, part{text: before})
		s.held, s.state = after, atCall
	case atCall:
		return s.beginCall(parts)
	case inArguments:
		return s.arguments(parts)
	case atCallEnd:
		_, after, found := strings.Cut(s.held, callClose)
		if !found {
			return false
		}
		s.held, s.state = after, afterCall
	}
	return true
}

// tellBut emits the held text, except an end that may be the beginning of a mark.
func (s *speech) tellBut(parts *[]part, p part, mark string) {
	keep := 0
	for n := min(len(mark)-1, len(s.held)); n > 0; n-- {
		if strings.HasSuffix(s.held, mark[:n]) {
			keep = n
			break
		}
	}
	p.text = s.held[:len(s.held)-keep]
	s.held = s.held[len(s.held)-keep:]
	tell(parts, p)
}

// beginCall reads a call's name.
func (s *speech) beginCall(parts *[]part) bool {
	m := callHead.FindStringSubmatchIndex(s.held)
	if m == nil {
		if len(s.held) < longestHead && !strings.Contains(s.held, callClose) {
			return false
		}
		// It is no call.
		tell(parts, part{text: callOpen})
		s.state = inText
		return true
	}
	name, err := jsontext.AppendUnquote(nil, s.held[m[2]:m[3]])
	if err != nil || m[1] == len(s.held) {
		// A name that is not a string makes no call; and nothing is certain before the
		// first byte of the arguments.
		if err == nil {
			return false
		}
		tell(parts, part{text: callOpen})
		s.state = inText
		return true
	}
	tell(parts, part{kind: partCall, text: string(name), call: s.calls})
	s.held, s.state, s.scan = s.held[m[1]:], inArguments, jsonScan{}
	s.calls++
	return true
}

// arguments emits a call's arguments up to their end.
func (s *speech) arguments(parts *[]part) bool {
	n, complete := s.scan.read(s.held)
	tell(parts, part{kind: partArguments, text: s.held[:n], call: s.calls - 1})
	if s.held = s.held[n:]; complete {
		s.state = atCallEnd
	}
	return complete
}

// jsonScan finds the end of a JSON object or array in a text that comes in
// pieces.
type jsonScan struct {
	depth          int
	quoted, escape bool
}

// read returns how many bytes of a piece belong to the value, and whether the value is
// complete.
func (s *jsonScan) read(text string) (int, bool) {
	for i := range len(text) {
		c := text[i]
		switch {
		case s.escape:
			s.escape = false
		case s.quoted:
			s.escape, s.quoted = c == '\\', c != '"'
		case c == '"':
			s.quoted = true
		case c == '{' || c == '[':
			s.depth++
		case c == '}' || c == ']':
			if s.depth--; s.depth <= 0 {
				return i + 1, true
			}
		}
	}
	return len(text), false
}

// spoken is a whole output taken apart.
type spoken struct {
	text, reasoning string
	calls           []call
}

type call struct{ name, arguments string }

// speak takes a whole text apart. A call that does not end is text.
func (s *speech) speak(text string) (out spoken) {
	for _, p := range s.push(text, true) {
		switch p.kind {
		case partText:
			out.text += p.text
		case partReasoning:
			out.reasoning += p.text
		case partCall:
			out.calls = append(out.calls, call{name: p.text})
		case partArguments:
			out.calls[p.call].arguments += p.text
		}
	}
	if n := len(out.calls); n > 0 && s.state == inArguments {
		last := out.calls[n-1]
		out.calls = out.calls[:n-1]
		out.text += callOpen + "\n" + `{"name": ` + web.Quote(last.name) + `, "arguments": ` + last.arguments
	}
	return out
}
