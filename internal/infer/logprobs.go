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
}

// Append adds the positions of another run, of the same request.
func (l *Logprobs) Append(m *Logprobs) {
	l.Own = append(l.Own, m.Own...)
	l.TopIDs = append(l.TopIDs, m.TopIDs...)
	l.Top = append(l.Top, m.Top...)
}

// Reset makes it empty and keeps its memory.
func (l *Logprobs) Reset() { l.Own, l.TopIDs, l.Top = l.Own[:0], l.TopIDs[:0], l.Top[:0] }

// Cut gives the positions from one to before another, with so many alternatives
// at each. They share its memory.
func (l *Logprobs) Cut(from, to, top int) Logprobs {
	return Logprobs{Own: l.Own[from:to], TopIDs: l.TopIDs[from*top : to*top], Top: l.Top[from*top : to*top]}
}

// Fits says whether they are of n ids with so many alternatives at each. A nil
// one is of none.
func (l *Logprobs) Fits(n, top int) bool {
	if l == nil {
		return n == 0
	}
	return len(l.Own) == n && len(l.TopIDs) == n*top && len(l.Top) == n*top
}
