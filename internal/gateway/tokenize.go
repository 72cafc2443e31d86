package gateway

import (
	"fmt"

	"weir/internal/infer"
	"weir/internal/tokenizer"
	"weir/internal/trace"
)

// tokenize is stage 4: text to ids, on a worker of the pool. It then knows what
// the gate could only estimate: whether the prompt fits, and how much is
// reserved.
func (x *exchange) tokenize(yield func()) error {
	if _, texts := x.promptTexts(); texts {
		x.rec.TokenizeStart = trace.Now()
	}
	req := x.req
	var err error
	if x.ids, err = x.promptIDs(req.Fields.Prompt, req.PromptIDs, x.text, yield); err != nil {
		return err
	}
	for i, p := range req.MorePrompts {
		ids, err := x.promptIDs(x.promptField(i+1), p.IDs, []byte(p.Text), yield)
		if err != nil {
			return err
		}
		x.more = append(x.more, prompt{ids: ids})
	}
	if x.rec.TokenizeStart != 0 {
		x.rec.TokenizeEnd = trace.Now()
	}
	x.rec.PromptTokens = x.promptTokens()
	if counts(x.endpoint) {
		return nil
	}
	reserve := int64(x.rec.PromptTokens)
	given := req.MaxTokens
	for i := range x.more {
		p := &x.more[i]
		if p.max, err = x.fit(x.promptField(i+1), p.ids, given); err != nil {
			return err
		}
		reserve += int64(p.max) * int64(x.width())
	}
	if req.MaxTokens, err = x.fit(x.promptField(0), x.ids, given); err != nil {
		return err
	}
	x.reservation.Settle(reserve + int64(req.MaxTokens)*int64(x.width()))
	return nil
}

// promptTexts says whether a prompt is text, and the length of all that are.
func (x *exchange) promptTexts() (size int, texts bool) {
	if x.req.PromptIDs == nil {
		size, texts = len(x.text), true
	}
	for _, p := range x.req.MorePrompts {
		if p.IDs == nil {
			size, texts = size+len(p.Text), true
		}
	}
	return size, texts
}

// promptField names a prompt, for errors.
func (x *exchange) promptField(i int) string {
	if len(x.req.MorePrompts) == 0 {
		return x.req.Fields.Prompt
	}
	return fmt.Sprintf("%s[%d]", x.req.Fields.Prompt, i)
}

// promptIDs gives the ids of a prompt that is text or ids. A rendered chat has its
// special tokens from the template; other text gets those that the model's
// post-processor adds.
func (x *exchange) promptIDs(field string, ids []uint32, text []byte, yield func()) ([]uint32, error) {
	if ids != nil {
		return ids, x.checkIDs(field, ids)
	}
	return x.idsOf(text, x.req.Messages == nil, field, yield)
}

// idsOf gives the ids of a text that came from a field.
func (x *exchange) idsOf(text []byte, addSpecial bool, field string, yield func()) ([]uint32, error) {
	ids, err := x.folder.tokens(x.ctx, text, tokenizer.EncodeOptions{AddSpecial: addSpecial, Yield: yield, Prefix: x.g.prefix})
	if err == nil {
		return ids, nil
	}
	if x.ctx.Err() != nil {
		return nil, x.gone()
	}
	// The tokenizer does not know which field its text came from.
	e := *infer.AsError(err)
	if e.Code == infer.CodeInvalid && e.Param == "" {
		e.Param = field
	}
	return nil, &e
}

// checkIDs refuses ids that the model does not have.
func (x *exchange) checkIDs(field string, ids []uint32) error {
	for i, id := range ids {
		if int(id) >= x.folder.VocabSize {
			return infer.Invalid(field, "%s[%d] is %d; the model's ids are 0 to %d", field, i, id, x.folder.VocabSize-1)
		}
	}
	return nil
}

// checkNamedIDs refuses ids that the model does not have where a request names them
// for the output.
func (x *exchange) checkNamedIDs() error {
	names := &x.req.Fields
	for _, bias := range x.req.Sampling.LogitBias {
		if int(bias.ID) >= x.folder.VocabSize {
			path := fmt.Sprintf("%s.%d", names.LogitBias, bias.ID)
			return infer.Invalid(path, "%s: the model's ids are 0 to %d", path, x.folder.VocabSize-1)
		}
	}
	return x.checkIDs(names.StopIDs, x.req.StopIDs)
}

// fit checks a prompt and its output against the context length, and gives the
// bound of the output: maxTokens, or all that is left where that is not given.
func (x *exchange) fit(field string, ids []uint32, maxTokens int) (int, error) {
	names := &x.req.Fields
	if len(ids) == 0 {
		return 0, infer.Invalid(field, "the prompt is empty: it has no tokens")
	}
	limit := x.contextLength()
	left := limit - len(ids)
	switch {
	case limit == 0:
		if maxTokens == 0 {
			return 0, infer.Invalid(names.MaxTokens, "%s is required: the context length of model %s is not known", names.MaxTokens, x.model.Name)
		}
	case left <= 0:
		return 0, x.tooLong(field, "the prompt has %d tokens; model %s takes at most %d for prompt and output together",
			len(ids), x.model.Name, limit)
	case maxTokens == 0:
		maxTokens = left
	case maxTokens > left:
		return 0, x.tooLong(names.MaxTokens, "%s is %d and the prompt has %d tokens; model %s takes at most %d together, so ask for at most %d",
			names.MaxTokens, maxTokens, len(ids), x.model.Name, limit, left)
	}
	if x.req.MinTokens > maxTokens {
		return 0, infer.Invalid(names.MinTokens, "%s is %d, which is more than the %d tokens of the answer", names.MinTokens, x.req.MinTokens, maxTokens)
	}
	return maxTokens, nil
}

// contextLength is the most ids of prompt and answer together, 0 where it is
// not known.
func (x *exchange) contextLength() int {
	limit := x.folder.ContextLength
	if n := x.model.ContextLength; n > 0 && (limit == 0 || n < limit) {
		limit = n
	}
	return limit
}

func (x *exchange) tooLong(param, format string, args ...any) error {
	e := infer.Errorf(infer.CodeContext, format, args...)
	e.Param = param
	return e
}
