package harness

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
)

// freePort is below those that a kernel gives away by itself, so that no other
// process takes one unasked between the choice and its use.
var freePort atomic.Uint32

// FreeAddress returns an address that nobody listens on, to one test alone.
func FreeAddress(t testing.TB) string {
	t.Helper()
	first, _ := Neighbours(t)
	return first
}

// Neighbours returns two free addresses whose ports are next to each other.
func Neighbours(t testing.TB) (first, second string) {
	t.Helper()
	const low, high = 12_000, 32_000
	freePort.CompareAndSwap(0, 1+rand.Uint32N(high-low)) // another process of tests begins elsewhere
	free := func(port uint32) (string, bool) {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return "", false
		}
		defer l.Close()
		return l.Addr().String(), true
	}
	for range 100 {
		port := low + freePort.Add(2)%(high-low)
		first, one := free(port)
		second, two := free(port + 1)
		if one && two {
			return first, second
		}
	}
	t.Fatal("no two free ports next to each other")
	return "", ""
}
