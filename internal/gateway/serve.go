package gateway

import (
	"net/http"

	"weir/internal/gateway/attempt"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/wire/sock"
)

// handle serves one request of the API from its arrival to its one record, or to
// where its response leaves net/http.
func (g *Gateway) handle(w http.ResponseWriter, r *http.Request) {
	g.driver.Assist()
	x := g.start(w, r)
	if v := x.serve(); x.stream.Response.Detached() {
		x.stream.Depart(v)
		return
	}
	if !x.stream.Response.Unread {
		x.Finish()
		return
	}
	g.refused.Add(1) // before it is live no more
	defer g.refused.Add(-1)
	x.Finish()
	g.front.Drain(w, r)
}

// serve runs the stages of the request in order and stores the error that ended it in
// x.stream.Err. Finish reports the error to the client if that is still possible.
func (x *exchange) serve() (v drive.Verdict) {
	defer x.stream.Caught(&v)
	body, err := x.read()
	if x.stream.Err = infer.AsError(err); x.stream.Err != nil {
		return drive.Ended
	}
	done, err := x.prepare(body)
	if x.stream.Err = infer.AsError(err); x.stream.Err != nil || done {
		return drive.Ended
	}
	if x.stream.Response.HungUp() {
		x.stream.Err = infer.AsError(gone(&x.stream.Ctx)) // before an engine has it
		return drive.Ended
	}
	return x.attempts()
}

// prepare runs stages 1 to 4. done is set if that has already answered the request.
func (x *exchange) prepare(body []byte) (done bool, err error) {
	r := x.stream.Response.Served.Request
	to, answer, err := x.g.preparer.Prepare(&x.stream.Ctx, &x.prepared, prepare.Input{
		Caller: x.caller, Endpoint: x.endpoint, Path: r.URL.Path, Header: r.Header, Body: body, Record: &x.stream.Record, Owner: x,
	})
	goes(&x.need, to)
	if l := x.prepared.LeftOut; l != nil && !to.Needs.HasBytes() { // of a request that may be relayed only the engine shows it
		l.Tell(x.stream.Response.Served.Writer.Header(), x.g.opts.Metrics)
	}
	if err != nil || answer == nil {
		return false, err
	}
	return true, x.writeWhole(answer)
}

// engine runs queue and route until the request has an engine. done is set if it was
// answered without one.
func (x *exchange) engine() (done bool, err error) {
	for {
		if err = x.place(); err != errMisfit {
			return false, err
		}
		if done, err = x.prepareAgain(); done || err != nil {
			return done, err
		}
	}
}

// attempts sends the request to an engine, and to others if necessary, and the answer to
// the client. For a stream that has left net/http and continues at another engine, it only
// sends the request.
func (x *exchange) attempts() (v drive.Verdict) {
	for {
		done, err := x.engine()
		if x.stream.Err = x.try.Broken(&x.stream.Ctx, infer.AsError(err)); x.stream.Err != nil || done {
			return drive.Ended
		}
		if x.stream.Err = infer.AsError(x.dispatch()); x.stream.Err == nil {
			if x.stream.Response.Detached() {
				return drive.Waits // of a stream that goes on: Proceed does
			}
			if v = x.stream.Follow(drive.Waits); x.stream.Response.Detached() {
				return v // Depart goes on
			}
		} else if x.stream.Ctx.Err() != nil {
			x.stream.Err = infer.AsError(gone(&x.stream.Ctx)) // whatever the adapter makes of that
		} else if sock.Starved(x.stream.Err) {
			x.g.front.Starved("dial", x.stream.Err)
		}
		if !x.repeats() {
			return drive.Ended
		}
	}
}

// dispatch is stage 7: it hands the request to the chosen engine.
func (x *exchange) dispatch() error {
	x.stream.Answering = false
	c := attempt.Client{Endpoint: x.endpoint, Spends: &x.spends, Room: &x.room}
	if s := x.stream.Response.Served; s != nil {
		c.Request, c.Header = s.Request, s.Writer.Header()
	}
	return x.try.Dispatch(&x.stream.Ctx, c)
}

// repeats settles an attempt, and reports whether another one follows.
func (x *exchange) repeats() bool {
	if !x.stream.Answering {
		x.stream.Err = x.try.Word(x.stream.Err)
	}
	e := x.stream.Err
	x.settled(x.try.Settle(e))
	next, err := x.try.Again(&x.stream.Ctx, e, x)
	switch {
	case next.Again:
		x.stream.Err, x.stream.Ending = nil, false
	case next.Whole != "":
		x.stream.Conclude(next.Whole)
	case e != nil:
		x.stream.Err = err
	}
	return next.Again
}

// settled takes over the error of a panic at the end of an attempt.
func (x *exchange) settled(panicked *infer.Error) {
	if x.stream.Err == nil {
		x.stream.Err = panicked
	}
}

// Over implements drive.Owner.
func (x *exchange) Over() {
	if x.stream.Err == nil || x.stream.Told || !place.Continuable(x.stream.Err) || x.stream.Ctx.Err() != nil {
		x.Finish()
		return
	}
	var v drive.Verdict
	func() {
		defer x.stream.Caught(&v)
		if v = drive.Ended; x.repeats() {
			v = x.attempts()
		}
	}()
	if v == drive.Ended {
		x.Finish()
		return
	}
	defer x.stream.Rescue()
	x.stream.Proceed(v)
}
