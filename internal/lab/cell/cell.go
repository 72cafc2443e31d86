//go:build linux

// Package cell is the vocabulary of the output path's benchmark. A cell is a gateway under
// a load. The package holds the load and its schedule, the board of shared memory, and the
// two ways to distinguish a stream's tokens: numbered events for relays, words for the
// plane. Times are nanoseconds of CLOCK_REALTIME, the clock of the kernel's receive stamps.
// Linux only.
package cell

import "fmt"

// PlaneWindow is how much of the plane a gateway may leave unread before the
// engine waits, in bytes.
const PlaneWindow = 64 << 20

// ProbeID begins the request ids of probes.
const ProbeID = "probe"

// NoLimit is the max_tokens of a request that goes on until the load's end.
const NoLimit = 1 << 20

// Cell is the specification that every process of a cell gets, as JSON in its argument.
type Cell struct {
	Load    Load
	Times   Times
	Board   string // the board's file
	Relayed bool   // the gateway relays; otherwise it reads ids
	Wire    string `json:",omitempty"` // by which it reads ids over HTTP; empty: by another
	Engine  string // the engine's address
	Gateway string // the gateway's
	// Header are lines that the gateway wants in each request's head.
	Header []string `json:",omitempty"`
	// PIDs are those of the gateway, for the client.
	PIDs      []int // of the gateway
	EnginePID int
	// FloodPIDs are those of the flood, and of the gateway and the engine that it goes to if it
	// goes apart.
	FloodPIDs []int `json:",omitempty"`
}

// The wires by which a gateway reads ids over HTTP.
const (
	SGLangIncremental = "sglang incremental"
	SGLangCumulative  = "sglang cumulative"
	VLLM              = "vllm"
)

// Clients is the number of streams that the client opens, probes included.
func (c *Cell) Clients() int { return c.Load.Streams + c.Load.Probes }

// Capacity is the number of streams that the board holds: those of the client, and behind
// them places that a flood takes in turn.
func (c *Cell) Capacity() int {
	if c.Load.Flood != "" {
		return c.Clients() + floodPlaces
	}
	return c.Clients()
}

// floodPlaces is so many that the engine has forgotten a place's last request when the next
// one comes.
const floodPlaces = 4096

// Head returns the head of a request with a body of a length.
func (c *Cell) Head(id string, length int) []byte {
	b := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nX-Request-Id: %s\r\nContent-Type: application/json\r\n", c.Gateway, id)
	for _, line := range c.Header {
		b = append(append(b, line...), "\r\n"...)
	}
	return fmt.Appendf(b, "Content-Length: %d\r\n\r\n", length)
}

// Body returns the body of a stream's request for at most so many tokens.
func (c *Cell) Body(stream, limit int) []byte {
	model := "weir-sim"
	if c.Relayed {
		model = "bench"
	}
	prompt := "Say something."
	for len(prompt) < c.Load.Prompt {
		prompt += " Say something else."
	}
	return fmt.Appendf(nil, `{"model":%q,"messages":[{"role":"user","content":%q}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,"seed":%d}`, model, prompt, limit, stream)
}

// TokensEach is the number of stamps the board holds for each stream.
func (c *Cell) TokensEach() int {
	if c.Relayed {
		return 0 // its events carry their stamps
	}
	if c.Load.Length > 0 {
		return max(c.Load.Length, ProbeTokens)
	}
	return max(NewSchedule(c.Load, c.Times).Tokens, ProbeTokens)
}

// Limit is the number of tokens of a stream's request, the first one or a later one; 0: as
// many as fit in the time.
func (c *Cell) Limit(stream int, first bool) int {
	switch {
	case stream >= c.Load.Streams:
		return ProbeTokens
	case c.Load.Length > 0 && first:
		return 1 + stream*c.Load.Length/c.Load.Streams
	case c.Load.Length > 0:
		return c.Load.Length
	case c.Load.Rate == 0 && !c.Load.Idle, c.Load.EndOnTime && c.Relayed:
		return 0
	}
	return NewSchedule(c.Load, c.Times).Tokens
}

// OpenBoard maps the cell's board.
func (c *Cell) OpenBoard() (*Board, error) { return OpenBoard(c.Board, c.Capacity(), c.TokensEach()) }
