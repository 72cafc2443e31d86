package answer

import (
	"slices"

	"weir/internal/gateway/stream"
	"weir/internal/infer"
)

// piece is the text of a cell: the text that is certain with it, the number of its ids
// that count, up to a stop string, and whether the choice is whole.
type piece struct {
	text  []byte // the scratch's
	used  int
	early int // how much of the text comes before a stop string may be complete
	ended bool
}

// detokenize is stage 10: ids to text, never splitting a rune, cut before a stop
// string, and behind the id that ends a call where that ends the choice. Then the
// engine is to stop, and what it still sends is dropped.
func (t *Tokens) detokenize(ch *choice, c *stream.Cell, s *Scratch) piece {
	t.endAtStopID(ch, c, s)
	t.findStopID(c)
	if ch.detok == nil { // nobody wants the text
		ch.tokens += len(c.IDs)
		return piece{text: s.text[:0], used: len(c.IDs), ended: c.Finish != nil && t.whole(c.Finish)}
	}
	spoken := c.IDs
	if t.endedBy(ch, c) {
		spoken = spoken[:len(spoken)-1]
	}
	if ch.ends != nil {
		ch.ends.earlyText = 0
	}
	text, used, stopped := ch.append(s.text[:0], spoken)
	if !stopped {
		used = len(c.IDs)
	}
	ch.tokens += used
	if !stopped && c.Finish != nil && t.whole(c.Finish) {
		before := len(text)
		text, stopped = ch.detok.Finish(text)
		stopped = stopped || ch.ends != nil && ch.ends.finish(text[before:])
	}
	s.text = text
	if stopped {
		s.stop(ch, c.Finish == nil)
		switch {
		case c.Finish == nil:
		case c.Finish.Err == nil:
			c.Finish.Reason, c.Finish.Unsent, c.Finish.ByID = infer.ReasonStop, 0, false
		default:
			c.Finish = nil // the answer is whole all the same
		}
	}
	p := piece{text: text, used: used, ended: stopped || c.Finish != nil && t.whole(c.Finish)}
	if ch.ends != nil {
		p.early = ch.ends.earlyText
	}
	return p
}

// append is the detokenizer's Append for the choice, which a call or a stop string in its
// content may also end. Counts,
// scores and ends at single tokens need the text token by token, so that they do not
// depend on how output is merged.
func (ch *choice) append(dst []byte, ids []uint32) (text []byte, used int, stopped bool) {
	if ch.scores != nil {
		ch.scores.steps = ch.scores.steps[:0]
	}
	for used < len(ids) && !stopped {
		if ch.scores == nil && ch.ends == nil && (ch.reasoning == nil || ch.reasoning.parser == nil) {
			var n int
			dst, n, stopped = ch.detok.Append(dst, ids[used:])
			return dst, used + n, stopped
		}
		before, held := len(dst), ch.detok.Held()
		dst, _, stopped = ch.detok.Append(dst, ids[used:used+1])
		used++
		if ch.reasoning != nil {
			ch.reasoning.add(dst[before:])
		}
		if ch.scores != nil {
			ch.scores.step(len(dst), ch.detok.Held() > 0, len(dst) == before && ch.detok.Held() == held && !stopped)
		}
		stopped = stopped || ch.ends != nil && ch.ends.add(dst[before:], len(dst))
	}
	return dst, used, stopped
}

// endAtStopID ends a choice at the first of the request's stop ids if the engine
// continues after it, as SGLang does with ignore_eos.
func (t *Tokens) endAtStopID(ch *choice, c *stream.Cell, s *Scratch) {
	if !t.endsAt {
		return
	}
	from := min(len(c.IDs), max(0, t.o.Request.MinTokens-ch.tokens))
	i := slices.IndexFunc(c.IDs[from:], func(id uint32) bool { return slices.Contains(t.o.Request.StopIDs, id) })
	if i < 0 {
		return
	}
	n := from + i + 1
	if n == len(c.IDs) && c.Finish != nil && c.Finish.Err == nil {
		return // it has ended there by itself
	}
	s.stop(ch, c.Finish == nil)
	f := infer.Finish{Reason: infer.ReasonStop, PromptTokens: -1, CachedTokens: -1}
	if c.Finish != nil {
		f.PromptTokens, f.CachedTokens = c.Finish.PromptTokens, c.Finish.CachedTokens
	}
	c.IDs, c.Finish = c.IDs[:n], &f
}

// findStopID finds the id that ended a choice.
func (t *Tokens) findStopID(c *stream.Cell) {
	f, n := c.Finish, len(c.IDs)
	if f == nil || f.Err != nil || f.Reason != infer.ReasonStop || f.Unsent > 0 || n == 0 {
		return
	}
	last := c.IDs[n-1]
	if !slices.Contains(t.o.Request.StopIDs, last) && (t.o.Request.IgnoreEOS || !slices.Contains(t.o.EOS, last)) {
		return
	}
	f.StopID, f.ByID = last, true
}

// endedBy reports whether a cell's last id ended the answer (findStopID) and has no
// text in it. Engines leave that text out, and so does weir, unless the request asks
// for it or a parser needs it.
func (t *Tokens) endedBy(ch *choice, c *stream.Cell) bool {
	f, n := c.Finish, len(c.IDs)
	return f != nil && f.ByID && f.Unsent == 0 && n > 0 && !t.o.Request.IncludeStop && !ch.detok.Keeps(c.IDs[n-1])
}
