package health

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// cause is why a rank is not up.
type cause uint8

const (
	bySilence cause = iota
	byStarts        // requests are not begun, while others go on
	byTransport
	byFaults
)

// String is the cause's word in metrics.
func (c cause) String() string { return [...]string{"silence", "starts", "transport", "faults"}[c] }

// Rank is one engine rank: of an engine that names no ranks, the whole.
type Rank struct {
	fleet *Fleet
	Member
	present bool

	state State
	since int64 // by the events' clock
	why   string
	cause cause
	// evidence is what made a suspect of it, in words.
	evidence string
	softAt   int64

	tokens, firsts lane
	given          int // requests that it was ever handed
	backlog        backlog
	emptied        int64 // when a request was given up last
	failures       failures

	probing  probing
	sampling sampling
	ejection ejection
	comeback comeback

	latest []begun // requests, by priority
	// compared is the latest look at the requests' progress, and counting the next one.
	compared, counting comparison
}

// String names it.
func (r *Rank) String() string {
	if r.Member.Rank < 0 {
		return r.Member.Engine
	}
	return r.Member.Engine + "/" + strconv.Itoa(r.Member.Rank)
}

func (r *Rank) serves(model string) bool { return slices.Contains(r.Serves, model) }

// Takes returns which requests the rank may get now.
func (r *Rank) Takes() Takes {
	switch {
	case !r.present, r.state == Draining, r.state == Down:
		return Never
	case r.state == Up && r.comeback.room(r.fleet.seen) != 0:
		return Freely
	case r.state == Suspect, r.state == Probing:
		return AtLast
	}
	return Otherwise
}

// View returns it as it is now.
func (r *Rank) View() View {
	cause := ""
	if r.state != Up && r.state != Draining {
		cause = r.cause.String()
	}
	return View{
		Cause: cause,
		Next:  r.nextProbed(),
		State: r.state, Since: r.since, Why: r.why, Takes: r.Takes(), Present: r.present, Open: r.tokens.n, Given: r.given,
		Silence: time.Duration(r.tokens.silence(r.fleet.seen)), Gap: time.Duration(r.tokens.gap), Limit: r.comeback.room(r.fleet.seen), Ejections: r.ejection.count,
	}
}

// nextProbed is in how long a rank that is down is probed next.
func (r *Rank) nextProbed() time.Duration {
	if r.state != Down || !r.present {
		return 0
	}
	return time.Duration(max(r.ejection.until, r.probing.next) - r.fleet.seen)
}

// Joined reports that the rank's engine can be reached. fresh is set if it is not the
// process that was there before.
func (r *Rank) Joined(now int64, fresh bool) {
	if r.present {
		return
	}
	at := r.fleet.at(now)
	r.present = true
	r.pardon(at)
	if fresh {
		r.failures = failures{}
	}
	switch {
	case r.state == Down:
		r.probing.next = max(at, r.ejection.until)
	case r.state == Draining:
	case fresh && r.state != Up:
		r.to(Up, "it is there again, as a new process")
	case r.state == Suspect || r.state == Probing:
		r.probing.next = at
		r.to(Suspect, "it is there again; before, "+r.evidence)
	}
	r.fleet.release(at)
}

// Left reports that its engine cannot be reached, which its adapter knows.
func (r *Rank) Left(now int64) {
	at := r.fleet.at(now)
	if !r.present {
		return
	}
	r.present = false
	r.fleet.release(at)
}

// Drain reports that it takes no new requests.
func (r *Rank) Drain(now int64, why string) {
	at := r.fleet.at(now)
	if r.state != Draining {
		r.to(Draining, why)
		r.fleet.release(at)
	}
}

// Undrain reports that it takes requests again.
func (r *Rank) Undrain(now int64, why string) {
	at := r.fleet.at(now)
	if r.state == Draining {
		r.pardon(at)
		r.failures = failures{}
		r.to(Up, why)
	}
}

