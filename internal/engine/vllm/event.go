package vllm

import (
	"errors"

	"weir/internal/engine/idstream"
)

// event is one event of a stream, of either endpoint.
type event struct {
	array []byte // the text between the brackets of token_ids
	n     int    // how many ids are in it
	given bool   // there is an array
	// choices counts those of the event, index is of the last.
	choices, index int

	completion, prompt, cached int // the engine's counts; -1 where it gives none

	finish  string // the finish reason, empty while there is none
	stopped bool   // stop_reason is an id
	stopID  uint32
	message string // of an error
	status  int    // HTTP status that goes with it; 0 when not given
	failed  bool   // the event is an error

	scores []byte // the value of logprobs; nil where there is none
}

// scan reads an event's data, which must stay as it is while the event is in use.
func scan(s *idstream.Scanner, data []byte, e *event) error {
	*e = event{completion: -1, prompt: -1, cached: -1}
	if usual(data, e) {
		return nil
	}
	*e = event{completion: -1, prompt: -1, cached: -1}
	return full(s, data, e)
}

// usual reads in place the events that most are: of one choice that goes on, without log
// probabilities, as either endpoint writes them. It is false for all others.
func usual(data []byte, e *event) bool {
	c := idstream.NewCursor(data)
	var counted bool
	for more := c.Open('{'); more; more = c.More('}') {
		switch string(c.Name()) {
		case "choices":
			if e.choices > 0 || !c.Open('[') || !running(&c, e) || c.More(']') {
				return false
			}
			e.choices = 1
		case "usage":
			if counted || !counts(&c, e) {
				return false
			}
			counted = true
		case "error":
			return false
		default:
			c.Skip()
		}
	}
	return c.Whole() && e.given && e.completion >= 0
}

// running reads a choice that goes on.
func running(c *idstream.Cursor, e *event) bool {
	for more := c.Open('{'); more; more = c.More('}') {
		switch string(c.Name()) {
		case "index":
			e.index = c.Count()
		case "token_ids":
			if c.Peek() != '[' {
				return false
			}
			e.array, e.n = c.IDs()
			e.given = true
		case "finish_reason", "stop_reason", "logprobs":
			c.Null()
		default:
			c.Skip()
		}
	}
	return !c.Bad()
}

// counts reads a usage.
func counts(c *idstream.Cursor, e *event) bool {
	for more := c.Open('{'); more; more = c.More('}') {
		switch string(c.Name()) {
		case "completion_tokens":
			e.completion = c.Count()
		case "prompt_tokens":
			e.prompt = c.Count()
		case "prompt_tokens_details":
			c.Null()
		default:
			c.Skip()
		}
	}
	return !c.Bad()
}

// full decodes all members of an event.
func full(s *idstream.Scanner, data []byte, e *event) error {
	return s.Event(data, func(name []byte) error {
		switch string(name) {
		case "choices":
			return s.Elements(func() error { return choice(s, data, e) })
		case "usage":
			return usage(s, e) // null where there is none
		case "error":
			e.failed = true
			return s.Failure(&e.message, &e.status)
		}
		return s.Dec.SkipValue()
	})
}

// choice reads a choice of an event.
func choice(s *idstream.Scanner, data []byte, e *event) error {
	if s.Dec.PeekKind() != '{' {
		return errors.New("a choice is not a JSON object")
	}
	e.choices++
	return s.Members(func(name []byte) (err error) {
		switch string(name) {
		case "index":
			return s.Count(&e.index)
		case "token_ids":
			if s.Dec.PeekKind() != '[' {
				return s.Dec.SkipValue() // null
			}
			e.given = true
			e.array, e.n, err = s.Array(data)
			return err
		case "finish_reason":
			return s.Text(&e.finish)
		case "stop_reason":
			if s.Dec.PeekKind() != '0' {
				return s.Dec.SkipValue() // null, or a text, which was not asked for
			}
			err = s.ID(&e.stopID)
			e.stopped = err == nil
			return err
		case "logprobs":
			if s.Dec.PeekKind() != '{' {
				return s.Dec.SkipValue()
			}
			v, err := s.Dec.ReadValue()
			if err != nil {
				return err
			}
			to := s.Dec.InputOffset()
			e.scores = data[to-int64(len(v)) : to]
			return nil
		}
		return s.Dec.SkipValue()
	})
}

func usage(s *idstream.Scanner, e *event) error {
	return s.Object(func(name []byte) error {
		switch string(name) {
		case "completion_tokens":
			return s.Count(&e.completion)
		case "prompt_tokens":
			return s.Count(&e.prompt)
		case "prompt_tokens_details":
			return s.Object(func(name []byte) error {
				if string(name) == "cached_tokens" {
					return s.Count(&e.cached)
				}
				return s.Dec.SkipValue()
			})
		}
		return s.Dec.SkipValue()
	})
}
