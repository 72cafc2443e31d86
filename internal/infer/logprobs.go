package infer

// Logprobs are the log probabilities of consecutive ids. Each position has the log
// probability of the id itself and as many alternatives as the request asked for
// (Request.Logprobs), the most probable first. The id may be among the alternatives.
// The logarithms are natural; an impossible id has minus infinity.
//
// Engines compute them in 32 bits, so float32 loses no digit.
type Logprobs struct {
	// Own are the log probabilities of the ids themselves.
	Own []float32
	// TopIDs and Top are the alternatives of all positions, in the order of the
	// positions.
	TopIDs []uint32
	Top    []float32
	// Prompt are the log probabilities of the prompt, if the request asked for them
	// (Request.LogprobsFrom). An adapter sets them with the first Logprobs of a choice; they
	// are nil otherwise.
	Prompt *PromptLogprobs
}

// PromptLogprobs are the log probabilities of a prompt's ids, from the requested position
// on. They are immutable, so a receiver may keep them.
type PromptLogprobs struct {
	// IDs are the prompt's ids. The first one has no log probability, because no id precedes
	// it.
	IDs []uint32
	// Logprobs are the log probabilities of the IDs after the first.
	Logprobs
}

// Append adds the positions of other Logprobs of the same request.
func (l *Logprobs) Append(m *Logprobs) {
	l.Own = append(l.Own, m.Own...)
	l.TopIDs = append(l.TopIDs, m.TopIDs...)
	l.Top = append(l.Top, m.Top...)
	if m.Prompt != nil {
		l.Prompt = m.Prompt
	}
}

// Reset removes all positions and keeps the memory.
func (l *Logprobs) Reset() { *l = Logprobs{Own: l.Own[:0], TopIDs: l.TopIDs[:0], Top: l.Top[:0]} }

// Cut returns the positions from one to before another, with top alternatives at
// each, and those of the prompt. The result shares memory with l.
func (l *Logprobs) Cut(from, to, top int) Logprobs {
	return Logprobs{Own: l.Own[from:to], TopIDs: l.TopIDs[from*top : to*top], Top: l.Top[from*top : to*top], Prompt: l.Prompt}
}

// Fits reports whether there are n positions with top alternatives at each. nil has
// no positions.
func (l *Logprobs) Fits(n, top int) bool {
	if l == nil {
		return n == 0
	}
	return len(l.Own) == n && len(l.TopIDs) == n*top && len(l.Top) == n*top
}
