// Package speech takes what a model says apart into text, reasoning and calls of tools.
package speech

import (
	"regexp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/sim/simserver/web"
)

// Parser parses an output's text as it comes: reasoning between <think> and </think> at its
// beginning, calls between <tool_call> and </tool_call>, and the rest. Real engines do the
// same to their output. Unparsable text is passed on as text, in order.
type Parser struct {
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

// Part is the content of one event.
type Part struct {
	Kind Kind
	Text string // of a beginning call, its name
	Call int    // its number, from 0
}

// Kind is what a part is of.
type Kind uint8

const (
	Text Kind = iota
	Reasoning
	CallBegins // a call begins
	Arguments  // more of the call's arguments
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

// New makes a parser. With tools calls are taken apart; with reasoning, what is between its marks.
func New(tools, reasoning bool) *Parser {
	s := &Parser{tools: tools}
	if !reasoning {
		s.state = inText
	}
	return s
}

// EndsInCall reports whether the text so far ends with a call that is complete.
func (s *Parser) EndsInCall() bool { return s.calls > 0 && s.state == afterCall }

// Push adds text and returns the parts that are certain; ended means that no more text
// follows.
func (s *Parser) Push(text string, ended bool) []Part {
	s.held += text
	var parts []Part
	for s.step(&parts, ended) {
	}
	if ended && s.held != "" {
		switch s.state {
		case inReasoning:
			tell(&parts, Part{Kind: Reasoning, Text: s.held})
		case atCall:
			tell(&parts, Part{Text: callOpen + s.held})
		case afterReasoning, afterCall, atCallEnd:
		default:
			tell(&parts, Part{Text: s.held})
		}
		s.held = ""
	}
	return parts
}

// tell appends a part, or joins it to the previous one if both are of the same kind.
func tell(parts *[]Part, p Part) {
	if p.Text == "" && p.Kind != CallBegins {
		return
	}
	if n := len(*parts); n > 0 && (*parts)[n-1].Kind == p.Kind && p.Kind != CallBegins && (*parts)[n-1].Call == p.Call {
		(*parts)[n-1].Text += p.Text
		return
	}
	*parts = append(*parts, p)
}

// step parses on and reports whether it can continue at once.
func (s *Parser) step(parts *[]Part, ended bool) bool {
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
			s.tellBut(parts, Part{Kind: Reasoning}, thinkClose)
			return false
		}
		tell(parts, Part{Kind: Reasoning, Text: before})
		s.held, s.state = after, afterReasoning
	case afterReasoning, afterCall:
		if s.held = strings.TrimLeft(s.held, "\n"); s.held == "" {
			return false
		}
		s.state = inText
	case inText:
		if !s.tools {
			tell(parts, Part{Text: s.held})
			s.held = ""
			return false
		}
		before, after, found := strings.Cut(s.held, callOpen)
		if !found {
			s.tellBut(parts, Part{}, callOpen)
			return false
		}
		tell(parts, Part{Text: before})
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
func (s *Parser) tellBut(parts *[]Part, p Part, mark string) {
	keep := 0
	for n := min(len(mark)-1, len(s.held)); n > 0; n-- {
		if strings.HasSuffix(s.held, mark[:n]) {
			keep = n
			break
		}
	}
	p.Text = s.held[:len(s.held)-keep]
	s.held = s.held[len(s.held)-keep:]
	tell(parts, p)
}

// beginCall reads a call's name.
func (s *Parser) beginCall(parts *[]Part) bool {
	m := callHead.FindStringSubmatchIndex(s.held)
	if m == nil {
		if len(s.held) < longestHead && !strings.Contains(s.held, callClose) {
			return false
		}
		// It is no call.
		tell(parts, Part{Text: callOpen})
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
		tell(parts, Part{Text: callOpen})
		s.state = inText
		return true
	}
	tell(parts, Part{Kind: CallBegins, Text: string(name), Call: s.calls})
	s.held, s.state, s.scan = s.held[m[1]:], inArguments, jsonScan{}
	s.calls++
	return true
}

// arguments emits a call's arguments up to their end.
func (s *Parser) arguments(parts *[]Part) bool {
	n, complete := s.scan.read(s.held)
	tell(parts, Part{Kind: Arguments, Text: s.held[:n], Call: s.calls - 1})
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

// Whole is a whole output taken apart.
type Whole struct {
	Text, Reasoning string
	Calls           []Call
}

// Call is a call of a tool.
type Call struct{ Name, Arguments string }

// Take takes a whole text apart. A call that does not end is text.
func (s *Parser) Take(text string) (out Whole) {
	for _, p := range s.Push(text, true) {
		switch p.Kind {
		case Text:
			out.Text += p.Text
		case Reasoning:
			out.Reasoning += p.Text
		case CallBegins:
			out.Calls = append(out.Calls, Call{Name: p.Text})
		case Arguments:
			out.Calls[p.Call].Arguments += p.Text
		}
	}
	if n := len(out.Calls); n > 0 && s.state == inArguments {
		last := out.Calls[n-1]
		out.Calls = out.Calls[:n-1]
		out.Text += callOpen + "\n" + `{"name": ` + web.Quote(last.Name) + `, "arguments": ` + last.Arguments
	}
	return out
}
