package answer

import "weir/internal/model/outputparse"

// textEnd finds the token that ends an answer by its text, where a parser reads that: the
// answer's first call, or a stop string in its content. The tokens after it are not counted,
// however many arrived with it. It has a separate parser, which reads the text token by token.
type textEnd struct {
	parser *outputparse.Parser
	events []outputparse.Event
	// early is how many tokens are still to come in which no stop string is complete, and
	// earlyText how much of a cell's text is theirs.
	early, earlyText int
}

func newTextEnd(o outputparse.Options, stopAfter int) *textEnd {
	return &textEnd{parser: outputparse.New(o), early: stopAfter}
}

// add reads the text of one token, which is a cell's up to a place, and reports whether the
// answer has ended with it.
func (e *textEnd) add(text []byte, place int) bool {
	if e.early > 0 {
		e.early--
		e.earlyText = place
		e.parser.Early(true)
	} else {
		e.parser.Early(false)
	}
	e.events = e.parser.Append(e.events[:0], text, false)
	return e.parser.Done()
}

// finish reads the last text of the answer, and reports whether a stop string ends it.
func (e *textEnd) finish(text []byte) bool {
	e.parser.Early(false)
	e.events = e.parser.Append(e.events[:0], text, true)
	return e.parser.Stop() >= 0
}
