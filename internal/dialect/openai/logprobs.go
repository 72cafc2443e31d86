package openai

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// Scorer writes the log probabilities of tokens. In chats and completions an entry is
// sent with its token, not with its text. If text is held back, because a rune is not
// whole or a stop string may come, the entry is in the chunk of the token and the text
// follows later. Every token that counts has an entry, up to the one that completed a
// stop string: also tokens of reasoning, of tool calls and without text.
type Scorer struct {
	Top        int // alternatives of each token
	Vocabulary dialect.Vocabulary
}

// leastLogprob stands for what JSON has no number for: the log probability of
// what cannot be.
const leastLogprob = -9999

func appendLogprob(dst []byte, v float32) []byte {
	f := float64(v)
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return strconv.AppendInt(dst, leastLogprob, 10)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, 32)
}

// appendToken appends a token's text as a JSON string. One that is a part of a
// rune is said by its bytes.
func appendToken(dst, text []byte, prefix string) []byte {
	dst = append(dst, '"')
	if utf8.Valid(text) {
		return append(dialect.AppendEscaped(dst, text), '"')
	}
	const hex = "0123456789abcdef"
	dst = append(dst, prefix...)
	for _, c := range text {
		dst = append(dst, '\\', '\\', 'x', hex[c>>4], hex[c&15])
	}
	return append(dst, '"')
}

// AppendEntries appends the entries of tokens in the form of chats, without the object
// around them.
func (s *Scorer) AppendEntries(dst []byte, ids []uint32, l *infer.Logprobs) []byte {
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = s.appendEntry(dst, id, l.Own[i])
		dst = append(dst, `,"top_logprobs":[`...)
		for k := i * s.Top; k < (i+1)*s.Top; k++ {
			if k > i*s.Top {
				dst = append(dst, ',')
			}
			dst = append(s.appendEntry(dst, l.TopIDs[k], l.Top[k]), '}')
		}
		dst = append(dst, "]}"...)
	}
	return dst
}

// appendEntry leaves the entry open.
func (s *Scorer) appendEntry(dst []byte, id uint32, v float32) []byte {
	text := s.Vocabulary.TokenBytes(id)
	dst = appendToken(append(dst, `{"token":`...), text, "")
	dst = appendLogprob(append(dst, `,"logprob":`...), v)
	dst = append(dst, `,"bytes":[`...)
	for i, c := range text {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(c), 10)
	}
	return append(dst, ']')
}

const (
	chatScores    = `{"content":[`
	chatScoresEnd = `],"refusal":null}`
)

// columns are the log probabilities of a completion's tokens, as its four arrays.
type columns struct {
	tokens, values, tops, offsets []byte // the elements, with commas
	offset                        int    // of the next token in the text, in characters
}

// add appends tokens. A token begins where those before it end, counted in
// characters begun; a special token adds none.
func (c *columns) add(s *Scorer, ids []uint32, l *infer.Logprobs) {
	for i, id := range ids {
		if len(c.tokens) > 0 {
			c.tokens, c.values, c.tops, c.offsets = append(c.tokens, ','), append(c.values, ','), append(c.tops, ','), append(c.offsets, ',')
		}
		text := s.Vocabulary.TokenBytes(id)
		c.tokens = appendToken(c.tokens, text, "bytes:")
		c.values = appendLogprob(c.values, l.Own[i])
		c.offsets = strconv.AppendInt(c.offsets, int64(c.offset), 10)
		if !s.Vocabulary.Special(id) {
			for _, b := range text {
				if utf8.RuneStart(b) {
					c.offset++
				}
			}
		}
		c.tops = s.appendTops(c.tops, id, l.Own[i], l.TopIDs[i*s.Top:(i+1)*s.Top], l.Top[i*s.Top:(i+1)*s.Top])
	}
}

// appendTops appends the alternatives of a token as an object by their texts, and
// the token itself if it is not among them. Of tokens with the same text the most
// probable is there.
func (s *Scorer) appendTops(dst []byte, own uint32, value float32, ids []uint32, values []float32) []byte {
	dst = append(dst, '{')
	hasOwn := false
	ownText := s.Vocabulary.TokenBytes(own)
next:
	for k, id := range ids {
		text := s.Vocabulary.TokenBytes(id)
		for _, before := range ids[:k] {
			if bytes.Equal(s.Vocabulary.TokenBytes(before), text) {
				continue next
			}
		}
		if k > 0 {
			dst = append(dst, ',')
		}
		hasOwn = hasOwn || bytes.Equal(text, ownText)
		dst = appendLogprob(append(appendToken(dst, text, "bytes:"), ':'), values[k])
	}
	if !hasOwn {
		if len(ids) > 0 {
			dst = append(dst, ',')
		}
		dst = appendLogprob(append(appendToken(dst, ownText, "bytes:"), ':'), value)
	}
	return append(dst, '}')
}

// append appends the arrays as an object.
func (c *columns) append(dst []byte) []byte {
	dst = append(append(dst, `{"tokens":[`...), c.tokens...)
	dst = append(append(dst, `],"token_logprobs":[`...), c.values...)
	dst = append(append(dst, `],"top_logprobs":[`...), c.tops...)
	dst = append(append(dst, `],"text_offset":[`...), c.offsets...)
	return append(dst, "]}"...)
}

// reset makes room for the next chunk's; the text goes on.
func (c *columns) reset() {
	c.tokens, c.values, c.tops, c.offsets = c.tokens[:0], c.values[:0], c.tops[:0], c.offsets[:0]
}