// HandedOver reports that a request is being handed over. work is the predicted time in
// milliseconds until the request shows progress, if it were alone on the rank; it is
// negative if unknown. Each request that was handed over ends once.
func (r *Rank) HandedOver(q *Request, now int64, work float64) {
	if r.tokens.n == 0 && r.fleet.at(now)-r.emptied >= int64(r.fleet.limits.Work*float64(r.backlog.total())) {
		r.backlog.settle(0) // of what was given up nothing can be left
	}
	*q = Request{rank: r, at: r.fleet.at(now), work: max(work, 0), epoch: r.backlog.epoch, life: r.comeback.life}
	r.tokens.add(q)
	r.firsts.add(q)
	r.comeback.newer++
	r.given++
	r.backlog.add(work)
	r.explain(q.at)
}

// Sent reports that the request was sent no earlier than sent. Its wait since the
// hand-over was caused by the gateway.
func (q *Request) Sent(now, sent int64) {
	r := q.rank
	if r == nil || q.started {
		return
	}
	at := r.fleet.at(now) - max(now-sent, 0)
	if at <= q.at {
		return
	}
	seen := r.fleet.at(now)
	overdue := r.overdue(seen)
	r.tokens.remove(q, false)
	r.firsts.remove(q, false)
	q.at = at
	r.tokens.add(q)
	r.firsts.add(q)
	if r.state == Soft && overdue && !r.overdue(seen) {
		r.to(Up, "its requests were sent late by the gateway")
	}
}

// overdue reports whether the rank is silent for longer than is usual there.
func (r *Rank) overdue(at int64) bool {
	return r.tokens.silence(at) >= r.softBound(&r.tokens) || r.firsts.silence(at) >= r.softBound(&r.firsts)
}

// Started reports that the request has had its first token.
func (q *Request) Started(now int64) {
	if r := q.rank; r != nil && !q.started {
		at := r.fleet.at(now)
		q.started = true
		r.begins(q)
		r.tokens.show(at)
		r.firsts.show(at)
		r.firsts.remove(q, false)
		r.progress(at, aStart)
	}
}

// Progressed reports that requests of this gateway got tokens, or that a step was made
// for them. left is the predicted work in milliseconds until all of them have shown
// progress; it is negative if unknown.
func (r *Rank) Progressed(now int64, tokens int, left float64) {
	if tokens <= 0 {
		return
	}
	r.backlog.settle(max(left, 0))
	r.backlog.unknown = left < 0 && r.firsts.n > 0
	at := r.fleet.at(now)
	r.tokens.show(at)
	r.explain(at)
	r.progress(at, aToken)
}

// Ahead sets the part of the work left that precedes the next progress of any request, in
// milliseconds; 0 or less if that may be all of it. Work behind that does not explain a
// silence: even in a queue of an hour some request always progresses.
func (r *Rank) Ahead(now int64, ms float64) {
	r.backlog.ahead = max(ms, 0)
	r.explain(r.fleet.at(now))
}

// Ended reports how a request ended. Later reports about the request are ignored.
func (q *Request) Ended(now int64, how End) {
	r := q.rank
	if r == nil {
		return
	}
	at := r.fleet.at(now)
	if how == Done {
		r.tokens.show(at)
		if !q.started {
			r.firsts.show(at)
		}
	}
	r.tokens.remove(q, how == GaveUp)
	if !q.started {
		r.firsts.remove(q, how == GaveUp)
	}
	if q.life == r.comeback.life {
		r.comeback.newer--
	}
	switch {
	case how == GaveUp:
		r.emptied = at // the engine may still be at it
		if !q.started {
			r.backlog.abandoned += q.work
		}
	case r.tokens.n == 0:
		r.backlog.settle(0)
	case q.epoch == r.backlog.epoch:
		r.backlog.added = max(r.backlog.added-q.work, 0)
	}
	q.rank = nil
	r.explain(at)
	r.end(at, how)
}

