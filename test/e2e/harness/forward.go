package harness

import (
	"testing"

	"weir/internal/lab/forward"
)

// The directions of a forwarder.
const (
	ToServer = forward.ToServer
	ToClient = forward.ToClient
)

// Forward forwards connections to target until the test ends.
func Forward(t testing.TB, target string) *forward.Forwarder {
	t.Helper()
	f, err := forward.To(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}
