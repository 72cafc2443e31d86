package answer

import (
	"weir/internal/dialect"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/model/outputparse"
)

// scores finds the tokens that produced an answer's content, for dialects that report
// log probabilities only for them (dialect.Request.ContentLogprobs). A token belongs to
// the events that the parser returns when it reads the token. Earlier tokens without an
// event yet belong to the same events: parts of runes, and text that could have become
// a marker or a stop string. If some of these events are content, all of these tokens
// count as content. A token whose text is syntax has no place. A token without text,
// such as an end id, goes with the token before it.
//
// The text is read token by token, so that the result does not depend on how output is
// merged.
type scores struct {
	top   int
	steps []step // of the tokens of the current cell

	events []outputparse.Event // of the current cell, in order
	ends   []int               // number of entries of told for each event and those before it
	text   []byte              // copy of the text of events, which is valid only until the parser's next read
	told   entries

	pending entries // of tokens without an event yet
	content bool    // the latest token that has a place belongs to content
}

// step is the effect of a token on the text.
type step struct {
	end  int  // of the text that is certain with it
	held bool // more is known and not certain
	mute bool // it has no text
}

// entries are tokens and their log probabilities.
type entries struct {
	ids    []uint32
	values infer.Logprobs
}

// step records the effect of the cell's next token on the text.
func (s *scores) step(end int, held, mute bool) {
	s.steps = append(s.steps, step{end, held, mute})
}

// read parses the text of a cell. p is nil if all text is content.
func (s *scores) read(p *outputparse.Parser, c *stream.Cell, of *piece) {
	text := of.text
	s.events, s.ends, s.text = s.events[:0], s.ends[:0], s.text[:0]
	s.told.reset()
	at := 0
	for i := range of.used {
		if p != nil && p.Plain() {
			p = nil // from the next cell on it is gone, and how tokens come in cells must not matter
		}
		// The token that ended the answer has no text if it is left out.
		step := step{end: at, mute: true}
		if i < len(s.steps) {
			step = s.steps[i]
		}
		s.pending.append(c, i, s.top)
		from := len(s.events)
		if p != nil {
			p.Early(step.end <= of.early)
		}
		s.say(p, text[at:step.end], false)
		at = step.end
		switch {
		case len(s.events) > from:
			s.place(from)
		case step.mute && len(s.pending.ids) > 1: // what it follows has no place yet
		case step.mute:
			s.follow()
		case !step.held && (p == nil || !p.Holds()):
			s.pending.reset()
		}
		if p != nil && p.Done() {
			return
		}
	}
	if of.ended {
		from := len(s.events)
		if p != nil {
			p.Early(false)
		}
		s.say(p, text[at:], true)
		if len(s.events) > from {
			s.place(from)
		}
	}
}

// say adds the events of a piece of text.
func (s *scores) say(p *outputparse.Parser, text []byte, last bool) {
	from := len(s.events)
	switch {
	case p != nil:
		s.events = p.Append(s.events, text, last)
	case len(text) > 0:
		s.events = append(s.events, outputparse.Event{Kind: outputparse.Content, Text: text})
	}
	for i := from; i < len(s.events); i++ {
		e := &s.events[i]
		at := len(s.text)
		s.text = append(s.text, e.Text...)
		e.Text = s.text[at:len(s.text):len(s.text)]
		s.ends = append(s.ends, len(s.told.ids))
	}
}

// place gives the tokens that are pending to the events from one on.
func (s *scores) place(from int) {
	s.content = false
	for i := len(s.events) - 1; i >= from; i-- {
		if s.events[i].Kind == outputparse.Content {
			s.content = true
			s.tell(i)
			break
		}
	}
	s.pending.reset()
}

// follow gives a token without text to what comes before it.
func (s *scores) follow() {
	if s.content {
		last := len(s.events) - 1
		if last < 0 {
			s.events, s.ends = append(s.events, outputparse.Event{Kind: outputparse.Content}), append(s.ends, 0)
			last = 0
		}
		s.tell(last)
	}
	s.pending.reset()
}

// tell assigns the pending tokens to an event.
func (s *scores) tell(event int) {
	s.told.ids = append(s.told.ids, s.pending.ids...)
	s.told.values.Append(&s.pending.values)
	for i := event; i < len(s.ends); i++ {
		s.ends[i] = len(s.told.ids)
	}
}

// tokens returns those of the events from one to before another.
func (s *scores) tokens(from, to int) dialect.Tokens {
	first := 0
	if from > 0 {
		first = s.ends[from-1]
	}
	last := s.ends[to-1]
	return dialect.Tokens{IDs: s.told.ids[first:last], Logprobs: s.told.values.Cut(first, last, s.top)}
}

func (e *entries) append(c *stream.Cell, i, top int) {
	e.ids = append(e.ids, c.IDs[i])
	one := c.Logprobs.Cut(i, i+1, top)
	e.values.Append(&one)
}

func (e *entries) reset() {
	e.ids = e.ids[:0]
	e.values.Reset()
}
