// Package attempt has what happens to a request at engines. An Attempt is its latest try at one
// engine, or at two, with what those before have left to it. It is given a placement (package place),
// and its leg gives output to the driver of the stream (package drive). It knows neither the gateway
// nor the client's connection.
//
// dispatch.go hands a request over. A token engine pushes ids into a mailbox (leg_tokens.go), and a
// relay engine is read from (leg_relay.go). If two engines serve an attempt, the partner (partner.go)
// is the prefill half. settle.go ends an attempt, and again.go decides whether another one follows:
// a request may leave an engine that goes down (escape.go), and a stream may go on at another one
// (continuation.go).
package attempt

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"weir/internal/gateway/freelist"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/observe/metrics"
)

// Attempts has what the attempts of all requests share.
type Attempts struct {
	Turns place.Turns  // of streams that continue
	Kept  atomic.Int64 // bytes of what is kept of streams so that they can go on elsewhere

	opts     *Options
	preparer *prepare.Preparer
	room     *place.Room
	recorder *record.Recorder
	metrics  *metrics.Metrics
	log      *slog.Logger
	base     context.Context // ends when all are cut off
	id       func() string   // makes the ids of requests at engines
	pending  func() int64    // how many streams have output that was not taken

	silences  silences
	buffers   *freelist.List[relayBuffer]
	lingering sync.WaitGroup
}

// New makes the attempts of requests that a preparer prepares and that a room gives engines. base
// ends when all are cut off, id makes the ids of requests at engines, and pending returns how many
// streams have output that was not taken.
func New(o *Options, p *prepare.Preparer, room *place.Room, r *record.Recorder, m *metrics.Metrics, log *slog.Logger, base context.Context, id func() string, pending func() int64) *Attempts {
	return &Attempts{
		opts: o, preparer: p, room: room, recorder: r, metrics: m, log: log, base: base, id: id, pending: pending,
		Turns: place.Turns{Most: o.Continue.AtOnce}, buffers: newRelayBuffers(),
	}
}

// Wait waits for what lingers at engines behind attempts that have ended. That is over when base ends.
func (of *Attempts) Wait() { of.lingering.Wait() }

// relayBuffer is one of relayBufferMin. Others are not kept.
type relayBuffer struct{ room *[relayBufferMin]byte }

// A buffer for reads that wait begins small, because thousands of streams may wait
// for their first output.
const (
	relayBufferMin = 1 << 10
	relayBufferMax = 64 << 10
)

func newRelayBuffers() *freelist.List[relayBuffer] {
	return &freelist.List[relayBuffer]{Make: func() relayBuffer { return relayBuffer{new([relayBufferMin]byte)} }}
}
