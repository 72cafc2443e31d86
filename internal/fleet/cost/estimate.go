package cost

import "math"

// State is what a rank is busy with at a moment.
type State struct {
	Wait float64 // until what it has to prefill is done, in milliseconds
	Room float64 // and then until it has a place and room in its cache
	// Keeps is for how long the work keeps that from another one, in milliseconds.
	Keeps float64
	// Decoders are the requests there, which all decode when that is done.
	Decoders int
	// Horizon and Later are a Moment's.
	Horizon, Later float64
	Budget         float64 // the most tokens that a step prefills
	// Evicted are the tokens that leave the cache for the work and will be asked for again.
	Evicted float64
	// Shared is set if prefills wait there, with which new ones share steps.
	Shared bool
}

// Estimate returns what the work would cost on a rank of these coefficients.
func (c Coefficients) Estimate(s State, w Work) (e Estimate) {
	c.estimate(&s, &w, &e)
	return e
}

func (c *Coefficients) estimate(s *State, w *Work, e *Estimate) {
	n, length, k := float64(w.New), float64(w.Length), float64(s.Decoders)
	whole, steps := steps(n, s.Budget, s.Shared)
	own, mixed, stalled := c.prefill(n, length, k, s.Later, whole, steps)
	e.Wait, e.Room, e.Prefill = s.Wait+s.Room, s.Room, own+mixed
	e.Decoders = s.Decoders
	m := min(w.Output, s.Horizon)
	step, drag := c.decoding(k)
	e.StepTime, e.Decode, e.Others = step, m*step, m*drag
	// One that ends while this one is prefilled has another in its place.
	e.Others += stalled
	if s.Room > 0 {
		// While this one waits and is there, as many come as are there, and wait for room too.
		e.Others += k * s.Keeps
	}
	e.Evicts = c.evicts(s.Evicted, k+s.Later)
	if w.Part == DecodePart { // it waits for its KV, and for room, at the same time
		e.Wait, e.Prefill = max(float64(w.After), s.Room), 0
		e.Others -= stalled
	}
	e.Total = e.Wait + e.Prefill + e.Decode + e.Others + e.Evicts
}

// evicts is by how much those are delayed that ask for so many evicted tokens again, and
// those that decode beside them while the tokens are computed anew: as many as decode here.
func (c *Coefficients) evicts(tokens, k float64) float64 { return tokens * c.Token * (1 + k) }

// Charge is what a request takes of an engine, in milliseconds: to prefill n tokens that end a
// prompt of some length, and to decode output tokens, where k others decode beside it. It has
// its part of the fixed cost of steps: of those that prefill by their budget of tokens, and of
// those that decode as one of those that do.
func (c *Coefficients) Charge(n, length, output, k, budget float64) float64 {
	return c.Step*n/budget + n*(c.Token+c.Pair*(length-n/2)) + output*(c.Decoder+c.Decode/(k+1))
}

// decoding is how long a step takes with one more decoder beside k, and by how much the one
// delays the others in it.
func (c *Coefficients) decoding(k float64) (step, drag float64) {
	return c.Decode + c.Decoder*(k+1), c.Decoder * k
}

// steps returns the number of steps for n tokens of a prompt, and their share of these
// steps if waiting prefills share them. It is separate from prefill so that both are
// inlined, because a decision calls them a thousand times.
func steps(n, budget float64, shared bool) (whole, own float64) {
	if n > budget {
		whole = math.Ceil(n / budget)
	} else if n > 0 {
		whole = 1
	}
	if shared {
		return whole, n / budget
	}
	return whole, whole
}

// prefill returns the time for the last n tokens of a prompt, the time that decoding
// adds to its steps, and the delay of the k requests that decode there and of those
// that come later. Steps shared with other prompts count in full for these requests;
// otherwise a rank on which prompts wait for room would attract more.
func (c *Coefficients) prefill(n, length, k, later, whole, steps float64) (own, mixed, others float64) {
	if k > 0 {
		mixed = steps * (c.Decode + c.Decoder*k)
	}
	tokens := n * (c.Token + c.Pair*(length-n/2))
	return c.Step*steps + tokens, mixed, (c.Step*whole + tokens) * (k + later)
}

// halved is about 2^-x for x from 0 on: it is so at whole numbers, and a straight
// line between them, which costs a tenth of math.Exp2.
func halved(x float64) float64 {
	if !(x < 1000) {
		return 0
	}
	whole := int(x)
	return math.Float64frombits(uint64(1023-whole)<<52) * (1 - (x-float64(whole))/2)
}

// mixed is what decoding adds to the steps of an amount of prefill.
func (c *Coefficients) mixed(a Amount, k float64) float64 {
	if k == 0 {
		return 0
	}
	return a.Steps * (c.Decode + c.Decoder*k)
}
