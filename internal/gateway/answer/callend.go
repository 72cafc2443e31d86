package answer

import "weir/internal/model/outputparse"

// callEnd finds the token that ends an answer's first call, if the answer ends there: the
// tokens after it are not counted, however many arrived with it. It has a separate parser,
// which reads the text token by token.
type callEnd struct {
	parser *outputparse.Parser
	events []outputparse.Event
}

func newCallEnd(o outputparse.Options) *callEnd { return &callEnd{parser: outputparse.New(o)} }

// add reads one token's text, and reports whether a call has ended with it.
func (e *callEnd) add(text []byte) bool {
	e.events = e.parser.Append(e.events[:0], text, false)
	return e.parser.Done()
}
