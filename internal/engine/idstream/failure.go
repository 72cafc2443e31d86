package idstream

import (
	"fmt"
	"net/http"

	"weir/internal/infer"
)

// Failure returns the error for a status that has no special meaning for an engine, with
// the engine's message. A full queue, a wait that was too long and a preemption are all
// 503, and so is an engine that is starting or shutting down: another may take the
// request.
func Failure(engine string, status int, message string) *infer.Error {
	err := &infer.Error{Engine: engine, Cause: fmt.Errorf("status %d: %s", status, message)}
	switch {
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests:
		err.Code, err.Retryable = infer.CodeOverloaded, true
		err.Message = "the engine has no room for the request now; try again later"
	case status == http.StatusBadGateway, status == http.StatusGatewayTimeout:
		err.Code, err.Retryable = infer.CodeUnavailable, true
		err.Message = "the engine cannot be reached"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		err.Code, err.Retryable = infer.CodeEngine, true
		err.Message = "the engine does not let the gateway in"
	case status >= 400 && status < 500:
		err.Code = infer.CodeInvalid
		err.Message = "the engine refused the request"
		if message != "" {
			err.Message += ": " + message
		}
	default:
		err.Code, err.Retryable = infer.CodeEngine, true
		err.Message = "the engine failed"
	}
	return err
}
