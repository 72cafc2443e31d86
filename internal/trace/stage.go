package trace

import "fmt"

// Stage is a part of a request's time in the gateway. The stages partition the time
// from arrival to finish: the handler is in exactly one at any moment. Code,
// timeline, metrics and documentation use the same word for a stage.
type Stage uint8

// The stages in the order a request meets them. Engine is not weir's own time: the
// handler waits in it because the engine has sent nothing yet. The stages from
// Receive on recur for every merged delta.
const (
	Read       Stage = iota // request line to the end of the body
	Parse                   // JSON to request, validated
	Gate                    // cheap refusals
	Render                  // chat template
	PoolWait                // waiting for the tokenizing pool
	Tokenize                // text to ids
	Queue                   // dispatch queue of the model
	Route                   // choosing an engine
	Dispatch                // sending, until the engine acknowledged
	Engine                  // waiting for the engine
	Receive                 // from the reading of a frame from the engine's socket until it is taken
	Merge                   // merging all pending deltas
	Detokenize              // ids to text
	Extract                 // reasoning and tool calls
	Encode                  // text to response bytes
	Flush                   // one write to the client
	Finish                  // usage, integrity, release
	NumStages
)

var stageNames = [NumStages]string{
	"read", "parse", "gate", "render", "pool_wait", "tokenize", "queue",
	"route", "dispatch", "engine", "receive", "merge", "detokenize", "extract",
	"encode", "flush", "finish",
}

// String returns the stage's name.
func (s Stage) String() string { return stageNames[s] }

// ParseStage is the inverse of String. For one release more, decode is another name of parse.
func ParseStage(name string) (Stage, error) {
	if name == "decode" {
		return Parse, nil
	}
	for i, n := range stageNames {
		if n == name {
			return Stage(i), nil
		}
	}
	return 0, fmt.Errorf("no stage %q; the stages are %v", name, stageNames)
}

// Ledger attributes the handler's time to stages. It is driven by the one
// goroutine that serves the request and takes the clock as input.
type Ledger struct {
	Spent [NumStages]int64
	at    int64
	cur   Stage
}

// Start opens the ledger at a stage.
func (l *Ledger) Start(s Stage, now int64) { l.cur, l.at = s, now }

// Enter closes the current stage at now and opens stage s.
func (l *Ledger) Enter(s Stage, now int64) {
	l.Spent[l.cur] += now - l.at
	l.cur, l.at = s, now
}

// Split closes the current stage at an earlier moment t (clamped to the stage's own
// extent) and attributes the time from then to now to s, which becomes current. It
// serves a wait whose end becomes known afterwards.
func (l *Ledger) Split(t int64, s Stage, now int64) {
	t = min(max(t, l.at), now)
	l.Enter(s, t)
	l.Enter(s, now)
}

// Until returns the time that was spent until now, that in the open stage included.
func (l *Ledger) Until(now int64) [NumStages]int64 {
	spent := l.Spent
	spent[l.cur] += max(now-l.at, 0)
	return spent
}

// Current returns the open stage.
func (l *Ledger) Current() Stage { return l.cur }
