//go:build linux

package main

// Cell is what every process of a cell is told, as JSON in its argument.
type Cell struct {
	Load    Load
	Times   Times
	Board   string // the board's file
	Relayed bool   // the gateway relays; otherwise it reads the plane
	Engine  string // the engine's address
	Gateway string // the gateway's
	// Of the client.
	PIDs      []int // of the gateway
	EnginePID int
}

// capacity is the number of streams that the board holds, probes included.
func (c *Cell) capacity() int { return c.Load.Streams + c.Load.Probes }

// tokens is the number of stamps the board holds for each stream.
func (c *Cell) tokens() int {
	if c.Relayed {
		return 0 // its events carry their stamps
	}
	return max(newSchedule(c.Load, c.Times).tokens, probeTokens)
}

// limit is the number of tokens of a stream; 0: as many as fit in the time.
func (c *Cell) limit(stream int) int {
	switch {
	case stream >= c.Load.Streams:
		return probeTokens
	case c.Load.Rate == 0 && !c.Load.Idle:
		return 0
	}
	return newSchedule(c.Load, c.Times).tokens
}
