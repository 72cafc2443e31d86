package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
)

// tokenize is stage 4: text to ids, on a worker of the pool. It then knows what
// the gate could only estimate: whether the prompt fits, and how much is
// reserved.
func (p *preparing) tokenize(yield func()) error {
	if _, texts := p.promptTexts(len(p.text)); texts {
		p.in.Record.TokenizeStart = trace.Now()
	}
	req := p.Request
	var err error
	if p.IDs, err = p.promptIDs(req.Fields.Prompt, req.PromptIDs, p.text, yield); err != nil {
		return err
	}
	if p.HasMedia {
		if err := p.checkPlaceholders(); err != nil {
			return err
		}
	}
	for i, other := range req.MorePrompts {
		ids, err := p.promptIDs(p.promptField(i+1), other.IDs, []byte(other.Text), yield)
		if err != nil {
			return err
		}
		p.More = append(p.More, Prompt{IDs: ids})
	}
	if p.in.Record.TokenizeStart != 0 {
		p.in.Record.TokenizeEnd = trace.Now()
	}
	p.in.Record.PromptTokens = p.PromptTokens()
	if p.in.Endpoint.Traits().Wants == dialect.PromptLength {
		return nil
	}
	if err := p.checkPrompt(p.promptField(0), p.longestPrompt()); err != nil {
		return err
	}
	reserve := int64(p.in.Record.PromptTokens) + int64(len(req.Media))*mediaTokens
	given := req.MaxTokens
	p.toContext = p.HasMedia && given == 0 && p.capOf().MaxTokens == 0
	for i := range p.More {
		other := &p.More[i]
		if other.Max, err = p.fit(p.promptField(i+1), other.IDs, given); err != nil {
			return err
		}
		reserve += int64(other.Max) * int64(p.width())
	}
	if req.MaxTokens, err = p.fit(p.promptField(0), p.IDs, given); err != nil {
		return err
	}
	p.Reservation.Settle(reserve + int64(req.MaxTokens)*int64(p.width()))
	if err := p.checkProducts(); err != nil {
		return err
	}
	if err := p.checkPromptScores(); err != nil {
		return err
	}
	p.footprintOfIDs()
	return nil
}

// promptTexts reports whether a prompt is text, and the length of all that are; that of
// the first is given.
func (q *Prepared) promptTexts(first int) (size int, texts bool) {
	if q.Request.PromptIDs == nil {
		size, texts = first, true
	}
	for _, other := range q.Request.MorePrompts {
		if other.IDs == nil {
			size, texts = size+len(other.Text), true
		}
	}
	return size, texts
}

// promptField names a prompt, for errors.
func (q *Prepared) promptField(i int) string {
	if len(q.Request.MorePrompts) == 0 {
		return q.Request.Fields.Prompt
	}
	return fmt.Sprintf("%s[%d]", q.Request.Fields.Prompt, i)
}

// promptIDs returns the ids of a prompt that is text or ids. A rendered chat has its
// special tokens from the template; other text gets those that the model's
// post-processor adds. Text that cannot fit the model is encoded as far as that takes
// to be known.
func (p *preparing) promptIDs(field string, ids []uint32, text []byte, yield func()) ([]uint32, error) {
	if ids != nil {
		return ids, checkIDs(field, ids, p.Folder.VocabSize)
	}
	most, limit := 0, p.contextLength()
	if p.in.Endpoint.Traits().Wants != dialect.PromptLength {
		most = max(0, limit-1) // the answer has one at least
	}
	ids, err := p.idsOf(text, p.Request.Messages == nil, most, field, yield)
	var many *tokenizer.TooManyError
	if errors.As(err, &many) {
		return nil, tooLong(field, "the prompt has at least %d tokens; model %s takes at most %d for prompt and output together",
			many.AtLeast, p.to.Model.Name, limit)
	}
	return ids, err
}

