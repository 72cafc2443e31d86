package gateway

import (
	"weir/internal/infer"
	"weir/internal/tokenizer"
	"weir/internal/trace"
)

// tokenize is stage 4: text to ids, on a worker of the pool. It then knows what
// the gate could only estimate: whether the prompt fits, and how much is
// reserved.
func (x *exchange) tokenize(yield func()) error {
	if x.req.PromptIDs != nil {
		x.ids = x.req.PromptIDs
		if err := x.checkIDs(); err != nil {
			return err
		}
	} else {
		x.rec.TokenizeStart = trace.Now()
		if err := x.encodeText(yield); err != nil {
			return err
		}
		x.rec.TokenizeEnd = trace.Now()
	}
	x.rec.PromptTokens = len(x.ids)
	if counts(x.endpoint) {
		return nil
	}
	if err := x.fit(); err != nil {
		return err
	}
	x.reservation.Settle(int64(len(x.ids) + x.req.MaxTokens))
	return nil
}

// encodeText gives the ids of the text. A rendered chat has its special
// tokens from the template; a completion's prompt gets those that the model's
// post-processor adds.
func (x *exchange) encodeText(yield func()) error {
	var err error
	x.ids, err = x.idsOf(x.text, x.req.Messages == nil, x.req.Fields.Prompt, yield)
	return err
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
func (x *exchange) checkIDs() error {
	for i, id := range x.ids {
		if int(id) >= x.folder.VocabSize {
			return infer.Invalid(x.req.Fields.Prompt, "%s[%d] is %d; the model's ids are 0 to %d", x.req.Fields.Prompt, i, id, x.folder.VocabSize-1)
		}
	}
	return nil
}

// fit checks prompt and output against the context length, and gives a request
// without a limit all that is left of it.
func (x *exchange) fit() error {
	names := &x.req.Fields
	if len(x.ids) == 0 {
		return infer.Invalid(names.Prompt, "the prompt is empty: it has no tokens")
	}
	limit := x.contextLength()
	left := limit - len(x.ids)
	switch {
	case limit == 0:
		if x.req.MaxTokens == 0 {
			return infer.Invalid(names.MaxTokens, "%s is required: the context length of model %s is not known", names.MaxTokens, x.model.Name)
		}
	case left <= 0:
		return x.tooLong(names.Prompt, "the prompt has %d tokens; model %s takes at most %d for prompt and output together",
			len(x.ids), x.model.Name, limit)
	case x.req.MaxTokens == 0:
		x.req.MaxTokens = left
	case x.req.MaxTokens > left:
		return x.tooLong(names.MaxTokens, "%s is %d and the prompt has %d tokens; model %s takes at most %d together, so ask for at most %d",
			names.MaxTokens, x.req.MaxTokens, len(x.ids), x.model.Name, limit, left)
	}
	if x.req.MinTokens > x.req.MaxTokens {
		return infer.Invalid(names.MinTokens, "%s is %d, which is more than the %d tokens of the answer", names.MinTokens, x.req.MinTokens, x.req.MaxTokens)
	}
	return nil
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
