package relay

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/trace"
)

const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	streamEnd  = "0\r\n\r\n"
)

// event is one of the size that engines send per token.
var event = []byte("b4\r\n" + strings.Repeat("x", 0xb4) + "\r\n")

// No read allocates, whether it waited or not.
func TestReadAllocatesNothing(t *testing.T) {
	write := make(chan struct{})
	p := play(t, func(_ int, w *wire) {
		w.request()
		w.send(streamHead)
		for range write {
			_, _ = w.Write(event)
		}
	})
	defer close(write)
	e := p.engine(Options{})
	resp, err := e.Forward(bounded(t), post("{}"), &trace.Leg{})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 4<<10)
	if n := testing.AllocsPerRun(1000, func() {
		write <- struct{}{}
		for got := 0; got < 0xb4; {
			n, err := resp.Body.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
	}); n != 0 {
		t.Errorf("%v allocations per event", n)
	}
}

// opener starts one stream. It calls accepted once the connection is made.
type opener func(b *testing.B, accepted func()) io.ReadCloser

// clients are what is compared: this package, net/http's Transport, and a bare
// read from the socket, which nothing can be below.
func clients(b *testing.B, p *peer) map[string]opener {
	e := p.engine(Options{})
	transport := &http.Transport{DisableCompression: true, ReadBufferSize: 16 << 10, WriteBufferSize: 16 << 10}
	b.Cleanup(transport.CloseIdleConnections)
	addr := p.listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	return map[string]opener{
		"lean": func(b *testing.B, accepted func()) io.ReadCloser {
			resp, err := e.Forward(ctx, post("{}"), &trace.Leg{})
			if err != nil {
				b.Fatal(err)
			}
			accepted()
			return resp.Body
		},
		"nethttp": func(b *testing.B, accepted func()) io.ReadCloser {
			req := &http.Request{Method: "POST", URL: &url.URL{Scheme: "http", Host: addr, Path: "/v1/completions"},
				Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}")), ContentLength: 2}
			resp, err := transport.RoundTrip(req.WithContext(ctx))
			if err != nil {
				b.Fatal(err)
			}
			accepted()
			return resp.Body
		},
		"bare": func(b *testing.B, accepted func()) io.ReadCloser {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
			if _, err := io.ReadFull(c, make([]byte, len(streamHead))); err != nil {
				b.Fatal(err)
			}
			accepted()
			return c
		},
	}
}

// hold starts a peer that begins a stream on each connection and hands it
// over. It keeps no goroutine or buffer per connection.
func hold(b *testing.B) (*peer, <-chan net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	conns := make(chan net.Conn)
	p := &peer{t: b, listener: l}
	p.wg.Go(func() {
		buf := make([]byte, 4<<10)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := 0
			for !strings.Contains(string(buf[:n]), "\r\n\r\n") {
				k, err := c.Read(buf[n:])
				if err != nil {
					break
				}
				n += k
			}
			_, _ = io.WriteString(c, streamHead)
			conns <- c
		}
	})
	b.Cleanup(func() {
		l.Close()
		p.wg.Wait()
	})
	return p, conns
}

// streams opens n of them and gives both their ends.
func streams(b *testing.B, name string, n int) (bodies []io.ReadCloser, conns []net.Conn) {
	p, accepted := hold(b)
	open := clients(b, p)[name]
	for range n {
		bodies = append(bodies, open(b, func() { conns = append(conns, <-accepted) }))
	}
	return bodies, conns
}

// BenchmarkEvent is the cost of one event: 256 streams, each of which gets one
// event per round from a peer that writes them one after the other. CPU is the
// whole process's, the peer's writes included, which are the same for all.
func BenchmarkEvent(b *testing.B) {
	const n = 256
	for _, name := range []string{"bare", "lean", "nethttp"} {
		b.Run(name, func(b *testing.B) {
			bodies, conns := streams(b, name, n)
			unit := int64(0xb4)
			if name == "bare" {
				unit = int64(len(event))
			}
			var wg sync.WaitGroup
			var got, reads atomic.Int64
			round := make(chan struct{}, 1)
			for _, body := range bodies {
				wg.Go(func() {
					defer body.Close()
					buf := make([]byte, 4<<10)
					for {
						k, err := body.Read(buf)
						reads.Add(1)
						if k > 0 && got.Add(int64(k))%(n*unit) == 0 {
							round <- struct{}{}
						}
						if err != nil {
							return
						}
					}
				})
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpu()
			for range b.N {
				for _, c := range conns {
					_, _ = c.Write(event)
				}
				<-round
			}
			spent := cpu() - before
			b.StopTimer()
			b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N*n), "cpu-ns/event")
			b.ReportMetric(float64(reads.Load())/float64(b.N*n), "reads/event")
			for _, c := range conns {
				_, _ = io.WriteString(c, streamEnd)
				c.Close()
			}
			wg.Wait()
		})
	}
}

// BenchmarkExchange is a whole short request: the cost around a stream.
func BenchmarkExchange(b *testing.B) {
	for _, name := range []string{"lean", "nethttp"} {
		b.Run(name, func(b *testing.B) {
			p := play(b, func(_ int, w *wire) {
				buf := make([]byte, 4<<10)
				for {
					if _, err := w.Conn.Read(buf); err != nil {
						return
					}
					w.send(ok)
				}
			})
			open := clients(b, p)[name]
			buf := make([]byte, 4<<10)
			b.ReportAllocs()
			before := cpu()
			for b.Loop() {
				body := open(b, func() {})
				for {
					if _, err := body.Read(buf); err != nil {
						break
					}
				}
				body.Close()
			}
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkIdleStream is the memory of a stream on which nothing happens: heap
// and stacks of the process, its peer's end included, which is one socket. The
// reader's 4 KB buffer and its goroutine are counted.
func BenchmarkIdleStream(b *testing.B) {
	const n = 2000
	for _, name := range []string{"bare", "lean", "nethttp"} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				before := resident()
				bodies, conns := streams(b, name, n)
				var wg sync.WaitGroup
				for _, body := range bodies {
					wg.Go(func() { _, _ = body.Read(make([]byte, 4<<10)) })
				}
				b.ReportMetric(float64(resident()-before)/n, "B/stream")
				for _, c := range conns {
					c.Close()
				}
				wg.Wait()
				for _, body := range bodies {
					body.Close()
				}
			}
		})
	}
}

// BenchmarkWaitingRequest is the memory of a request whose answer has not
// begun, its goroutine and its context included.
func BenchmarkWaitingRequest(b *testing.B) {
	const n = 2000
	p := play(b, func(_ int, w *wire) {
		w.in = nil
		one := make([]byte, 1)
		for {
			if _, err := w.Conn.Read(one); err != nil {
				return
			}
		}
	})
	e := p.engine(Options{})
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		before := resident()
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if _, err := e.Forward(ctx, post("{}"), &trace.Leg{}); err == nil {
					b.Error("answered")
				}
			})
		}
		for p.accepted() < n {
			runtime.Gosched()
		}
		b.ReportMetric(float64(resident()-before)/n, "B/request")
		cancel()
		wg.Wait()
	}
}

func cpu() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resident returns what is in use of heap and stacks.
func resident() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
