package upstream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/internal/trace"
)

// watched is an engine whose list of models is read.
type watched struct {
	*Client
	listener net.Listener
	accepted atomic.Int64
	// answers plays the n-th request of a connection, counted from 1. The connection is closed if
	// it returns false.
	answers func(conn io.Writer, n int) bool
}

const listOfModels = `{"data":[{"id":"m"}]}`

func answerModels(conn io.Writer, _ int) bool {
	fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(listOfModels), listOfModels)
	return true
}

func watch(t *testing.T, answers func(conn io.Writer, n int) bool) *watched {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{New(Options{URL: &url.URL{Scheme: "http", Host: l.Addr().String()}}), l, atomic.Int64{}, answers}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.accepted.Add(1)
			served.Go(func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for n := 1; ; n++ {
					if r, err := http.ReadRequest(in); err != nil {
						return
					} else if _, err = io.Copy(io.Discard, r.Body); err != nil || !w.answers(c, n) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.CloseIdle()
		served.Wait()
	})
	return w
}

// read reads the engine once.
func (w *watched) read(t *testing.T) error {
	t.Helper()
	w.pool.read(time.Hour)
	_, _, err := w.Models(t.Context())
	return err
}

func (w *watched) mustRead(t *testing.T) {
	t.Helper()
	if err := w.read(t); err != nil {
		t.Fatal(err)
	}
}

// rest lets the kept connection have been idle for a while.
func (w *watched) rest(d time.Duration) {
	if c := w.pool.kept; c != nil {
		c.idle = c.idle.Add(-d)
	}
}

// Readings use a connection that has been idle for an hour, and make a new one for every
// maxReadings of them.
func TestReadingsShareConnections(t *testing.T) {
	w := watch(t, answerModels)
	const readings = 4 * maxReadings
	for range readings {
		w.mustRead(t)
		if _, _, err := w.Models(t.Context()); err != nil { // a second document of the same reading
			t.Fatal(err)
		}
		w.rest(time.Hour)
	}
	if got := w.accepted.Load(); got != readings/maxReadings {
		t.Errorf("%d connections for %d readings, want %d", got, readings, readings/maxReadings)
	}
}

// An engine that closes idle connections is read all the same. Soon no connection is kept for it.
func TestReadingsOfClosers(t *testing.T) {
	var keeps atomic.Bool
	w := watch(t, func(conn io.Writer, n int) bool { return answerModels(conn, n) && keeps.Load() })
	const readings = 200
	kept := 0
	for range readings {
		w.mustRead(t)
		w.rest(time.Hour)
		if w.pool.kept != nil {
			for kept++; w.pool.kept.usable(); { // until the end has come
				runtime.Gosched()
			}
		}
	}
	if kept == 0 || kept > 10 {
		t.Errorf("a connection was kept after %d of %d readings", kept, readings)
	}
	// As one that was started again may keep them, it is tried again.
	keeps.Store(true)
	made := w.accepted.Load()
	for range readings {
		w.mustRead(t)
		w.rest(time.Hour)
		w.pool.closeOld()
	}
	if got, most := w.accepted.Load()-made, int64(mostWithout+readings/maxReadings); got > most {
		t.Errorf("%d connections for %d readings of one that keeps them, want at most %d", got, readings, most)
	}
}

// closeOld closes idle connections as in time.
func (p *pool) closeOld() {
	p.mu.Lock()
	for _, c := range p.idle {
		c.idle = c.idle.Add(-p.keep)
	}
	p.mu.Unlock()
	p.evict()
}

// A reading that crosses with the closing of its connection is made over a new one.
func TestReadingCrossesWithClosing(t *testing.T) {
	w := watch(t, func(conn io.Writer, n int) bool { return n == 1 && answerModels(conn, n) })
	for range 2 * maxReadings {
		w.mustRead(t)
	}
}

// That an engine accepts connections no more is found, though it continues those that it has.
func TestReadingsFindNoListener(t *testing.T) {
	w := watch(t, answerModels)
	w.mustRead(t)
	w.listener.Close()
	for n := 1; ; n++ {
		if err := w.read(t); errors.Is(err, syscall.ECONNREFUSED) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if n > maxReadings {
			t.Fatalf("%d readings were answered", n)
		}
	}
	if err := w.read(t); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the reading after a refused one: %v", err)
	}
}

// A request uses the connection of readings if it would use another one that has been idle for
// so long.
func TestRequestsUseKeptConnection(t *testing.T) {
	w := watch(t, answerModels)
	ask := func() {
		t.Helper()
		resp, err := w.Do(t.Context(), &Request{Method: http.MethodPost, Path: "/x", Body: []byte("{}"), Leg: &trace.Leg{}})
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	w.mustRead(t)
	ask()
	if got := w.accepted.Load(); got != 1 {
		t.Errorf("%d connections for a reading and a request, want 1", got)
	}
	w.mustRead(t)
	w.rest(idleTime)
	ask()
	if got := w.accepted.Load(); got != 2 {
		t.Errorf("%d connections once the first one was idle for long, want 2", got)
	}
}

// The lines of a document are whole, however it arrives.
func TestLines(t *testing.T) {
	var want []string
	for i := range 4000 {
		want = append(want, fmt.Sprintf("%d %0*d", i, i%300, i))
	}
	want = append(want, "", "the last one has no end")
	text := strings.Join(want, "\n")
	for _, head := range []string{fmt.Sprintf("Content-Length: %d", len(text)), "Transfer-Encoding: chunked"} {
		w := watch(t, func(conn io.Writer, _ int) bool {
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\n%s\r\n\r\n", head)
			if strings.HasPrefix(head, "Content") {
				_, err := io.WriteString(conn, text)
				return err == nil
			}
			for rest := text; rest != ""; {
				n := min(len(rest), 1+len(rest)%999)
				fmt.Fprintf(conn, "%x\r\n%s\r\n", n, rest[:n])
				rest = rest[n:]
			}
			_, err := io.WriteString(conn, "0\r\n\r\n")
			return err == nil
		})
		var got []string
		for range 2 {
			got = nil
			if err := w.Lines(t.Context(), "/metrics", func(line []byte) { got = append(got, string(line)) }); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d lines, want %d", head, len(got), len(want))
		}
		if got := w.accepted.Load(); got != 1 {
			t.Errorf("%s: %d connections for two documents", head, got)
		}
	}
	w := watch(t, func(conn io.Writer, _ int) bool {
		_, err := io.WriteString(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone")
		return err == nil
	})
	var refused *StatusError
	if err := w.Lines(t.Context(), "/metrics", func([]byte) {}); !errors.As(err, &refused) || refused.Status != http.StatusNotFound {
		t.Error(err)
	}
}

// Every maxReadings-th reading is over a new connection, whatever the engine does. One that says
// for how long it keeps connections is believed.
func TestKeeping(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k keeping
		same := 0
		for range rapid.IntRange(1, 300).Draw(t, "readings") {
			kept := k.interval > 0 && k.keeps(0)
			if anew := k.begin(time.Second); anew || !kept {
				same = 0
			} else if rapid.Bool().Draw(t, "closed") {
				k.closed()
				same = 0
			} else {
				k.open()
			}
			if same++; same > maxReadings {
				t.Fatalf("%d readings over one connection", same)
			}
			if k.without > mostWithout {
				t.Fatalf("no connection is kept for %d readings", k.without)
			}
			if k.keeps(time.Second) || k.keeps(time.Minute) != k.keeps(0) {
				t.Fatal("what the engine says is not believed")
			}
		}
	})
}
