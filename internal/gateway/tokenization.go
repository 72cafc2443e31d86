package gateway

import (
	"fmt"
	"net/http"
	"strconv"

	"weir/internal/chat"
	"weir/internal/infer"
	"weir/internal/openai"
	"weir/internal/tokenizer"
	"weir/internal/trace"
)

// tokenization is a request to a model's tokenizer, which no engine hears of:
// one of the two is set. docs/tokenize.md says what is asked and answered.
type tokenization struct {
	encode *openai.TokenizeRequest
	decode *openai.DetokenizeRequest
	answer []byte
}

// findTokenizer decides who answers: weir, for a model whose folder it has, and
// otherwise the engines that the model is relayed to, in their own words.
func (x *exchange) findTokenizer() error {
	if x.folder != nil {
		x.relayed = false
		return nil
	}
	if !x.model.Relayed {
		e := infer.Errorf(infer.CodeUnsupported, "model %q has no tokenizer here; give its folder with --model %s=DIR", x.model.Name, x.model.Name)
		e.Param = "model"
		return e
	}
	x.relayed = true
	return nil
}

// gateTokenization is the gate of a request to the tokenizer. It counts as a
// request in flight, and reserves no tokens: no engine generates any.
func (x *exchange) gateTokenization() (err error) {
	t := new(tokenization)
	if x.endpoint == openai.Tokenize {
		t.encode, err = openai.DecodeTokenize(x.head)
	} else if t.decode, err = openai.DecodeDetokenize(x.head); err == nil {
		err = x.checkTokens(t.decode)
	}
	if err == nil {
		x.reservation, err = x.g.gate.Enter(0)
	}
	x.tokenization = t
	return err
}

// checkTokens refuses ids that the model does not have.
func (x *exchange) checkTokens(r *openai.DetokenizeRequest) error {
	size := max(x.folder.VocabSize, x.folder.Tokenizer.Size())
	for i, ids := range r.Tokens {
		for k, id := range ids {
			if int(id) >= size {
				path := fmt.Sprintf("%s[%d]", r.Path(i), k)
				return infer.Invalid(path, "%s is %d; the model's ids are 0 to %d", path, id, size-1)
			}
		}
	}
	return nil
}

// answerTokenization does the work in one visit to the pool, up to the bytes of
// the answer, and writes them.
func (x *exchange) answerTokenization() error {
	var err error
	if r := x.tokenization.encode; r != nil {
		cost, first := len(r.Messages)+len(r.Tools), trace.Tokenize
		if r.Messages != nil {
			first = trace.Render
		}
		for _, text := range r.Texts {
			cost += len(text)
		}
		err = x.inPool(first, cost, x.encodeTexts)
	} else {
		cost := 0
		for _, ids := range x.tokenization.decode.Tokens {
			cost += 4 * len(ids)
		}
		err = x.inPool(trace.Detokenize, cost, x.decodeTokens)
	}
	if err != nil {
		return err
	}
	return x.writeWhole(x.tokenization.answer)
}

// encodeTexts makes the answer of /tokenize.
func (x *exchange) encodeTexts(yield func()) error {
	r := x.tokenization.encode
	texts, field := r.Texts, func(i int) string { return "messages" }
	if r.Messages != nil {
		prompt, err := x.folder.render(x.ctx, &chat.Input{
			Messages: r.Messages, Tools: r.Tools, Kwargs: r.ChatTemplateKwargs, FromAPI: true,
			AddGenerationPrompt: r.AddGenerationPrompt, ContinueFinalMessage: r.ContinueFinalMessage, Yield: yield,
		})
		if err != nil {
			return err
		}
		x.rec.Rendered = trace.Now()
		x.enter(trace.Tokenize)
		texts = []string{string(prompt)}
	} else if field = func(int) string { return "prompt" }; r.Batch {
		field = func(i int) string { return fmt.Sprintf("prompt[%d]", i) }
	}
	x.rec.TokenizeStart = trace.Now()
	results := make([]openai.TokenizeResult, len(texts))
	for i, text := range texts {
		ids, err := x.idsOf([]byte(text), r.AddSpecialTokens, field(i), yield)
		if err != nil {
			return err
		}
		x.rec.PromptTokens += len(ids)
		results[i].IDs = ids
		if r.ReturnTokenStrs {
			results[i].Strs = make([]string, len(ids))
			for k, id := range ids {
				results[i].Strs[k] = x.folder.Tokenizer.Token(id)
			}
		}
	}
	x.rec.TokenizeEnd = trace.Now()
	x.enter(trace.Encode)
	limit := x.contextLength()
	if limit == 0 {
		limit = -1
	}
	x.tokenization.answer = openai.AppendTokenized(nil, r, results, limit, yield)
	return x.ctx.Err()
}

// decodeTokens makes the answer of /detokenize.
func (x *exchange) decodeTokens(yield func()) error {
	r := x.tokenization.decode
	with, wanted := make([][]byte, len(r.Tokens)), make([][]byte, len(r.Tokens))
	for i, ids := range r.Tokens {
		with[i] = x.textOf(ids, false, yield)
		if wanted[i] = with[i]; r.SkipSpecialTokens {
			wanted[i] = x.textOf(ids, true, yield)
		}
		if x.ctx.Err() != nil {
			return x.gone()
		}
	}
	x.enter(trace.Encode)
	x.tokenization.answer = openai.AppendDetokenized(nil, r, with, wanted)
	return nil
}

// textOf decodes a few ids at a time.
func (x *exchange) textOf(ids []uint32, skipSpecial bool, yield func()) (text []byte) {
	const part = 4096 // some 100 us
	d := tokenizer.NewDetokenizer(x.folder.Tokenizer, tokenizer.DetokenizerOptions{SkipSpecial: skipSpecial})
	for len(ids) > part && x.ctx.Err() == nil {
		text, _, _ = d.Append(text, ids[:part])
		ids = ids[part:]
		yield()
	}
	text, _, _ = d.Append(text, ids)
	text, _ = d.Finish(text)
	return text
}

// writeWhole writes an answer that is no stream, a part at a time: each gets the
// whole time that a client may take to read.
func (x *exchange) writeWhole(out []byte) error {
	x.enter(trace.Flush)
	h := x.response.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(out)))
	x.begin(http.StatusOK, false)
	const part = 1 << 20
	for len(out) > 0 {
		n := min(part, len(out))
		if err := x.arm(); err != nil {
			return err
		}
		_, err := x.response.send(nil, out[:n], n == len(out))
		if err == nil {
			err = x.response.rest()
		}
		if err != nil {
			return x.writeError(err)
		}
		x.rec.BytesOut += int64(n)
		out = out[n:]
	}
	x.ending = true
	return nil
}
