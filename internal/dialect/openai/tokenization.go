package openai

import (
	"fmt"
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// The endpoints of a tokenizer take the request shapes of vLLM and of SGLang,
// and answer both at once: the answers hold the fields of both, and where the
// two mean different things by the same request, each field says what its own
// engine would. docs/tokenize.md is the whole of it.

// TokenizeRequest asks for the ids of texts or of a conversation.
type TokenizeRequest struct {
	Model string
	// Texts are the prompts, nil if there are Messages. Batch is set if they came as
	// an array.
	Texts []string
	Batch bool
	// Messages is the JSON array of a chat, checked. Tools and ChatTemplateKwargs are
	// further values for the template. Each may be nil.
	Messages             []byte
	Tools                []byte
	ChatTemplateKwargs   []byte
	AddGenerationPrompt  bool
	ContinueFinalMessage bool
	// AddSpecialTokens adds the special tokens that the post-processor puts around a
	// text.
	AddSpecialTokens bool
	ReturnTokenStrs  bool
	// LeftOut is as in dialect.Request.
	LeftOut *dialect.LeftOut
}

// DetokenizeRequest asks for the text of ids.
type DetokenizeRequest struct {
	Model string
	// Tokens are the ids. The gateway checks that they are in the model's vocabulary.
	// Batch is set if they came as an array of arrays.
	Tokens [][]uint32
	Batch  bool
	// SkipSpecialTokens omits special tokens in SGLang's field of the answer.
	SkipSpecialTokens bool
	// LeftOut is as in dialect.Request.
	LeftOut *dialect.LeftOut
}

// Path returns the path of the i-th ids, for errors.
func (r *DetokenizeRequest) Path(i int) string {
	if r.Batch {
		return fmt.Sprintf("tokens[%d]", i)
	}
	return "tokens"
}

// TokenizeResult is the result of tokenizing a text.
type TokenizeResult struct {
	IDs []uint32
	// Strs are the tokens as the vocabulary spells them, if the request asks for
	// them.
	Strs []string
}

// DecodeTokenize decodes every field of a request to /tokenize. Its error is an
// *infer.Error that names the field.
func DecodeTokenize(h *dialect.Head) (*TokenizeRequest, error) {
	d, err := Tokenize.decode(h, "", 0)
	if err != nil {
		return nil, err
	}
	switch {
	case d.hasTexts && d.Messages != nil:
		return nil, infer.Invalid("messages", "prompt and messages are two prompts; give one of them")
	case !d.hasTexts && d.Messages == nil:
		return nil, infer.Invalid("prompt", "prompt or messages is required: send a string, an array of strings, or a conversation")
	}
	r := &d.tokenize
	r.Model, r.Messages, r.ChatTemplateKwargs = d.Model, d.Messages, d.ChatTemplateKwargs
	r.LeftOut = d.LeftOut
	r.AddSpecialTokens = d.hasTexts
	if d.addSpecial != nil {
		r.AddSpecialTokens = *d.addSpecial
	}
	if d.hasTexts {
		for _, only := range []struct {
			field string
			given bool
		}{
			{"tools", r.Tools != nil}, {"chat_template_kwargs", r.ChatTemplateKwargs != nil},
			{"add_generation_prompt", d.addPrompt != nil}, {"continue_final_message", d.ContinueFinalMessage},
		} {
			if only.given {
				return nil, infer.Invalid(only.field, "%s belongs to messages, and prompt is given; leave it out", only.field)
			}
		}
		return r, nil
	}
	if err := d.finishPrompt(); err != nil {
		return nil, err
	}
	r.AddGenerationPrompt, r.ContinueFinalMessage = d.AddGenerationPrompt, d.ContinueFinalMessage
	return r, nil
}

// DecodeDetokenize decodes every field of a request to /detokenize.
func DecodeDetokenize(h *dialect.Head) (*DetokenizeRequest, error) {
	d, err := Detokenize.decode(h, "", 0)
	if err != nil {
		return nil, err
	}
	r := &d.detokenize
	if r.Tokens == nil {
		return nil, infer.Invalid("tokens", "tokens is required: send an array of token ids, or an array of such arrays")
	}
	r.Model, r.LeftOut = d.Model, d.LeftOut
	r.SkipSpecialTokens = d.skipSpecial == nil || *d.skipSpecial
	return r, nil
}

// maxBatch bounds the texts, or the arrays of ids, of a request to a tokenizer.
const maxBatch = 1 << 14

// takeTexts reads the prompts of /tokenize. An empty text is one: it has no
// tokens but those that are added.
func takeTexts(d *decoding, raw []byte) (err error) {
	d.hasTexts = true
	r := &d.tokenize
	switch dialect.KindOf(raw) {
	case '"':
		r.Texts = make([]string, 1)
		r.Texts[0], err = dialect.StringOf("prompt", raw)
		return err
	case '[':
		r.Batch, r.Texts = true, []string{}
		return dialect.EachItem(raw, func(i int, item []byte) error {
			if i == maxBatch {
				return infer.Invalid("prompt", "prompt may hold at most %d strings", maxBatch)
			}
			s, err := dialect.StringOf(fmt.Sprintf("prompt[%d]", i), item)
			r.Texts = append(r.Texts, s)
			return err
		})
	}
	return dialect.WrongType("prompt", "a string or an array of strings", raw)
}

func takeTools(d *decoding, raw []byte) error {
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType("tools", "an array of objects", raw)
	}
	if err := d.CheckStrict("tools", raw); err != nil {
		return err
	}
	d.tokenize.Tools = raw
	return dialect.EachItem(raw, func(i int, item []byte) error {
		if dialect.KindOf(item) != '{' {
			return dialect.WrongType(fmt.Sprintf("tools[%d]", i), "an object", item)
		}
		return nil
	})
}

