package gateway

import (
	"cmp"
	"log/slog"
	"time"

	"weir/internal/fleet/route"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/front"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
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
	Attempt attempt.Options
	Stream  drive.Options
	Record  record.Options
}

// PlaceOptions configure how requests come to an engine.
type PlaceOptions struct {
	// Queue configures how requests wait for engines.
	Queue place.Queueing
	// EngineTimeout bounds the wait for any engine to be ready; 0 means 5 s.
	EngineTimeout time.Duration
}

// defaults takes the bound of the wait for a first output, which bounds the wait in the queue too.
func (o *PlaceOptions) defaults(first time.Duration) {
	o.EngineTimeout = cmp.Or(o.EngineTimeout, 5*time.Second)
	o.Queue.Bytes = cmp.Or(o.Queue.Bytes, 1<<30)
	o.Queue.Timeout = cmp.Or(o.Queue.Timeout, first)
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
	o.Attempt.Defaults()
	o.Stream.Defaults()
	o.Place.defaults(o.Attempt.FirstTimeout)
}