// idsOf returns the ids of a text that came from a field. Where most is not 0 and there
// are more, the rest of the text may not be looked at.
func (p *preparing) idsOf(text []byte, addSpecial bool, most int, field string, yield func()) ([]uint32, error) {
	ids, err := p.Folder.EncodeBytes(p.ctx, text, tokenizer.EncodeOptions{AddSpecial: addSpecial, Most: most, Yield: yield, Prefix: p.preparer.prefix, Division: p.division()})
	var many *tokenizer.TooManyError
	if err == nil || errors.As(err, &many) {
		return ids, err
	}
	if p.ctx.Err() != nil {
		return nil, infer.AsError(context.Cause(p.ctx))
	}
	// The tokenizer does not know which field its text came from.
	e := *infer.AsError(err)
	if (e.Code == infer.CodeInvalid || e.Code == infer.CodeContext) && e.Param == "" {
		e.Param = field
	}
	return nil, &e
}

// checkIDs refuses ids that a model of so many does not have.
func checkIDs(field string, ids []uint32, size int) error {
	if i := unknownID(ids, size); i >= 0 {
		return noSuchID(field, fmt.Sprintf("%s[%d]", field, i), ids[i], size)
	}
	return nil
}

// unknownID returns the place of the first id that a model of so many does not have, or
// -1.
func unknownID(ids []uint32, size int) int {
	return slices.IndexFunc(ids, func(id uint32) bool { return int(id) >= size })
}

func noSuchID(param, path string, id uint32, size int) error {
	return infer.Invalid(param, "%s is %d; the model's ids are 0 to %d", path, id, size-1)
}

// checkNamedIDs refuses ids that the model does not have where a request names them
// for the output.
func (p *preparing) checkNamedIDs() error {
	names := p.Request.Fields
	for _, bias := range p.Request.Sampling.LogitBias {
		if int(bias.ID) >= p.Folder.VocabSize {
			path := fmt.Sprintf("%s.%d", names.LogitBias, bias.ID)
			return infer.Invalid(path, "%s: the model's ids are 0 to %d", path, p.Folder.VocabSize-1)
		}
	}
	return checkIDs(names.StopIDs, p.Request.StopIDs, p.Folder.VocabSize)
}

// fit checks a prompt and its output against the context length, and gives the
// bound of the output: maxTokens, or all that is left where that is not given.
func (p *preparing) fit(field string, ids []uint32, maxTokens int) (int, error) {
	names := p.Request.Fields
	if len(ids) == 0 {
		return 0, infer.Invalid(field, "the prompt is empty: it has no tokens")
	}
	limit := p.contextLength()
	left := limit - len(ids)
	if most := p.capOf().MaxTokens; maxTokens == 0 && most > 0 && (limit == 0 || left > 0) {
		maxTokens = most
		if limit > 0 {
			maxTokens = min(most, left)
		}
	}
	switch {
	case limit == 0:
		if maxTokens == 0 {
			return 0, infer.Invalid(names.MaxTokens, "%s is required: the context length of model %s is not known", names.MaxTokens, p.to.Model.Name)
		}
	case left <= 0:
		return 0, tooLong(field, "the prompt has %d tokens; model %s takes at most %d for prompt and output together",
			len(ids), p.to.Model.Name, limit)
	case maxTokens == 0:
		maxTokens = left
	case maxTokens > left:
		return 0, tooLong(names.MaxTokens, "%s is %d and the prompt has %d tokens; model %s takes at most %d together, so ask for at most %d",
			names.MaxTokens, maxTokens, len(ids), p.to.Model.Name, limit, left)
	}
	if p.Request.MinTokens > maxTokens {
		return 0, infer.Invalid(names.MinTokens, "%s is %d, which is more than the %d tokens of the answer", names.MinTokens, p.Request.MinTokens, maxTokens)
	}
	return maxTokens, nil
}

// contextLength is the most ids of prompt and answer together, 0 where it is
// not known.
func (p *preparing) contextLength() int {
	limit := p.Folder.ContextLength
	if n := p.to.Model.ContextLength; n > 0 && (limit == 0 || n < limit) {
		limit = n
	}
	return limit
}

func tooLong(param, format string, args ...any) error {
	e := infer.Errorf(infer.CodeContext, format, args...)
	e.Param = param
	return e
}
