package attempt

import (
	"weir/internal/fleet/route"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/place"
	"weir/internal/gateway/record"
	"weir/internal/observe/metrics"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// engineWait is what both kinds of leg have: the bounded wait for an engine. There are two kinds,
// because token engines push their output and relay engines are pulled.
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
func (s *shown) took(h *drive.Hand, rec *trace.Record, now, read, flushed int64, deltas, tokens int) {
	h.Merged.Add(s.merged, int64(deltas), 1)
	if tokens > 0 && s.last != 0 {
		h.Gaps.Add(s.gaps, (now-s.last)/int64(tokens), tokens)
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

// Engine implements drive.Leg.
func (w *engineWait) Engine() string { return w.target.Name }

// begin notes that the wait for the engine begins.
func (w *engineWait) begin() { w.silence.begin(w.rec.Enter(trace.Engine)) }
