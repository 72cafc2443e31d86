package gateway

import (
	"weir/internal/infer"
	"weir/internal/stream"
	"weir/internal/tokenizer"
	"weir/internal/trace"
)

// startOutput resets the output path for an attempt: nothing of an abandoned
// one has reached the client.
func (x *exchange) startOutput() {
	x.out, x.enc, x.tokens = x.out[:0], nil, 0
	x.rec.FirstReceived = 0
	keep := x.startReply()
	if x.detok = nil; x.req.NoText && len(x.req.Stop) == 0 {
		return
	}
	x.detok = tokenizer.NewDetokenizer(x.folder.Tokenizer, tokenizer.DetokenizerOptions{
		StopStrings: x.req.Stop, StopAfter: x.req.MinTokens, IncludeStop: x.req.IncludeStop, SkipSpecial: !x.req.ShowSpecial, Keep: keep,
	})
}

// detokenize is stage 10: ids to text, never splitting a rune, cut before a
// stop string. It reports whether the choice has ended. After a stop string the
// engine is told to stop, and what it still sends is dropped with the mailbox.
func (x *exchange) detokenize(c *stream.Cell) (ended bool) {
	x.enter(trace.Detokenize)
	x.findStopID(c)
	if x.detok == nil { // nobody wants the text
		x.piece, x.used = x.piece[:0], len(c.IDs)
		x.tokens += x.used
		return c.Finish != nil
	}
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
func (x *exchange) endedBy(c *stream.Cell) bool {
	f, n := c.Finish, len(c.IDs)
	return f != nil && f.ByID && f.Unsent == 0 && n > 0 && !x.req.IncludeStop && !x.detok.Keeps(c.IDs[n-1])
}
