package trace

import "cmp"

// PairPoint is a point in the course of a request that a prefill and a decode engine serve.
// Code, timeline, metrics and documentation use the same word for it.
type PairPoint uint8

// The points in order. All come after the hand-over.
const (
	Met         PairPoint = iota // the halves have found each other
	Prefilled                    // the prompt is computed
	Transferred                  // its KV is at the decode engine
	Running                      // the decode engine decodes it
	FirstOutput                  // the gateway has the decode engine's first output
	NumPairPoints
)

var pairPointNames = [NumPairPoints]string{"met", "prefilled", "transferred", "running", "first_output"}

// String returns the point's name.
func (p PairPoint) String() string { return pairPointNames[p] }

// NumPairStages is how many stages a pair has.
const NumPairStages = 5

// PairStages are the names of the stages between points, in the order of Pair.Stages.
var PairStages = [NumPairStages]string{"bootstrap", "prefill", "transfer", "waiting_to_running", "decode"}

// Pair divides the time of a request that two engines served.
type Pair struct {
	Handed   int64                // the first half was handed over
	At       [NumPairPoints]int64 // 0: not known
	Answered int64                // the prefill engine answered; 0: the decode half ended before
	Ended    int64                // the request's end
}

// Pair returns the points that the request has passed. ok is false if it was not served by
// two engines, or has no output.
//
// A point is the engine's own stamp, on the gateway's clock, if there is one. Otherwise the prefill
// engine's answer shows that the prompt is computed. For engines that answer later it shows that
// the KV is at the decode engine. Nothing is estimated.
func (r *Record) Pair() (p Pair, ok bool) {
	decode := r.Leg()
	if decode == nil || decode.Role != "decode" || r.FirstReceived == 0 {
		return Pair{}, false
	}
	prefill := &r.Attempts[len(r.Attempts)-1].Legs[0]
	of, to := &prefill.Stamps, &decode.Stamps
	p.Handed, p.Answered, p.Ended = prefill.Handed, prefill.Answered, r.Finished
	p.At[Met] = cmp.Or(of.BootstrapEnd, to.BootstrapEnd)
	if p.At[Prefilled] = cmp.Or(of.PrefillEnd, of.FirstToken); p.At[Prefilled] == 0 && prefill.Fetched == 0 {
		p.At[Prefilled] = prefill.Answered
	}
	p.At[Transferred] = cmp.Or(to.TransferEnd, prefill.Fetched)
	p.At[Running] = to.WaitingToRunning
	p.At[FirstOutput] = r.FirstReceived
	return p, p.Handed != 0
}

// Since returns how long after the hand-over a point came, -1 if that is not known.
func (p *Pair) Since(at PairPoint) int64 { return span(p.Handed, p.At[at]) }

// Stages returns the duration of each stage, in the order of PairStages. It is -1 if an end
// of the stage is not known, or if the clocks of two machines contradict each other. If the
// halves do not look for each other before the prompt is computed, there is no bootstrap,
// and prefill begins with the hand-over. If nothing stamps the beginning of decoding,
// decoding begins with its first output.
func (p *Pair) Stages() [NumPairStages]int64 {
	return [NumPairStages]int64{
		span(p.Handed, p.At[Met]),
		span(cmp.Or(p.At[Met], p.Handed), p.At[Prefilled]),
		span(p.At[Prefilled], p.At[Transferred]),
		span(p.At[Transferred], p.At[Running]),
		span(cmp.Or(p.At[Running], p.At[FirstOutput]), p.Ended),
	}
}

// Phase is a part of an engine's time for a request.
type Phase uint8

// The phases in their order.
const (
	PhaseQueue   Phase = iota // in the engine's queue
	PhasePrefill              // computing the prompt
	PhaseDecode               // generating
	NumPhases
)

// PhaseNames are the names of the phases.
var PhaseNames = [NumPhases]string{"queue", "prefill", "decode"}

// Phases divides the engine's time by its stamps, and by those of both engines of a pair. A phase
// of which an end is not known is -1. Decoding lasts until weir has read the last output.
func (r *Record) Phases() (ns [NumPhases]int64) {
	ns = [NumPhases]int64{-1, -1, -1}
	leg := r.Leg()
	if leg == nil {
		return ns
	}
	first, last := &leg.Stamps, int64(0)
	if r.Pace != nil {
		last = r.Pace.Last
	}
	if p, ok := r.Pair(); ok {
		first = &r.Attempts[len(r.Attempts)-1].Legs[0].Stamps
		ns[PhasePrefill], ns[PhaseDecode] = p.Stages()[1], span(cmp.Or(p.At[Running], p.At[FirstOutput]), last)
	} else {
		computed := cmp.Or(first.FirstToken, first.PrefillEnd)
		ns[PhasePrefill], ns[PhaseDecode] = span(cmp.Or(first.PrefillStart, first.QueueEnd), computed), span(computed, last)
	}
	ns[PhaseQueue] = span(first.QueueStart, first.QueueEnd)
	return ns
}

// Prefill returns the time from the hand-over to the prefill engine's answer, by the
// gateway's clock; -1 if the decode engine's first output came before the answer.
func (p *Pair) Prefill() int64 { return span(p.Handed, p.Answered) }

// Handover returns the time from the prefill engine's answer to the decode engine's
// first output, by the gateway's clock; -1 if the output came first.
func (p *Pair) Handover() int64 { return span(p.Answered, p.At[FirstOutput]) }

// span is the time between two stamps, -1 where there is none.
func span(from, to int64) int64 {
	if from == 0 || to < from {
		return -1
	}
	return to - from
}
