package jinja

import (
	"errors"
	"fmt"
)

// Kind states what went wrong, in the reference's classes.
type Kind uint8

// The kinds of Error.
const (
	KindSyntax      Kind = iota // the template does not parse
	KindUnsupported             // the template uses what this package refuses
	KindUndefined               // an undefined value was used
	KindType                    // an operation does not fit its operands
	KindValue                   // an operand is out of range
	KindRuntime                 // any other failure while rendering
	KindSecurity                // the sandbox refused
	KindRaised                  // the template called raise_exception
	KindLimit                   // a bound of Options was exceeded
	KindStopped                 // Options.Check returned an error
)

// Error is a failure to parse or render a template.
type Error struct {
	Kind Kind
	// Line is the template line, counted from 1; 0 when unknown.
	Line int
	// Message is the reason; for KindRaised it is the template's own words.
	Message string
	// Cause is what Options.Check returned.
	Cause error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("line %d: %s", e.Line, e.Message)
	}
	return e.Message
}

// Unwrap returns what Options.Check returned.
func (e *Error) Unwrap() error { return e.Cause }

func errorf(k Kind, format string, args ...any) error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

func typeErrorf(format string, args ...any) error {
	return errorf(KindType, format, args...)
}

func valueErrorf(format string, args ...any) error {
	return errorf(KindValue, format, args...)
}

func syntaxErrorf(line int, format string, args ...any) error {
	return &Error{Kind: KindSyntax, Line: line, Message: fmt.Sprintf(format, args...)}
}

func unsupportedf(line int, format string, args ...any) error {
	return &Error{Kind: KindUnsupported, Line: line, Message: fmt.Sprintf(format, args...)}
}

// atLine names the line of an error that has none yet: the innermost node
// that knows its line wins.
func atLine(err error, line int) error {
	var e *Error
	if errors.As(err, &e) && e.Line == 0 {
		e.Line = line
	}
	return err
}

// isKind reports whether err is of one of the kinds.
func isKind(err error, kinds ...Kind) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	for _, k := range kinds {
		if e.Kind == k {
			return true
		}
	}
	return false
}
