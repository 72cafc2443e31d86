package harness

import (
	"testing"

	"weir/internal/lab/ports"
)

// FreeAddress returns an address that nobody listens on, to one test alone.
func FreeAddress(t testing.TB) string {
	t.Helper()
	addr, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// Neighbours returns two free addresses whose ports are next to each other.
func Neighbours(t testing.TB) (first, second string) {
	t.Helper()
	addrs, err := ports.Adjacent(2)
	if err != nil {
		t.Fatal(err)
	}
	return addrs[0], addrs[1]
}
