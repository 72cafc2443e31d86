package front

import (
	"errors"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// The date of a head is that of its second, whichever second the head before it had.
func TestDateOf(t *testing.T) {
	at := time.Date(2026, 1, 2, 23, 59, 59, 0, time.FixedZone("", 3600))
	for _, test := range []struct {
		after time.Duration
		want  string
	}{{0, "Fri, 02 Jan 2026 22:59:59 GMT"}, {999 * time.Millisecond, "Fri, 02 Jan 2026 22:59:59 GMT"}, {time.Second, "Fri, 02 Jan 2026 23:00:00 GMT"}, {0, "Fri, 02 Jan 2026 22:59:59 GMT"}} {
		if got := dateOf(at.Add(test.after)); got != test.want {
			t.Errorf("after %v: %s, want %s", test.after, got, test.want)
		}
	}
}

// A response that must not look complete ends without a panic where net/http does not serve it,
// and resets the connection if nobody reads.
func TestDirectAbort(t *testing.T) {
	for _, unread := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		served, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		w := &directWriter{conn: &conn{Conn: served, socket: served}, header: http.Header{}}
		c := &HTTPCarrier{served: Served{Writer: w}}
		c.End(false, unread)
		if _, err := w.Write([]byte("x")); err == nil {
			t.Error("a byte could be written behind it")
		}
		served.Close()
		_ = client.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := client.Read(make([]byte, 1)); errors.Is(err, syscall.ECONNRESET) == unread {
			t.Errorf("unread %v: the client's read ended with %v", unread, err)
		}
	}
}
