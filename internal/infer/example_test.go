package infer_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir/internal/infer"
)

// Every error of the request path is given a code where it enters, and has it
// whatever is wrapped around it.
func ExampleAsError() {
	full := &infer.Error{Code: infer.CodeOverloaded, Message: "the queue is full", RetryAfter: 2 * time.Second}
	for _, err := range []error{
		fmt.Errorf("submit: %w", full),
		fmt.Errorf("read: %w", context.Canceled),
		context.DeadlineExceeded,
		errors.New("index out of range"),
	} {
		e := infer.AsError(err)
		fmt.Printf("%v: %v\n", e.Code, e.Outcome())
	}
	// Output:
	// overloaded: rejected
	// cancelled: cancelled
	// deadline: rejected
	// internal: failed
}

// An error for the caller names the field and says what to do.
func ExampleInvalid() {
	err := infer.Invalid("max_tokens", "must be at most %d", 4096)
	fmt.Println(err.Code, err.Param)
	fmt.Println(err)
	// Output:
	// invalid max_tokens
	// invalid: must be at most 4096
}
