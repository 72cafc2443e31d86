package openai

import (
	"net/http"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// StatusClientClosed is the status of a request whose client went away. No
// client sees it; records and metrics do.
const StatusClientClosed = 499

// Class is the form of a coded error in this API.
type Class struct {
	Status int
	Type   string // error.type
	Code   string // error.code; "" is null
}

const (
	typeRequest = "invalid_request_error"
	typeLimit   = "rate_limit_error"
	typeServer  = "server_error"
)

// ClassOf maps a coded error to its class. Official clients retry 408, 409, 429 and
// 5xx, so an error that a retry cannot mend has another status.
//
//	code            status  type                   code
//	invalid         400     invalid_request_error  invalid_value, or null without a field
//	unsupported     400     invalid_request_error  unsupported_parameter
//	context_length  400     invalid_request_error  context_length_exceeded
//	unauthorized    401     invalid_request_error  invalid_api_key
//	not_found       404     invalid_request_error  model_not_found for the field model, else unknown_url
//	method          405     invalid_request_error  method_not_supported
//	too_large       413     invalid_request_error  request_too_large
//	body_timeout    408     invalid_request_error  request_timeout
//	media_type      415     invalid_request_error  unsupported_content_type
//	overloaded      429     rate_limit_error       rate_limit_exceeded
//	cancelled       499     invalid_request_error  request_cancelled
//	slow_client     499     invalid_request_error  slow_client
//	internal        500     server_error           internal_error
//	engine          502     server_error           engine_error
//	integrity       502     server_error           integrity_error
//	unavailable     503     server_error           service_unavailable
//	shutdown        503     server_error           service_unavailable
//	deadline        503     server_error           deadline_exceeded, 504 when an engine took too long
func ClassOf(e *infer.Error) Class {
	switch e.Code {
	case infer.CodeInvalid:
		if e.Param == "" {
			return Class{http.StatusBadRequest, typeRequest, ""}
		}
		return Class{http.StatusBadRequest, typeRequest, "invalid_value"}
	case infer.CodeUnsupported:
		return Class{http.StatusBadRequest, typeRequest, "unsupported_parameter"}
	case infer.CodeContext:
		return Class{http.StatusBadRequest, typeRequest, "context_length_exceeded"}
	case infer.CodeUnauthorized:
		return Class{http.StatusUnauthorized, typeRequest, "invalid_api_key"}
	case infer.CodeNotFound:
		if e.Param == "model" {
			return Class{http.StatusNotFound, typeRequest, "model_not_found"}
		}
		return Class{http.StatusNotFound, typeRequest, "unknown_url"}
	case infer.CodeMethod:
		return Class{http.StatusMethodNotAllowed, typeRequest, "method_not_supported"}
	case infer.CodeTooLarge:
		return Class{http.StatusRequestEntityTooLarge, typeRequest, "request_too_large"}
	case infer.CodeBodyTimeout:
		return Class{http.StatusRequestTimeout, typeRequest, "request_timeout"}
	case infer.CodeMediaType:
		return Class{http.StatusUnsupportedMediaType, typeRequest, "unsupported_content_type"}
	case infer.CodeOverloaded:
		return Class{http.StatusTooManyRequests, typeLimit, "rate_limit_exceeded"}
	case infer.CodeCancelled:
		return Class{StatusClientClosed, typeRequest, "request_cancelled"}
	case infer.CodeSlowClient:
		return Class{StatusClientClosed, typeRequest, "slow_client"}
	case infer.CodeEngine:
		return Class{http.StatusBadGateway, typeServer, "engine_error"}
	case infer.CodeIntegrity:
		return Class{http.StatusBadGateway, typeServer, "integrity_error"}
	case infer.CodeUnavailable, infer.CodeShutdown:
		return Class{http.StatusServiceUnavailable, typeServer, "service_unavailable"}
	case infer.CodeExpired:
		return Class{http.StatusGatewayTimeout, typeServer, "deadline_exceeded"}
	case infer.CodeDeadline:
		if e.Engine != "" {
			return Class{http.StatusGatewayTimeout, typeServer, "deadline_exceeded"}
		}
		return Class{http.StatusServiceUnavailable, typeServer, "deadline_exceeded"}
	}
	return Class{http.StatusInternalServerError, typeServer, "internal_error"}
}

// Status implements dialect.Endpoint.
func (Endpoint) Status(e *infer.Error) int { return ClassOf(e).Status }

// AppendError implements dialect.Endpoint.
func (Endpoint) AppendError(dst []byte, e *infer.Error) []byte { return AppendError(dst, e) }

// AppendErrorEvent implements dialect.Endpoint. Official clients raise on any event
// whose data has an error in it.
func (Endpoint) AppendErrorEvent(dst []byte, e *infer.Error) []byte {
	dst = append(dst, "data: "...)
	dst = AppendError(dst, e)
	return append(dst, "\n\n"...)
}

// AppendError appends an error as the body of a response.
func AppendError(dst []byte, e *infer.Error) []byte {
	class := ClassOf(e)
	dst = append(dst, `{"error":{"message":`...)
	dst = dialect.AppendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = dialect.AppendString(dst, class.Type)
	dst = append(dst, `,"param":`...)
	dst = dialect.AppendStringOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = dialect.AppendStringOrNull(dst, class.Code)
	return append(dst, `}}`...)
}
