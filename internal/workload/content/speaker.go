package content

import (
	"errors"
	"slices"
)

// Speaker generates answers that are not only words. Like words, its answers are a function
// of all ids so far and of the seed, so that an engine that gets prompt and generated ids
// continues where another one stopped.
//
// It finds the end of the prompt itself. In a chat whose template has the ChatML form the
// prompt ends after the last header of an assistant's turn; for other chats the caller
// passes it. In any other prompt an answer begins with a line end, and the prompt ends at
// the first place from which on the ids are those that the engine would generate there;
// generation does not change that place.
//
// It is safe for concurrent use.
type Speaker struct {
	*Speller
	o SpeakerOptions

	// Tokens of the vocabulary, noToken where it has none of the kind.
	turn, endTurn, toolCall uint32
	newline                 uint32
}

const noToken = 1<<32 - 1

// SpeakerOptions say how an engine speaks.
type SpeakerOptions struct {
	// Size is the number of ids.
	Size int
	// Text returns an id's bytes, special tokens included.
	Text func(id uint32) []byte
	// Ordinary returns the bytes of an id that may be generated, as in New.
	Ordinary func(id uint32) ([]byte, bool)
	// Mode and Think apply to requests whose prompt does not ask for another mode, and
	// override their fields.
	Mode  Mode
	Think Effort
	// MeanTokens is the mean length of an answer in words after reasoning.
	MeanTokens int
}

// Speaker returns the speaker for the vocabulary of the words. The error names what the
// vocabulary cannot write.
func (w *Words) Speaker(o SpeakerOptions) (*Speaker, error) {
	s := &Speaker{Speller: w.Speller(o.Size, o.Ordinary), o: o, turn: noToken, endTurn: noToken, toolCall: noToken, newline: noToken}
	for id := range uint32(o.Size) {
		switch string(o.Text(id)) {
		case "\n":
			if _, ok := o.Ordinary(id); ok && s.newline == noToken {
				s.newline = id // the first, as the speller takes it
			}
		case "<|im_start|>":
			s.turn = id
		case "<|im_end|>":
			s.endTurn = id
		case "<tool_call>":
			s.toolCall = id
		}
	}
	if s.newline == noToken {
		return nil, errors.New("content: the vocabulary has no token for a line end")
	}
	return s, nil
}

// Request is a request to speak to.
type Request struct {
	Prompt []uint32
	Seed   uint64
	// MaxTokens bounds the script.
	MaxTokens int
	Ask       Ask
}

// Script is the rest of an answer.
type Script struct {
	IDs []uint32 // not nil
	// Closed reports whether nothing may follow but an end: it is a document or a call.
	Closed bool
}

// Script returns the answer to a request, or nil if it is only words. Errors are *AskError
// or *SchemaError.
func (s *Speaker) Script(r *Request) (*Script, error) {
	in, err := s.read(r.Prompt)
	if err != nil {
		return nil, err
	}
	if r.Ask.Chat && !in.chat {
		in.chat, in.from, in.echo = true, len(r.Prompt), r.Prompt
	}
	p, err := s.plan(&r.Ask, &in)
	if err != nil || !p.fixed() {
		return nil, err
	}
	stream := s.Start(r.Prompt[:in.from], r.Seed)
	for at := in.from; at <= len(r.Prompt); at++ {
		header := in.chat && at == in.from
		// No prompt is empty.
		if header || at == len(r.Prompt) || at > 0 && r.Prompt[at] == s.newline {
			ids, err := s.say(p, &in, &stream, r, at, header)
			switch {
			case err == nil:
				return &Script{IDs: ids, Closed: p.closed()}, nil
			case !errors.Is(err, errMismatch):
				return nil, err
			}
		}
		if at < len(r.Prompt) {
			s.Push(&stream, r.Prompt[at])
		}
	}
	panic("content: an answer to the whole prompt does not follow it")
}

// say returns the rest of an answer to the first at ids of the prompt, if the other ids are
// its beginning.
func (s *Speaker) say(a *plan, in *reading, stream *Stream, r *Request, at int, header bool) ([]uint32, error) {
	said := r.Prompt[at:]
	p := pen{speller: s.Speller, prompt: stream.draw(0xd6e8feb86659fd93), expect: said, limit: len(said) + r.MaxTokens}
	p.start(s.Words, stream.draw(0x2545f4914f6cdd1d))
	if !header {
		p.literal("\n")
		if !in.chat {
			a.echo = r.Prompt[in.from:at]
		}
	}
	p.say(a)
	switch {
	case p.err != nil:
		return nil, p.err
	case len(p.ids) >= len(said):
		return append([]uint32{}, p.ids[len(said):]...), nil
	case a.closed() || slices.ContainsFunc(said[len(p.ids):], func(id uint32) bool { return s.word(id) == noWord }):
		return nil, errMismatch
	}
	// Words followed the script, because no end was wanted.
	return []uint32{}, nil
}

// plan combines the request's fields, the engine's options and the prompt. The prompt's
// directive has priority, then the engine's options.
func (s *Speaker) plan(ask *Ask, in *reading) (*plan, error) {
	d := &in.directive
	a := &plan{mode: firstSet(d.Mode, s.o.Mode, ask.Mode), think: firstSet(d.Think, s.o.Think, ask.Think), mean: s.o.MeanTokens, echo: in.echo}
	schema := firstSet(d.Schema, ask.Schema)
	if a.mode == ModeAuto {
		var err error
		if a.tools, err = s.callable(ask, in); err != nil {
			return nil, err
		}
		if a.mode = ModeWords; schema != nil {
			a.mode = ModeJSON
		}
	}
	a.calls = max(1, firstSet(d.Calls, ask.Calls))
	if a.mode == ModeJSON {
		if a.by = schema; schema == nil {
			a.by = AnyObject()
		}
	}
	return a, nil
}

// callable returns the tools of which one is to be called, none where none is.
func (s *Speaker) callable(ask *Ask, in *reading) ([]Tool, error) {
	choice := firstSet(in.directive.Choice, ask.Choice)
	if choice == ChoiceNone || choice == ChoiceAuto && (ask.Answered || in.answered) {
		return nil, nil
	}
	tools := ask.Tools
	if tools == nil {
		var err error
		if tools, err = in.tools(); err != nil {
			return nil, err
		}
	}
	if name := in.directive.tool; name != "" {
		i := slices.IndexFunc(tools, func(t Tool) bool { return t.Name == name })
		if i < 0 {
			return nil, askError("tool_choice", "tool_choice names %q, which is none of the tools", name)
		}
		tools = tools[i : i+1]
	}
	if choice == ChoiceRequired && len(tools) == 0 {
		return nil, askError("tool_choice", "tool_choice requires a call, but there are no tools")
	}
	return tools, nil
}

// firstSet returns the first of values that is not zero.
func firstSet[T comparable](values ...T) (zero T) {
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}
