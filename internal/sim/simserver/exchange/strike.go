package exchange

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/conns"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/web"
)

// fail answers 500, in one shape on every server.
func (x *Exchange) fail() {
	var body web.ErrorBody
	body.Error.Message, body.Error.Type = "failed by fault", "internal_server_error"
	web.WriteJSON(x.Writer, http.StatusInternalServerError, &body)
}

// throttle answers 429, in OpenAI's words on every server: real engines do not
// say it, but what stands before them does.
func (x *Exchange) throttle() {
	x.Writer.Header().Set("Retry-After", strconv.Itoa(int((x.Fault.Delay+time.Second-1)/time.Second)))
	var body web.ErrorBody
	code := "rate_limit_exceeded"
	body.Error.Message, body.Error.Type, body.Error.Code = fmt.Sprintf("too many requests, by fault; try again in %v", x.Fault.Delay), "rate_limit_error", &code
	web.WriteJSON(x.Writer, http.StatusTooManyRequests, &body)
}

// splitting is where a stream's bytes are cut in two, or byte by byte.
type splitting struct {
	due      bool // the next event is to be cut
	from, to int  // the event in what is written next; to is 0 when there is none
}

// strike applies a fault before the next token, if the fault does more than send it
// differently.
func (x *Exchange) strike(b []byte, f Form) []byte {
	switch x.Fault.Kind {
	case sim.Pause:
		x.Run.Pause(x.Fault.Delay)
	case sim.Drip:
		conns.Of(x.Request.Context()).Mold(&conns.Shape{Bytes: x.Fault.Bytes, Delay: x.Fault.Delay})
	case sim.Abort:
		if f != nil {
			b = x.flush(b, f) // what comes before it
		}
	case sim.Split:
		if f != nil {
			b = x.flush(b, f)
			x.split = splitting{due: true, from: len(b)}
		}
	}
	return b
}

// splitEvent notes how far the event goes that is to be cut, if there is one
// yet.
func (x *Exchange) splitEvent(b []byte) []byte {
	if x.split.due && len(b) > x.split.from {
		x.split.due, x.split.to = false, len(b)
	}
	return b
}

// giveUp ends an output as a failure of the engine if the fault demands it.
func (x *Exchange) giveUp(o *Output) bool {
	if x.Fault.Kind != sim.Abort {
		return false
	}
	x.Run.End(&o.Job, infer.ReasonAbort)
	x.Open--
	x.Refused(o, engine.ErrAborted())
	return true
}

// write writes and flushes, an event that is to be cut in pieces.
func (x *Exchange) write(b []byte, flush func() error) error {
	put := func(b []byte) (int, error) {
		n, err := x.Writer.Write(b)
		if err == nil {
			err = flush()
		}
		return n, err
	}
	from, to := x.split.from, x.split.to
	if x.split.to = 0; to == 0 {
		if x.split.due {
			// The event is among what comes next.
			x.split.from = 0
		}
		_, err := put(b)
		return err
	}
	s := &conns.Shape{First: x.Fault.At, Delay: x.Fault.Delay}
	if x.Fault.At == 0 {
		// A whole answer is not cut into single bytes but into at most maxPieces pieces.
		s.Bytes = max(1, (to-from)/maxPieces)
	}
	if from > 0 {
		if _, err := put(b[:from]); err != nil {
			return err
		}
	}
	if _, err := s.Pieces(b[from:to], put, x.Request.Context().Done()); err != nil || to == len(b) {
		return err
	}
	_, err := put(b[to:])
	return err
}

// maxPieces bounds the pieces that an event is cut into.
const maxPieces = 512
