package front

import (
	"net"
	"testing"
	"time"

	"weir/internal/fleet/admission"
)

// A kept connection whose next request has come when the listener is closed is not closed under
// it; the others are.
func TestLateRequest(t *testing.T) {
	r := newReturnedConns(time.Minute)
	book := admission.NewConns(admission.ConnLimits{})
	idle, _ := lateConn(t, book)
	late, lateClient := lateConn(t, book)
	passed, passedClient := lateConn(t, book)
	for _, c := range []*conn{idle, late, passed} {
		if !r.rest(c) {
			t.Fatal("the listener is closed")
		}
	}
	passed.peer = nil // only net/http serves it
	for c, client := range map[*conn]net.Conn{late: lateClient, passed: passedClient} {
		if _, err := client.Write([]byte("POST")); err != nil {
			t.Fatal(err)
		}
		for c.unread() == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*conn{"idle": idle, "passed on": passed, "late": late} {
		if n, err := c.Conn.Read(make([]byte, 9)); (err == nil) != (c == late) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	if !late.leave() {
		t.Error("the request that has come is not served")
	}
	if r.rest(late) {
		t.Error("it may wait for another one")
	}
}

// lateConn is a connection of a client.
func lateConn(t *testing.T, book *admission.Conns) (c *conn, client net.Conn) {
	entry, err := book.Open(time.Now(), func() {})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	socket, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); socket.Close() })
	return &conn{Conn: socket, socket: socket, entry: entry, peer: new(peer)}, client
}
