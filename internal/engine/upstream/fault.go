package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weir/internal/infer"
	"weir/internal/wire/http1"
	"weir/internal/wire/sock"
)

// Fault returns a transport error of an engine its code. All are retryable as long as nothing
// reached the client, which the gateway knows: the answer is lost, so asking
// another engine cannot repeat anything the client has seen.
func Fault(engine string, err error) *infer.Error {
	var coded *infer.Error
	if errors.As(err, &coded) || errors.Is(err, context.Canceled) {
		return infer.AsError(err)
	}
	if sock.Starved(err) { // weir is, and no engine is to blame
		return &infer.Error{Code: infer.CodeUnavailable, RetryAfter: time.Second, Cause: err,
			Message: "the gateway has no descriptors left for a connection to an engine; try again later"}
	}
	f := &infer.Error{Code: infer.CodeEngine, Engine: engine, Retryable: true, Cause: err,
		Message: "the engine broke the connection before its answer was complete"}
	var op *net.OpError
	var wire *http1.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.As(err, &op) && op.Op == "dial":
		f.Code, f.NotRun, f.Message = infer.CodeUnavailable, true, "the engine cannot be reached"
	case errors.As(err, &wire):
		f.Message = "the engine's answer is not valid HTTP"
	case timedOut(err):
		f.Code, f.Message = infer.CodeDeadline, "the engine did not answer in time"
	}
	return f
}

// RetryAfter returns how long an engine that answers with a status asks not to be asked
// again; 0 if not reported.
func RetryAfter(status int, said http1.Fields) time.Duration {
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return 0
	}
	value := strings.TrimSpace(said.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
