package attempt

import (
	"cmp"
	"time"

	"weir/internal/dialect"
	"weir/internal/observe/integrity"
)

// Options configure what an engine is asked, and how long it may take.
type Options struct {
	// Continue configures how streams continue at other engines when theirs fail.
	Continue Continuing
	// Counting makes relayed engines state the usage of streams whose callers do not ask
	// for it, and removes it from the answers.
	Counting bool
	// Integrity keeps the inconsistent output of engines; nil keeps nothing.
	Integrity *integrity.Log
	// SubmitTimeout bounds an engine's acknowledgement; 0 means 10 s.
	SubmitTimeout time.Duration
	// AckWarning is the shortest part of an acknowledgement that is logged; 0 means none.
	AckWarning time.Duration
	// PrefillTimeout bounds the wait for the answer of a prefill engine.
	// TransferTimeout bounds the wait from then until the decode engine's first output.
	// 0 means 1 min and 30 s.
	PrefillTimeout, TransferTimeout time.Duration
	// FirstTimeout bounds the wait for an engine's first output; 0 means 10 min.
	FirstTimeout time.Duration
	// IdleTimeout bounds the wait for an engine's next output; 0 means 5 min.
	IdleTimeout time.Duration
	// Reasoning are the members that contain the reasoning in chat completions, all
	// with the same text; the default is reasoning_content.
	Reasoning []string
}

// Defaults replaces the zero values that mean another one.
func (o *Options) Defaults() {
	o.SubmitTimeout = cmp.Or(o.SubmitTimeout, 10*time.Second)
	o.PrefillTimeout = cmp.Or(o.PrefillTimeout, time.Minute)
	o.TransferTimeout = cmp.Or(o.TransferTimeout, 30*time.Second)
	o.FirstTimeout = cmp.Or(o.FirstTimeout, 10*time.Minute)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 5*time.Minute)
	o.Continue.defaults()
}

// Continuing configures how streams continue at other engines when theirs fail.
type Continuing struct {
	// Off disables continuations: a stream whose engine fails ends with an error.
	Off bool
	// AtOnce is the number of streams of a model that may be continuing at once; 0
	// means 32. A continuation is over with its first output.
	AtOnce int
	// Timeout bounds the total time that a stream waits for its turn and for an engine
	// with room; 0 means 30 s.
	Timeout time.Duration
	// Memory bounds the histories of all streams, in bytes; 0 means 1 GiB, and a negative
	// value is no bound. A stream without room for its history cannot continue.
	Memory int64
	// Stall is the time without output after which a stream continues at another engine; 0 if
	// it does not. The fleet's judge sees to that; here it bounds how many ids an engine may
	// collect.
	Stall time.Duration
}

func (c *Continuing) defaults() {
	if c.AtOnce == 0 {
		c.AtOnce = 32
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.Memory == 0 {
		c.Memory = 1 << 30
	}
	if c.Memory < 0 {
		c.Memory = 1<<63 - 1
	}
}

const (
	// collected is how many ids engines collect of an answer that is not streamed. Seven of
	// eight events are saved.
	collected = 8
	// slowest is the time for each of these ids within which an engine is not to be taken for
	// stalled.
	slowest = time.Second
)

// portion returns how many ids of an answer the engine may collect. The client of a stream waits
// for each id. Behind a stop string, which weir finds, the engine would generate for nobody. idle and
// stall are the times without output after which the engine is given up.
func portion(r *dialect.Request, idle, stall time.Duration) int {
	const least = collected * slowest
	if r.Stream || len(r.Stop) > 0 || idle < least || stall > 0 && stall < least {
		return 0
	}
	return collected
}
