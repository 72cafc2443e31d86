package infer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// Every error gets a code where it enters, and keeps the one it has.
func TestAsError(t *testing.T) {
	coded := &Error{Code: CodeEngine, Message: "lost", Engine: "a"}
	for _, test := range []struct {
		name string
		err  error
		code Code
		same bool
	}{
		{"coded", coded, CodeEngine, true},
		{"coded, wrapped", fmt.Errorf("op: %w", coded), CodeEngine, true},
		{"coded over a context's", &Error{Code: CodeDeadline, Cause: context.Canceled}, CodeDeadline, false},
		{"cancelled", context.Canceled, CodeCancelled, false},
		{"cancelled, wrapped", fmt.Errorf("op: %w", context.Canceled), CodeCancelled, false},
		{"out of time", context.DeadlineExceeded, CodeDeadline, false},
		{"foreign", io.ErrUnexpectedEOF, CodeInternal, false},
	} {
		e := AsError(test.err)
		if e == nil || e.Code != test.code {
			t.Errorf("%s: %v, want code %v", test.name, e, test.code)
			continue
		}
		if test.same && e != coded {
			t.Errorf("%s: the error was copied", test.name)
		}
		if e.Message == "" && !strings.HasPrefix(test.name, "coded over") {
			t.Errorf("%s: no message for the caller", test.name)
		}
		if !test.same && !strings.HasPrefix(test.name, "coded") && !errors.Is(e, test.err) {
			t.Errorf("%s: the cause is lost", test.name)
		}
	}
	if e := AsError(nil); e != nil {
		t.Errorf("AsError(nil) = %v", e)
	}
	var none *Error
	if e := AsError(nil); e != none {
		t.Error("no error is not a nil *Error")
	}
}

// A foreign error's words are for logs; a caller sees none of them.
func TestForeignWordsStayInside(t *testing.T) {
	e := AsError(errors.New("dial 10.0.0.1: secret"))
	if strings.Contains(e.Message, "secret") {
		t.Errorf("message %q", e.Message)
	}
	if !strings.Contains(e.Error(), "secret") {
		t.Errorf("log %q lacks the cause", e)
	}
}

// How each code counts; with an engine at fault and without.
func TestOutcome(t *testing.T) {
	var none *Error
	if got := none.Outcome(); got != Finished {
		t.Errorf("no error is %v", got)
	}
	want := map[Code][2]Outcome{ // without an engine, with one
		CodeInternal:   {Failed, Failed},
		CodeEngine:     {Failed, Failed},
		CodeIntegrity:  {Failed, Failed},
		CodeSlowClient: {Failed, Failed},
		CodeShutdown:   {Failed, Failed},
		CodeExpired:    {Failed, Failed},

		CodeCancelled: {Cancelled, Cancelled},

		CodeUnavailable: {Rejected, Failed},
		CodeDeadline:    {Rejected, Failed},

		CodeInvalid:      {Rejected, Rejected},
		CodeUnsupported:  {Rejected, Rejected},
		CodeNotFound:     {Rejected, Rejected},
		CodeMethod:       {Rejected, Rejected},
		CodeTooLarge:     {Rejected, Rejected},
		CodeBodyTimeout:  {Rejected, Rejected},
		CodeMediaType:    {Rejected, Rejected},
		CodeContext:      {Rejected, Rejected},
		CodeUnauthorized: {Rejected, Rejected},
		CodeOverloaded:   {Rejected, Rejected},
	}
	for c := range numCodes {
		outcomes, ok := want[c]
		if !ok {
			t.Errorf("code %v is not in the table", c)
			continue
		}
		for i, engine := range []string{"", "a"} {
			if got := (&Error{Code: c, Engine: engine}).Outcome(); got != outcomes[i] {
				t.Errorf("%v of engine %q counts as %v, want %v", c, engine, got, outcomes[i])
			}
		}
	}
}

// The names appear as labels: each once, none empty.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for c := range numCodes {
		if name := c.String(); name == "" || name == "unknown" || seen[name] {
			t.Errorf("code %d is named %q", c, name)
		} else {
			seen[name] = true
		}
	}
	if numCodes.String() != "unknown" {
		t.Errorf("a code that is none is named %q", numCodes)
	}
	seen = map[string]bool{}
	for o := range NumOutcomes {
		if name := o.String(); name == "" || seen[name] {
			t.Errorf("outcome %d is named %q", o, name)
		} else {
			seen[name] = true
		}
	}
}

func TestErrorText(t *testing.T) {
	e := &Error{Code: CodeEngine, Message: "lost", Engine: "a", Cause: io.EOF}
	if got, want := e.Error(), "engine: lost (engine a): EOF"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Invalid("seed", "must be %d", 7); got.Code != CodeInvalid || got.Param != "seed" || got.Message != "must be 7" {
		t.Errorf("%+v", got)
	}
	if got := (Finish{Reason: ReasonError, Err: e}).String(); !strings.Contains(got, "lost") {
		t.Errorf("finish %q", got)
	}
	if got := (Finish{Reason: ReasonStop}).String(); got != "stop" {
		t.Errorf("finish %q", got)
	}
}

// The bound that has ended a request is told by its flag, and by nothing that a caller wrote.
func TestBound(t *testing.T) {
	for _, c := range []struct {
		e    *Error
		want string
	}{
		{Errorf(CodeDeadline, "the engine did not confirm the request within 10s (--submit-timeout)"), "--submit-timeout"},
		{Errorf(CodeOverloaded, "9 requests wait, which is the limit (--max-queue); try again"), "--max-queue"},
		{Errorf(CodeEngine, "it failed"), ""},
		{Errorf(CodeEngine, "it failed (--so what)"), ""},
		{Errorf(CodeEngine, "it failed (--"), ""},
		{Invalid("stop", "stop is %q", "(--max-body)"), ""},
	} {
		if got := c.e.Bound(); got != c.want {
			t.Errorf("%q: %q, want %q", c.e.Message, got, c.want)
		}
	}
}
