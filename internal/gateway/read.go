package gateway

import (
	"time"

	"weir/internal/dialect/allow"
	"weir/internal/fleet/admission"
	"weir/internal/gateway/prepare"
	"weir/internal/trace"
)

// read reads the body to its end, within limit and time. Reading everything
// before anything is sent on is also what keeps a relayed stream whole
// (golang/go#40747).
func (x *exchange) read() (body []byte, err error) {
	x.response.Unread = true
	if x.caller == prepare.Unknown {
		return nil, x.err
	}
	r := x.response.Served.Request
	if err := allow.CheckPlain(r.URL.EscapedPath()); err != nil {
		return nil, err
	}
	if allowed, err := x.g.preparer.Check(r.URL.Path, r.Method, r.Header); err != nil {
		if allowed != "" {
			x.response.Served.Writer.Header().Set("Allow", allowed)
		}
		return nil, err
	}
	if err := x.spends.enter(x.caller, time.Now()); err != nil {
		return nil, err
	}
	done, err := x.g.front.Admit(x.rec.Client, r.RemoteAddr)
	if err != nil {
		return nil, err
	}
	x.uncount = done
	if size := r.ContentLength; size < 0 || size > admission.SmallBody {
		// A body that would be refused once it is here need not come. For a small one
		// this would save little, and cost its connection.
		if err := x.g.preparer.Gate.Check(x.caller, x.rec.Arrival); err != nil {
			return nil, err
		}
	}
	body, err = x.g.front.ReadBody(&x.ctx, &x.response, x.rec.Arrival, x.caller, x.g.bodies, &x.room)
	if err != nil {
		return nil, err
	}
	x.rec.BytesIn = int64(len(body))
	x.rec.Received = trace.Now()
	return body, nil
}
