package sglang

import (
	"strconv"

	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/vocab"
)

// Log probabilities in SGLang's own shape: lists of [logprob, id, text], text
// null unless asked for.

func (f *Server) appendEntry(b []byte, lp float64, id uint32, withText bool) []byte {
	b = append(b, '[')
	b = vocab.AppendLogprob(b, lp)
	return f.closeEntry(b, id, withText)
}

func (f *Server) closeEntry(b []byte, id uint32, withText bool) []byte {
	b = append(b, ',')
	b = strconv.AppendUint(b, uint64(id), 10)
	b = append(b, ',')
	if withText {
		b = f.vocab.AppendTokenText(b, id)
	} else {
		b = append(b, "null"...)
	}
	return append(b, ']')
}

// appendTop appends the k likeliest entries at a position.
func (f *Server) appendTop(b []byte, id uint32, position, k int, withText bool) []byte {
	b = append(b, '[')
	for i := range k {
		if i > 0 {
			b = append(b, ',')
		}
		other, lp := f.vocab.Alternative(id, position, i)
		b = f.appendEntry(b, lp, other, withText)
	}
	return append(b, ']')
}

// appendWanted appends the entries of the ids that were asked for.
func (f *Server) appendWanted(b []byte, id uint32, position int, it *item) []byte {
	b = append(b, '[')
	for i, w := range it.wanted {
		if i > 0 {
			b = append(b, ',')
		}
		lp := vocab.Logprob(id, position)
		if w != id {
			lp += vocab.Logprob(w, position) - 4
		}
		b = f.appendEntry(b, lp, w, it.withText)
	}
	return append(b, ']')
}

// appendInputLogprobs appends the members about the prompt, which all events have. The
// first position has no log probability.
func (f *Server) appendInputLogprobs(b []byte, it *item) []byte {
	prompt := it.params.Prompt
	from := len(prompt)
	if it.start >= 0 {
		from = min(it.start, len(prompt))
	}
	list := func(name string, each func(b []byte, i int) []byte) {
		b = append(b, `,"`+name+`":[`...)
		for i := from; i < len(prompt); i++ {
			if i > from {
				b = append(b, ',')
			}
			b = each(b, i)
		}
		b = append(b, ']')
	}
	list("input_token_logprobs", func(b []byte, i int) []byte {
		if i == from {
			return f.closeEntry(append(b, "[null"...), prompt[i], it.withText)
		}
		return f.appendEntry(b, vocab.Logprob(prompt[i], i), prompt[i], it.withText)
	})
	if it.top > 0 {
		list("input_top_logprobs", func(b []byte, i int) []byte {
			if i == from {
				return append(b, "null"...)
			}
			return f.appendTop(b, prompt[i], i, it.top, it.withText)
		})
	}
	if it.wanted != nil {
		list("input_token_ids_logprobs", func(b []byte, i int) []byte {
			if i == from {
				return append(b, "null"...)
			}
			return f.appendWanted(b, prompt[i], i, it)
		})
	}
	return b
}

// takeLogprobs turns the ids that an output has pending into entries. An id
// that stopped it has one, though it is not sent.
func (g *generation) takeLogprobs(o *exchange.Output, s *said, it *item) {
	separate := func(b []byte) []byte {
		if len(b) > 0 {
			b = append(b, ',')
		}
		return b
	}
	for i, id := range o.IDs {
		position := o.Sent + i
		s.logprobs = g.server.appendEntry(separate(s.logprobs), vocab.Logprob(id, position), id, it.withText)
		if it.top > 0 {
			s.top = g.server.appendTop(separate(s.top), id, position, it.top, it.withText)
		}
		if it.wanted != nil {
			s.wanted = g.server.appendWanted(separate(s.wanted), id, position, it)
		}
		s.scored++
	}
}

// appendOutputLogprobs appends the members about the output.
func (g *generation) appendOutputLogprobs(b []byte, s *said, it *item) []byte {
	b = append(b, `,"output_token_logprobs":[`...)
	b = append(b, s.logprobs...)
	b = append(b, `],"output_token_logprobs_length":`...)
	b = strconv.AppendInt(b, int64(s.scored), 10)
	if it.top > 0 {
		b = append(b, `,"output_top_logprobs":[`...)
		b = append(b, s.top...)
		b = append(b, ']')
	}
	if it.wanted != nil {
		b = append(b, `,"output_token_ids_logprobs":[`...)
		b = append(b, s.wanted...)
		b = append(b, ']')
	}
	return b
}
