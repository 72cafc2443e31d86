package prepare

import (
	"context"
	"errors"
	"fmt"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/internal/infer"
	"weir/internal/model/chat"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
)

// decode decodes the body, for the model that p has found.
func (t *tokenization) decode(p *preparing) (err error) {
	p.enter(trace.Parse)
	defer p.enter(trace.Gate)
	if p.in.Endpoint.Traits().Wants == dialect.TokenIDs {
		if t.encode, err = openai.DecodeTokenize(p.Head); err != nil {
			return err
		}
		if t.encode.Tools != nil && p.Folder.Templates.Tools() == chat.ToolsIgnored {
			t.encode.Tools, t.encode.LeftOut = nil, t.encode.LeftOut.With("tools")
		}
		return errors.Join(checkValues("messages", t.encode.Messages), checkValues("tools", t.encode.Tools),
			checkValues("chat_template_kwargs", t.encode.ChatTemplateKwargs))
	}
	if t.detok, err = openai.DecodeDetokenize(p.Head); err != nil {
		return err
	}
	size, text := max(p.Folder.VocabSize, p.Folder.Tokenizer.Size()), int64(0)
	for i, ids := range t.detok.Tokens {
		if k := unknownID(ids, size); k >= 0 {
			path := fmt.Sprintf("%s[%d]", t.detok.Path(i), k)
			return noSuchID(path, path, ids[k], size)
		}
		for _, id := range ids {
			text += int64(len(p.Folder.Tokenizer.TokenBytes(id)))
		}
	}
	if text > p.preparer.maxText { // an id of two digits may stand for a hundred spaces
		return infer.Invalid("tokens", "tokens has ids of %d bytes of text; there may be %d (--max-body)", text, p.preparer.maxText)
	}
	return nil
}

// tokenized does the work of such a request in one visit to the pool, up to the bytes
// of the answer.
func (p *preparing) tokenized() ([]byte, error) {
	var err error
	if r := p.tokenization.encode; r != nil {
		cost, first := len(r.Messages)+len(r.Tools), trace.Tokenize
		if r.Messages != nil {
			first = trace.Render
		}
		for _, text := range r.Texts {
			cost += len(text)
		}
		err = p.inPool(first, cost, p.encodeTexts)
	} else {
		cost := 0
		for _, ids := range p.tokenization.detok.Tokens {
			cost += 4 * len(ids)
		}
		err = p.inPool(trace.Detokenize, cost, p.decodeTokens)
	}
	return p.tokenization.answer, err
}

// encodeTexts makes the answer of /tokenize.
func (p *preparing) encodeTexts(yield func()) error {
	r := p.tokenization.encode
	texts, field := r.Texts, func(i int) string { return "messages" }
	if r.Messages != nil {
		in := &chat.Input{
			Messages: r.Messages, Tools: r.Tools, Kwargs: r.ChatTemplateKwargs, FromAPI: true,
			AddGenerationPrompt: r.AddGenerationPrompt, ContinueFinalMessage: r.ContinueFinalMessage, Yield: yield,
		}
		prompt, err := p.Folder.RenderChat(p.ctx, in)
		if err != nil {
			return err
		}
		if in.PassedOver != nil {
			p.passed = "messages[].content"
			r.LeftOut = r.LeftOut.With(p.passed)
		}
		p.in.Record.Rendered = trace.Now()
		p.enter(trace.Tokenize)
		texts = []string{string(prompt)}
	} else if field = func(int) string { return "prompt" }; r.Batch {
		field = func(i int) string { return fmt.Sprintf("prompt[%d]", i) }
	}
	p.in.Record.TokenizeStart = trace.Now()
	results := make([]openai.TokenizeResult, len(texts))
	for i, text := range texts {
		ids, err := p.idsOf([]byte(text), r.AddSpecialTokens, 0, field(i), yield)
		if err != nil {
			return err
		}
		p.in.Record.PromptTokens += len(ids)
		results[i].IDs = ids
		if r.ReturnTokenStrs {
			results[i].Strs = make([]string, len(ids))
			for k, id := range ids {
				results[i].Strs[k] = p.Folder.Tokenizer.Token(id)
			}
		}
	}
	p.in.Record.TokenizeEnd = trace.Now()
	p.enter(trace.Encode)
	limit := p.contextLength()
	if limit == 0 {
		limit = -1
	}
	p.tokenization.answer = openai.AppendTokenized(nil, r, results, limit, yield)
	return p.ctx.Err()
}

// decodeTokens makes the answer of /detokenize.
func (p *preparing) decodeTokens(yield func()) error {
	r := p.tokenization.detok
	with, wanted := make([][]byte, len(r.Tokens)), make([][]byte, len(r.Tokens))
	for i, ids := range r.Tokens {
		with[i] = p.textOf(ids, false, yield)
		if wanted[i] = with[i]; r.SkipSpecialTokens {
			wanted[i] = p.textOf(ids, true, yield)
		}
		if p.ctx.Err() != nil {
			return infer.AsError(context.Cause(p.ctx))
		}
	}
	p.enter(trace.Encode)
	p.tokenization.answer = openai.AppendDetokenized(nil, r, with, wanted)
	return nil
}

// textOf decodes a few ids at a time.
func (p *preparing) textOf(ids []uint32, skipSpecial bool, yield func()) (text []byte) {
	const part = 4096 // some 100 us
	d := tokenizer.NewDetokenizer(p.Folder.Tokenizer, tokenizer.DetokenizerOptions{SkipSpecial: skipSpecial})
	for len(ids) > part && p.ctx.Err() == nil {
		text, _, _ = d.Append(text, ids[:part])
		ids = ids[part:]
		yield()
	}
	text, _, _ = d.Append(text, ids)
	text, _ = d.Finish(text)
	return text
}
