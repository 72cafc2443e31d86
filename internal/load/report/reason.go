package report

import (
	"cmp"
	"fmt"
	"strings"

	"weir/internal/infer"
)

// StageStall replaces a stage during most of which weir itself was stalled.
const StageStall = "stall"

// StageGap replaces a stage during most of which the engine sent nothing between two outputs, after
// others that came faster.
const StageGap = "gap"

// Reason is why a request took as long as it did.
type Reason struct {
	// Stage is the longest stage of the longer part of its time (before or after its first
	// output), and For its length in milliseconds.
	Stage    string   `json:"stage"`
	For      float64  `json:"ms"`
	Sentence string   `json:"sentence"`
	Stages   []Lasted `json:"stages"`
}

// Lasted is a stage of a request in milliseconds; Start is since its arrival.
type Lasted struct {
	Stage string  `json:"stage"`
	Start float64 `json:"start_ms"`
	For   float64 `json:"ms"`
}

// reasons explain what a stage means for a request; %s is the engine.
var reasons = map[string]string{
	StageRead:      "its client had not sent all of it",
	StageTemplate:  "the model's chat template was rendered",
	StageTokenWait: "it waited for the tokenizing pool, which was full",
	StageTokenize:  "its text became ids",
	StageQueue:     "it waited in weir until an engine had room",
	StageRetry:     "earlier attempts at engines",
	StageRouter:    "weir's own work before the engine",
	StageDispatch:  "on its way to engine %s",
	StageIntake:    "engine %s had not put it into its queue",
	StageWaiting:   "engine %s had it wait for a batch",
	StageBootstrap: "the two engines had not met",
	StagePrefill:   "engine %s computed the prompt",
	StageTransfer:  "the prompt's KV was on its way to engine %s",
	StageToRunning: "engine %s had not put it into its batch",
	StageEngine:    "engine %s had it, and does not say more",
	StageOutput:    "engine %s had not sent its first token",
	StageHop:       "on its way from engine %s to weir: the engine's server process, or the network",
	StagePath:      "weir had the first output, and had not written it",
	StageDelivery:  "its client did not take the first output",
	StageDecode:    "engine %s generated",
	StageFlush:     "its client did not take what weir wrote",
}

// ReasonOf returns the reason for a record.
func ReasonOf(g *Record) Reason {
	row := OfRecord(g)
	streamed := g.Stream && g.FirstFlushed != 0
	if !streamed { // what is not streamed is written at its end
		row.FirstFlushed, row.FirstContent = 0, 0
	}
	spans, _ := row.Spans()
	r := Reason{Stages: make([]Lasted, len(spans))}
	total, first := g.Finished-g.Arrival, int64(0)
	if streamed {
		first = g.FirstFlushed - g.Arrival
	}
	var before, after Span
	for i, s := range spans {
		r.Stages[i] = Lasted{s.Stage, round(s.Start), round(s.For)}
		most := &before
		if streamed && (s.Stage == StageDecode || s.Stage == StageFlush || s.Stage == StageEnd) {
			most = &after
		}
		if s.For > most.For {
			*most = s
		}
	}
	var b strings.Builder
	if g.Outcome != infer.Finished.String() {
		fmt.Fprintf(&b, "It was %s", g.Outcome)
		if g.Outcome == infer.Failed.String() {
			b.Reset()
			b.WriteString("It failed")
		}
		if g.Code != "" {
			fmt.Fprintf(&b, ": %s", g.Code)
		}
		if g.Error != "" {
			fmt.Fprintf(&b, " (%s)", g.Error)
		}
		b.WriteString(". ")
	}
	main, whole := before, total
	switch {
	case !streamed:
		fmt.Fprintf(&b, "It took %s", lasting(total))
		row.because(&b, g, before, total)
	default:
		fmt.Fprintf(&b, "Its first output took %s", lasting(first))
		row.because(&b, g, before, first)
		whole = first
		if rest := total - first; rest > first {
			fmt.Fprintf(&b, " From there %s took %s", tokens(g.came()), lasting(rest))
			row.because(&b, g, after, rest)
			main, whole = after, rest
		}
	}
	r.Stage, r.For = main.Stage, round(main.For)
	for i := range g.Attempts {
		for k := range g.Attempts[i].Legs {
			if leg := &g.Attempts[i].Legs[k]; leg.Retracted > 0 {
				fmt.Fprintf(&b, " Engine %s sent it back to its queue %s.", leg.Engine, times(leg.Retracted))
			}
		}
	}
	if gap := g.longGap(); gap != nil {
		part, ns, words := gap.most()
		fmt.Fprintf(&b, " Its longest gap was %s, before token %d, and %s of that %s.", lasting(gap.For), gap.Token, lasting(ns), words)
		if 2*gap.For > whole {
			r.Stage, r.For = part, round(ns)
		}
	}
	stalled, why := g.stalled()
	if stalled > 0 {
		fmt.Fprintf(&b, " For %s of it weir itself stood still, held by %s.", lasting(stalled), why)
	}
	if 2*stalled > whole {
		r.Stage, r.For = StageStall, round(stalled)
	}
	r.Sentence = b.String()
	return r
}

