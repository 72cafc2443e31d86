package gateway

import (
	"time"

	"weir/internal/dialect/allow"
	"weir/internal/fleet/admission"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// read reads the body to its end, within limit and time. Reading everything
// before anything is sent on is also what keeps a relayed stream whole
// (golang/go#40747).
func (x *exchange) read() (body []byte, err error) {
	x.stream.Response.Unread = true
	if x.caller == prepare.Unknown {
		return nil, x.stream.Err
	}
	r := x.stream.Response.Served.Request
	if err := allow.CheckPlain(r.URL.EscapedPath()); err != nil {
		return nil, err
	}
	if allowed, err := x.g.preparer.Check(r.URL.Path, r.Method, r.Header); err != nil {
		if allowed != "" {
			x.stream.Response.Served.Writer.Header().Set("Allow", allowed)
		}
		return nil, err
	}
	if over := x.spends.Enter(x.caller, time.Now()); over.Reason != "" {
		return nil, overLimit(x.caller, over)
	}
	done, err := x.g.front.Admit(x.stream.Record.Client, r.RemoteAddr)
	if err != nil {
		return nil, err
	}
	x.uncount = done
	if size := r.ContentLength; size < 0 || size > admission.SmallBody {
		// A body that would be refused once it is here need not come. For a small one
		// this would save little, and cost its connection.
		if err := x.g.preparer.Gate.Check(x.caller, x.stream.Record.Arrival); err != nil {
			return nil, err
		}
	}
	body, err = x.g.front.ReadBody(&x.stream.Ctx, &x.stream.Response, x.stream.Record.Arrival, x.caller, x.g.bodies, &x.room)
	if err != nil {
		return nil, err
	}
	x.stream.Record.BytesIn = int64(len(body))
	x.stream.Record.Received = trace.Now()
	return body, nil
}

// overLimit is the error of a request that may not begin now.
func overLimit(c *tenancy.Caller, r tenancy.Refusal) error {
	what := map[string]string{
		tenancy.OverRequests:          "has as many requests under way as it may have",
		tenancy.OverRequestsPerMinute: "has sent as many requests within a minute as it may send",
		tenancy.OverTokensPerMinute:   "has used as many tokens within a minute as it may use",
		tenancy.OverTokensPerDay:      "has used its tokens of the day, which ends at midnight UTC",
	}[r.Reason]
	e := infer.Errorf(infer.CodeOverloaded, "the key %s %s (%d)", c.Key, what, r.Limit)
	if r.Reason == tenancy.Uncounted {
		e = infer.Errorf(infer.CodeUnavailable, "the limits of the key %s cannot be counted now: the store of limits does not answer", c.Key)
	}
	if e.Reason, e.RetryAfter = r.Reason, r.After; e.RetryAfter == 0 {
		e.RetryAfter = time.Second // when a request ends is not known
	}
	return e
}
