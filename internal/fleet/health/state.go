package health

import (
	"fmt"
	"time"
)

// State is what is thought of a rank.
type State uint8

// The states. The order is that in which an engine's ranks speak for it (route.Engine.Condition).
const (
	Up State = iota
	Soft
	Suspect
	Probing
	Draining
	Down
	NumStates
)

// String returns the state's word in metrics and logs.
func (s State) String() string {
	return [...]string{"up", "soft", "suspect", "probing", "draining", "down"}[s]
}

// Takes states which requests a rank may get.
type Takes uint8

// The requests that a rank takes.
const (
	Never     Takes = iota
	AtLast          // only what no other rank takes
	Otherwise       // only what no other rank takes freely
	Freely
)

// String names it.
func (t Takes) String() string { return [...]string{"never", "at last", "otherwise", "freely"}[t] }

// End is how a request ended.
type End uint8

// The ends. A request that the gateway repeats elsewhere ends for the first rank.
const (
	Done     End = iota // whole
	GaveUp              // by the client, by a deadline of ours, by our shutdown
	Overload            // the engine is busy: 429, 503, a full queue
	Rejected            // the request's own fault: any other 4xx
	Refused             // nobody accepts connections
	Cut                 // the connection could not be made, or was lost
	Fault               // the engine failed: 5xx, or what makes no sense
)

// String names it.
func (e End) String() string {
	return [...]string{"done", "gave up", "overload", "rejected", "refused", "cut", "fault"}[e]
}

// Result is the result of a probe. A probe without an answer has none: the rank's own
// clock ends its wait.
type Result uint8

// The results.
const (
	Answered Result = iota
	Busy            // the engine has no room for the probe, or knows none
	Failed          // answered by a fault, or its connection was cut
	Nobody          // its connection was refused
)

// Change is a transition of one rank, with its reason in words.
type Change struct {
	Now      int64
	Rank     *Rank
	From, To State
	Why      string
}

// String returns the change without its time.
func (c Change) String() string {
	return fmt.Sprintf("%s %v to %v: %s", c.Rank, c.From, c.To, c.Why)
}

// Probe is a probe to send to a rank over a separate connection. The sender reports its end
// with Rank.Probed, and gives it up after Patience or when the rank has judged. The rank's
// clock stands still while the gateway does.
//
// A sample is a request of one token, whose end is reported with Rank.Sampled. Only a rank
// that sets Member.Samples has any.
//
// A rank waits for at most one probe or sample at a time. Besides it there may be one more
// sample, or two more probes. A new sample replaces the previous one.
type Probe struct {
	Rank     *Rank
	Patience time.Duration
	Sample   bool
	Beside   bool
}

// View is a rank as an operator sees it.
type View struct {
	State State
	Since int64  // when it came to be so
	Why   string // and why
	Cause string // of what is not up: silence, starts, transport or faults
	Takes Takes
	// Present is set if the engine can be reached at all, by its adapter's word.
	Present bool
	Open    int // unfinished requests of ours
	Given   int // requests that it was ever handed
	// Next is the time until the next probe of a rank that takes no requests, which is
	// the earliest time at which it may take them again; 0 if unknown.
	Next time.Duration
	// Silence is how long it has owed progress, Gap how long it usually does.
	Silence, Gap time.Duration
	// Limit is how many more requests may be open that were handed over since it came
	// back; negative when there is no limit.
	Limit     int
	Ejections int // lately
}
