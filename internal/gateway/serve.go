package gateway

import (
	"net/http"

	"weir/internal/gateway/attempt"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/wire/sock"
)

// handle serves one request of the API from its arrival to its one record, or to
// where its response leaves net/http.
func (g *Gateway) handle(w http.ResponseWriter, r *http.Request) {
	g.assist()
	x := g.start(w, r)
	if v := x.serve(); x.response.Detached() {
		x.depart(v)
		return
	}
	if !x.response.Unread {
		x.finish()
		return
	}
	g.refused.Add(1) // before it is live no more
	defer g.refused.Add(-1)
	x.finish()
	g.front.Drain(w, r)
}

// serve runs the stages of the request in order and stores the error that ended it in
// x.err. finish reports the error to the client if that is still possible.
func (x *exchange) serve() (v verdict) {
	defer x.caught(&v)
	body, err := x.read()
	if x.err = infer.AsError(err); x.err != nil {
		return ended
	}
	done, err := x.prepare(body)
	if x.err = infer.AsError(err); x.err != nil || done {
		return ended
	}
	if x.response.HungUp() {
		x.err = infer.AsError(gone(&x.ctx)) // before an engine has it
		return ended
	}
	return x.attempts()
}

// prepare runs stages 1 to 4. done is set if that has already answered the request.
func (x *exchange) prepare(body []byte) (done bool, err error) {
	r := x.response.Served.Request
	to, answer, err := x.g.preparer.Prepare(&x.ctx, &x.prepared, prepare.Input{
		Caller: x.caller, Endpoint: x.endpoint, Path: r.URL.Path, Header: r.Header, Body: body, Record: &x.rec, Owner: x,
	})
	goes(&x.need, to)
	if l := x.prepared.LeftOut; l != nil && !to.Needs.HasBytes() { // of a request that may be relayed only the engine shows it
		l.Tell(x.response.Served.Writer.Header(), x.g.opts.Metrics)
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
func (x *exchange) attempts() (v verdict) {
	for {
		done, err := x.engine()
		if x.err = x.try.Broken(&x.ctx, infer.AsError(err)); x.err != nil || done {
			return ended
		}
		if x.err = infer.AsError(x.dispatch()); x.err == nil {
			if x.response.Detached() {
				return waits // of a stream that goes on: proceed does
			}
			if v = x.follow(waits); x.response.Detached() {
				return v // depart goes on
			}
		} else if x.ctx.Err() != nil {
			x.err = infer.AsError(gone(&x.ctx)) // whatever the adapter makes of that
		} else if sock.Starved(x.err) {
			x.g.front.Starved("dial", x.err)
		}
		if !x.repeats() {
			return ended
		}
	}
}

// dispatch is stage 7: it hands the request to the chosen engine.
func (x *exchange) dispatch() error {
	x.answering = false
	c := attempt.Client{Endpoint: x.endpoint, Spends: &x.spends, Room: &x.room}
	if s := x.response.Served; s != nil {
		c.Request, c.Header = s.Request, s.Writer.Header()
	}
	if x.shard == nil && x.try.Target.Relay == nil {
		x.shard = x.g.outputs.assign()
	}
	if x.shard != nil {
		c.Waiting = &x.shard.pending
	}
	return x.try.Dispatch(&x.ctx, c)
}

// repeats settles an attempt, and reports whether another one follows.
func (x *exchange) repeats() bool {
	if !x.answering {
		x.err = x.try.Word(x.err)
	}
	e := x.err
	x.settled(x.try.Settle(e))
	next, err := x.try.Again(&x.ctx, e, x)
	switch {
	case next.Again:
		x.err, x.ending = nil, false
	case next.Whole != "":
		x.conclude(next.Whole)
	case e != nil:
		x.err = err
	}
	return next.Again
}

// settled takes over the error of a panic at the end of an attempt.
func (x *exchange) settled(panicked *infer.Error) {
	if x.err == nil {
		x.err = panicked
	}
}

// assist gives streams their turns that have waited for one, or whose engines' sockets have
// something, before work on a request that begins or ends.
func (g *Gateway) assist() {
	w := g.worker()
	g.outputs.assist(w)
	if g.attempts.Polled() {
		g.sockets.Assist(w)
	}
	g.workers.Put(w)
}

// overApart calls over in a goroutine: the end of a connection may wait.
func (x *exchange) overApart() {
	g := x.g
	g.ending.Add(1)
	go func() {
		defer g.ending.Add(-1)
		g.assist()
		x.over()
	}()
}

// over ends a stream that has left net/http, unless another engine continues it.
func (x *exchange) over() {
	if x.err == nil || x.told || !place.Continuable(x.err) || x.ctx.Err() != nil {
		x.finish()
		return
	}
	var v verdict
	func() {
		defer x.caught(&v)
		if v = ended; x.repeats() {
			v = x.attempts()
		}
	}()
	if v == ended {
		x.finish()
		return
	}
	defer x.rescue()
	x.proceed(v)
}
