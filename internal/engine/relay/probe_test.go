package relay

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/engine"
)

// run starts an adapter and gives what it reports.
func run(t *testing.T, e *Engine) <-chan engine.State {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	states, done := make(chan engine.State, 16), make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx, func(s engine.State) { states <- s })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return states
}

// next waits for a report.
func next(t *testing.T, states <-chan engine.State) engine.State {
	t.Helper()
	select {
	case s := <-states:
		return s
	case <-time.After(time.Minute):
		t.Fatal("nothing was reported")
		panic("unreachable")
	}
}

func models(body string) string {
	return "HTTP/1.1 200 OK\r\nServer: test/1\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

// An engine is ready once it tells its models, tells when they change, and is
// gone when it refuses connections.
func TestRun(t *testing.T) {
	answers := make(chan string, 3)
	answers <- "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
	answers <- models(`{"data":[{"id":"one"}]}`)
	answers <- models(`{"data":[{"id":"two"}]}`)
	p := play(t, func(_ int, w *wire) {
		for r, _ := w.request(); r != nil; r, _ = w.request() {
			if r.Method != "GET" || r.RequestURI != "/v1/models" {
				t.Errorf("%s %s", r.Method, r.RequestURI)
			}
			w.send(<-answers)
		}
	})
	states := run(t, p.engine(Options{ProbeInterval: time.Millisecond}))
	if s := next(t, states); s.Ready || s.Err == nil {
		t.Errorf("got %+v, want not ready", s)
	}
	for _, name := range []string{"one", "two"} {
		want := engine.State{Ready: true, Facts: engine.Facts{Models: []string{name}, Software: "test/1"}}
		if diff := cmp.Diff(want, next(t, states)); diff != "" {
			t.Error(diff)
		}
	}
	p.listener.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	close(answers)
	if s := next(t, states); s.Ready || s.Err == nil {
		t.Errorf("got %+v, want gone", s)
	}
}

// An engine without a list of models serves the one it is said to.
func TestRunNamedModel(t *testing.T) {
	p := play(t, func(_ int, w *wire) {
		w.request()
		w.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
	})
	want := engine.State{Ready: true, Facts: engine.Facts{Models: []string{"named"}}}
	if diff := cmp.Diff(want, next(t, run(t, p.engine(Options{Model: "named"})))); diff != "" {
		t.Error(diff)
	}
}
