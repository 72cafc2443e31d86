package outputparse

import "strconv"

// Kind is the kind of an event.
type Kind uint8

// The kinds. Each CallBegin is followed by the call's Arguments and its CallEnd
// before any other event.
const (
	Content   Kind = iota // text for the caller
	Reasoning             // text of the model's to itself
	CallBegin             // a call's name is known
	Arguments             // a fragment of its arguments
	CallEnd               // nothing follows of it
)

var kindNames = [...]string{"content", "reasoning", "call", "arguments", "end"}

// String returns the kind's name in tests and goldens.
func (k Kind) String() string { return kindNames[k] }

// Event is a part of the answer that the parser has recognized.
type Event struct {
	Kind Kind
	// Valid is set in a CallEnd when the arguments are whole and valid JSON.
	Valid bool
	// Call counts the answer's calls from 0, in all kinds of a call's events.
	Call int
	// Text is content, reasoning, or a fragment of arguments. It is only good
	// until the parser's next call.
	Text []byte
	// Name is the tool's, in CallBegin. ID is the call's where the model's
	// syntax has one, else empty.
	Name, ID string
}

// String is for tests.
func (e Event) String() string {
	switch e.Kind {
	case CallBegin:
		return "call " + strconv.Itoa(e.Call) + " " + e.Name + " " + e.ID
	case CallEnd:
		return "end " + strconv.Itoa(e.Call) + " " + strconv.FormatBool(e.Valid)
	}
	return e.Kind.String() + " " + strconv.Quote(string(e.Text))
}
