package gateway

import (
	"net/http"

	"weir/internal/infer"
	"weir/internal/trace"
)

// handle serves one request of the API from its arrival to its one record.
func (g *Gateway) handle(w http.ResponseWriter, r *http.Request) {
	x := g.begin(w, r)
	x.run(x.serve)
	if x.detached && x.err == nil {
		if x.drive() {
			return
		}
		g.streams.Go(func() {
			x.run(x.resume)
			x.finish()
		})
		return
	}
	x.finish()
}

// run takes the request through a part of its way. A panic there is the
// request's failure and nobody else's.
func (x *exchange) run(part func() error) {
	defer func() {
		if p := recover(); p != nil {
			x.panicked(p)
		}
	}()
	x.err = infer.AsError(part())
}

// resume serves the rest of a stream that has left net/http.
func (x *exchange) resume() error {
	x.resumed = true
	var err error
	if x.relayed {
		err = x.pull.resume()
	} else {
		err = x.generate()
	}
	x.settle(infer.AsError(err))
	return err
}

// serve takes the request through the stages in their order. What it returns
// is how the request ended; finish tells the client, if it can still be told.
func (x *exchange) serve() error {
	if err := x.read(); err != nil {
		return err
	}
	if err := x.prepare(); err != nil || x.complete {
		return err
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
		if x.detached {
			return nil // resume goes on, on a goroutine of its own
		}
		e := infer.AsError(err)
		if x.settle(e); !x.again(e) {
			return err
		}
	}
}

// generate is the output path of a token engine, a turn of the loop for each
// merged delta. It returns early when the stream leaves net/http with its first
// output, which is still to be flushed then.
func (x *exchange) generate() error {
	for {
		if err := x.flush(); err != nil || x.complete || x.detached && !x.resumed {
			return err
		}
		if err := x.receive(); err != nil {
			return err
		}
		if err := x.process(); err != nil {
			return err
		}
	}
}

// process turns what was taken from the mailbox into bytes to write.
func (x *exchange) process() error {
	for i := range x.cells {
		cell := &x.cells[i]
		ch := &x.choices[cell.Choice]
		if ch.ended { // what still comes of it can only be the failure of all
			if cell.Finish != nil && cell.Finish.Err != nil {
				return x.engineError(cell.Finish)
			}
			continue
		}
		ended := x.detokenize(ch, cell)
		ended = x.parse(ch, cell, ended)
		if err := x.encode(ch, cell, ended); err != nil {
			return err
		}
	}
	return nil
}

// enter moves the request's clock to the next stage and gives what it says; it
// injects the delay configured for the stage the first time.
func (x *exchange) enter(s trace.Stage) (now int64) {
	now = trace.Now()
	x.enterAt(s, now)
	return now
}

func (x *exchange) enterAt(s trace.Stage, now int64) {
	x.rec.Ledger.Enter(s, now)
	if x.g.opts.StageDelay != nil {
		x.delay(s)
	}
}
