package engine

import (
	"fmt"
	"runtime/debug"

	"weir/internal/infer"
)

// Panic is a panic that was caught where an adapter takes in what an engine has sent.
// As an error it is why a request, or the session that was read, has ended: a defect
// of weir's must not end the process, and with it the requests of every other engine.
type Panic struct {
	Value any
	Stack []byte
}

// Error implements error.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Caught converts the value that recover returned to a deferred function into an error
// and passes it to tell. It returns nil if there was no panic. tell may be nil.
func Caught(recovered any, tell func(*Panic)) *Panic {
	if recovered == nil {
		return nil
	}
	p := &Panic{Value: recovered, Stack: debug.Stack()}
	if tell != nil {
		tell(p)
	}
	return p
}

// Failed is what a request is told that a panic has ended. Another engine is not asked:
// the panic may be about the request, and would come there too.
func (p *Panic) Failed(engine string) *infer.Error {
	return &infer.Error{Code: infer.CodeInternal, Message: "internal error", Engine: engine, Cause: p}
}
