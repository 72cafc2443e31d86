package completion

import (
	"fmt"
	"strconv"

	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/vocab"
)

// appendLogprobs appends the log probabilities of a choice's pending output, or null.
func (a *Answer) appendLogprobs(b []byte, o *exchange.Output) []byte {
	ids := o.IDs
	if a.voice == sglang {
		ids = o.IDs
	}
	switch {
	case a.Logprobs < 0 || len(ids) == 0:
		return append(b, "null"...)
	case a.d.chat:
		return a.appendChatLogprobs(b, ids, o.Sent)
	}
	return a.appendTextLogprobs(b, ids, o.Sent, o.Offset)
}

func (a *Answer) appendChatLogprobs(b []byte, ids []uint32, position int) []byte {
	entry := func(b []byte, id uint32, lp float64, text []byte) []byte {
		b = append(b, `{"token":`...)
		b = a.appendToken(b, id)
		b = append(b, `,"logprob":`...)
		b = vocab.AppendLogprob(b, lp)
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
		b = entry(b, id, vocab.Logprob(id, position+i), a.Vocab.TokenText(id))
		b = append(b, `,"top_logprobs":[`...)
		for k := range a.Logprobs {
			if k > 0 {
				b = append(b, ',')
			}
			other, lp := a.Vocab.Alternative(id, position+i, k)
			text := a.Vocab.TokenText(other)
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
func (a *Answer) appendTextLogprobs(b []byte, ids []uint32, position, offset int) []byte {
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
		offset += len(a.Vocab.Text(id))
	}
	b = append(b, `],"token_logprobs":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = vocab.AppendLogprob(b, vocab.Logprob(id, position+i))
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
		for k := range max(1, a.Logprobs) {
			if k > 0 {
				b = append(b, ',')
			}
			other, lp := a.Vocab.Alternative(id, position+i, k)
			b = a.appendToken(b, other)
			b = append(b, ':')
			b = vocab.AppendLogprob(b, lp)
		}
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// appendToken appends the text of an id as a JSON string, or "token_id:N".
func (a *Answer) appendToken(b []byte, id uint32) []byte {
	if !a.tokensAsIDs {
		return a.Vocab.AppendTokenText(b, id)
	}
	b = append(b, `"token_id:`...)
	return append(strconv.AppendUint(b, uint64(id), 10), '"')
}
