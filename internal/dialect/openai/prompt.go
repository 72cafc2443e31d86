package openai

import (
	"fmt"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// takePrompt reads the prompts of a completion: a text or an array of ids, or an
// array of these.
func takePrompt(d *decoding, raw []byte) error {
	if dialect.KindOf(raw) != '[' {
		return d.setPrompt("prompt", raw)
	}
	count := 0
	err := dialect.EachItem(raw, func(i int, item []byte) error {
		path := fmt.Sprintf("prompt[%d]", i)
		switch {
		case i == 0 && dialect.KindOf(item) == '0':
			return errBareIDs
		case i == maxAsked:
			return infer.Invalid("prompt", "prompt may hold at most %d prompts", maxAsked)
		}
		if count++; i == 0 {
			return d.setPrompt(path, item)
		}
		text, ids, err := promptOf(path, item)
		d.MorePrompts = append(d.MorePrompts, dialect.Prompt{Text: text, IDs: ids})
		return err
	})
	switch {
	case err == errBareIDs:
		return d.setPrompt("prompt", raw)
	case err == nil && count == 0:
		return emptyPrompt("prompt")
	}
	return err
}

// errBareIDs stops the walk over an array of ids, which is read faster.
var errBareIDs = fmt.Errorf("the prompt is an array of ids")

func (d *decoding) setPrompt(path string, raw []byte) (err error) {
	d.Prompt, d.PromptIDs, err = promptOf(path, raw)
	return err
}

func promptOf(path string, raw []byte) (text string, ids []uint32, err error) {
	switch dialect.KindOf(raw) {
	case '"':
		if text, err = dialect.StringOf(path, raw); err == nil && text == "" {
			err = emptyPrompt(path)
		}
		return text, nil, err
	case '[':
		if ids, err = dialect.IDsOf(path, raw); err == nil && len(ids) == 0 {
			err = emptyPrompt(path)
		}
		return "", ids, err
	}
	return "", nil, dialect.WrongType(path, "a string or an array of token ids", raw)
}

func emptyPrompt(path string) error {
	return infer.Invalid(path, "%s is empty; there must be at least one token to go on from", path)
}
