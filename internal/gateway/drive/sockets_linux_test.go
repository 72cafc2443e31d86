package drive

import (
	"net"
	"testing"
	"time"

	"weir/internal/observe/metrics"
)

func TestHangupsOverSockets(t *testing.T) {
	h := NewSockets(2, metrics.New(), nil)
	defer h.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, hangUp := range map[string]func(*net.TCPConn){
		"close": func(c *net.TCPConn) { c.Close() },
		"half":  func(c *net.TCPConn) { c.CloseWrite() },
		"reset": func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
	} {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		gone := make(chan struct{})
		stop, err := h.Watch(server, func() { close(gone) })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte("ahead")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-gone:
			t.Errorf("%s: what the client sent ahead was taken for a hang-up", name)
		case <-time.After(10 * time.Millisecond):
		}
		hangUp(client.(*net.TCPConn))
		<-gone
		stop()
		server.Close()
		client.Close()
		stop() // after the close is late, and harmless
	}
}
