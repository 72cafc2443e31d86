package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/infer"
)

// A panic in a probe is a probe that failed: the next one is made, and who was ready
// stays so, with old facts until then.
func TestPanicInAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		c := New(Options{URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Panicked: func(p *infer.Panic) {
			if told++; len(p.Stack) == 0 {
				t.Error("no stack")
			}
		}})
		var states []engine.State
		ctx, cancel := context.WithCancel(t.Context())
		probes := 0
		c.Watch(ctx, time.Second, func(context.Context) (engine.Facts, error) {
			switch probes++; probes {
			case 1, 3:
				panic("a probe's")
			case 5:
				cancel()
			}
			return engine.Facts{Models: []string{"m"}}, nil
		}, func(s engine.State) { states = append(states, s) })
		if told != 2 || len(states) != 4 || states[0].Ready || !states[1].Ready || !states[2].Ready || len(states[2].Facts.Old) != 1 || !states[3].Ready || len(states[3].Facts.Old) > 0 {
			t.Errorf("%d panics, states %+v", told, states)
		}
	})
}

// A panic once an answer's head was read ends its exchange, with the connection.
func TestPanicInAnExchange(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			for err == nil { // until the other end is closed
				if _, err = c.Read(make([]byte, 1<<10)); err == nil {
					_, err = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
				}
			}
		}
		ended <- err
	}()
	told := 0
	c := New(Options{URL: &url.URL{Scheme: "http", Host: l.Addr().String()}, Panicked: func(*infer.Panic) { told++ }})
	cn, err := c.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.exchange(t.Context(), cn, &buffer{[]byte("GET / HTTP/1.1\r\n\r\n")}, &Request{Method: http.MethodGet, Leg: nil}) // the stamps have no place
	var failed *infer.Error
	if !errors.As(err, &failed) || failed.Code != infer.CodeInternal || failed.Retryable || told != 1 {
		t.Errorf("%v, %d panics", err, told)
	}
	<-ended
}
