package sglang

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"weir/internal/engine/idstream"
	"weir/internal/infer"
)

// Log probabilities come in meta_info as two lists with an element for each id:
// output_token_logprobs of [value, id, null], output_top_logprobs of lists of
// these. Like the ids they are all so far or the new ones, and like of the ids
// only the end is read: the lists are found by their keys and their last
// brackets, cut out of what is decoded, and read from behind. Those of the prompt, which
// are repeated in each event, have input_ in place of output_.
var (
	listKey = []byte(`_logprobs":[`)
	logp    = []byte(`_logprobs`)
)

// listOf returns where the list of a member is kept whose name ends as given; nil:
// nowhere.
func (e *event) listOf(name []byte, prompt bool) *[]byte {
	name = bytes.TrimSuffix(name, logp)
	name = name[bytes.LastIndexByte(name, '"')+1:]
	switch {
	case string(name) == "output_token":
		return &e.own
	case string(name) == "output_top":
		return &e.top
	case prompt && string(name) == "input_token":
		return &e.promptOwn
	case prompt && string(name) == "input_top":
		return &e.promptTop
	}
	return nil
}

// cut takes the lists out of meta_info, which leaves them empty there. A list
// in another form than the server writes stays, for meta to find; known says that there is
// none.
func (s *scanner) cut(meta []byte, e *event) (rest []byte, known bool) {
	out := s.Rest[:0]
	for known = true; known; {
		at := bytes.Index(meta, listKey)
		if at < 0 {
			break
		}
		list := e.listOf(meta[max(0, at-len(`"output_token`)):at], s.prompt)
		at += len(listKey)
		size := 0
		if list != nil {
			if size = listSize(meta[at:]); size < 0 || *list != nil {
				size, known = 0, false
			} else {
				*list = meta[at : at+size]
			}
		}
		out, meta = append(out, meta[:at]...), meta[at+size:]
	}
	s.Rest = append(out, meta...)
	return s.Rest, known
}

// listSize returns how long the list is that stands at the beginning, without its last
// bracket; negative when there are strings or objects in it. The next string is the name of
// the next member, if there is one: to look for a quote is many times faster than for
// brackets.
func listSize(b []byte) int {
	if end := bytes.IndexByte(b, '"'); end >= 0 {
		b = bytes.TrimRight(bytes.TrimRight(b[:end], " "), ",")
	} else {
		b = bytes.TrimRight(b, "} ")
	}
	if n := len(b) - 1; n >= 0 && b[n] == ']' && bytes.IndexByte(b[:n], '}') < 0 {
		return n
	}
	return -1
}

// list keeps the text of a list that cut did not find.
func (s *scanner) list(to *[]byte) error {
	v, err := s.Dec.ReadValue()
	if err != nil || *to != nil {
		return err
	}
	if v.Kind() != '[' {
		return nil // null where there are none
	}
	*to = slices.Clone(v[1 : len(v)-1])
	return nil
}

var errNoLogprob = errors.New("an element of the log probabilities is not [value, id, text]")

// lastEntry takes the last [value, id, text] off a list.
func lastEntry(list []byte) (value float32, id uint32, rest []byte, err error) {
	at := bytes.LastIndexByte(list, '[')
	if at < 0 {
		return 0, 0, nil, errNoLogprob
	}
	number, after, ok := bytes.Cut(list[at+1:], comma)
	word, _, ok2 := bytes.Cut(after, comma)
	if !ok || !ok2 {
		return 0, 0, nil, errNoLogprob
	}
	if id, err = idstream.ParseID(bytes.TrimSpace(word)); err != nil {
		return 0, 0, nil, err
	}
	switch number = bytes.TrimSpace(number); string(number) {
	case "null", "-Infinity": // what cannot be, as JSON has no word for it
		value = float32(math.Inf(-1))
	default:
		v, err := strconv.ParseFloat(string(number), 32)
		if err != nil {
			return 0, 0, nil, fmt.Errorf("%.20q is not a log probability", number)
		}
		value = float32(v)
	}
	return value, id, list[:at], nil
}

// scores reads the log probabilities of the new ids of an event, which read has
// given. At the end there may be one more position for a stop that was counted
// and not sent.
func (t *tally) scores(e *event, ids []uint32, unsent, top int, l *infer.Logprobs) error {
	l.Reset()
	n := bytes.Count(e.own, openBracket)
	spare := 0
	switch {
	case unsent > 0 && t.covers(n-unsent, len(ids)):
		spare = unsent
	case !t.covers(n, len(ids)):
		return t.wrong("logprobs_mismatch", e)
	}
	if top > 0 && bytes.Count(e.top, openBracket) != n*(top+1) {
		return t.wrong("logprobs_mismatch", e)
	}
	l.Own = slices.Grow(l.Own, len(ids))[:len(ids)]
	l.Top = slices.Grow(l.Top, len(ids)*top)[:len(ids)*top]
	l.TopIDs = slices.Grow(l.TopIDs, len(ids)*top)[:len(ids)*top]
	own, tops := e.own, e.top
	for i := len(ids) + spare - 1; i >= 0; i-- {
		value, id, rest, err := lastEntry(own)
		if err != nil {
			return err
		}
		if own = rest; i < len(ids) {
			if id != ids[i] {
				return t.wrong("logprobs_mismatch", e)
			}
			l.Own[i] = value
		}
		for k := top - 1; k >= 0; k-- {
			value, id, rest, err := lastEntry(tops)
			if err != nil {
				return err
			}
			if tops = rest; i < len(ids) {
				l.Top[i*top+k], l.TopIDs[i*top+k] = value, id
			}
		}
		if top > 0 {
			tops = tops[:max(0, bytes.LastIndexByte(tops, '['))]
		}
	}
	return nil
}

var (
	errNoPrompt    = errors.New("the engine told no log probabilities of the prompt")
	errOtherPrompt = errors.New("the log probabilities are not those of the prompt's tokens")
)

// promptScores reads the log probabilities of the prompt's ids that were asked for. The first
// of them is null.
func promptScores(e *event, ids []uint32, top int) (*infer.PromptLogprobs, error) {
	n := bytes.Count(e.promptOwn, openBracket)
	if n == 0 {
		return nil, errNoPrompt
	}
	if n != len(ids) || top > 0 && bytes.Count(e.promptTop, openBracket) != (n-1)*(top+1) {
		return nil, errOtherPrompt
	}
	p := &infer.PromptLogprobs{IDs: ids, Logprobs: infer.Logprobs{Own: make([]float32, n-1), Top: make([]float32, (n-1)*top), TopIDs: make([]uint32, (n-1)*top)}}
	own, tops := e.promptOwn, e.promptTop
	for i := n - 1; i >= 0; i-- {
		value, id, rest, err := lastEntry(own)
		if err != nil {
			return nil, err
		}
		if own = rest; id != ids[i] {
			return nil, errOtherPrompt
		}
		if i == 0 {
			break
		}
		p.Own[i-1] = value
		for k := top - 1; k >= 0; k-- {
			value, id, rest, err := lastEntry(tops)
			if err != nil {
				return nil, err
			}
			tops = rest
			p.Top[(i-1)*top+k], p.TopIDs[(i-1)*top+k] = value, id
		}
		if top > 0 {
			tops = tops[:max(0, bytes.LastIndexByte(tops, '['))]
		}
	}
	return p, nil
}

var openBracket = []byte{'['}

// covers reports whether a list of n entries fits the fresh ids, or all ids so far,
// depending on the form of the server.
func (t *tally) covers(n, fresh int) bool {
	return n == fresh && t.form != cumulative || n == t.have && t.form != incremental
}
