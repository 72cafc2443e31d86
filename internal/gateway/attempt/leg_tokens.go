package attempt

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"weir/internal/engine"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/trace"
)

// tokenLeg is the leg of a token engine, which pushes its output into a mailbox. No
// wire carries several choices, so each choice is a separate generation, all on one
// engine. A failure of one generation fails all of them, and a request moves to another
// engine as a whole.
type tokenLeg struct {
	mailbox *stream.Mailbox
	cells   []stream.Cell
	abort   *abortable
	engineWait
	answer      *answer.Tokens
	history     *history // takes down what comes; nil: the stream cannot go on elsewhere
	stamped     int      // the choice whose stamps the record has, the first that brought some; -1: none
	streams     bool     // the caller wants a stream
	generations []engine.Generation
	only        [1]engine.Generation // is generations, for most requests
}

// submit hands the choices over and returns once the engine has confirmed all.
func (l *tokenLeg) submit(ctx context.Context, q *prepare.Prepared) error {
	var attempt uint32
	if l.resumed != nil {
		attempt = l.mailbox.Continue(q.Longest() - q.Sent)
	} else {
		attempt = l.mailbox.NextAttempt()
	}
	l.partner.holds(l.mailbox)
	var err error
	if len(l.generations) > 1 {
		err = l.submitAll(ctx, q, attempt)
	} else {
		req := l.submission(q, 0)
		l.rec.Leg().RequestID = req.ID
		l.generations[0], err = l.target.Tokens.Generate(ctx, req, attempt, l.sink(), l.rec.Leg())
	}
	return inTime(err, "did not confirm the request", l.of.opts.SubmitTimeout, "--submit-timeout")
}

// submission is a choice as the leg's engine gets it: of an attempt in two halves, the
// decode half.
func (l *tokenLeg) submission(q *prepare.Prepared, i int) *infer.Request {
	var req *infer.Request
	if l.partner != nil {
		req = l.partner.submission(q, i, infer.RoleDecode, &l.target)
	} else {
		req = q.Submission(i, &l.target, l.of.id())
	}
	req.Portion = portion(q.Request, l.of.opts.IdleTimeout, l.of.opts.Continue.Stall)
	return req
}

// submitAll hands over several choices and waits until the engine has confirmed all of
// them. After an error those that it has are aborted by close.
func (l *tokenLeg) submitAll(ctx context.Context, q *prepare.Prepared, attempt uint32) error {
	requests := make([]*infer.Request, len(l.generations))
	for i := range requests {
		requests[i] = l.submission(q, i)
	}
	sinks := make([]engine.Sink, len(requests))
	for i := range sinks {
		if i == 0 {
			sinks[i] = l.sink()
		} else {
			sinks[i] = &ChoiceSink{Sink: l.mailbox, Choice: uint32(i)}
		}
	}
	var err error
	l.generations, err = l.of.handOverAll(ctx, l.rec.RequestID, len(requests), q.AtOnce(), l.rec.Leg(), func(ctx context.Context, i int, leg *trace.Leg) (engine.Generation, error) {
		return l.target.Tokens.Generate(ctx, requests[i], attempt, sinks[i], leg)
	})
	return err
}

// ChoiceSink adds the choice to the deltas of a generation. The delta belongs to the
// adapter and is returned to it unchanged.
type ChoiceSink struct {
	engine.Sink
	Choice uint32
}

func (s *ChoiceSink) Offer(d *infer.Delta) {
	d.Choice = s.Choice
	s.Sink.Offer(d)
	d.Choice = 0
}

// sink is the mailbox, behind the receive stage's injected delay if there is
// one.
func (l *tokenLeg) sink() engine.Sink {
	if d := l.rec.Due(trace.Receive); d > 0 {
		return &delaySink{Sink: l.mailbox, delay: d}
	}
	return l.mailbox
}

type delaySink struct {
	engine.Sink
	delay time.Duration
}

func (s *delaySink) Offer(d *infer.Delta) {
	time.Sleep(s.delay)
	s.delay = 0
	s.Sink.Offer(d)
}

// watch has the engine's silence wake the stream, as the request's end does (Attempt.Wake).
// A request may have ended while it was handed over, when there was no stream to wake.
func (l *tokenLeg) watch(ctx context.Context) {
	box := l.mailbox
	l.silence = l.of.silences.begin(l.target.Name, l.of.opts.FirstTimeout, l.of.opts.IdleTimeout, func(*infer.Error) { box.Wake() })
	l.rec.Awaits(&l.silence.wait)
	l.silence.begin(trace.Now())
	if ctx.Err() != nil {
		box.Wake()
	}
}

// Head implements drive.Leg.
func (l *tokenLeg) Head(h http.Header, first answer.Part) (status int, events bool) {
	if l.streams {
		h["Content-Type"] = []string{"text/event-stream"}
	} else {
		h["Content-Type"] = []string{"application/json"}
		h["Content-Length"] = []string{strconv.Itoa(len(first.Out))}
	}
	return http.StatusOK, l.streams
}