func takeAddSpecial(d *decoding, raw []byte) error {
	v, err := dialect.BoolOf("add_special_tokens", raw)
	d.addSpecial = &v
	return err
}

func takeTokenStrs(d *decoding, raw []byte) (err error) {
	d.tokenize.ReturnTokenStrs, err = dialect.BoolOf("return_token_strs", raw)
	return err
}

func takeTokens(d *decoding, raw []byte) error {
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType("tokens", "an array of token ids, or an array of such arrays", raw)
	}
	r := &d.detokenize
	if inside := dialect.SkipSpace(raw, 1); raw[inside] != '[' {
		ids, err := dialect.IDsOf("tokens", raw)
		r.Tokens = [][]uint32{ids}
		return err
	}
	r.Batch = true
	return dialect.EachItem(raw, func(i int, item []byte) error {
		if i == maxBatch {
			return infer.Invalid("tokens", "tokens may hold at most %d arrays", maxBatch)
		}
		if dialect.KindOf(item) != '[' {
			return dialect.WrongType(fmt.Sprintf("tokens[%d]", i), "an array of token ids, like the first", item)
		}
		ids, err := dialect.IDsOf(fmt.Sprintf("tokens[%d]", i), item)
		r.Tokens = append(r.Tokens, ids)
		return err
	})
}

func takeSkipSpecial(d *decoding, raw []byte) error {
	v, err := dialect.BoolOf("skip_special_tokens", raw)
	d.skipSpecial = &v
	return err
}

// AppendTokenized appends the answer of /tokenize. maxModelLen is the model's context
// length, -1 if it is not known. between is called every few thousand ids.
func AppendTokenized(dst []byte, r *TokenizeRequest, results []TokenizeResult, maxModelLen int, between func()) []byte {
	list := func(name string, each func(dst []byte, t *TokenizeResult) []byte) {
		dst = append(append(append(dst, '"'), name...), `":`...)
		if r.Batch {
			dst = append(dst, '[')
		}
		for i := range results {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = each(dst, &results[i])
		}
		if r.Batch {
			dst = append(dst, ']')
		}
		dst = append(dst, ',')
	}
	dst = append(dst, '{')
	list("count", func(dst []byte, t *TokenizeResult) []byte { return strconv.AppendInt(dst, int64(len(t.IDs)), 10) })
	dst = append(dst, `"max_model_len":`...)
	dst = append(strconv.AppendInt(dst, int64(maxModelLen), 10), ',')
	list("tokens", func(dst []byte, t *TokenizeResult) []byte {
		return appendList(dst, t.IDs, between, func(dst []byte, id uint32) []byte { return strconv.AppendUint(dst, uint64(id), 10) })
	})
	if r.ReturnTokenStrs {
		list("token_strs", func(dst []byte, t *TokenizeResult) []byte {
			return appendList(dst, t.Strs, between, dialect.AppendString)
		})
	} else {
		dst = append(dst, `"token_strs":null,`...)
	}
	dst[len(dst)-1] = '}'
	return dst
}

func appendList[T any](dst []byte, list []T, between func(), one func([]byte, T) []byte) []byte {
	const often = 4096
	dst = append(dst, '[')
	for i, v := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst = one(dst, v); i%often == often-1 {
			between()
		}
	}
	return append(dst, ']')
}

// AppendDetokenized appends the answer of /detokenize. It has each text twice: with
// special tokens, and by SkipSpecialTokens.
func AppendDetokenized(dst []byte, r *DetokenizeRequest, with, wanted [][]byte) []byte {
	list := func(name string, texts [][]byte) {
		dst = append(append(append(dst, '"'), name...), `":`...)
		if r.Batch {
			dst = append(dst, '[')
		}
		for i, text := range texts {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, '"')
			dst = append(dialect.AppendEscaped(dst, text), '"')
		}
		if r.Batch {
			dst = append(dst, ']')
		}
	}
	dst = append(dst, '{')
	list("prompt", with)
	dst = append(dst, ',')
	list("text", wanted)
	return append(dst, '}')
}
