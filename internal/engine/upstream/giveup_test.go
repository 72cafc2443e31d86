package upstream

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"testing"
	"time"

	"weir/internal/lifetime"
	"weir/internal/trace"
)

// A request that is given up resets its connection, so that the gateway's port is free at once,
// wherever it is given up and by either package of contexts.
func TestGivenUpIsReset(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, test := range []struct {
		name, answer string
		detached     bool
	}{
		{"before the head", "", false},
		{"before the first byte", head, false},
		{"in the body", head + "2\r\nok\r\n", false},
		{"where others poll it", head + "2\r\nok\r\n", true},
	} {
		for _, own := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				asked, end := make(chan struct{}), make(chan error, 1)
				go func() {
					c, err := l.Accept()
					if err != nil {
						end <- err
						return
					}
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(30 * time.Second))
					from := bufio.NewReader(c)
					if r, err := http.ReadRequest(from); err != nil {
						end <- err
						return
					} else if _, err = io.Copy(io.Discard, r.Body); err != nil {
						end <- err
						return
					}
					_, _ = io.WriteString(c, test.answer)
					close(asked)
					_, err = from.ReadByte()
					end <- err
				}()
				client := New(Options{URL: &url.URL{Scheme: "http", Host: l.Addr().String()}})
				defer client.CloseIdle()
				plain, cancel := context.WithCancel(context.Background())
				defer cancel()
				ctx, giveUp := plain, cancel
				if own {
					of := new(lifetime.Context)
					ctx, giveUp = of, func() { of.End(nil) }
				}
				if test.answer == "" {
					done := make(chan error)
					go func() {
						_, err := client.Do(ctx, &Request{Method: http.MethodPost, Path: "/", Body: []byte("{}"), Leg: new(trace.Leg)})
						done <- err
					}()
					<-asked
					giveUp()
					if err := <-done; !errors.Is(err, context.Canceled) {
						t.Errorf("the request ended with %v", err)
					}
				} else {
					resp, err := client.Do(ctx, &Request{Method: http.MethodPost, Path: "/", Body: []byte("{}"), Leg: new(trace.Leg)})
					if err != nil {
						t.Fatal(err)
					}
					if test.detached {
						if _, ok := resp.Body.Detach(); !ok {
							t.Fatal("it cannot be detached")
						}
					} else if test.answer != head {
						if n, err := resp.Body.Read(make([]byte, 8)); n != 2 || err != nil {
							t.Fatal(n, err)
						}
					}
					<-asked
					giveUp()
					if !test.detached {
						if n, err := resp.Body.Read(make([]byte, 8)); n != 0 || !errors.Is(err, context.Canceled) {
							t.Errorf("read %d bytes and %v", n, err)
						}
					}
					resp.Body.Close()
				}
				if err := <-end; !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the engine's read ended with %v", err)
				}
			})
		}
	}
}
