package attempt

import (
	"weir/internal/fleet/route"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/tenancy/fair"
	"weir/internal/trace"
)

// Attempt is the latest try of a request at one engine, or at two, from its placement to Settle, and
// what those before have left to it. It belongs to the one goroutine that serves the request, or has
// its turn.
type Attempt struct {
	abort   abortable
	of      *Attempts
	stream  *drive.Stream
	request *prepare.Prepared
	need    *place.Need

	booking place.Booking
	escape  escape
	charged fair.Turn // that the request has taken
	work    float64   // what it was predicted to be at the target, as workOf says
	Target  route.Target
	// partner is the other half of an attempt in two halves; nil: the target has it whole.
	partner *partner

	// The state that a stream needs to continue at another engine.
	bar           prepare.Bar
	begun         bool         // the client has received a part of the answer
	promptCharged bool         // to the caller's key
	continued     int32        // number of continuations
	lost          *infer.Error // the failure that it is to continue after; nil if none, or if it has continued
	slot          place.Turn   // held until its first output
	history       history
}

// Open opens the attempts of a request. It is called once.
func (of *Attempts) Open(a *Attempt, s *drive.Stream, q *prepare.Prepared, n *place.Need) {
	a.of, a.stream, a.request, a.need = of, s, q, n
}

// Legs begins the record's legs of the next attempt. The last one serves the client.
func Legs(rec *record.Request, target, partner *route.Target) []trace.Leg {
	all := rec.Legs()
	if partner == nil {
		return append(all, trace.Leg{Role: "full", Engine: target.Name, Kind: target.Engine.Kind, DPRank: target.Number})
	}
	return append(all,
		trace.Leg{Role: infer.RolePrefill.String(), Engine: partner.Name, Kind: partner.Engine.Kind, DPRank: partner.Number},
		trace.Leg{Role: infer.RoleDecode.String(), Engine: target.Name, Kind: target.Engine.Kind, DPRank: target.Number},
	)
}

// relayedBy is the generation of an engine that is relayed, 0 of one that is not.
func relayedBy(t *route.Target) uint64 {
	if t.Relay == nil {
		return 0
	}
	return t.Generation
}

// Given begins an attempt of a request, which asks for ask, where it was placed. It books the request
// at its engine, or with a partner at both.
func (a *Attempt) Given(p *place.Placement, ask *place.Ask) {
	a.Target, a.partner, a.charged = p.Target, nil, p.Turn
	attempt := place.Chosen(p.Choice, a.need.Model)
	attempt.Legs = Legs(&a.stream.Record, &p.Target, p.Partner)
	a.of.recorder.Callers(&a.stream.Record, attempt.Legs)
	attempt.Turn = p.Waited
	a.stream.Record.Attempts = append(a.stream.Record.Attempts, attempt)
	if len(a.stream.Record.Attempts) == 1 {
		a.need.Model.Retries.Requested(p.At)
	}
	a.work = a.request.Footprint.At(p.Target.Engine).WorkOf(p.Choice.Decision.Choice())
	p.Book(&a.booking, a.need, ask)
	a.slot.Goes(p.Target.Books.Rank)
	second := uint64(0)
	if p.Partner != nil {
		a.partner = newPartner(a.of, a, &a.escape, p.Partner, p.Choice, p.At, a.request, a.need.Model)
		second = relayedBy(p.Partner)
	}
	a.stream.Record.Known()
	a.stream.Record.Relayed(relayedBy(&p.Target), second)
	if !a.begun {
		a.stream.Record.Routed = trace.Now()
	}
}

// Mailbox returns that of the request; nil: no token engine was asked.
func (a *Attempt) Mailbox() *stream.Mailbox { return a.abort.mailbox.Load() }

// Tokens returns how many have come, as far as it is known whose they are.
func (a *Attempt) Tokens() int { return a.request.Sent + a.booking.Tokens() }

// Abort ends the request with the output until now. If no engine has it, end is called with
// ErrAborted. Anyone may call it.
func (a *Attempt) Abort(end func(cause error)) { a.abort.ask(end) }

// Wake gives the stream of a request that an engine has its turn. Anyone may call it.
func (a *Attempt) Wake() { a.abort.wake() }

// Culprit is the engine that the attempt has failed at by e.
func (a *Attempt) Culprit(e *infer.Error) *route.Target {
	if a.partner.blames(e) {
		return &a.partner.target
	}
	return &a.Target
}

// Word returns the error of an attempt that has failed by e before any output.
func (a *Attempt) Word(e *infer.Error) *infer.Error { return a.partner.word(e) }

// Said returns the prefill engine's own response for the client, if that response is why the attempt
// failed by e, and nil otherwise.
func (a *Attempt) Said(e *infer.Error) *Refusal { return a.partner.said(e) }

// decodes implements whole.
func (a *Attempt) decodes() *route.Target { return &a.Target }

// Begins has the first part of the attempt's answer begin the response, or go on with it, and returns
// what is sent of it. An error is why it does not: another attempt follows.
func (a *Attempt) Begins(part answer.Part) (out []byte, err error) {
	if a.begun {
		// The answer has consumed the input, so its output is sent even if the attempt
		// leaves.
		_ = a.escape.answers()
		return a.withNote(part.Out), nil
	}
	if f := part.Failed; f != nil && a.couldRetry(f) {
		f.Handover = a.partner != nil && f.Code == infer.CodeEngine // as by a status
		return nil, f
	}
	if err := a.escape.answers(); err != nil {
		return nil, err
	}
	a.begun = true
	return part.Out, nil
}
