package anthropic

import (
	"net/http"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// StatusOverloaded is the API's status for an overloaded service.
const StatusOverloaded = 529

// statusClientClosed is the status of a request whose client went away. No
// client sees it; records and metrics do.
const statusClientClosed = 499

// classOf returns an error's status and error.type. Official clients retry on 408,
// 409, 429 and 5xx by themselves.
//
//	code                                  status  type
//	invalid, unsupported, context_length  400     invalid_request_error
//	unauthorized                          401     authentication_error
//	not_found                             404     not_found_error
//	method                                405     invalid_request_error
//	body_timeout                          408     invalid_request_error
//	too_large                             413     request_too_large
//	media_type                            415     invalid_request_error
//	cancelled, slow_client                499     invalid_request_error
//	internal                              500     api_error
//	engine, integrity                     502     api_error
//	unavailable, shutdown                 503     api_error
//	deadline                              503     timeout_error, 504 when an engine took too long
//	overloaded                            529     overloaded_error
func classOf(e *infer.Error) (status int, kind string) {
	const request, server = "invalid_request_error", "api_error"
	switch e.Code {
	case infer.CodeInvalid, infer.CodeUnsupported, infer.CodeContext:
		return http.StatusBadRequest, request
	case infer.CodeUnauthorized:
		return http.StatusUnauthorized, "authentication_error"
	case infer.CodeNotFound:
		return http.StatusNotFound, "not_found_error"
	case infer.CodeMethod:
		return http.StatusMethodNotAllowed, request
	case infer.CodeBodyTimeout:
		return http.StatusRequestTimeout, request
	case infer.CodeTooLarge:
		return http.StatusRequestEntityTooLarge, "request_too_large"
	case infer.CodeMediaType:
		return http.StatusUnsupportedMediaType, request
	case infer.CodeCancelled, infer.CodeSlowClient:
		return statusClientClosed, request
	case infer.CodeEngine, infer.CodeIntegrity:
		return http.StatusBadGateway, server
	case infer.CodeUnavailable, infer.CodeShutdown:
		return http.StatusServiceUnavailable, server
	case infer.CodeExpired:
		return http.StatusGatewayTimeout, "timeout_error"
	case infer.CodeDeadline:
		if e.Engine != "" {
			return http.StatusGatewayTimeout, "timeout_error"
		}
		return http.StatusServiceUnavailable, "timeout_error"
	case infer.CodeOverloaded:
		return StatusOverloaded, "overloaded_error"
	}
	return http.StatusInternalServerError, server
}

// Status implements dialect.Endpoint.
func (Endpoint) Status(e *infer.Error) int {
	status, _ := classOf(e)
	return status
}

// AppendError implements dialect.Endpoint. The API has no member for the field's
// name, so the message begins with it. The refusal of a stored conversation (the
// field thread) is worded so that the tool runner of official clients falls back to
// sending conversations whole.
func (Endpoint) AppendError(dst []byte, e *infer.Error) []byte {
	_, kind := classOf(e)
	dst = append(dst, `{"type":"error","error":{"type":"`...)
	dst = append(append(dst, kind...), `","message":`...)
	dst = dialect.AppendString(dst, e.Message)
	if e.Code == infer.CodeUnsupported && e.Param == "thread" {
		dst = append(dst, `,"details":{"error_code":"thread_unsupported_request","unsupported":["thread"]}`...)
	}
	return append(dst, `}}`...)
}

// AppendErrorEvent implements dialect.Endpoint. Official clients raise on it.
func (e Endpoint) AppendErrorEvent(dst []byte, err *infer.Error) []byte {
	dst = append(dst, "event: error\ndata: "...)
	dst = e.AppendError(dst, err)
	return append(dst, "\n\n"...)
}
