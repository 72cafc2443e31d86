//go:build unix

package sock

import (
	"testing"
	"time"
)

// Ended is true once the peer has ended its side and nothing is left to read.
func TestEnded(t *testing.T) {
	fd, other := pair(t)
	if Ended(fd) {
		t.Error("the peer is there")
	}
	if _, err := other.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	other.Close()
	time.Sleep(10 * time.Millisecond) // both have come by then
	if Ended(fd) {
		t.Error("there is a byte to read")
	}
	if got := read(t, fd, 1); string(got) != "a" {
		t.Fatalf("%q", got)
	}
	for late := time.Now().Add(time.Minute); !Ended(fd); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the end of the peer's side was not seen within a minute")
		}
	}
	if n := testing.AllocsPerRun(100, func() { Ended(fd) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if !Ended(-1) {
		t.Error("a closed descriptor has no peer")
	}
}
