package sim

// maxRanks is how many DP ranks a Hindrance can tell apart.
const maxRanks = 64

// Hindrance is what hinders an engine's loop.
type Hindrance struct {
	Still     uint64  // a bit for each DP rank that stands still
	NoPrefill bool    // no prompt is computed
	Drag      float64 // each step takes so many times as long; 0 is once
}

// Hinder hinders the engine from the next step on, until it is called again. A rank
// that stands still keeps what it has, and is given more.
func (c *Core) Hinder(now int64, h Hindrance) {
	if c.hindrance != h {
		c.hindrance = h
		c.rouse(now)
	}
}
