package infer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Code is the closed set of ways in which a request can fail. Every foreign error
// gets one of them where it enters weir (AsError). Each API dialect translates the
// code to its own words and HTTP status.
type Code uint8

// The codes. Their order is not significant; their names appear in metrics and
// timeline records through String.
const (
	CodeInternal     Code = iota // a defect of weir
	CodeInvalid                  // the request is malformed or out of range
	CodeUnsupported              // a field the engine kind cannot carry
	CodeNotFound                 // unknown model or path
	CodeMethod                   // the path exists, the HTTP method does not
	CodeTooLarge                 // the body is over the limit
	CodeBodyTimeout              // the body did not arrive in time
	CodeMediaType                // the body is not JSON
	CodeContext                  // the prompt does not fit the model
	CodeUnauthorized             // a key is missing or wrong
	CodeOverloaded               // refused because of load, try later
	CodeDeadline                 // a wait ran out its bound
	CodeUnavailable              // no engine can take the request now
	CodeEngine                   // the engine failed
	CodeIntegrity                // the engine's output is inconsistent
	CodeSlowClient               // the client did not read within the write deadline
	CodeCancelled                // the client hung up
	CodeShutdown                 // the gateway shut down before the request's end
	CodeExpired                  // the request exceeded the bound of its whole duration
	numCodes
)

var codeNames = [numCodes]string{
	"internal", "invalid", "unsupported", "not_found", "method", "too_large",
	"body_timeout", "media_type", "context_length", "unauthorized", "overloaded", "deadline",
	"unavailable", "engine", "integrity", "slow_client", "cancelled", "shutdown", "expired",
}

// String returns the code's name in metrics and records.
func (c Code) String() string {
	if c < numCodes {
		return codeNames[c]
	}
	return "unknown"
}

// Error is the one error type that crosses package borders on the request
// path.
type Error struct {
	Code Code
	// Message tells the caller what is wrong and what to do about it.
	Message string
	// Param names the offending field, as a path ("messages[2].content").
	Param string
	// Lacks is the set of features that no available engine carries, if a field is
	// refused for that reason. Code that knows the engines can add why.
	Lacks Carries
	// Engine names the engine at fault, if there is one.
	Engine string
	// RetryAfter is the wait to suggest with CodeOverloaded, CodeDeadline and
	// CodeUnavailable. Zero suggests nothing. If Engine is set, the engine itself stated
	// the wait, and weir does not ask it again before.
	RetryAfter time.Duration
	// Reason is the reason of a refusal under load, as a word; empty if the code is
	// specific enough.
	Reason string
	// Retryable is set if another engine may succeed when it starts from the
	// beginning. The gateway knows whether that is too late because the client has
	// had some output.
	Retryable bool
	// NotRun is set if Engine cannot have begun with the request, because it was
	// unreachable or refused it.
	NotRun bool
	// Handover is set if the failure lies between the two halves of a request: they did
	// not meet, or the KV did not arrive. The Engine that reports it is not necessarily
	// at fault.
	Handover bool
	// Cause is the foreign error, for logs. Callers never see it.
	Cause error
}

// Error implements error.
func (e *Error) Error() string {
	s := e.Code.String() + ": " + e.Message
	if e.Engine != "" {
		s += " (engine " + e.Engine + ")"
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the foreign error.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf builds an Error; the message is for the caller.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Bound returns the flag of the bound that the message names as the reason, such as
// --first-timeout; empty if it names none.
func (e *Error) Bound() string {
	if e.Code == CodeInvalid { // whose messages may hold callers' words
		return ""
	}
	_, rest, ok := strings.Cut(e.Message, "(--")
	name, _, closed := strings.Cut(rest, ")")
	if !ok || !closed || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz-") != "" {
		return ""
	}
	return "--" + name
}

// Invalid builds a CodeInvalid error about one field.
func Invalid(param, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Param: param, Message: fmt.Sprintf(format, args...)}
}

// AsError converts any error to an *Error. An *Error anywhere in the chain is
// returned as it is. Context errors become cancelled or deadline, and everything else
// internal.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	switch {
	case errors.Is(err, context.Canceled):
		return &Error{Code: CodeCancelled, Message: "the client closed the connection", Cause: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: CodeDeadline, Message: "the request ran out of time", Cause: err}
	}
	return &Error{Code: CodeInternal, Message: "internal error", Cause: err}
}

// Outcome is how a request ended. The outcomes satisfy received = finished +
// cancelled + rejected + failed.
type Outcome uint8

// The outcomes.
const (
	Finished  Outcome = iota // the client has the whole answer
	Cancelled                // the client went away
	Rejected                 // refused before an engine worked on it
	Failed                   // weir or an engine could not complete it
	NumOutcomes
)

var outcomeNames = [NumOutcomes]string{"finished", "cancelled", "rejected", "failed"}

// String returns the outcome's name in metrics and records.
func (o Outcome) String() string { return outcomeNames[o] }

// Outcome returns the outcome of a request that ended with e. A nil e is Finished.
func (e *Error) Outcome() Outcome {
	if e == nil {
		return Finished
	}
	switch e.Code {
	case CodeCancelled:
		return Cancelled
	case CodeInternal, CodeEngine, CodeIntegrity, CodeSlowClient, CodeShutdown, CodeExpired:
		return Failed
	case CodeUnavailable, CodeDeadline:
		if e.Engine != "" {
			return Failed
		}
	}
	return Rejected
}
