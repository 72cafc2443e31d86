package sock

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The stamp is of the arrival, however late the read, and of the last segment
// where several wait.
func TestReceiveStamps(t *testing.T) {
	stop, err := Stamps()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	fd, other := pair(t)
	if err := Stamp(fd); err != nil {
		t.Fatal(err)
	}
	var r Receiver
	buf := make([]byte, 64)
	if n, at, err := r.TryReceive(fd, buf); n != -1 || at != 0 || err != nil {
		t.Fatalf("nothing there: %d, %d, %v", n, at, err)
	}
	// send writes, and returns when the bytes have arrived.
	send := func(text string, waiting int) (before, arrived int64) {
		t.Helper()
		before = time.Now().UnixNano()
		if _, err := other.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		for {
			n, _, err := unix.Recvfrom(fd, buf, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if err != nil && !errors.Is(err, unix.EAGAIN) {
				t.Fatal(err)
			}
			if n == waiting {
				break
			}
		}
		return before, time.Now().UnixNano()
	}
	receive := func(want string, from, to int64) {
		t.Helper()
		n, at, err := r.TryReceive(fd, buf)
		if err != nil || string(buf[:max(n, 0)]) != want {
			t.Fatalf("%q, %v", buf[:max(n, 0)], err)
		}
		if at < from || at > to {
			t.Errorf("%q is stamped %v after its sending began, and had arrived after %v", want, time.Duration(at-from), time.Duration(to-from))
		}
	}
	before, arrived := send("first", 5)
	receive("first", before, arrived)
	send("one ", 4)
	before, arrived = send("two", 7)
	receive("one two", before, arrived)
	if n := testing.AllocsPerRun(100, func() { _, _, _ = r.TryReceive(fd, buf) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	other.Close()
	for {
		n, _, err := r.TryReceive(fd, buf)
		if n == 0 && err == nil {
			return
		}
		if n != -1 || err != nil {
			t.Fatalf("at the end: %d, %v", n, err)
		}
	}
}

// Segments and bytes are counted as they arrive, whether they are read or not, and
// however the kernel joins them.
func TestArrived(t *testing.T) {
	fd, other := pair(t)
	want := Arrivals{}
	check := func() {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; {
			got, ok := Arrived(fd)
			if !ok {
				t.Fatal("the kernel does not tell")
			}
			if got == want {
				return
			}
			if got.Segments > want.Segments || time.Now().After(deadline) {
				t.Fatalf("%+v, want %+v", got, want)
			}
		}
	}
	check()
	buf := make([]byte, 64)
	for _, text := range []string{"a", "bc", "def", "g"} {
		if _, err := other.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		want.Segments++
		want.Bytes += uint64(len(text))
		check()
		if text == "bc" {
			if n, err := TryRead(fd, buf); n != 3 || err != nil {
				t.Fatal(n, err)
			}
			check()
		}
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = Arrived(fd) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if _, ok := Arrived(-1); ok {
		t.Error("of no socket")
	}
}

func BenchmarkArrived(b *testing.B) {
	fd, _ := pair(b)
	for b.Loop() {
		_, _ = Arrived(fd)
	}
}