func (r *Rank) end(at int64, how End) {
	switch how {
	case Done:
		r.progress(at, aWhole)
		return
	case Cut:
		r.failures.cuts++
	case Fault:
		r.failures.faults++
	case Refused:
	default:
		return
	}
	if !r.present || r.state != Up && r.state != Soft {
		return
	}
	switch {
	case how == Refused:
		r.cause = byTransport
		r.suspect(at, "a connection was refused")
	case how == Cut && r.failures.cuts >= r.fleet.limits.Faults:
		r.cause = byTransport
		why := fmt.Sprintf("the connections of %d requests in a row were cut", r.failures.cuts)
		if r.comeback.under {
			why = "the connection of a request was cut again"
		}
		r.suspect(at, why)
	case how == Fault && r.failures.faults >= r.fleet.limits.Faults:
		r.cause = byFaults
		r.evidence = fmt.Sprintf("%d requests in a row failed there", r.failures.faults)
		if r.comeback.under {
			r.evidence = "a request failed there again"
		}
		if r.Generates {
			r.suspect(at, r.evidence)
		} else {
			r.convict(at, r.evidence, false)
		}
	}
}

// Probed reports the result of a probe.
func (r *Rank) Probed(now int64, result Result, why string) {
	at := r.fleet.at(now)
	if !r.present {
		return
	}
	switch r.state {
	case Suspect, Probing:
		r.judged(at, result, why)
	case Down:
		r.probedDown(at, result)
	}
}

// judged ends a suspicion, one way or the other.
func (r *Rank) judged(at int64, result Result, why string) {
	limits := &r.fleet.limits
	switch {
	case result == Failed || result == Nobody:
		r.convict(at, fmt.Sprintf("%s, and its probe failed: %s", r.evidence, why), result == Nobody)
	case r.cause == byFaults && result == Busy:
		r.probing.next = at + int64(limits.Retry)
		r.to(Suspect, r.evidence+", and it has no room for a probe")
	case r.cause == bySilence || r.cause == byStarts:
		// Its core lives, and its requests still owe progress.
		r.probing.cleared, r.probing.answered, r.softAt = at, true, at
		if result == Busy {
			r.sampling.until = 0 // it could not say what it computes for others, either
			r.to(Soft, "a probe could not tell whether it works, and its requests show no progress")
			return
		}
		r.to(Soft, "its probe was answered, but its requests show no progress")
	case result == Busy:
		r.failures.cuts = 0
		r.to(Up, "it can be reached")
	default:
		r.failures = failures{}
		r.to(Up, "its probe was answered")
	}
}

// probedDown takes the result of a probe of a rank that is down.
func (r *Rank) probedDown(at int64, result Result) {
	switch {
	case result == Answered && at >= r.ejection.until && !r.muted():
		r.halfOpen(at, "its probe was answered")
	case result == Nobody:
		r.ejection.refused = true
		r.fleet.release(at)
	case r.ejection.refused:
		// Somebody is there again, so that it is a matter of judgement now.
		r.ejection.refused = false
		r.fleet.release(at)
	}
}

// Sampled reports the result of a sample. A sample without an answer has none.
func (r *Rank) Sampled(now int64, result Result) {
	at := r.fleet.at(now)
	switch {
	case !r.present:
	case r.state == Down:
		r.sampledDown(at, result)
	case r.sampling.began == 0 || !r.owesAll():
	case result == Answered:
		r.halfOpen(at, "a request of weir's own was answered")
		r.sampling.next = at + int64(r.fleet.limits.longer(r.comeback.vouched))
		r.comeback.vouched++
	default: // which tells nothing of one that hangs
		r.sampling.until = 0
		if result == Busy { // so that a client's request must
			r.comeback.trialAt = min(r.comeback.trialAt, r.sampling.began+int64(r.fleet.limits.longer(r.comeback.trials)))
		}
	}
}

// sampledDown takes the result of a sample of a rank that is down.
func (r *Rank) sampledDown(at int64, result Result) {
	switch {
	case !r.muted():
	case result == Answered && at >= r.ejection.until:
		r.halfOpen(at, "a request of weir's own was answered")
	case result == Busy:
		r.sampling.mute = false // a client's request must tell, once its probe is answered
	}
}

// muted reports whether only a sample can show that a rank that is down works again.
func (r *Rank) muted() bool { return r.state == Down && r.sampling.mute && r.Samples }

// owesAll reports whether the rank's probe was answered, and that its requests show
// nothing all the same: only a request can show that it works again.
func (r *Rank) owesAll() bool {
	return (r.probing.answered || r.comeback.trials > 0) && (r.cause == bySilence || r.cause == byStarts) && (r.state == Soft || r.state == Suspect || r.state == Probing)
}

