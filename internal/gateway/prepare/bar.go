package prepare

// Bar is the reason why a stream cannot continue at another engine.
type Bar uint8

// The reasons, in the order in which they are checked. BarOff, BarRelay and BarMemory are not the
// request's own.
const (
	GoesOn Bar = iota
	BarOff
	BarRelay
	BarWhole
	BarGuide
	BarChoices
	BarLogprobs
	BarSeed
	BarPenalties
	BarMedia
	BarVocabulary
	BarMemory
	numBars
)

// bars has the labels of the reasons in metrics, and what follows "it could not go on at another
// engine: " in messages. There is no row for a limit on thinking, because no dialect has a field
// that engines would enforce by counting.
var bars = [numBars]struct{ word, why string }{
	GoesOn:        {word: "none"},
	BarOff:        {"off", "that is switched off (--continuation)"},
	BarRelay:      {"relay", "the engine's ids are not known"},
	BarWhole:      {"not_streamed", "the answer is not streamed"},
	BarGuide:      {"guide", "the engine keeps where the output stands in its grammar"},
	BarChoices:    {"choices", "the request has several choices"},
	BarLogprobs:   {"logprobs", "the request has log probabilities, which other engines need not share"},
	BarSeed:       {"seed", "the request has a seed, and the engine keeps the state of its generator"},
	BarPenalties:  {"penalties", "the request has penalties, which count the output apart from the prompt"},
	BarMedia:      {"media", "the request has media, which weir does not keep"},
	BarVocabulary: {"vocabulary", "the model has more ids than are kept"},
	BarMemory:     {"memory", "the memory for what is kept of streams is used up (--continuation-memory)"},
}

// String returns the label in metrics.
func (b Bar) String() string { return bars[b].word }

// Why returns the reason for a message.
func (b Bar) Why() string { return bars[b].why }

// Bar returns why the answer cannot continue at another engine, as far as that depends on the
// request. ids is how many ids of a vocabulary can be kept.
func (q *Prepared) Bar(ids int) Bar {
	r := q.Request
	switch {
	case !r.Stream:
		return BarWhole
	case r.Guide != nil:
		return BarGuide
	case q.Count() > 1:
		return BarChoices
	case r.Logprobs != nil:
		return BarLogprobs
	case r.Sampling.Draws() && r.Sampling.Seed != nil:
		return BarSeed
	case r.Sampling.Penalizes():
		return BarPenalties
	case q.HasMedia:
		return BarMedia
	case q.Folder.VocabSize > ids:
		return BarVocabulary
	}
	return GoesOn
}
