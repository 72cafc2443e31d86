package gateway

import (
	"slices"
	"sync"
	"sync/atomic"

	"weir/internal/dialect"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// This file has what POST /generate (package sglang) needs beyond other endpoints: the
// caller's own id of a request, by which it may be aborted, and the request's times.

// Identify implements prepare.Owner. It notes the id in the body for /abort_request, and takes it over
// if the caller gave none by its header.
func (x *exchange) Identify(rid string) {
	x.g.rids.enter(rid, x)
	if x.response.Served.Request.Header.Get("X-Request-Id") == "" && rid == requestID(rid, "") {
		x.rec.RequestID = rid
		setRequestID(x.response.Served.Writer.Header(), x.endpoint, rid)
	}
}

// rids are the requests under way that can be aborted, by the ids that their
// callers gave them. Two callers may use the same.
type rids struct {
	mu   sync.Mutex
	byID map[string][]*exchange
}

func (r *rids) enter(rid string, x *exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = map[string][]*exchange{}
	}
	r.byID[rid] = append(r.byID[rid], x)
	x.abortable.rid = rid
}

func (r *rids) leave(x *exchange) {
	rid := x.abortable.rid
	if rid == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	left := slices.DeleteFunc(r.byID[rid], func(y *exchange) bool { return x == y })
	if r.byID[rid] = left; len(left) == 0 {
		delete(r.byID, rid)
	}
	x.abortable.rid = ""
}

// abort aborts the requests of that id which the caller has sent, with the same key. Unlike at
// SGLang it is the whole id, not its beginning.
func (r *rids) abort(rid string, c *tenancy.Caller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.byID[rid] {
		if x.caller.Same(c) {
			x.abortable.ask(x.End)
		}
	}
}

// abortable is what /abort_request changes of a request. If an engine has the request,
// the engine is asked to abort it, and its output until then is the answer. A request
// that no engine has yet ends with errAborted.
type abortable struct {
	asked   atomic.Bool
	sent    bool // the engine was told
	rid     string
	mailbox atomic.Pointer[stream.Mailbox] // from the hand-over on
}

var errAborted = infer.Errorf(infer.CodeCancelled, "the request was aborted by /abort_request")

func (a *abortable) ask(end func(cause error)) {
	a.asked.Store(true)
	if !a.wake() {
		end(errAborted)
	}
}

// wake gives the stream of a request that an engine has its turn, and reports whether there is
// one.
func (a *abortable) wake() bool {
	box := a.mailbox.Load()
	if box != nil {
		box.Wake()
	}
	return box != nil
}

// ready reports whether the request goes to an engine now, unless it was aborted.
func (a *abortable) ready(box *stream.Mailbox) bool {
	a.mailbox.Store(box)
	return !a.asked.Load()
}

// timing returns the times of a request so far.
func timing(rec *trace.Record) dialect.Timing {
	now := trace.Now()
	seconds := func(stamp int64) float64 {
		if stamp == 0 {
			return 0
		}
		return float64(trace.Wall(stamp).UnixNano()) / 1e9
	}
	t := dialect.Timing{
		Received: seconds(rec.Arrival), FirstSent: seconds(rec.FirstFlushed), Ended: seconds(now),
		Duration: float64(now-rec.Arrival) / 1e9,
	}
	if leg := rec.Leg(); leg != nil {
		stamps := &leg.Stamps
		t.Dispatched, t.Started, t.Prefilled = seconds(leg.ToServer), seconds(stamps.QueueEnd), seconds(stamps.PrefillEnd)
		if stamps.QueueStart > 0 && stamps.QueueEnd > stamps.QueueStart {
			t.Queue = float64(stamps.QueueEnd-stamps.QueueStart) / 1e9
		}
	}
	return t
}
