package fenced

import "weir/internal/infer"

// Loss is why a session ended.
type Loss uint8

// The ways a session ends.
const (
	LossClosed     Loss = iota // Run's context ended
	LossConnection             // a connection broke or was closed
	LossDead                   // the engine said that it is dead
	LossSilent                 // nothing was heard, or written, for too long
	LossIntegrity              // what the engine sent does not add up
	LossRestarted              // the engine has come again
	NumLosses
)

var lossNames = [NumLosses]string{"closed", "connection", "dead", "silent", "integrity", "restarted"}

// String gives the word for metrics and logs.
func (l Loss) String() string { return lossNames[l] }

// End is why a session ended, as an error.
type End struct {
	Why   Loss
	Cause error
}

// Error implements error.
func (l *End) Error() string {
	if l.Cause == nil {
		return "session ended: " + l.Why.String()
	}
	return "session ended: " + l.Why.String() + ": " + l.Cause.Error()
}

// Unwrap gives the cause.
func (l *End) Unwrap() error { return l.Cause }

// Terminal is what the generations of a lost session are told.
func (l *End) Terminal(engine string) *infer.Error {
	e := &infer.Error{Engine: engine, Cause: l, Code: infer.CodeEngine}
	switch l.Why {
	case LossIntegrity:
		e.Code, e.Message = infer.CodeIntegrity, "what the engine sent does not add up, so the output ends here; send the request again"
	case LossClosed:
		e.Code, e.Message = infer.CodeUnavailable, "the engine was removed while it worked on the request; send it again"
	case LossSilent:
		e.Message = "the engine stopped answering while it worked on the request; send it again"
	case LossDead:
		e.Message = "the engine died while it worked on the request; send it again"
	default:
		e.Message = "the connection to the engine was lost; send the request again"
	}
	return e
}

// Unavailable is what a request is told that no session took.
func Unavailable(engine string, cause error) *infer.Error {
	return &infer.Error{
		Code: infer.CodeUnavailable, Message: "the engine is not connected; try again",
		Engine: engine, Retryable: true, Cause: cause,
	}
}
