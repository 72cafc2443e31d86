package gateway

import (
	"slices"

	"weir/internal/infer"
	"weir/internal/stream"
	"weir/internal/tokenizer"
	"weir/internal/trace"
)

// startOutput resets the output path for an attempt: nothing of an abandoned
// one has reached the client.
func (x *exchange) startOutput() {
	x.detok = tokenizer.NewDetokenizer(x.folder.Tokenizer, tokenizer.DetokenizerOptions{
		StopStrings: x.req.Stop, StopAfter: x.req.MinTokens, SkipSpecial: true, Keep: x.startReply(),
	})
	x.out, x.enc, x.tokens = x.out[:0], nil, 0
	x.rec.FirstReceived = 0
}

// detokenize is stage 10: ids to text, never splitting a rune, cut before a
// stop string. It reports whether the choice has ended. After a stop string the
// engine is told to stop, and what it still sends is dropped with the mailbox.
func (x *exchange) detokenize(c *stream.Cell) (ended bool) {
	x.enter(trace.Detokenize)
	var stopped bool
	spoken := c.IDs
	if x.endedBy(c) {
		spoken = spoken[:len(spoken)-1]
	}
	if x.reply != nil && x.reply.count != nil {
		x.piece, x.used, stopped = x.reply.count.append(x.detok, x.piece[:0], spoken)
	} else {
		x.piece, x.used, stopped = x.detok.Append(x.piece[:0], spoken)
	}
	if !stopped {
		x.used = len(c.IDs)
	}
	x.tokens += x.used
	if !stopped && c.Finish != nil && c.Finish.Err == nil {
		x.piece, stopped = x.detok.Finish(x.piece)
	}
	if stopped {
		x.mailbox.Close()
		switch {
		case c.Finish == nil:
			x.generation.Abort()
		case c.Finish.Err == nil:
			c.Finish.Reason, c.Finish.Unsent = infer.ReasonStop, 0
		default:
			c.Finish = nil // the answer is whole all the same
		}
	}
	return stopped || c.Finish != nil
}

// endedBy says whether a cell's last id is one that ended the answer: an end id, or
// one that the caller wants to stop at. Engines count it among their ids and leave
// its text out; special ones have none, unless a parser looks for it.
func (x *exchange) endedBy(c *stream.Cell) bool {
	f := c.Finish
	if f == nil || f.Err != nil || f.Reason != infer.ReasonStop || f.Unsent > 0 || len(c.IDs) == 0 {
		return false
	}
	last := c.IDs[len(c.IDs)-1]
	if x.detok.Keeps(last) {
		return false
	}
	return slices.Contains(x.req.StopIDs, last) || !x.req.IgnoreEOS && slices.Contains(x.folder.EOS, last)
}
