package gateway

import (
	"cmp"
	"log/slog"
	"time"

	"weir/internal/fleet/route"
	"weir/internal/gateway/front"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/observe/integrity"
	"weir/internal/observe/metrics"
	"weir/internal/observe/watch"
)

// Options configure a Gateway. Snapshot is needed; everything else has a
// working zero value.
type Options struct {
	// Snapshot returns the current snapshot of the fleet.
	Snapshot func() *route.Snapshot
	Metrics  *metrics.Metrics
	Log      *slog.Logger
	// Watch watches the process; nil is fine.
	Watch *watch.Watch

	Front   front.Options
	Prepare prepare.Options
	Place   PlaceOptions
	Attempt AttemptOptions
	Record  record.Options
}

// PlaceOptions configure how requests come to an engine.
type PlaceOptions struct {
	// Queue configures how requests wait for engines.
	Queue place.Queueing
	// Continue configures how streams continue at other engines when theirs fail.
	Continue Continuing
	// EngineTimeout bounds the wait for any engine to be ready; 0 means 5 s.
	EngineTimeout time.Duration
}

// defaults takes the bound of the wait for a first output, which bounds the wait in the queue too.
func (o *PlaceOptions) defaults(first time.Duration) {
	o.EngineTimeout = cmp.Or(o.EngineTimeout, 5*time.Second)
	o.Queue.Bytes = cmp.Or(o.Queue.Bytes, 1<<30)
	o.Queue.Timeout = cmp.Or(o.Queue.Timeout, first)
	o.Continue.defaults()
}

// AttemptOptions configure what an engine is asked, and how its output becomes the answer.
type AttemptOptions struct {
	// Batch is the engine.Batch of the adapters of token engines, or nil if they have
	// none.
	Batch *Batch
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
	// FlushInterval is the shortest time between two writes of a stream; 0 writes
	// output as it comes. A first token is never delayed.
	FlushInterval time.Duration
	// Reasoning are the members that contain the reasoning in chat completions, all
	// with the same text; the default is reasoning_content.
	Reasoning []string
}

func (o *AttemptOptions) defaults() {
	if o.Batch == nil {
		o.Batch = new(Batch)
	}
	o.SubmitTimeout = cmp.Or(o.SubmitTimeout, 10*time.Second)
	o.PrefillTimeout = cmp.Or(o.PrefillTimeout, time.Minute)
	o.TransferTimeout = cmp.Or(o.TransferTimeout, 30*time.Second)
	o.FirstTimeout = cmp.Or(o.FirstTimeout, 10*time.Minute)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 5*time.Minute)
}

func (o *Options) defaults() {
	if o.Metrics == nil {
		o.Metrics = metrics.New()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Front.Defaults()
	o.Prepare.Defaults()
	o.Attempt.defaults()
	o.Place.defaults(o.Attempt.FirstTimeout)
}
