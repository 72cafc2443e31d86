package infer

import (
	"fmt"
	"runtime/debug"
)

// Panic is a panic that was caught while the output of an engine, or of another peer, was
// processed. It is the error with which the request, or the session that was read, ends: a
// defect in weir must not end the process, and with it the requests of every engine.
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

// Catch makes a panic the error of the function that defers it, and passes it to tell.
func Catch(err *error, tell func(*Panic)) {
	if p := Caught(recover(), tell); p != nil {
		*err = p
	}
}

// Failed returns the error for a request that a panic has ended. It is not retried at
// another engine, because the request may be the cause of the panic, which would happen
// there too.
func (p *Panic) Failed(engine string) *Error {
	return &Error{Code: CodeInternal, Message: "internal error", Engine: engine, Cause: p}
}
