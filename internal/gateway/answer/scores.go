package answer

import (
	"weir/internal/dialect"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/model/outputparse"
)

// scores finds the tokens that an answer's content was made of, for dialects that
// tell log probabilities of those alone (dialect.Request.ContentLogprobs). A token
// belongs to what was said when it was read, and with it those before it that had
// said nothing yet: parts of runes, what could have become a marker or a stop
// string. Where some of that is content, all of them are the content's. A token whose
// text turned out to be syntax has no place. One without text, as an end id, goes
// with the token before it.
//
// So that none of this depends on how output is merged, text is read token by token.
type scores struct {
	top   int
	steps []step // of the tokens of the cell at hand

	events []outputparse.Event // of the cell at hand, one after each other
	ends   []int               // how many of told go with each event and those before it
	text   []byte              // of events, whose own is good only until the parser reads on
	told   entries

	pending entries // of tokens that said nothing yet
	content bool    // the latest token that has a place is content's
}

// step is what a token did to the text.
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

// step notes what the next token of a cell did to the text.
func (s *scores) step(end int, held, mute bool) {
	s.steps = append(s.steps, step{end, held, mute})
}

// read takes the text of a cell apart, of which used ids count. p is nil where all
// of it is content. It reports whether the answer has ended, with the cell or before.
func (s *scores) read(p *outputparse.Parser, text []byte, c *stream.Cell, used int, ended bool) {
	s.events, s.ends, s.text = s.events[:0], s.ends[:0], s.text[:0]
	s.told.reset()
	at := 0
	for i := range used {
		if p != nil && p.Plain() {
			p = nil // from the next cell on it is gone, and how tokens come in cells must not matter
		}
		// What ended the answer and is not spoken has no text.
		step := step{end: at, mute: true}
		if i < len(s.steps) {
			step = s.steps[i]
		}
		s.pending.append(c, i, s.top)
		from := len(s.events)
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
	if ended {
		from := len(s.events)
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

// tell gives what is pending to an event.
func (s *scores) tell(event int) {
	s.told.ids = append(s.told.ids, s.pending.ids...)
	s.told.values.Append(&s.pending.values)
	for i := event; i < len(s.ends); i++ {
		s.ends[i] = len(s.told.ids)
	}
}

// tokens gives those of the events from one to before another.
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
