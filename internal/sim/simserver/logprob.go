package simserver

import (
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Log probabilities are made up, as there is no model: they are a function of an id and its
// position in the output, the same in every run and on every wire. A chosen id is always
// the likeliest. Its k-th alternative is the id k above it in the vocabulary, and half a
// nat less likely than the one before.

// logprob returns the log probability of an id at a position: a multiple of 1/64
// from (-2, 0].
func logprob(id uint32, position int) float64 {
	z := (uint64(id)<<32 | uint64(uint32(position))) * 0x9e3779b97f4a7c15
	return -float64(z>>57) / 64
}

// alternative returns the k-th likeliest id at a position and its log
// probability; the 0th is the chosen one.
func (e *Engine) alternative(id uint32, position, k int) (uint32, float64) {
	other := uint64(id) + uint64(k)
	if n := uint64(e.prepare.VocabSize); n > 0 {
		other %= n
	}
	return uint32(other), logprob(id, position) - 0.5*float64(k)
}

// appendLogprob appends a log probability.
func appendLogprob(b []byte, lp float64) []byte { return strconv.AppendFloat(b, lp, 'f', -1, 64) }

// tokenText returns the text of any id, an end id's too.
func (e *Engine) tokenText(id uint32) []byte {
	if text, ok := e.prepare.Words.Text(id); ok {
		return []byte(text)
	}
	if e.tokenizer == nil {
		return nil
	}
	return e.tokenizer.Text(id)
}

// appendTokenText appends the text of an id as a JSON string.
func (e *Engine) appendTokenText(b []byte, id uint32) []byte {
	b, _ = jsontext.AppendQuote(b, e.tokenText(id))
	return b
}

// appendLogprobs appends the log probabilities of a choice's pending output, or null.
func (a *answer) appendLogprobs(b []byte, o *output) []byte {
	ids := o.ids
	if a.voice == sglang {
		ids = o.ids
	}
	switch {
	case a.logprobs < 0 || len(ids) == 0:
		return append(b, "null"...)
	case a.d.chat:
		return a.appendChatLogprobs(b, ids, o.sent)
	}
	return a.appendTextLogprobs(b, ids, o.sent, o.offset)
}

func (a *answer) appendChatLogprobs(b []byte, ids []uint32, position int) []byte {
	entry := func(b []byte, id uint32, lp float64, text []byte) []byte {
		b = append(b, `{"token":`...)
		b = a.appendToken(b, id)
		b = append(b, `,"logprob":`...)
		b = appendLogprob(b, lp)
		b = append(b, `,"bytes":[`...)
		for i, c := range text {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(b, uint64(c), 10)
		}
		return append(b, ']')
	}
	b = append(b, `{"content":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = entry(b, id, logprob(id, position+i), a.e.tokenText(id))
		b = append(b, `,"top_logprobs":[`...)
		for k := range a.logprobs {
			if k > 0 {
				b = append(b, ',')
			}
			other, lp := a.e.alternative(id, position+i, k)
			text := a.e.tokenText(other)
			if a.tokensAsIDs { // what stands for the token
				text = fmt.Appendf(nil, "token_id:%d", other)
			}
			b = append(entry(b, other, lp, text), '}')
		}
		b = append(b, "]}"...)
	}
	return append(b, "]}"...)
}

// appendTextLogprobs writes the older form, used by text completions. SGLang has no offsets
// and writes -1.
func (a *answer) appendTextLogprobs(b []byte, ids []uint32, position, offset int) []byte {
	b = append(b, `{"text_offset":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		if a.voice == sglang {
			b = append(b, "-1"...)
			continue
		}
		b = strconv.AppendInt(b, int64(offset), 10)
		offset += len(a.e.text(id))
	}
	b = append(b, `],"token_logprobs":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLogprob(b, logprob(id, position+i))
	}
	b = append(b, `],"tokens":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = a.appendToken(b, id)
	}
	b = append(b, `],"top_logprobs":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		for k := range max(1, a.logprobs) {
			if k > 0 {
				b = append(b, ',')
			}
			other, lp := a.e.alternative(id, position+i, k)
			b = a.appendToken(b, other)
			b = append(b, ':')
			b = appendLogprob(b, lp)
		}
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// appendToken appends the text of an id as a JSON string, or "token_id:N".
func (a *answer) appendToken(b []byte, id uint32) []byte {
	if !a.tokensAsIDs {
		return a.e.appendTokenText(b, id)
	}
	b = append(b, `"token_id:`...)
	return append(strconv.AppendUint(b, uint64(id), 10), '"')
}
