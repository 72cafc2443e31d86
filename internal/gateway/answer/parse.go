package answer

import (
	"bytes"

	"weir/internal/gateway/stream"
	"weir/internal/model/outputparse"
)

// parse is stage 11: reasoning and tool calls part from the content. Most text
// has nothing of either and passes as it is, without events.
func (t *Tokens) parse(ch *choice, c *stream.Cell, p *piece, s *Scratch) (events []outputparse.Event) {
	switch {
	case ch.scores != nil:
		ch.scores.read(ch.parser, c, p)
		events = ch.scores.events
	case ch.parser != nil:
		s.events = ch.parse(s.events[:0], p)
		events = s.events
	}
	return events
}

// parse appends the events of a piece.
func (ch *choice) parse(dst []outputparse.Event, p *piece) []outputparse.Event {
	if p.early == 0 {
		ch.parser.Early(false)
		return ch.parser.Append(dst, p.text, p.ended)
	}
	ch.parser.Early(true)
	if p.early == len(p.text) && !p.ended {
		return ch.parser.Append(dst, p.text, false)
	}
	dst = ch.parser.Append(dst, p.text[:p.early], false)
	for i := range dst {
		dst[i].Text = bytes.Clone(dst[i].Text) // which the next call makes void
	}
	ch.parser.Early(false)
	return ch.parser.Append(dst, p.text[p.early:], p.ended)
}