// sample sends a sample, if it is time. The rank is judged by the first one, which has as
// much time as a probe: the probe that was answered before states what the rank had computed
// by then. Further samples, which get through as soon as any does, have as much time as the
// rank's requests usually take. While none is answered, a client's request is no better a
// trial: it waits for the longest hold.
func (r *Rank) sample(at int64) {
	if !r.Samples || r.state != Soft || !r.owesAll() {
		return
	}
	if r.sampling.until > 0 && at >= r.sampling.until {
		r.unsampled(at)
		return
	}
	if at < r.sampling.next {
		return
	}
	limits := &r.fleet.limits
	if r.sampling.began == 0 {
		r.sampling.began = at
		r.comeback.trialAt = max(r.comeback.trialAt, at+int64(limits.longer(math.MaxInt)))
	}
	patience := max(limits.Retry, time.Duration(r.softBound(&r.firsts)))
	r.sampling.next = at + int64(patience)
	// It has been given up when the next one is due.
	p := Probe{Rank: r, Sample: true, Beside: true, Patience: patience - limits.Tick}
	if r.probing.answered && r.sampling.until == 0 {
		bound := r.probeBound()
		r.sampling.sent, r.sampling.until = at, at+bound
		p.Beside, p.Patience = false, 2*time.Duration(bound) // the rank ends the wait, by its own clock and a probe
	}
	r.fleet.probes = append(r.fleet.probes, p)
}

// unsampled judges a rank whose sample was not answered in time. The rank is probed once
// more, to find out whether it has computed for others meanwhile (Alive). Output of its loop
// by then, including the sample's token, may be read a little later than that probe's
// answer.
func (r *Rank) unsampled(at int64) {
	if r.probing.cleared < r.sampling.until {
		r.suspect(at, r.owing(at))
		return
	}
	if at-r.probing.cleared < int64(r.fleet.limits.Soft/2) {
		return
	}
	owing := r.owing(at)
	why := fmt.Sprintf("%s, and a request of weir's own was not answered for %v, although its probes were", owing, rounded(at-r.sampling.sent))
	r.sampling.until = 0
	r.convict(at, why, false)
	r.sampling.mute = r.state == Down
	r.evidence = owing // of the suspect that it stays where it cannot be spared
}

// Alive reports that the engine's core advances by other work than this gateway's: its
// token counters grow. This can only count in the rank's favor.
func (r *Rank) Alive(now int64) {
	at := r.fleet.at(now)
	r.probing.cleared, r.sampling.until = at, 0
	r.sampling.mute = false
	if (r.state == Suspect || r.state == Probing) && r.cause == bySilence {
		r.probing.answered, r.softAt = true, at
		r.to(Soft, "it works for others, but its requests show no progress")
	}
}

// sign is what shows that a rank works. Each is more than the one before.
type sign uint8

const (
	aToken sign = iota
	aStart      // a first token
	aWhole      // a request has ended well
)

// refutes reports whether a sign contradicts the suspicion.
func (s sign) refutes(c cause) bool {
	switch c {
	case byStarts:
		return s >= aStart
	case byFaults:
		return s >= aWhole
	}
	return true
}

// progress records a sign, which the lanes have recorded before.
func (r *Rank) progress(at int64, s sign) {
	r.failures.cuts, r.comeback.trials, r.comeback.trialAt = 0, 0, 0
	r.comeback.vouched, r.sampling.began, r.sampling.until = 0, 0, 0
	r.sampling.next = min(r.sampling.next, at+int64(r.fleet.limits.Retry))
	if s == aWhole {
		r.failures.faults = 0
	}
	if !s.refutes(r.cause) {
		return
	}
	if r.comeback.under && r.comeback.slowFrom == 0 {
		r.comeback.slowFrom = at
	}
	switch r.state {
	case Down:
		r.ejection.revived = true
	case Soft:
		if r.cause == bySilence && r.firsts.silence(at) >= r.softBound(&r.firsts) {
			r.cause = byStarts
			return
		}
		r.to(Up, "its requests show progress")
	case Suspect, Probing:
		r.to(Up, "its requests show progress")
	}
}

