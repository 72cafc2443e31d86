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
		StopStrings: x.req.Stop, IncludeStop: x.req.IncludeStop, SkipSpecial: !x.req.ShowSpecial, Keep: keep,
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
	if x.reply != nil && x.reply.count != nil {
		x.piece, x.used, stopped = x.reply.count.append(x.detok, x.piece[:0], c.IDs)
	} else {
		x.piece, x.used, stopped = x.detok.Append(x.piece[:0], c.IDs)
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
