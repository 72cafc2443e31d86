// Package calibrate measures the error of the load generator. It loads a reference
// engine, in a separate process and in the same way as weir bench loads a server, and
// compares the generator's times for each token with the engine's stamps of its writes.
// A token that the engine itself wrote late has a late stamp, so the delay is not
// counted as an error of the generator.
//
// Generator and engine share the cores of one machine, so the figures describe a
// machine that is busier than one that loads a server elsewhere.
package calibrate

import (
	"fmt"
	"math"
	"time"

	"weir/internal/load"
)

// Options define a measurement.
type Options struct {
	// Self is the command line that turns this program into a process of package lab when a
	// role and its specification are appended to it.
	Self []string
	// Streams runs a closed loop, Rate an open one of this many requests a second.
	Streams int
	Rate    float64
	// Requests and their length; by default as many as take about three seconds.
	Requests, Tokens int
	// TTFT and ITL are the engine's; 50 ms and 10 ms by default.
	TTFT, ITL time.Duration
	Seed      uint64
	// DelayAcks is load.Plan's.
	DelayAcks bool
}

// Defaults.
const (
	defaultTTFT   = 50 * time.Millisecond
	defaultITL    = 10 * time.Millisecond
	defaultTokens = 100
	defaultTime   = 3 * time.Second
	// mostStamps bounds the memory that engine and generator share.
	mostStamps = 1 << 27
)

// normalize fills in the defaults.
func (o *Options) normalize() error {
	if (o.Streams > 0) == (o.Rate > 0) {
		return fmt.Errorf("calibrate: give streams or a rate")
	}
	if o.TTFT == 0 {
		o.TTFT = defaultTTFT
	}
	if o.ITL == 0 {
		o.ITL = defaultITL
	}
	if o.Tokens == 0 {
		o.Tokens = defaultTokens
	}
	if o.Requests == 0 {
		each := o.TTFT + time.Duration(o.Tokens-1)*o.ITL
		if o.Rate > 0 {
			o.Requests = int(math.Ceil(o.Rate * defaultTime.Seconds()))
		} else {
			o.Requests = o.Streams * max(1, int(defaultTime/each))
		}
	}
	if o.Requests*(o.Tokens+1) > mostStamps {
		return fmt.Errorf("calibrate: %d requests of %d tokens are too many", o.Requests, o.Tokens)
	}
	return nil
}

// plan returns the generator's plan.
func (o *Options) plan(url string) load.Plan {
	return load.Plan{
		URL: url, Model: "exact", Concurrency: o.Streams, Rate: o.Rate, Requests: o.Requests, OutputTokens: o.Tokens,
		RequestID: "calibrate", KeepChunks: true, Seed: o.Seed, DelayAcks: o.DelayAcks, Timeout: time.Minute + o.TTFT + time.Duration(o.Tokens)*o.ITL,
	}
}
