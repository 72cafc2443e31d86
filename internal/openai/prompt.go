package openai

import (
	"bytes"
	"fmt"
	"math"

	"weir/internal/infer"
)

// takePrompt reads the prompt of a completion: one text or one array of ids,
// bare or as the only item of an array.
func takePrompt(d *decoding, raw []byte) error {
	if kindOf(raw) != '[' {
		return d.setPrompt("prompt", raw)
	}
	var first []byte
	count := 0
	err := eachItem(raw, func(i int, item []byte) error {
		if i == 0 {
			first = item
		}
		if kindOf(first) == '0' {
			return errBareIDs
		}
		count++
		return nil
	})
	switch {
	case err == errBareIDs:
		return d.setPrompt("prompt", raw)
	case err != nil:
		return err
	case count == 0:
		return emptyPrompt("prompt")
	case count > 1:
		return &infer.Error{
			Code:    infer.CodeUnsupported,
			Param:   "prompt",
			Message: fmt.Sprintf("prompt holds %d prompts; engine kind %q takes one per request: send a request for each", count, d.kind),
		}
	}
	return d.setPrompt("prompt[0]", first)
}

// errBareIDs stops the walk over an array of ids, which is read faster.
var errBareIDs = fmt.Errorf("the prompt is an array of ids")

func (d *decoding) setPrompt(path string, raw []byte) (err error) {
	switch kindOf(raw) {
	case '"':
		d.Prompt, err = stringOf(path, raw)
		if err == nil && d.Prompt == "" {
			return emptyPrompt(path)
		}
		return err
	case '[':
		d.PromptIDs, err = idsOf(path, raw)
		if err == nil && len(d.PromptIDs) == 0 {
			return emptyPrompt(path)
		}
		return err
	}
	return wrongType(path, "a string or an array of token ids", raw)
}

func emptyPrompt(path string) error {
	return infer.Invalid(path, "%s is empty; there must be at least one token to go on from", path)
}

// idsOf reads an array of token ids. A prompt of 40,000 ids is ordinary, so it
// goes over the digits itself: the array is known to be well-formed.
func idsOf(field string, raw []byte) ([]uint32, error) {
	inside := raw[1 : len(raw)-1]
	ids := make([]uint32, 0, 1+bytes.Count(inside, []byte{','}))
	for i := skipSpace(inside, 0); i < len(inside); {
		start := i
		var id uint64
		for ; i < len(inside) && '0' <= inside[i] && inside[i] <= '9'; i++ {
			if id = id*10 + uint64(inside[i]-'0'); id > math.MaxUint32 {
				return nil, notAnID(field, len(ids), inside[start:])
			}
		}
		end := i
		i = skipSpace(inside, i)
		if end == start || i < len(inside) && inside[i] != ',' {
			return nil, notAnID(field, len(ids), inside[start:])
		}
		ids = append(ids, uint32(id))
		i = skipSpace(inside, i+1)
	}
	return ids, nil
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

func notAnID(field string, index int, rest []byte) error {
	path := fmt.Sprintf("%s[%d]", field, index)
	if kindOf(rest) != '0' {
		return wrongType(path, "a token id", rest)
	}
	if end := bytes.IndexAny(rest, ", \t\r\n"); end >= 0 {
		rest = rest[:end]
	}
	return outOfRange(path, fmt.Sprintf("a token id (an integer from 0 to %d)", uint32(math.MaxUint32)), rest)
}
