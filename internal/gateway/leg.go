package gateway

import (
	"net/http"

	"weir/internal/fleet/route"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/place"
	"weir/internal/gateway/record"
	"weir/internal/observe/metrics"
	"weir/internal/trace"
)

// leg is one engine's part of an attempt: the wire between the answer, which is
// pure, and the engine. There are two kinds, because token engines push their output
// and relay engines are pulled.
type leg interface {
	// head puts the response's head into h. events says that the response is a
	// stream of events.
	head(h http.Header, first answer.Part) (status int, events bool)
	// take puts what the engine has sent into w.in, without waiting; false when that is
	// nothing, and then the wait for the engine begins. It is called in rounds,
	// counted from 0, until it gives nothing.
	take(w *worker, round int) (ok bool, err error)
	// stop ends the engine's work on choices that have ended by their text, last if
	// these were the last.
	stop(choices []answer.Stop, last bool)
	// whole reports whether all of the answer has been taken, with its end marker, and only the
	// engine's end of the response is still to come. A request that ends now is finished, whoever
	// has ended it.
	whole() bool
	// more says that there may be something to take already.
	more() bool
	// ready reports that take gives something now, although the leg is not driven.
	ready() bool
	// glance reports whether something has come that take gives now, by a look that does not
	// wait. The leg is not driven.
	glance() bool
	// wait blocks until there may be something to take.
	wait()
	// drive has turn or Notify called when there may be something to take; false
	// when that cannot be, and wait is the only way.
	drive(x *exchange) bool
	// close ends the engine's work on what has not ended.
	close()
}

// engineWait is what both kinds of leg have: the bounded wait for an engine.
type engineWait struct {
	rec     *record.Request
	silence *silence
	booking *place.Booking
	escape  *escape
	partner *partner // nil: the attempt is whole
	g       *Gateway
	target  route.Target
	shown   shown
	resumed *exchange // of a stream that goes on with this attempt; nil: it began with it
	began   bool      // output has come
	// stopWatching ends the watch of a context, whose end also ends the wait.
	stopWatching func() bool
}

// shown is what metrics and the account of the caller's key are told of a stream's output, as
// it is taken.
type shown struct {
	merged, gaps *metrics.Distribution // of the engine's kind, and of the model
	last         int64                 // when output was taken last; 0: none was
	flushed      int64                 // the time in the stage flush by then
	spends       *spending             // of the caller's key; nil: it has no account
}

// took notes that deltas with so many tokens were taken at now, the first of which was read
// from the engine's socket at read. flushed is the time in the stage flush by then.
func (s *shown) took(w *worker, rec *trace.Record, now, read, flushed int64, deltas, tokens int) {
	w.merged.Add(s.merged, int64(deltas), 1)
	if tokens > 0 && s.last != 0 {
		w.gaps.Add(s.gaps, (now-s.last)/int64(tokens), tokens)
	}
	s.pace(rec, now, read, flushed, tokens)
	if tokens > 0 && s.spends != nil {
		s.spends.charge(tokens)
	}
}

// pace notes when output came, and the time since the output before it if that is the longest of
// the request.
func (s *shown) pace(rec *trace.Record, now, read, flushed int64, tokens int) {
	p := rec.Pace
	if p == nil {
		p = new(trace.Pace)
		rec.Pace = p
	}
	if p.Last = read; tokens == 0 {
		return
	}
	if whole := now - s.last; s.last != 0 && whole > p.Gap.For {
		before := min(max(read-s.last, 0), whole)
		client := min(max(flushed-s.flushed, 0), whole)
		p.Gap = trace.Gap{For: whole, Before: max(before-client, 0), Client: client, Token: p.Tokens + 1, Attempt: int32(len(rec.Attempts) - 1)}
	}
	s.last, s.flushed = now, flushed
	p.Tokens += int32(tokens)
}

// first notes the engine's first output.
func (w *engineWait) first(at int64) {
	if w.began {
		return
	}
	w.began = true
	w.partner.begins(at)
	w.rec.Flowing(at)
	w.silence.limitTo(w.g.opts.Attempt.IdleTimeout, nextOutput)
	if w.rec.FirstReceived == 0 {
		w.rec.FirstReceived = at
		w.rec.LiveAtFirstToken = int32(w.g.recorder.Live())
	}
	if w.resumed != nil {
		w.resumed.resumes()
	}
}

func (w *engineWait) close() {
	if w.stopWatching != nil {
		w.stopWatching()
	}
	if s := w.silence; s != nil {
		w.silence = nil
		w.rec.AwaitsNoMore(&s.wait)
		w.g.silences.end(s)
	}
}

// begin notes that the wait for the engine begins.
func (w *engineWait) begin() { w.silence.begin(w.rec.Enter(trace.Engine)) }
