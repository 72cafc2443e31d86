package openai

import (
	"fmt"

	"weir/internal/api"
	"weir/internal/infer"
)

// takePrompt reads the prompt of a completion: one text or one array of ids,
// bare or as the only item of an array.
func takePrompt(d *decoding, raw []byte) error {
	if api.KindOf(raw) != '[' {
		return d.setPrompt("prompt", raw)
	}
	var first []byte
	count := 0
	err := api.EachItem(raw, func(i int, item []byte) error {
		if i == 0 {
			first = item
		}
		if api.KindOf(first) == '0' {
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
	switch api.KindOf(raw) {
	case '"':
		d.Prompt, err = api.StringOf(path, raw)
		if err == nil && d.Prompt == "" {
			return emptyPrompt(path)
		}
		return err
	case '[':
		d.PromptIDs, err = api.IDsOf(path, raw)
		if err == nil && len(d.PromptIDs) == 0 {
			return emptyPrompt(path)
		}
		return err
	}
	return api.WrongType(path, "a string or an array of token ids", raw)
}

func emptyPrompt(path string) error {
	return infer.Invalid(path, "%s is empty; there must be at least one token to go on from", path)
}
