// Package prepare makes a request that engines can be given of the body that a caller has sent. It
// is what a request goes through before it is placed: stages 1 to 4, which need a CPU and nothing
// else. It knows neither the gateway nor an exchange.
//
// To follow a request, begin with Prepare in prepare.go. It calls decode.go, gate.go, render.go and
// tokenize.go in this order; tokenization.go takes the place of the last two for a request to a
// model's tokenizer. Gate is the largest: it finds the model (models.go), the forms in which engines
// take the request (forms.go) and its salt (isolate.go), and checks its fields in each form
// (fields.go, caps.go, bounds.go, media.go). The result is a Prepared (prepared.go) and its
// Destination. submission.go has what each engine is given of it.
//
// Before that, services.go, callers.go and models.go say what is served at a path, who asks, and
// for which model. Those who serve other paths of the API ask them, too.
package prepare

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

// Preparer prepares requests. It owns the tokenizing pool, which Close ends.
type Preparer struct {
	// Gate admits requests.
	Gate *admission.Gate
	// Pool runs the work on large bodies, and all tokenizing.
	Pool *pool.Pool
	// Services are what is served at the paths of the API.
	Services Services

	opts     *Options
	maxText  int64 // of an answer to /detokenize, in bytes
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

// New makes a Preparer for the models of a fleet. maxText bounds the text of an answer to
// /detokenize, in bytes.
func New(o *Options, maxText int64, snapshot func() *route.Snapshot, room WaitingRoom, m *metrics.Metrics, meter *busy.Meter) *Preparer {
	pr := &Preparer{
		Gate: admission.NewGate(o.Limits), Pool: pool.New(o.Pool), opts: o, maxText: maxText, snapshot: snapshot, room: room, Services: newServices(sglang.New(o.Generate)), meter: meter,
		// A spare one is empty, so that a use of it after its end shows.
		spare: &freelist.List[*preparing]{Make: func() *preparing { return new(preparing) }, Empty: func(p *preparing) { *p = preparing{} }},
	}
	if o.PrefixCache > 0 {
		pr.prefix = tokenizer.NewPrefixCache(o.PrefixCache)
		m.Prefix(pr.prefix)
	}
	return pr
}

// Close ends the pool's workers.
func (pr *Preparer) Close() { pr.Pool.Close() }
