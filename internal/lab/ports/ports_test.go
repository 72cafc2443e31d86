package ports

import (
	"net"
	"testing"
)

// An address that was given stays free while connections come and go, and is given once.
func TestFree(t *testing.T) {
	seen := map[string]bool{}
	check := func(addr string) (port int) {
		t.Helper()
		at, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if low := ephemeral(); at.Port >= low {
			t.Fatalf("%s may be given to a connection: those are from %d on", addr, low)
		}
		if seen[addr] {
			t.Fatalf("%s was given twice", addr)
		}
		seen[addr] = true
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return at.Port
	}
	for range 50 {
		addr, err := Free()
		if err != nil {
			t.Fatal(err)
		}
		check(addr)
		two, err := Adjacent(2)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := check(two[0]), check(two[1]); b != a+1 {
			t.Fatalf("%v do not follow each other", two)
		}
	}
}
