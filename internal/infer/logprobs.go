package infer

// Logprobs are the log probabilities of a run of ids, a position for each. At
// each there is that of the id itself, and as many alternatives as the request
// asked for (Request.Logprobs), the most probable first; the id may be among
// them. They are natural logarithms, and minus infinity of what cannot be.
//
// Engines compute them in 32 bits, and no digit is lost here.
type Logprobs struct {
	// Own are those of the ids themselves.
	Own []float32
	// TopIDs and Top are the alternatives of all positions, one position after
	// another.
	TopIDs []uint32
	Top    []float32
	// Prompt are those of the prompt, with the first of a choice's that an adapter gives, where
	// the request asked for them (Request.LogprobsFrom); nil otherwise.
	Prompt *PromptLogprobs
}

// PromptLogprobs are the log probabilities of a prompt's ids, from the position on that was
// asked for. It does not change once it is given, so that whoever has it may keep it.
type PromptLogprobs struct {
	// IDs are the prompt's. The first one has no log probability: an engine computes those of
	// ids that follow others.
	IDs []uint32
	// Logprobs are those of the IDs after the first.
	Logprobs
}

// Append adds the positions of another run, of the same request.
func (l *Logprobs) Append(m *Logprobs) {
	l.Own = append(l.Own, m.Own...)
	l.TopIDs = append(l.TopIDs, m.TopIDs...)
	l.Top = append(l.Top, m.Top...)
	if m.Prompt != nil {
		l.Prompt = m.Prompt
	}
}

// Reset makes it empty and keeps its memory.
func (l *Logprobs) Reset() { *l = Logprobs{Own: l.Own[:0], TopIDs: l.TopIDs[:0], Top: l.Top[:0]} }

// Cut returns the positions from one to before another, with so many alternatives
// at each, and the prompt's. They share its memory.
func (l *Logprobs) Cut(from, to, top int) Logprobs {
	return Logprobs{Own: l.Own[from:to], TopIDs: l.TopIDs[from*top : to*top], Top: l.Top[from*top : to*top], Prompt: l.Prompt}
}

// Fits reports whether they are of n ids with so many alternatives at each. A nil
// one is of none.
func (l *Logprobs) Fits(n, top int) bool {
	if l == nil {
		return n == 0
	}
	return len(l.Own) == n && len(l.TopIDs) == n*top && len(l.Top) == n*top
}