// A gap is named if it lasts as long as leastGap, and longGap times as long as the others did in the
// mean.
const (
	leastGap = int64(100e6)
	longGap  = 5
)

// longGap returns the longest gap if it is much longer than the others, otherwise nil.
func (r *Record) longGap() *Gap {
	gap := r.Gap
	if gap == nil || gap.For < leastGap || r.came() < 3 {
		return nil
	}
	others := max(r.LastReceived-r.FirstReceived-gap.For, 0) / int64(r.came()-2)
	if gap.For < longGap*others {
		return nil
	}
	return gap
}

// came returns how many tokens came. An engine that is relayed states their number only to clients
// that ask for it.
func (r *Record) came() int {
	if r.CompletionTokens == 0 && r.Gap != nil {
		return r.Gap.Tokens
	}
	return r.CompletionTokens
}

// most returns the stage that holds most of a gap, how long it does, and words for it.
func (g *Gap) most() (stage string, ns int64, words string) {
	switch max(g.Before, g.Weir, g.Client) {
	case g.Before:
		return StageGap, g.Before, fmt.Sprintf("was before weir: engine %s sent nothing, or it was on its way", cmp.Or(g.Engine, "?"))
	case g.Client:
		return StageFlush, g.Client, "was its client's, who did not take what weir wrote"
	default:
		return StagePath, g.Weir, "was in weir, which had the output"
	}
}

// because writes which stage took most of a time, and what that means.
func (r *Row) because(b *strings.Builder, g *Record, most Span, of int64) {
	if most.For == 0 || of <= 0 {
		b.WriteString(".")
		return
	}
	fmt.Fprintf(b, ", and %s of that (%.0f %%) was %s", lasting(most.For), 100*float64(most.For)/float64(of), most.Stage)
	words, ok := reasons[most.Stage]
	if ok && strings.Contains(words, "%s") {
		engine := r.Engine
		if most.Stage == StagePrefill || most.Stage == StageIntake || most.Stage == StageWaiting {
			engine = cmp.Or(r.PrefillEngine, engine)
		}
		words = fmt.Sprintf(words, cmp.Or(engine, "?"))
	}
	if ok {
		b.WriteString(": " + words)
	}
	b.WriteString(".")
}

// stalled returns for how long weir stood still within the request's time, and what held it
// in the longest of these times.
func (r *Record) stalled() (ns int64, why string) {
	longest := int64(0)
	for _, s := range r.Stalls {
		had := max(0, min(s.Start+s.For, r.Finished)-max(s.Start, r.Arrival))
		if ns += had; had > longest {
			longest, why = had, cmp.Or(s.Why, unknownHolder)
		}
	}
	return ns, why
}

func tokens(n int) string {
	if n == 1 {
		return "1 token"
	}
	return fmt.Sprintf("%d tokens", n)
}

// unknownHolder stands for the cause of a stall if the request ended before it was known.
const unknownHolder = "what is not known"

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// lasting writes a duration for a sentence.
func lasting(ns int64) string {
	switch ms := float64(ns) / 1e6; {
	case ms >= 10e3:
		return fmt.Sprintf("%.0f s", ms/1e3)
	case ms >= 1e3:
		return fmt.Sprintf("%.1f s", ms/1e3)
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.1f ms", ms)
	}
}

// round returns milliseconds to the microsecond.
func round(ns int64) float64 { return float64(ns/1e3) / 1e3 }

func requests(n int) string {
	if n == 1 {
		return "1 request"
	}
	return fmt.Sprintf("%d requests", n)
}
