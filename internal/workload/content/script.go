package content

import (
	"fmt"
	"slices"
)

// Mode is the kind of content of an answer.
type Mode uint8

// The modes.
const (
	// ModeAuto follows the request: calls if it offers tools and the last message is not a
	// tool's result, a document if it has a schema, and words otherwise.
	ModeAuto Mode = iota
	// ModeWords is words only, even if the request asks for something else.
	ModeWords
	// ModeEcho is the last user's message, or a line end and the prompt where it
	// is no chat.
	ModeEcho
	// ModeJSON is a JSON document: by the request's schema, or an object.
	ModeJSON
)

var modeNames = [...]string{"auto", "words", "echo", "json"}

// String returns the mode's word.
func (m Mode) String() string { return modeNames[m] }

// ParseMode reads a mode's word.
func ParseMode(word string) (Mode, error) {
	i := slices.Index(modeNames[:], word)
	if i < 0 {
		return 0, fmt.Errorf("no content mode %q; the modes are auto, words, echo and json", word)
	}
	return Mode(i), nil
}

// Effort is how much reasoning comes before the answer.
type Effort uint8

// The efforts. EffortUnset leaves the choice to other settings.
const (
	EffortUnset Effort = iota
	EffortNone
	EffortLow
	EffortMedium
	EffortHigh
)

var effortNames = [...]string{"", "none", "low", "medium", "high"}

// ParseEffort reads an effort: none, low, medium or high; minimal and xhigh are the same as
// low and high.
func ParseEffort(word string) (Effort, error) {
	switch word {
	case "minimal":
		return EffortLow, nil
	case "xhigh":
		return EffortHigh, nil
	}
	if i := slices.Index(effortNames[1:], word); i >= 0 {
		return Effort(i + 1), nil
	}
	return 0, fmt.Errorf("no reasoning effort %q; the efforts are none, minimal, low, medium, high and xhigh", word)
}

// reasoningWords bounds the words of reasoning by effort.
var reasoningWords = [...]struct{ least, most int }{EffortNone: {}, EffortLow: {4, 16}, EffortMedium: {16, 64}, EffortHigh: {64, 256}}

// Tool is a function that an answer may call.
type Tool struct {
	Name       string
	Parameters *Schema // nil takes no arguments
}

// Choice determines whether tools are called.
type Choice uint8

// The choices. ChoiceAuto calls one unless a tool's result was the last
// message, so that a client's loop ends.
const (
	ChoiceAuto Choice = iota
	ChoiceNone
	ChoiceRequired
)

// Ask holds what the fields of a request ask for. The zero value adds nothing to the
// prompt.
type Ask struct {
	Mode   Mode
	Schema *Schema // of the document
	Think  Effort
	Tools  []Tool // nil: those that the prompt offers
	Choice Choice
	// Calls is how many calls are made in one answer; 0 is one.
	Calls int
	// Answered reports whether the last message is a tool's result.
	Answered bool
	// Chat reports whether the prompt is a chat up to the beginning of the answer. It must
	// be set for templates that do not have the ChatML form.
	Chat bool
}

// maxCalls bounds the calls of one answer.
const maxCalls = 16

// anyObject is the schema of a document that nobody gave a schema for.
const anyObject = `{"type":"object","properties":{"answer":{"type":"string"},"score":{"type":"integer"},` +
	`"tags":{"type":"array","items":{"type":"string"}}},"required":["answer","score"]}`

// AnyObject returns the schema of a document if none is given.
func AnyObject() *Schema {
	s, err := CompileSchema([]byte(anyObject))
	if err != nil {
		panic(err) // it is a constant
	}
	return s
}

// plan is an answer as it was asked for, before its words are chosen.
type plan struct {
	mode  Mode // not ModeAuto; without meaning where there are tools
	think Effort
	tools []Tool
	calls int
	by    *Schema
	echo  []uint32
	mean  int // words of an answer of words; 0 and below: they do not end
}

// fixed reports whether the answer is a script; it is words one by one otherwise.
func (a *plan) fixed() bool { return a.mode != ModeWords || len(a.tools) > 0 || a.think > EffortNone }

// closed reports whether the answer ends where it ends.
func (a *plan) closed() bool { return len(a.tools) > 0 || a.mode == ModeJSON }

// say writes the answer.
func (p *pen) say(a *plan) {
	if a.think > EffortNone {
		p.literal("<think>\n")
		p.reason(a.think)
		p.literal("\n</think>\n\n")
	}
	switch {
	case len(a.tools) > 0:
		for i := range a.calls {
			if i > 0 {
				p.literal("\n")
			}
			p.literal("<tool_call>\n")
			p.call(a.tools)
			p.literal("\n</tool_call>")
		}
	case a.mode == ModeJSON:
		p.document(a.by)
	case a.mode == ModeEcho:
		p.copy(a.echo)
	default:
		p.word()
		for !p.stopped() && (a.mean <= 0 || p.draw(a.mean) > 0) {
			p.word()
		}
	}
}

// reason writes the words of reasoning.
func (p *pen) reason(e Effort) {
	bound := reasoningWords[e]
	for range bound.least + p.draw(bound.most-bound.least+1) {
		p.word()
	}
}

// call writes a call of one of the tools.
func (p *pen) call(tools []Tool) {
	t := &tools[p.draw(len(tools))]
	p.literal(`{"name": ` + quoted(t.Name) + `, "arguments": `)
	p.arguments(t)
	p.literal("}")
}

func (p *pen) arguments(t *Tool) {
	if t.Parameters == nil {
		p.literal("{}")
		return
	}
	p.document(t.Parameters)
}

// copy writes ids unchanged, except those without text.
func (p *pen) copy(ids []uint32) {
	for _, id := range ids {
		if p.stopped() {
			return
		}
		if len(p.speller.Text(id)) > 0 {
			p.ids = append(p.ids, id)
			p.wrote(len(p.ids) - 1)
		}
	}
}
