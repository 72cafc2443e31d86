package gateway

import (
	"weir/internal/dialect/sglang"
	"weir/internal/fleet/admission"
	"weir/internal/fleet/route"
	"weir/internal/gateway/freelist"
	"weir/internal/model/pool"
	"weir/internal/model/tokenizer"
	"weir/internal/observe/busy"
	"weir/internal/observe/metrics"
	"weir/internal/tenancy"
)

// preparer prepares requests. It owns the tokenizing pool, which close ends.
type preparer struct {
	// Gate admits requests.
	Gate *admission.Gate
	// Pool runs what takes long of a request.
	Pool *pool.Pool
	// Services are what is served at the paths of the API.
	Services services

	opts     *PrepareOptions
	maxText  int64 // bounds the bytes of an answer to /detokenize
	snapshot func() *route.Snapshot
	room     WaitingRoom
	prefix   *tokenizer.PrefixCache // nil: nothing is reused
	meter    *busy.Meter            // nil: what is done is not measured
	spare    *freelist.List[*preparing]
}

// WaitingRoom is where requests wait for engines.
type WaitingRoom interface {
	// Early returns an error if a request for the model would wait in vain. due is the time by which
	// its answer must begin, if that is not 0, and bytes the known part of what it would hold. counts
	// is set if a refusal is counted.
	Early(who *tenancy.Caller, m *route.Model, due, bytes int64, counts bool) error
}

// newPreparer makes a preparer for the models of a fleet. maxText bounds the bytes of an answer to /detokenize.
func newPreparer(o *PrepareOptions, maxText int64, snapshot func() *route.Snapshot, room WaitingRoom, m *metrics.Metrics, meter *busy.Meter) *preparer {
	p := &preparer{
		Gate: admission.NewGate(o.Limits), Pool: pool.New(o.Pool), opts: o, maxText: maxText, snapshot: snapshot, room: room, Services: newServices(sglang.New(o.Generate)), meter: meter,
		// What is kept is empty, so that whoever still uses one is seen to.
		spare: &freelist.List[*preparing]{Make: func() *preparing { return new(preparing) }, Empty: func(p *preparing) { *p = preparing{} }},
	}
	if o.PrefixCache > 0 {
		p.prefix = tokenizer.NewPrefixCache(o.PrefixCache)
		m.Prefix(p.prefix)
	}
	return p
}

// close ends the pool's workers.
func (p *preparer) close() { p.Pool.Close() }
