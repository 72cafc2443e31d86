package relay

import (
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"weir/internal/infer"
	"weir/internal/trace"
)

// All requests of a quiet client use one connection.
func TestReuse(t *testing.T) {
	p := play(t, func(_ int, w *wire) {
		for r, _ := w.request(); r != nil; r, _ = w.request() {
			w.send(ok)
		}
	})
	e := p.engine(Options{})
	requests := 10_000
	if testing.Short() {
		requests = 500
	}
	for range requests {
		mustAsk(t, e, "{}", "ok")
	}
	if n := p.accepted(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// A connection that the engine closed while it was idle is not used.
func TestClosedWhileIdle(t *testing.T) {
	answered, closed := make(chan struct{}), make(chan struct{}, 8)
	p := play(t, func(_ int, w *wire) {
		w.request()
		w.send(ok)
		<-answered
		w.Close()
		closed <- struct{}{}
	})
	e := p.engine(Options{})
	for range 5 {
		mustAsk(t, e, "{}", "ok")
		answered <- struct{}{}
		<-closed
	}
	if n := p.accepted(); n != 5 {
		t.Errorf("%d connections, want 5", n)
	}
}

// A connection on which the engine said something nobody asked for is not used:
// those bytes would be taken for the next answer.
func TestSpokeWhileIdle(t *testing.T) {
	answered, spoke := make(chan struct{}), make(chan struct{})
	p := play(t, func(n int, w *wire) {
		w.request()
		w.send(ok)
		if n == 0 {
			<-answered
			w.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
			close(spoke)
		}
		w.drain()
	})
	e := p.engine(Options{})
	mustAsk(t, e, "{}", "ok")
	close(answered)
	<-spoke
	mustAsk(t, e, "{}", "ok")
	if n := p.accepted(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// An engine that has read a request and closes its connection may have died of it: it
// is not sent there again, whether the connection is new or was used before.
func TestClosedAtReuse(t *testing.T) {
	for name, c := range map[string]struct {
		reset  bool
		answer string // to the second request on the first connection
	}{
		"closed":               {false, ""},
		"reset":                {true, ""},
		"after a byte":         {false, "H"},
		"after a bad answer":   {false, "nonsense"},
		"after half an answer": {true, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, func(n int, w *wire) {
				w.request()
				w.send(ok)
				if n > 0 {
					return
				}
				w.request()
				w.send(c.answer)
				if c.reset && c.answer == "" {
					_ = w.Conn.(*net.TCPConn).SetLinger(0)
				}
			})
			e := p.engine(Options{})
			mustAsk(t, e, "first", "ok")
			_, _, err := ask(t, e, "second")
			wantFault(t, err, infer.CodeEngine)
			if n := p.accepted(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
			mustAsk(t, e, "third", "ok")
		})
	}
}

// An engine that closes its connections just as the next request comes loses none of
// them, and is sent none twice.
func TestClosesOften(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells what a peer had")
	}
	var mu sync.Mutex
	hits := map[string]int{}
	p := play(t, func(n int, w *wire) {
		for r, body := w.request(); r != nil; r, body = w.request() {
			mu.Lock()
			hits[string(body)]++
			mu.Unlock()
			w.send(ok)
			if rand.IntN(2) == 0 { // about when the next one comes
				for range rand.IntN(2000) {
					runtime.Gosched()
				}
				return
			}
		}
	})
	e := p.engine(Options{})
	asks := 30_000
	if testing.Short() {
		asks = 2000
	}
	failed := 0
	for i := range asks {
		if _, got, err := ask(t, e, strconv.Itoa(i)); err != nil {
			// A request that came to the engine's kernel before the engine closed: it sent a
			// reset, and nothing tells whether it had been read.
			wantFault(t, err, infer.CodeEngine)
			failed++
		} else if got != "ok" {
			t.Fatalf("request %d: got %q", i, got)
		}
	}
	t.Logf("%d requests over %d connections, %d of unknown fate", asks, p.accepted(), failed)
	mu.Lock()
	defer mu.Unlock()
	if len(hits) < asks-failed {
		t.Errorf("the engine had %d of %d requests", len(hits), asks)
	}
	for body, n := range hits {
		if n != 1 {
			t.Errorf("the engine had request %s %d times", body, n)
		}
	}
}

// An engine may answer before it has read the request to its end. The answer
// counts, whether the engine then closes or just stops reading.
func TestEarlyAnswer(t *testing.T) {
	const refusal = "HTTP/1.1 413 Too Large\r\nContent-Length: 8\r\nConnection: close\r\n\r\ntoo much"
	for name, closes := range map[string]bool{"closes": true, "stops reading": false} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			defer close(over)
			p := play(t, func(_ int, w *wire) {
				if _, err := w.in.ReadString('\n'); err != nil {
					return
				}
				w.send(refusal)
				if !closes {
					<-over
				}
			})
			e := p.engine(Options{})
			resp, got, err := ask(t, e, strings.Repeat("x", 64<<20))
			if err != nil || got != "too much" || resp.Status != 413 {
				t.Fatalf("got %q, %v", got, err)
			}
		})
	}
}

// Many exchanges at once, some abandoned at any moment, never mix.
func TestConcurrent(t *testing.T) {
	p := play(t, func(_ int, w *wire) {
		for {
			r, body := w.request()
			if r == nil {
				return
			}
			w.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range 20 {
				w.send("8\r\n" + string(body) + "\r\n")
			}
			w.send("0\r\n\r\n")
		}
	})
	e := p.engine(Options{})
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 60 {
				id := string([]byte{byte('A' + g)}) + "-234567"
				resp, err := e.Forward(bounded(t), post(id), &trace.Leg{})
				if err != nil {
					t.Error(err)
					return
				}
				if rng.IntN(4) == 0 {
					_, err = io.CopyN(io.Discard, resp.Body, int64(rng.IntN(100)))
				} else {
					var got []byte
					got, err = io.ReadAll(resp.Body)
					if string(got) != strings.Repeat(id, 20) {
						t.Errorf("got %q", got)
					}
				}
				if err != nil {
					t.Error(err)
				}
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
}
