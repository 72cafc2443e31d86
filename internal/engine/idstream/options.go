package idstream

import (
	"cmp"
	"net/url"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/access"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
	"weir/internal/wire/epoll"
)

// Options configure the adapter of one engine. Name and URL are needed.
type Options struct {
	Name string
	URL  *url.URL // scheme, host and an optional base path
	// Model is the name given by the operator, for an engine without a model
	// list.
	Model string
	// Additions returns what the folder of a model says, by the name of the model that
	// the engine serves; nil knows none.
	Additions func(model string) engine.Additions
	// ConnectTimeout bounds connecting; 0 means 5 s.
	ConnectTimeout time.Duration
	// HeadTimeout bounds the wait for the response head, which the engine sends
	// as soon as it has read the request; 0 means 1 min.
	HeadTimeout time.Duration
	// AbortTimeout is how long an aborted generation may take to end before its
	// connection is closed; 0 means 5 s.
	AbortTimeout time.Duration
	// ProbeInterval is the time between two looks at the engine; 0 means 10 s.
	ProbeInterval time.Duration
	// ReadTimeout bounds the reading of a page of the engine's; 0 means 5 s.
	ReadTimeout time.Duration
	// Panicked is called for panics while the engine's output is processed, each of
	// which ends only one request; it may be nil.
	Panicked func(*infer.Panic)
	// Batch is notified around the deltas of sockets that were ready at once; it may be
	// nil.
	Batch engine.Batch
	// Access is what the engine is shown and known by.
	Access *access.Access
}

// NewHost makes the host of an engine of a kind, and its client, which connects when first
// used. It says in opts what 0 means. failure gives what a status of the engine's means, with
// its words.
func NewHost(kind string, opts *Options, failure func(engine string, status int, message string) *infer.Error) *Host {
	opts.HeadTimeout = cmp.Or(opts.HeadTimeout, time.Minute)
	opts.AbortTimeout = cmp.Or(opts.AbortTimeout, 5*time.Second)
	opts.ProbeInterval = cmp.Or(opts.ProbeInterval, 10*time.Second)
	client := upstream.New(upstream.Options{
		URL: opts.URL, ConnectTimeout: opts.ConnectTimeout, HeadTimeout: opts.HeadTimeout, ReadTimeout: opts.ReadTimeout, Access: opts.Access, Panicked: opts.Panicked,
	})
	return &Host{Name: opts.Name, Client: client, Kind: kind, Batch: opts.Batch, Panicked: opts.Panicked,
		AbortTimeout: opts.AbortTimeout, Failure: failure, Polled: epoll.Supported}
}
