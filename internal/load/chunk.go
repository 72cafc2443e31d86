package load

import (
	"bytes"
	"errors"
	"unicode/utf16"
	"unicode/utf8"
)

// chunk is the content of one event of a stream, or of one whole response: the parts of
// OpenAI's chunk that the verdict needs. Its slices point into the event or into the
// chunk's scratch, and are valid until the next parse.
type chunk struct {
	text    []byte // delta.content, message.content or text of choice 0
	hasText bool   // such a field was there, and not null
	other   bool   // content of another channel: reasoning, a refusal, a tool call
	index   int    // highest choice index seen
	choices int    // number of choices
	finish  []byte // finish_reason of the last choice that has one
	failure []byte // the error value as it is, where there is one
	message []byte // error.message
	code    []byte // error.code

	usage                         bool
	promptTokens, completedTokens int
	cachedTokens                  int

	scratch []byte // unescaped strings
}

// errBadJSON reports that an event is not a JSON object.
var errBadJSON = errors.New("not a JSON object")

// parse reads one event. It accepts exactly the JSON objects; fields of
// another type than the API's are taken as absent.
func (c *chunk) parse(data []byte) error {
	*c = chunk{scratch: c.scratch[:0]}
	w := walker{data: data}
	w.space()
	ok := w.object(0, func(key []byte) bool {
		switch string(key) {
		case "choices":
			return c.readChoices(&w)
		case "usage":
			return c.readUsage(&w)
		case "error":
			return c.readError(&w)
		}
		return w.skip(1)
	})
	w.space()
	if !ok || w.at != len(data) {
		return errBadJSON
	}
	return nil
}

// readChoices reads the array of choices.
func (c *chunk) readChoices(w *walker) bool {
	if w.peek() != '[' {
		return w.skip(1)
	}
	return w.array(1, func() bool {
		if w.peek() != '{' {
			return w.skip(2)
		}
		c.choices++
		return w.object(2, func(key []byte) bool {
			switch string(key) {
			case "index":
				return w.integer(3, &c.index)
			case "delta", "message":
				if w.peek() == '{' {
					return w.object(3, func(key []byte) bool { return c.readDelta(w, key) })
				}
			case "text":
				return c.readText(w)
			case "finish_reason":
				if w.peek() == '"' {
					return c.readString(w, &c.finish)
				}
			}
			return w.skip(3)
		})
	})
}

// readDelta reads one field of a delta or message.
func (c *chunk) readDelta(w *walker, key []byte) bool {
	switch string(key) {
	case "content":
		return c.readText(w)
	case "reasoning_content", "reasoning", "refusal":
		if w.peek() == '"' {
			raw, _, ok := w.str()
			c.other = c.other || len(raw) > 0
			return ok
		}
	case "tool_calls", "function_call":
		start := w.at
		ok := w.skip(4)
		c.other = c.other || ok && w.at-start > len("null")
		return ok
	}
	return w.skip(4)
}

// readText reads the choice's text.
func (c *chunk) readText(w *walker) bool {
	if w.peek() != '"' {
		return w.skip(4)
	}
	c.hasText = true
	return c.readString(w, &c.text)
}

// readUsage reads the usage object; null leaves it absent.
func (c *chunk) readUsage(w *walker) bool {
	if w.peek() != '{' {
		return w.skip(1)
	}
	c.usage = true
	return w.object(1, func(key []byte) bool {
		switch string(key) {
		case "prompt_tokens":
			return w.integer(2, &c.promptTokens)
		case "completion_tokens":
			return w.integer(2, &c.completedTokens)
		case "prompt_tokens_details":
			if w.peek() == '{' {
				return w.object(2, func(key []byte) bool {
					if string(key) == "cached_tokens" {
						return w.integer(3, &c.cachedTokens)
					}
					return w.skip(3)
				})
			}
		}
		return w.skip(2)
	})
}

// readError reads the error of an error event or an error response; null
// leaves it absent.
func (c *chunk) readError(w *walker) bool {
	start := w.at
	switch w.peek() {
	case '{':
		ok := w.object(1, func(key []byte) bool {
			switch {
			case string(key) == "message" && w.peek() == '"':
				return c.readString(w, &c.message)
			case string(key) == "code" && w.peek() == '"':
				return c.readString(w, &c.code)
			}
			return w.skip(2)
		})
		c.failure = w.data[start:w.at]
		return ok
	case '"':
		ok := c.readString(w, &c.message)
		c.failure = w.data[start:w.at]
		return ok
	case 'n':
		return w.skip(1)
	}
	ok := w.skip(1)
	c.failure = w.data[start:w.at]
	return ok
}

// readString reads a string into *dst: in place when it has no escapes.
func (c *chunk) readString(w *walker, dst *[]byte) bool {
	raw, escaped, ok := w.str()
	if !ok {
		return false
	}
	if !escaped {
		*dst = raw
		return true
	}
	// Growing the scratch may move it. Earlier slices keep the old storage, which does not
	// change.
	start := len(c.scratch)
	c.scratch = appendUnescaped(c.scratch, raw)
	*dst = c.scratch[start:]
	return true
}

// appendUnescaped appends a valid JSON string's value.
func appendUnescaped(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		switch e := raw[i+1]; e {
		case 'u':
			r := hex4(raw[i+2:])
			raw = raw[i+6:]
			if utf16.IsSurrogate(r) {
				pair := rune(utf8.RuneError)
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					pair = utf16.DecodeRune(r, hex4(raw[2:]))
				}
				if pair != utf8.RuneError {
					raw = raw[6:]
				}
				r = pair
			}
			dst = utf8.AppendRune(dst, r)
			continue
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		default: // quote, solidus, reverse solidus
			dst = append(dst, e)
		}
		raw = raw[i+2:]
	}
}

// hex4 reads four hexadecimal digits that were checked.
func hex4(b []byte) rune {
	var r rune
	for _, d := range b[:4] {
		switch {
		case d <= '9':
			d -= '0'
		case d >= 'a':
			d -= 'a' - 10
		default:
			d -= 'A' - 10
		}
		r = r<<4 | rune(d)
	}
	return r
}
