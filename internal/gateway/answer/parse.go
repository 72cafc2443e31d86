package answer

import (
	"weir/internal/gateway/stream"
	"weir/internal/model/outputparse"
)

// parse is stage 11: reasoning and tool calls part from the content. Most text
// has nothing of either and passes as it is, without events.
func (t *Tokens) parse(ch *choice, c *stream.Cell, p *piece, s *Scratch) (events []outputparse.Event) {
	switch {
	case ch.scores != nil:
		ch.scores.read(ch.parser, p.text, c, p.used, p.ended)
		events = ch.scores.events
	case ch.parser != nil:
		s.events = ch.parser.Append(s.events[:0], p.text, p.ended)
		events = s.events
	}
	return events
}
