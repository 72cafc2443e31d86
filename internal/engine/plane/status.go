package plane

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine/mux"
	"weir/internal/infer"
)

// verdict is what a failed Submit means.
type verdict struct {
	err *infer.Error
	// refused: the engine does not have the request, so the slot is free. When
	// it is false the engine may or may not have it.
	refused bool
	// occupied: the engine has another request in the slot.
	occupied bool
	// forgotten: the engine does not know the session.
	forgotten bool
}

// refusal is judge for a refusal among the notices of a step, which is the engine's own word
// whatever its code.
func refusal(engine string, code codes.Code, message string) verdict {
	v := judge(context.Background(), engine, status.Error(code, message), true)
	if !v.refused && !v.occupied {
		v = judge(context.Background(), engine, status.Error(codes.Unknown, message), true)
	}
	v.err.NotRun = v.refused
	return v
}

// judge returns a failed Submit its code. answered is set if the status came from the
// engine and not from weir's end of the connection. An engine answers a request with an
// error only if it did not accept it. After a broken connection that is unknown.
//
// Retryable is set wherever another engine may do better. That is safe also
// when the outcome is unknown: whatever this engine still does, its ids never
// reach the sink.
func judge(ctx context.Context, engine string, err error, answered bool) verdict {
	st := status.Convert(err)
	fail := func(code infer.Code, retryable bool, message string) *infer.Error {
		return &infer.Error{Code: code, Message: message, Engine: engine, Retryable: retryable, Cause: err}
	}
	switch code := st.Code(); {
	case answered && code == codes.InvalidArgument:
		return verdict{refused: true, err: fail(infer.CodeInvalid, false, "the engine refused the request: "+st.Message())}
	case answered && code == codes.ResourceExhausted:
		return verdict{refused: true, err: fail(infer.CodeOverloaded, true, "the engine's queue is full; try again later")}
	case answered && code == codes.Unavailable:
		return verdict{refused: true, err: fail(infer.CodeUnavailable, true, "the engine is shutting down; try again later")}
	case answered && code == codes.FailedPrecondition:
		return verdict{refused: true, forgotten: true, err: fail(infer.CodeUnavailable, true, "the engine has restarted; try again")}
	case answered && code == codes.AlreadyExists:
		e := fail(infer.CodeIntegrity, true, "the engine and weir disagree about running requests; try again")
		e.Cause = errors.Join(&mux.Fault{Reason: FaultOccupied, Detail: st.Message()}, err)
		return verdict{occupied: true, err: e}
	case answered && code != codes.Canceled && code != codes.DeadlineExceeded:
		return verdict{refused: true, err: fail(infer.CodeEngine, true, "the engine failed to take the request; try again")}
	case errors.Is(ctx.Err(), context.Canceled):
		return verdict{err: fail(infer.CodeCancelled, false, "the client closed the connection")}
	case ctx.Err() != nil || code == codes.DeadlineExceeded:
		return verdict{err: fail(infer.CodeDeadline, true, "the engine did not confirm the request in time; try again")}
	case code == codes.ResourceExhausted:
		// Made up by our end: the message is over MaxSubmit and never left.
		return verdict{refused: true, err: fail(infer.CodeTooLarge, false, "the prompt is too large to send to the engine; shorten it")}
	case code == codes.Unavailable || code == codes.Canceled:
		return verdict{err: fail(infer.CodeUnavailable, true, "the connection to the engine was lost; try again")}
	}
	return verdict{err: fail(infer.CodeEngine, true, "the engine could not be asked; try again")}
}
