package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/fleet/route"
	"weir/internal/gateway/prepare"
	"weir/internal/model"
	"weir/models"
)

// BenchmarkRequest is what a request costs that no engine is asked for, from its
// first byte to its answer's last, over loopback: on a connection that is kept, and on
// one of its own.
func BenchmarkRequest(b *testing.B) {
	var fleet atomic.Pointer[route.Snapshot]
	fleet.Store(fleetOf(nil, &tokenEngine{name: "a"}))
	g := New(Options{Snapshot: fleet.Load, Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: simModel()}}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := g.Server()
	for _, l := range []net.Listener{g.front.PlainListener(l), g.front.Returned()} {
		go func() { _ = server.Serve(l) }()
	}
	defer g.Close()
	defer server.Close()
	for !g.front.Returned().Serving.Load() { // before that, net/http serves each connection
		time.Sleep(time.Millisecond)
	}
	body := fmt.Sprintf(`{"model":%q,"tokens":[1,2,3,4]}`, models.SimName)
	ask := []byte(fmt.Sprintf("POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		return c, bufio.NewReader(c)
	}
	request := func(c net.Conn, r *bufio.Reader) {
		if _, err := c.Write(ask); err != nil {
			b.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(resp.Status, err)
		}
	}
	b.Run("kept", func(b *testing.B) {
		c, r := dial()
		defer c.Close()
		b.ReportAllocs()
		for b.Loop() {
			request(c, r)
		}
	})
	b.Run("dialled", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c, r := dial()
			request(c, r)
			c.Close()
		}
	})
}
