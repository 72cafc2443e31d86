package attempt

import (
	"net/http"
	"sync/atomic"

	"weir/internal/fleet/route"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/place"
	"weir/internal/gateway/record"
	"weir/internal/gateway/stream"
	"weir/internal/observe/metrics"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// Leg is one engine's part of an attempt: the wire between the answer, which is
// pure, and the engine. There are two kinds, because token engines push their output
// and relay engines are pulled.
type Leg interface {
	// Head puts the response's head into h. events says that the response is a
	// stream of events.
	Head(h http.Header, first answer.Part) (status int, events bool)
	// Take puts what the engine has sent into h.In, without waiting; false when that is
	// nothing, and then the wait for the engine begins. It is called in rounds,
	// counted from 0, until it gives nothing.
	Take(h *Hand, round int) (ok bool, err error)
	// Stop ends the engine's work on choices that have ended by their text, last if
	// these were the last.
	Stop(choices []answer.Stop, last bool)
	// Whole reports whether all of the answer has been taken, with its end marker, and only the
	// engine's end of the response is still to come. A request that ends now is finished, whoever
	// has ended it.
	Whole() bool
	// More says that there may be something to take already.
	More() bool
	// Ready reports that Take gives something now, although the leg is not driven.
	Ready() bool
	// Glance reports whether something has come that Take gives now, by a look that does not
	// wait. The leg is not driven.
	Glance() bool
	// Wait blocks until there may be something to take.
	Wait()
	// Drive has a turn asked for when there may be something to take; false when that
	// cannot be, and Wait is the only way.
	Drive(d Driven) bool
	// Close ends the engine's work on what has not ended.
	Close()
}

// Driven is a stream whose leg is driven: it gets a turn when there may be something to take.
type Driven interface {
	// Notify asks for a turn.
	stream.Notified
	// Poll gives the stream a turn whenever a socket that is read without waiting has input. hup
	// is set if the peer has also ended its side, or if the connection broke. stop ends the
	// polling, although a turn may still be under way; it must be called before the socket is
	// closed or handed on.
	Poll(fd int, hup *atomic.Bool) (stop func(), err error)
}

// Hand is what a goroutine that takes output from legs has at hand, so that the legs need not
// hold it.
type Hand struct {
	In      answer.Input
	Scratch answer.Scratch

	// Not reported yet to what all share: the books, and the metrics.
	Tally        place.Tally
	merged, gaps metrics.Tally
}

// Tell reports what was not reported yet. It is called before the goroutine waits.
func (h *Hand) Tell() {
	h.Tally.Tell()
	h.merged.Tell()
	h.gaps.Tell()
}

// Trim releases the buffers of the previous turn if they are large, and all references.
func (h *Hand) Trim() {
	h.In = answer.Input{}
	h.Scratch.Trim()
}

// engineWait is what both kinds of leg have: the bounded wait for an engine.
type engineWait struct {
	rec     *record.Request
	silence *silence
	booking *place.Booking
	escape  *escape
	partner *partner // nil: the attempt is whole
	of      *Attempts
	target  route.Target
	shown   shown
	resumed *Attempt // of a stream that goes on with this attempt; nil: it began with it
	began   bool     // output has come
	// stopWatching ends the watch of a context, whose end also ends the wait.
	stopWatching func() bool
}

// shown is what metrics and the account of the caller's key are told of a stream's output, as
// it is taken.
type shown struct {
	merged, gaps *metrics.Distribution // of the engine's kind, and of the model
	last         int64                 // when output was taken last; 0: none was
	flushed      int64                 // the time in the stage flush by then
	spends       *tenancy.Spending     // of the caller's key; nil: it has no account
}

// took notes that deltas with so many tokens were taken at now, the first of which was read
// from the engine's socket at read. flushed is the time in the stage flush by then.
func (s *shown) took(h *Hand, rec *trace.Record, now, read, flushed int64, deltas, tokens int) {
	h.merged.Add(s.merged, int64(deltas), 1)
	if tokens > 0 && s.last != 0 {
		h.gaps.Add(s.gaps, (now-s.last)/int64(tokens), tokens)
	}
	s.pace(rec, now, read, flushed, tokens)
	if tokens > 0 && s.spends != nil {
		s.spends.Charge(tokens)
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
	w.silence.limitTo(w.of.opts.IdleTimeout, nextOutput)
	if w.rec.FirstReceived == 0 {
		w.rec.FirstReceived = at
		w.rec.LiveAtFirstToken = int32(w.of.recorder.Live())
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
		w.of.silences.end(s)
	}
}

// begin notes that the wait for the engine begins.
func (w *engineWait) begin() { w.silence.begin(w.rec.Enter(trace.Engine)) }