// pardon restarts all silences.
func (r *Rank) pardon(at int64) {
	r.tokens.shown, r.firsts.shown, r.probing.cleared = max(r.tokens.shown, at), max(r.firsts.shown, at), at
	r.sampling.until = 0
}

// explain records the work that explains a silence: the work that was there when it began
// or arrived in its first moments. Later work waits behind that. If it counted, a fully
// loaded rank would never be silent for longer than its work.
func (r *Rank) explain(at int64) {
	for _, l := range [...]*lane{&r.tokens, &r.firsts} {
		work := r.backlog.total()
		if l == &r.tokens {
			work = r.backlog.next(r.tokens.n > 0)
		}
		if l.silence(at) >= int64(r.fleet.limits.Soft) {
			work = min(work, l.work)
		}
		l.work = work
	}
}

func (r *Rank) softBound(l *lane) int64 {
	limits := &r.fleet.limits
	return max(int64(limits.Soft), int64(limits.Gaps*l.gap), l.work)
}

func (r *Rank) suspectBound() int64 {
	limits := &r.fleet.limits
	return max(int64(limits.Suspect), int64(limits.Work*float64(r.backlog.next(r.tokens.n > 0))), r.softBound(&r.tokens))
}

func (r *Rank) probeBound() int64 {
	bound := r.suspectBound()
	if r.backlog.unknown {
		bound = max(bound, int64(r.fleet.limits.First))
	}
	return bound
}

// tick judges by the time alone.
func (r *Rank) tick(at int64) {
	switch r.state {
	case Up:
		r.tickUp(at)
	case Soft:
		r.tickSoft(at)
		r.sample(at)
	case Probing:
		switch {
		case at >= r.probing.until:
			r.unanswered(at)
		case at >= r.probing.next:
			r.again(at) // its silence says nothing yet: the first may be on a connection that is lost
		}
	case Down:
		r.tickDown(at)
	}
	if r.state == Suspect && at >= r.probing.next {
		r.probe(at, r.probeBound())
		r.to(Probing, r.evidence)
	}
}

func (r *Rank) tickUp(at int64) {
	limits := &r.fleet.limits
	r.comeback.tick(at, limits)
	r.ejection.tick(at, limits)
	for _, l := range []*lane{&r.tokens, &r.firsts} {
		bound := r.softBound(l)
		if l.n == 0 || l.silence(at) < bound {
			continue
		}
		r.cause, r.softAt, r.probing.answered = bySilence, at, false
		what := "no progress"
		if l == &r.firsts {
			r.cause, what = byStarts, "no first token"
		}
		r.to(Soft, fmt.Sprintf("%s for %v with %d requests there; more than %v is unusual",
			what, rounded(l.silence(at)), l.n, rounded(bound)))
		return
	}
}

func (r *Rank) tickSoft(at int64) {
	limits := &r.fleet.limits
	silence := at - max(r.tokens.since(), r.probing.cleared)
	switch {
	case r.tokens.n > 0 && silence >= r.suspectBound() && at >= r.sampling.until:
		r.cause = bySilence
		r.suspect(at, r.owing(at))
	case r.tokens.n > 0 && (r.cause != byStarts || r.firsts.n > 0):
	case r.cause == byStarts && (r.probing.answered || r.tokens.n > 0 || silence < r.softBound(&r.tokens)):
		// Nothing is left there that could show a first token.
		if at-r.softAt >= int64(limits.Suspect) && r.triable(at) {
			r.halfOpen(at, "nothing waits there any more")
		}
	case !r.probing.answered:
		r.suspect(at, r.owing(at))
	case r.triable(at):
		r.halfOpen(at, "its probe was answered")
	}
}

// owing returns what the rank owes, in words.
func (r *Rank) owing(at int64) string {
	if r.tokens.n == 0 {
		return "its requests were given up without progress"
	}
	return fmt.Sprintf("no progress for %v with %d requests there", rounded(r.tokens.silence(at)), r.tokens.n)
}

// triable reports whether a client's request may be the trial of the rank. One that can
// be sampled is sampled first.
func (r *Rank) triable(at int64) bool {
	return at >= r.comeback.trialAt && (r.sampling.began > 0 || !r.Samples || !r.owesAll())
}

