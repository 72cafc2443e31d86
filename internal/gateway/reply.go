package gateway

import (
	"net/http"
	"strconv"

	"weir/internal/gateway/front"
	"weir/internal/trace"
)

// writeWhole writes an answer that is no stream, a part at a time: each gets the
// whole time that a client may take to read.
func (x *exchange) writeWhole(out []byte) error {
	x.rec.Enter(trace.Flush)
	h := x.response.Served.Writer.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(out)))
	x.rec.PutTiming(h)
	x.begin(http.StatusOK, false)
	const part = 1 << 20
	for len(out) > 0 {
		n := min(part, len(out))
		if err := x.response.Arm(&x.ctx, x.rec.Enter(trace.Flush), x.g.opts.Front.WriteTimeout); err != nil {
			return err
		}
		_, err := x.response.Carrier.Send(nil, out[:n], n == len(out))
		if err == nil {
			err = x.response.Carrier.Rest()
		}
		if err != nil {
			return front.Lost(&x.ctx, err, x.g.opts.Front.WriteTimeout)
		}
		x.rec.BytesOut += int64(n)
		out = out[n:]
	}
	return nil
}
