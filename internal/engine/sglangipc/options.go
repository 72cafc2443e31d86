package sglangipc

import (
	"cmp"
	"path/filepath"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/fenced"
	"weir/internal/zmtp"
)

// The sockets' files, which the launcher names to the scheduler.
const (
	inputName  = "in"
	outputName = "out"
)

// Options say where an engine is to be met. Name and Dir are required.
type Options struct {
	// Name is the engine's name in errors, metrics and timelines.
	Name string
	// Dir is the folder of the sockets and of the launcher's word. It is made, for
	// this user alone, if it is not there.
	Dir string
	// Model is the name to serve the engine's model under; empty: its own.
	Model string
	// Untried takes engines of releases that were not tried.
	Untried bool
	// Defaults are sampling parameters for requests that do not say.
	Defaults fenced.Defaults

	// ProbeInterval is the time between two questions to an engine that has
	// nothing to say; default 5 s.
	ProbeInterval time.Duration
	// ProbeTimeout is how long an engine may stay silent, with a question
	// unanswered, before its session counts as lost. It is generous, because an
	// engine that is only busy must not lose its requests; default 2 min.
	ProbeTimeout time.Duration
	// WriteTimeout bounds a write to an engine that does not read; default 30 s.
	WriteTimeout time.Duration
	// AbortTimeout is how long the engine may take to end a generation that it
	// knows to be aborted; default 30 s.
	AbortTimeout time.Duration
	// WordInterval is the time between two looks for the launcher's word while an
	// engine is connected and loads; default 200 ms.
	WordInterval time.Duration
	// MaxMessage bounds an engine's message in bytes; default 64 MiB.
	MaxMessage int
	// MaxQueued bounds the requests in bytes that wait for an engine to read;
	// default 64 MiB. What would exceed it is refused as overload.
	MaxQueued int
	// Batch is told around the deltas of each message; nil is fine.
	Batch engine.Batch
	// Warn is told what an operator should know. It must not block; nil is fine.
	Warn func(message string)
}

func (o Options) withDefaults() Options {
	o.ProbeInterval = cmp.Or(o.ProbeInterval, 5*time.Second)
	o.ProbeTimeout = cmp.Or(o.ProbeTimeout, 2*time.Minute)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.AbortTimeout = cmp.Or(o.AbortTimeout, 30*time.Second)
	o.WordInterval = cmp.Or(o.WordInterval, 200*time.Millisecond)
	o.MaxMessage = cmp.Or(o.MaxMessage, 64<<20)
	o.MaxQueued = cmp.Or(o.MaxQueued, 64<<20)
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	return o
}

func (o *Options) endpoint(name string) zmtp.Endpoint {
	return zmtp.Endpoint{Network: "unix", Address: filepath.Join(o.Dir, name)}
}
