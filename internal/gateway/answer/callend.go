package answer

import "weir/internal/model/outputparse"

// callEnd finds the token that ends an answer's first call, where nothing is wanted behind
// that: the tokens behind it are not counted, however many came with it. It has a parser of
// its own, which reads the text token by token.
type callEnd struct {
	parser *outputparse.Parser
	events []outputparse.Event
}

func newCallEnd(o outputparse.Options) *callEnd { return &callEnd{parser: outputparse.New(o)} }

// add reads one token's text, and says whether a call has ended with it.
func (e *callEnd) add(text []byte) bool {
	e.events = e.parser.Append(e.events[:0], text, false)
	return e.parser.Done()
}
