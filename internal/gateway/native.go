package gateway

import (
	"slices"
	"sync"

	"weir/internal/tenancy"
)

// This file has what POST /generate (package sglang) needs beyond other endpoints: the
// caller's own id of a request, by which it may be aborted, and the request's times.

// Identify implements prepare.Owner. It notes the id in the body for /abort_request, and takes it over
// if the caller gave none by its header.
func (x *exchange) Identify(rid string) {
	x.g.rids.enter(rid, x)
	if x.stream.Response.Served.Request.Header.Get("X-Request-Id") == "" && rid == requestID(rid, "") {
		x.stream.Record.RequestID = rid
		setRequestID(x.stream.Response.Served.Writer.Header(), x.endpoint, rid)
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
	x.rid = rid
}

func (r *rids) leave(x *exchange) {
	rid := x.rid
	if rid == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	left := slices.DeleteFunc(r.byID[rid], func(y *exchange) bool { return x == y })
	if r.byID[rid] = left; len(left) == 0 {
		delete(r.byID, rid)
	}
	x.rid = ""
}

// abort aborts the requests of that id which the caller has sent, with the same key. Unlike at
// SGLang it is the whole id, not its beginning.
func (r *rids) abort(rid string, c *tenancy.Caller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.byID[rid] {
		if x.caller.Same(c) {
			x.try.Abort(x.End)
		}
	}
}
