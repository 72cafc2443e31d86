package gateway

import (
	"weir/internal/infer"
	"weir/internal/stream"
	"weir/internal/trace"
)

// detokenize is stage 10: ids to text, never splitting a rune, cut before a
// stop string. It reports whether the choice has ended. After a stop string the
// engine is told to stop, and what it still sends is dropped by the mailbox.
func (x *exchange) detokenize(ch *choice, c *stream.Cell) (ended bool) {
	x.enter(trace.Detokenize)
	x.findStopID(c)
	if ch.detok == nil { // nobody wants the text
		x.piece, x.used = x.piece[:0], len(c.IDs)
		ch.tokens += x.used
		return c.Finish != nil
	}
	var stopped bool
	spoken := c.IDs
	if x.endedBy(ch, c) {
		spoken = spoken[:len(spoken)-1]
	}
	switch {
	case ch.scores != nil:
		x.piece, x.used, stopped = ch.scores.append(ch.detok, x.piece[:0], spoken, ch.reasoning)
	case ch.reasoning != nil:
		x.piece, x.used, stopped = ch.reasoning.append(ch.detok, x.piece[:0], spoken)
	default:
		x.piece, x.used, stopped = ch.detok.Append(x.piece[:0], spoken)
	}
	if !stopped {
		x.used = len(c.IDs)
	}
	ch.tokens += x.used
	if !stopped && c.Finish != nil && c.Finish.Err == nil {
		x.piece, stopped = ch.detok.Finish(x.piece)
	}
	if stopped {
		x.stop(ch)
		switch {
		case c.Finish == nil:
			ch.generation.Abort()
		case c.Finish.Err == nil:
			c.Finish.Reason, c.Finish.Unsent, c.Finish.ByID = infer.ReasonStop, 0, false
		default:
			c.Finish = nil // the answer is whole all the same
		}
	}
	return stopped || c.Finish != nil
}

// endedBy says whether a cell's last id is one that ended the answer (findStopID) and
// whose text is left out, as engines leave it out: always, unless it is asked for, or
// a parser looks for it.
func (x *exchange) endedBy(ch *choice, c *stream.Cell) bool {
	f, n := c.Finish, len(c.IDs)
	return f != nil && f.ByID && f.Unsent == 0 && n > 0 && !x.req.IncludeStop && !ch.detok.Keeps(c.IDs[n-1])
}
