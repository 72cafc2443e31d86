package coreclient

import (
	"cmp"
	"time"

	"weir/internal/engine"
	"weir/internal/infer"
)

// Options are those that every adapter of a core process has. Name is required.
type Options struct {
	// Name is the engine's name in errors, metrics and timelines.
	Name string
	// Model is the model that the engine serves, or the name to serve it under.
	Model string
	// Defaults are sampling parameters for requests that do not say.
	Defaults engine.Defaults

	// ProbeInterval is the time between two questions to an engine that has
	// nothing to say; default 5 s.
	ProbeInterval time.Duration
	// ProbeTimeout is how long an engine may stay silent, with a question
	// unanswered, before its session counts as lost. It is generous, because an
	// engine that is only busy must not lose its requests; default 2 min.
	ProbeTimeout time.Duration
	// WriteTimeout bounds a write to an engine that does not read; default 30 s.
	WriteTimeout time.Duration
	// MaxMessage bounds an engine's message in bytes; default 64 MiB.
	MaxMessage int
	// MaxQueued bounds the requests in bytes that wait for an engine to read;
	// default 64 MiB. A request that would exceed it is refused as overload.
	MaxQueued int
	// Batch is notified around the deltas of each message; it may be nil.
	Batch engine.Batch
	// Panicked is called for panics while engines' output is processed, each of which
	// ends only one session; it may be nil.
	Panicked func(*infer.Panic)
	// Warn is called with messages for the operator, such as about an untested version.
	// It must not block, and may be nil.
	Warn func(message string)
}

// WithDefaults sets unset options to their defaults.
func (o Options) WithDefaults() Options {
	o.ProbeInterval = cmp.Or(o.ProbeInterval, 5*time.Second)
	o.ProbeTimeout = cmp.Or(o.ProbeTimeout, 2*time.Minute)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.MaxMessage = cmp.Or(o.MaxMessage, 64<<20)
	o.MaxQueued = cmp.Or(o.MaxQueued, 64<<20)
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	return o
}
