package place_test

import (
	"testing"

	"weir/internal/fleet/retry"
	"weir/internal/gateway/place"
	"weir/internal/infer"
)

// The engine's word, and how much the client has, decide what may follow a failure.
func TestFailureOfAnAttempt(t *testing.T) {
	lost := &infer.Error{Code: infer.CodeUnavailable, Retryable: true}
	refused := &infer.Error{Code: infer.CodeOverloaded, Retryable: true, NotRun: true}
	broken := &infer.Error{Code: infer.CodeIntegrity}
	for _, test := range []struct {
		name  string
		err   *infer.Error
		p     place.Progress
		begun int32 // attempts before in which an engine may have begun
		want  retry.Refusal
	}{
		{"nothing has come", lost, place.Progress{Attempts: 1}, 0, retry.Granted},
		{"nothing has come of a path with effects", lost, place.Progress{Attempts: 1, Effects: true}, 0, retry.Effects},
		{"it was refused at a path with effects", refused, place.Progress{Attempts: 1, Effects: true}, 0, retry.Granted},
		{"no engine can do better", &infer.Error{Code: infer.CodeInvalid}, place.Progress{Attempts: 1}, 0, retry.Final},
		{"it was wrong from the beginning", broken, place.Progress{Attempts: 1}, 0, retry.Final},
		{"it was wrong after a part", broken, place.Progress{Attempts: 1, Begun: true, Goes: true}, 0, retry.Granted},
		{"the client has a part", lost, place.Progress{Attempts: 1, Begun: true}, 0, retry.Seen},
		{"the client has a part that can be continued", lost, place.Progress{Attempts: 1, Begun: true, Goes: true}, 0, retry.Granted},
		{"two engines may have begun", lost, place.Progress{Attempts: 2}, retry.MaxBegun - 1, retry.Exhausted},
		{"one may have begun, and one not", refused, place.Progress{Attempts: 2}, retry.MaxBegun - 1, retry.Granted},
		{"it was continued often", lost, place.Progress{Attempts: 9, Begun: true, Goes: true, Continued: retry.MaxContinued}, 0, retry.Exhausted},
	} {
		n := place.Need{Begun: test.begun}
		f := n.Failure(test.err, test.p)
		if got := f.Allow(); got != test.want {
			t.Errorf("%s: %v, want %v, by %+v", test.name, got, test.want, f)
		}
	}
}
