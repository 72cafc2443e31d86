package infer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Code is the closed set of ways a request can go wrong. Every foreign error
// is given one of them where it enters (AsError), and each API dialect turns
// the code into its own words and HTTP status.
type Code uint8

// The codes. Their order is not significant; their names appear in metrics and
// timeline records through String.
const (
	CodeInternal     Code = iota // a defect of weir's own
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
	CodeIntegrity                // what the engine sent does not add up
	CodeSlowClient               // the client did not read within the write deadline
	CodeCancelled                // the client hung up
	CodeShutdown                 // the gateway's own shutdown cut it
	CodeExpired                  // the request took longer than it may, all in all
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
	// Message is for the caller: what is wrong and what to do about it.
	Message string
	// Param names the offending field, as a path ("messages[2].content").
	Param string
	// Lacks is what no engine there is carries, where that is why a field is refused;
	// whoever knows the engines can say why.
	Lacks Carries
	// Engine names the engine at fault, where there is one.
	Engine string
	// RetryAfter is the wait to suggest with CodeOverloaded, CodeDeadline and
	// CodeUnavailable; zero suggests nothing. Of an Engine it is that engine's own word,
	// and it is not asked again before.
	RetryAfter time.Duration
	// Reason is why it was refused for load, as a word; empty where the code says it all.
	Reason string
	// Retryable says another engine may succeed where this one failed, from the
	// start: whether that is too late, because the client has had some output, is the
	// gateway's to know.
	Retryable bool
	// NotRun states that the Engine cannot have begun with the request: it was never
	// there, or refused it.
	NotRun bool
	// Handover states that the two halves of a request failed between them: they did not
	// meet, or the KV did not come. The Engine that says so is not thereby at fault.
	Handover bool
	// Cause is the foreign error, for logs; callers never see it.
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

// Bound returns the flag of the bound that the message names as its reason, as --first-timeout;
// empty where it names none.
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

// AsError is the funnel: it gives any error a code. An *Error anywhere in the
// chain is returned as it is; context errors become cancelled or deadline;
// everything else is internal.
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

// Outcome is how a request ended, for the accounting identity
// received = finished + cancelled + rejected + failed.
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

// Outcome reports how a request that ended with e counts. A nil e is Finished.
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
