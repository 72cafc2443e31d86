package sglang

import (
	"net/http"
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// class is how a coded error looks in this API.
type class struct {
	status int
	kind   string // type
}

// classOf maps a coded error to its class. There is no 429: a server of SGLang's
// that has no room says 503, and its callers try again on that.
//
//	code                                               status  type
//	invalid, unsupported, context_length               400     invalid_request_error
//	unauthorized                                       401     invalid_request_error
//	not_found                                          404     invalid_request_error
//	method                                             405     invalid_request_error
//	body_timeout                                       408     invalid_request_error
//	too_large                                          413     invalid_request_error
//	media_type                                         415     invalid_request_error
//	cancelled, slow_client                             499     cancelled
//	internal                                           500     internal_error
//	engine, integrity                                  502     engine_error, integrity_error
//	overloaded, unavailable, shutdown                  503     service_unavailable
//	deadline                                           503     deadline_exceeded; 504 when an engine took too long
func classOf(e *infer.Error) class {
	const request = "invalid_request_error"
	switch e.Code {
	case infer.CodeInvalid, infer.CodeUnsupported, infer.CodeContext:
		return class{http.StatusBadRequest, request}
	case infer.CodeUnauthorized:
		return class{http.StatusUnauthorized, request}
	case infer.CodeNotFound:
		return class{http.StatusNotFound, request}
	case infer.CodeMethod:
		return class{http.StatusMethodNotAllowed, request}
	case infer.CodeBodyTimeout:
		return class{http.StatusRequestTimeout, request}
	case infer.CodeTooLarge:
		return class{http.StatusRequestEntityTooLarge, request}
	case infer.CodeMediaType:
		return class{http.StatusUnsupportedMediaType, request}
	case infer.CodeCancelled, infer.CodeSlowClient:
		return class{statusClientClosed, "cancelled"}
	case infer.CodeEngine:
		return class{http.StatusBadGateway, "engine_error"}
	case infer.CodeIntegrity:
		return class{http.StatusBadGateway, "integrity_error"}
	case infer.CodeOverloaded, infer.CodeUnavailable, infer.CodeShutdown:
		return class{http.StatusServiceUnavailable, "service_unavailable"}
	case infer.CodeExpired:
		return class{http.StatusGatewayTimeout, "deadline_exceeded"}
	case infer.CodeDeadline:
		if e.Engine != "" {
			return class{http.StatusGatewayTimeout, "deadline_exceeded"}
		}
		return class{http.StatusServiceUnavailable, "deadline_exceeded"}
	}
	return class{http.StatusInternalServerError, "internal_error"}
}

// statusClientClosed is the status of a request whose caller went away.
const statusClientClosed = 499

// Status implements dialect.Endpoint.
func (*endpoint) Status(e *infer.Error) int { return classOf(e).status }

// AppendError implements dialect.Endpoint.
func (*endpoint) AppendError(dst []byte, e *infer.Error) []byte {
	c := classOf(e)
	dst = dialect.AppendString(append(dst, `{"error":{"message":`...), e.Message)
	dst = dialect.AppendString(append(dst, `,"type":`...), c.kind)
	dst = append(dst, `,"param":`...)
	if e.Param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = dialect.AppendString(dst, e.Param)
	}
	dst = strconv.AppendInt(append(dst, `,"code":`...), int64(c.status), 10)
	dst = append(dst, `,"retryable":`...)
	dst = strconv.AppendBool(dst, c.status == http.StatusServiceUnavailable || c.status == http.StatusGatewayTimeout || c.status == http.StatusBadGateway)
	return append(dst, "}}"...)
}

// AppendErrorEvent implements dialect.Endpoint.
func (e *endpoint) AppendErrorEvent(dst []byte, err *infer.Error) []byte {
	return append(e.AppendError(append(dst, "data: "...), err), "\n\n"...)
}

// NewInspector implements dialect.Endpoint: a stream of /generate is never passed on.
func (*endpoint) NewInspector(*dialect.Head) dialect.Inspector { return nil }
