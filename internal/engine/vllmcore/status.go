package vllmcore

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

type loss struct {
	why   Loss
	cause error
}

func (l *loss) Error() string {
	if l.cause == nil {
		return "session ended: " + l.why.String()
	}
	return "session ended: " + l.why.String() + ": " + l.cause.Error()
}

func (l *loss) Unwrap() error { return l.cause }

// terminal is what the generations of a lost session are told.
func (l *loss) terminal(engine string) *infer.Error {
	e := &infer.Error{Engine: engine, Cause: l, Code: infer.CodeEngine}
	switch l.why {
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

// unavailable is what a request is told that no session took.
func unavailable(engine string, cause error) *infer.Error {
	return &infer.Error{
		Code: infer.CodeUnavailable, Message: "the engine is not connected; try again",
		Engine: engine, Retryable: true, Cause: cause,
	}
}
