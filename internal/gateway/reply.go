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
	x.stream.Record.Enter(trace.Flush)
	h := x.stream.Response.Served.Writer.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(out)))
	x.stream.Record.PutTiming(h)
	x.begin(http.StatusOK, false)
	const part = 1 << 20
	for len(out) > 0 {
		n := min(part, len(out))
		if err := x.stream.Response.Arm(&x.stream.Ctx, x.stream.Record.Enter(trace.Flush), x.g.opts.Front.WriteTimeout); err != nil {
			return err
		}
		_, err := x.stream.Response.Carrier.Send(nil, out[:n], n == len(out))
		if err == nil {
			err = x.stream.Response.Carrier.Rest()
		}
		if err != nil {
			return front.Lost(&x.stream.Ctx, err, x.g.opts.Front.WriteTimeout)
		}
		x.stream.Record.BytesOut += int64(n)
		out = out[n:]
	}
	return nil
}
