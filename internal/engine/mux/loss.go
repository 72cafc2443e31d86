package mux

import "weir/internal/infer"

// Loss is why a session ended.
type Loss uint8

// The ways a session ends.
const (
	LossClosed     Loss = iota // Run's context ended
	LossConnection             // a connection broke or was closed
	LossEngine                 // the engine ended it
	LossDead                   // the engine reported its own end
	LossSilent                 // nothing was heard, or written, for too long
	LossIntegrity              // what the engine sent does not add up
	LossRestarted              // the engine has come again
	LossForgotten              // the engine does not know it any more
	LossSlots                  // it filled up with requests of unknown fate
	LossPanic                  // weir failed while it took in what the engine sent
	NumLosses
)

var lossNames = [NumLosses]string{"closed", "connection", "engine", "dead", "silent", "integrity", "restarted", "forgotten", "slots", "panic"}

// String returns the word for metrics and logs.
func (l Loss) String() string { return lossNames[l] }

// End is why a session ended, as an error.
type End struct {
	Why   Loss
	Cause error
}

// Error implements error.
func (e *End) Error() string {
	if e.Cause == nil {
		return "session ended: " + e.Why.String()
	}
	return "session ended: " + e.Why.String() + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *End) Unwrap() error { return e.Cause }

// Terminal returns the error for the generations of a lost session.
func (e *End) Terminal(engine string) *infer.Error {
	t := &infer.Error{Engine: engine, Cause: e, Code: infer.CodeEngine, Retryable: true}
	switch e.Why {
	case LossIntegrity:
		t.Code, t.Message = infer.CodeIntegrity, doesNotAddUp
	case LossClosed:
		t.Code, t.Message = infer.CodeUnavailable, "the engine was removed while it worked on the request; send it again"
	case LossSilent:
		t.Message = "the engine stopped answering while it worked on the request; send it again"
	case LossPanic:
		t.Code, t.Message = infer.CodeInternal, "internal error while the output of the engine was read; send the request again"
	case LossDead:
		t.Message = "the engine died while it worked on the request; send it again"
	default:
		t.Message = "the connection to the engine was lost; send the request again"
	}
	return t
}

const doesNotAddUp = "what the engine sent does not add up, so the output ends here; send the request again"

// Unavailable is the error of a request that no session took. The engine has none of it.
func Unavailable(engine string, cause error) *infer.Error {
	return &infer.Error{
		Code: infer.CodeUnavailable, Message: "the engine is not connected; try again",
		Engine: engine, Retryable: true, NotRun: true, Cause: cause,
	}
}