// Take implements drive.Leg. It is stages 8 and 9, receive and merge: it takes all that is
// pending as one. The wait is the engine's time until the frame was read, and weir's
// own from there on. What comes after it gives the stream another turn.
func (l *tokenLeg) Take(h *drive.Hand, round int) (ok bool, err error) {
	l.of.room.Tell(l.booking, &h.Tally)
	if round > 0 {
		for i := range l.cells { // while the stream waits
			l.cells[i].Trim()
		}
		l.rec.Enter(trace.Engine)
		return false, nil
	}
	l.abortIfAsked()
	cells := l.mailbox.Take(l.cells)
	if len(cells) == 0 {
		if err := l.escape.left(); err != nil {
			return false, err
		}
		return false, l.silence.overdue()
	}
	l.cells = cells
	l.partner.scores(cells)
	now := trace.Now()
	read := cells[0].Received
	l.rec.Ledger.Split(read, trace.Receive, now)
	l.rec.EnterAt(trace.Merge, now)
	l.silence.begin(now)
	for i := range cells {
		c := &cells[i]
		if c.Stamps != nil && (l.stamped < 0 || l.stamped == int(c.Choice)) {
			l.stamped = int(c.Choice)
			l.rec.Leg().Stamps = *c.Stamps
		}
		if !l.began && len(c.IDs) > 0 {
			l.first(read)
			l.rec.PendingAtFirstToken = int32(l.of.pending())
		}
		if l.history != nil {
			l.history.add(c.IDs)
		}
	}
	l.booking.Took(cells, &h.Tally)
	for i := range cells {
		cells[i].Stamps = nil // the mailbox keeps the cells
	}
	if l.resumed != nil {
		forgetCounts(cells)
	}
	deltas, ids := 0, 0
	for i := range cells {
		deltas, ids = deltas+cells[i].Deltas, ids+len(cells[i].IDs)
	}
	l.shown.took(h, l.rec.Record, now, read, l.rec.Ledger.Spent[trace.Flush], deltas, ids)
	h.In.Cells = cells
	return true, nil
}

// forgetCounts removes an engine's counts of a prompt that is not the caller's.
func forgetCounts(cells []stream.Cell) {
	for i := range cells {
		c := &cells[i]
		c.PromptTokens, c.CachedTokens, c.CachedKnown = 0, 0, false
		if f := c.Finish; f != nil {
			f.PromptTokens, f.CachedTokens = -1, -1
		}
	}
}

// Stop implements drive.Leg: what still comes of them is not wanted either.
func (l *tokenLeg) Stop(choices []answer.Stop, last bool) {
	for _, s := range choices {
		l.booking.Stopped(s.Choice, trace.Now())
		if last {
			l.mailbox.Close()
		} else {
			l.mailbox.CloseChoice(s.Choice)
		}
		if s.Running {
			l.generations[s.Choice].Abort()
		}
	}
}

// abortIfAsked aborts the generation at the engine, once, if the caller wants the
// output so far.
func (l *tokenLeg) abortIfAsked() {
	if a := l.abort; !a.sent && a.asked.Load() {
		a.sent = true
		l.answer.Abort()
		l.abortRunning()
	}
}

// abortRunning aborts the generations that have not ended.
func (l *tokenLeg) abortRunning() {
	for i, g := range l.generations {
		if g != nil && !l.answer.Ended(i) {
			g.Abort()
		}
	}
}

// ended reports whether all generations have ended.
func (l *tokenLeg) ended() bool {
	for i := range l.generations {
		if !l.answer.Ended(i) {
			return false
		}
	}
	return true
}

// More implements drive.Leg.
func (l *tokenLeg) More() bool { return false }

// Whole implements drive.Leg: an answer of ids ends with what is taken last.
func (l *tokenLeg) Whole() bool { return false }

// Ready implements drive.Leg: take has given all there was.
func (l *tokenLeg) Ready() bool { return false }

// Glance implements drive.Leg: the mailbox has its own notice.
func (l *tokenLeg) Glance() bool { return false }

// Wait implements drive.Leg.
func (l *tokenLeg) Wait() {
	l.rec.Enter(trace.Engine)
	l.mailbox.Wait()
}

// Drive implements drive.Leg.
func (l *tokenLeg) Drive(s *drive.Stream) bool {
	l.mailbox.Notify(s)
	return true
}

// Close implements drive.Leg.
func (l *tokenLeg) Close() {
	l.engineWait.close()
	l.mailbox.Notify(nil)
	l.abortRunning()
	if l.partner != nil && !l.ended() {
		l.partner.frees(func() {
			for _, g := range l.generations {
				engine.Released(g)
			}
		})
	}
}
