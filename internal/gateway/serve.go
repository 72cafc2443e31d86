package gateway

import (
	"net/http"

	"weir/internal/infer"
	"weir/internal/trace"
)

// handle serves one request of the API from its arrival to its one record.
func (g *Gateway) handle(w http.ResponseWriter, r *http.Request) {
	x := g.begin(w, r)
	defer x.finish()
	x.err = infer.AsError(x.serve())
}

// serve takes the request through the stages in their order. What it returns
// is how the request ended; finish tells the client, if it can still be told.
func (x *exchange) serve() error {
	if err := x.decode(); err != nil {
		return err
	}
	if err := x.gate(); err != nil {
		return err
	}
	if !x.relayed {
		if err := x.render(); err != nil {
			return err
		}
		if err := x.tokenize(); err != nil {
			return err
		}
	}
	for {
		if err := x.queue(); err != nil {
			return err
		}
		if err := x.route(); err != nil {
			return err
		}
		err := x.dispatch()
		switch {
		case err != nil:
		case x.relayed:
			err = x.relay()
		default:
			err = x.generate()
		}
		if err = x.settle(err); !x.again(err) {
			return err
		}
	}
}

// generate is the output path of a token engine, a turn of the loop for each
// merged delta.
func (x *exchange) generate() error {
	for {
		if err := x.receive(); err != nil {
			return err
		}
		for i := range x.cells {
			cell := &x.cells[i]
			ended := x.detokenize(cell)
			x.parse()
			if err := x.encode(cell, ended); err != nil {
				return err
			}
		}
		if err := x.flush(); err != nil {
			return err
		}
		if x.complete {
			return nil
		}
	}
}

// enter moves the request's clock to the next stage, and injects the delay
// configured for it the first time.
func (x *exchange) enter(s trace.Stage) {
	x.rec.Ledger.Enter(s, trace.Now())
	if x.g.opts.StageDelay != nil {
		x.delay(s)
	}
}
