package sim

// maxRanks is the number of DP ranks that a Hindrance can distinguish.
const maxRanks = 64

// Hindrance slows or stops an engine's loop.
type Hindrance struct {
	Still     uint64  // a bit for each DP rank that stands still
	NoPrefill bool    // no prompt is computed
	Drag      float64 // each step takes so many times as long; 0 is once
}

// Hinder applies a hindrance from the next step on, until it is called again. A rank that
// stands still keeps its requests and receives more.
func (c *Core) Hinder(now int64, h Hindrance) {
	if c.hindrance != h {
		c.hindrance = h
		c.rouse(now)
	}
}
