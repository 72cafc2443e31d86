package vllm

import (
	"bytes"
	"errors"
	"strconv"

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

var (
	choiceKey = []byte(`"choices":[{"index":0,`)
	runKey    = []byte(`"finish_reason":null,`)
	bareKey   = []byte(`"logprobs":null`)
	idsKey    = []byte(`"token_ids":[`)
	countKey  = []byte(`"completion_tokens":`)
	promptKey = []byte(`"prompt_tokens":`)
	comma     = []byte{','}
)

// scan reads an event's data, which must stay as it is while the event is in use.
func scan(s *idstream.Scanner, data []byte, e *event) error {
	*e = event{completion: -1, prompt: -1, cached: -1}
	if usual(data, e) {
		return nil
	}
	*e = event{completion: -1, prompt: -1, cached: -1}
	return full(s, data, e)
}

// usual reads the events that most are: of one choice that goes on, without log
// probabilities, as either endpoint writes them. A quote inside of a JSON string is escaped,
// so that no key can be found in a text. It is false for all others.
func usual(data []byte, e *event) bool {
	if len(data) == 0 || data[0] != '{' || !bytes.Contains(data, choiceKey) || !bytes.Contains(data, bareKey) {
		return false
	}
	at := bytes.Index(data, idsKey)
	if at < 0 || !bytes.Contains(data, runKey) {
		return false
	}
	from := at + len(idsKey)
	size := bytes.IndexByte(data[from:], ']')
	if size < 0 {
		return false
	}
	var ok, ok2 bool
	e.completion, ok = number(data, countKey)
	e.prompt, ok2 = number(data, promptKey)
	if !ok || !ok2 {
		return false
	}
	e.array, e.given, e.choices = data[from:from+size], true, 1
	if size > 0 {
		e.n = bytes.Count(e.array, comma) + 1
	}
	return true
}

// number reads the number behind a key.
func number(data, key []byte) (int, bool) {
	at := bytes.Index(data, key)
	if at < 0 {
		return -1, false
	}
	rest := data[at+len(key):]
	end := bytes.IndexAny(rest[:min(len(rest), 12)], ",}")
	if end < 0 {
		return -1, false
	}
	n, err := strconv.ParseInt(string(rest[:end]), 10, 32)
	return int(n), err == nil && n >= 0
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