func (r *Rank) tickDown(at int64) {
	switch {
	case at < r.ejection.until:
	case r.ejection.revived:
		r.halfOpen(at, "its requests show progress")
	case at >= r.probing.next:
		// One probe is waited for as long as a busy engine may take. Those beside it
		// are new connections, which get through as soon as any does.
		if at >= r.probing.until {
			r.probe(at, r.probeBound())
			return
		}
		r.again(at)
	}
}

// again sends a probe beside the one that is waited for.
func (r *Rank) again(at int64) {
	limits := &r.fleet.limits
	r.probing.next = at + int64(limits.Retry)
	p := Probe{Rank: r, Patience: 2 * limits.Retry, Beside: true}
	if r.muted() { // its probe shows only whether it has computed for others
		r.fleet.probes = append(r.fleet.probes, p)
		p.Sample, p.Patience = true, limits.Retry-limits.Tick
	}
	r.fleet.probes = append(r.fleet.probes, p)
}

// probe sends the probe that is waited for.
func (r *Rank) probe(at, bound int64) {
	r.probing.sent, r.probing.until, r.probing.next = at, at+bound, at+int64(r.fleet.limits.Retry)
	p := Probe{Rank: r, Patience: time.Duration(bound) - r.fleet.limits.Tick, Sample: r.muted()}
	if r.state != Down {
		p.Patience = 2 * time.Duration(bound) // the rank ends the wait, by its own clock
	}
	r.fleet.probes = append(r.fleet.probes, p)
}

// unanswered records that a suspect's probe was not answered.
func (r *Rank) unanswered(at int64) {
	if r.tokens.shown > r.probing.sent {
		// A wait behind others' work is not evidence.
		r.probing.next = at + int64(r.fleet.limits.Retry)
		r.to(Suspect, r.evidence+", and its probe waits while others go on")
		return
	}
	r.convict(at, fmt.Sprintf("%s, and its probe was not answered for %v", r.evidence, rounded(at-r.probing.sent)), false)
}

// suspect makes the rank a suspect. Its probe is due at once.
func (r *Rank) suspect(at int64, why string) {
	r.evidence, r.probing.next = why, at
	r.to(Suspect, why)
}

// convict takes the rank down, unless the fleet cannot spare it.
func (r *Rank) convict(at int64, why string, refused bool) {
	limits := &r.fleet.limits
	if !refused && !r.fleet.spares(r) {
		if r.state == Up || r.state == Soft {
			r.suspect(at, why)
		}
		r.probing.next = at + int64(limits.Retry)
		r.to(Suspect, why+"; it stays because too few would be left")
		return
	}
	r.takeDown(at, why, refused)
	if refused {
		// Nobody there is nobody for any rank of the engine.
		for _, x := range r.fleet.ranks {
			if x.Engine == r.Engine && x.present && x.state != Down && x.state != Draining {
				x.cause = byTransport
				x.takeDown(at, why, true)
			}
		}
	}
	r.fleet.release(at)
}

func (r *Rank) takeDown(at int64, why string, refused bool) {
	// Without progress in between it is still the same failure.
	r.ejection.begin(at, !r.comeback.under || r.comeback.slowFrom > 0, &r.fleet.limits)
	r.probing.next, r.probing.until = r.ejection.until, 0
	r.ejection.refused, r.comeback.under = refused, false
	r.sampling.until, r.sampling.mute = 0, false
	r.to(Down, why)
}

// halfOpen brings it back for one request.
func (r *Rank) halfOpen(at int64, why string) {
	limits := &r.fleet.limits
	r.comeback.begin(at, limits)
	r.failures.cuts, r.failures.faults = limits.Faults-1, limits.Faults-1
	r.pardon(at)
	r.ejection.calmFrom = at
	r.to(Up, why+"; it gets one request")
}

// to changes the state, and keeps the reason.
func (r *Rank) to(state State, why string) {
	from := r.state
	r.state, r.why = state, why
	if from == state {
		return
	}
	r.since = r.fleet.now
	r.fleet.changes = append(r.fleet.changes, Change{Now: r.since, Rank: r, From: from, To: state, Why: why})
}

// rounded is a duration as it is told.
func rounded(ns int64) time.Duration { return time.Duration(ns).Round(100 * time.Millisecond) }
