package plane

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/access"
	"weir/internal/infer"
)

// Options say which engine to connect to and how. Name and Addr are required;
// the zero value of everything else is its default.
type Options struct {
	// Name is the engine's name in errors, metrics and timelines.
	Name string
	// Addr is the engine's host:port.
	Addr string
	// Gateway is this gateway's name in the engine's logs; default "weir".
	Gateway string
	// Dial connects to Addr, twice per session; default TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// ConnectTimeout bounds the way from dialing to a session; default 10 s.
	ConnectTimeout time.Duration
	// PingInterval is the time between pings; default 1 s.
	PingInterval time.Duration
	// PingTimeout is how long the engine may stay entirely silent, with pings
	// unanswered, and each of the two connections without a byte, before the
	// session counts as lost. It is generous, because an engine that is only busy
	// must not lose its requests; default 30 s.
	PingTimeout time.Duration
	// BackoffMin and BackoffMax bound the wait before connecting again; the
	// wait doubles from one to the other and is then drawn at random from its
	// upper half. Defaults 100 ms and 5 s.
	BackoffMin, BackoffMax time.Duration
	// MaxStep bounds a step's size in bytes; a larger one is an integrity
	// failure. Default 16 MiB, about 2 million ids.
	MaxStep int
	// MaxSubmit bounds a request's size in bytes; default 64 MiB.
	MaxSubmit int
	// Access is what the engine is shown and known by.
	Access *access.Access
	// Panicked is called for panics while the engine's output is processed, each of
	// which ends only one session; it may be nil.
	Panicked func(*infer.Panic)
	// Batch is notified around the deltas of each step, and around those that end the
	// generations of a session; it may be nil.
	Batch engine.Batch
}

func (o Options) withDefaults() Options {
	o.Gateway = cmp.Or(o.Gateway, "weir")
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
	o.PingInterval = cmp.Or(o.PingInterval, time.Second)
	o.PingTimeout = cmp.Or(o.PingTimeout, 30*time.Second)
	o.BackoffMin = cmp.Or(o.BackoffMin, 100*time.Millisecond)
	o.BackoffMax = max(cmp.Or(o.BackoffMax, 5*time.Second), o.BackoffMin)
	o.MaxStep = cmp.Or(o.MaxStep, 16<<20)
	o.MaxSubmit = cmp.Or(o.MaxSubmit, 64<<20)
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	return o
}

// retry spaces the tries to connect.
type retry struct {
	min, max, next time.Duration
}

// wait returns the time to wait before the next try, after one that lasted that long. A
// session that outlived the longest wait was a success and resets the waits; one that
// broke soon after its start does not.
func (b *retry) wait(lasted time.Duration) time.Duration {
	if b.next == 0 || lasted > b.max {
		b.next = b.min
	}
	d := b.next
	b.next = min(2*b.next, b.max)
	return d/2 + rand.N(d/2+1)
}
