package plane

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
	"weir/internal/trace"
)

// link is a connection that can die without a word: then what is sent on it
// vanishes, in both directions.
type link struct {
	net.Conn
	dead   atomic.Bool
	closed atomic.Bool
}

func (l *link) Read(p []byte) (int, error) {
	for {
		n, err := l.Conn.Read(p)
		if err != nil || !l.dead.Load() {
			return n, err
		}
	}
}

func (l *link) Write(p []byte) (int, error) {
	if l.dead.Load() {
		return len(p), nil
	}
	return l.Conn.Write(p)
}

func (l *link) Close() error {
	l.closed.Store(true)
	return l.Conn.Close()
}

// links keeps the connections that are made with Options.
type links struct {
	mu  sync.Mutex
	all []*link
}

// The connections of a session, in the order of their dialing.
const (
	linkCalls = iota
	linkSteps
)

func (l *links) through(o Options) Options {
	dial := o.Dial
	o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, &link{Conn: c})
		return l.all[len(l.all)-1], nil
	}
	return o
}

// Whichever connection dies without a word, the session ends after the bound,
// not before, although everything on the other goes on; and both are closed.
func TestSilentConnection(t *testing.T) {
	for which, words := range map[int]string{
		linkCalls: "connection of the calls", linkSteps: "connection of the steps", 2: "either connection",
	} {
		t.Run(words, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, "bufconn")
				var ls links
				b, e := start(t, p, ls.through(p.options()))
				call := b.Accept(1000)
				step := func() { p.Step(enginetest.Out{ID: call.Request.ID, IDs: []uint32{5}}) }
				time.Sleep(10*time.Second + time.Millisecond)
				for i, l := range ls.all {
					l.dead.Store(which == i || which == 2)
				}
				for range 28 {
					if which == linkCalls {
						step()
					}
					time.Sleep(time.Second)
				}
				synctest.Wait()
				if f := e.Figures(); f.Lost != [mux.NumLosses]uint64{} {
					t.Fatalf("given up before the bound: %+v", f)
				}
				time.Sleep(4 * time.Second)
				synctest.Wait()
				end, err := call.Sink.WaitFinish(done())
				if err != nil || end.Err.Code != infer.CodeEngine || e.Figures().Lost[mux.LossSilent] != 1 {
					t.Fatalf("%v, finish %v, figures %+v", err, end, e.Figures())
				}
				if !strings.Contains(end.Err.Cause.Error(), words) {
					t.Errorf("cause %v", end.Err.Cause)
				}
				if !ls.all[linkCalls].closed.Load() || !ls.all[linkSteps].closed.Load() {
					t.Error("a connection was left open")
				}
				b.Stop()
				p.Cut()
			})
		})
	}
}

// The end of either connection is that of the session and of the other.
func TestEitherConnectionBreaks(t *testing.T) {
	for which, name := range map[int]string{linkCalls: "calls", linkSteps: "steps"} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, "bufconn")
			var ls links
			b, e := start(t, p, ls.through(p.options()))
			call := b.Accept(4)
			ls.mu.Lock()
			first := ls.all[:2:2]
			ls.mu.Unlock()
			first[which].Conn.Close()
			if end := b.WantFinish(call, infer.ReasonError); end.Err.Code != infer.CodeEngine {
				t.Fatalf("finish %v", end)
			}
			if f := e.Figures(); f.Lost[mux.LossConnection] != 1 {
				t.Fatalf("figures %+v", f)
			}
			b.Stop()
			for i, l := range ls.all {
				if !l.closed.Load() {
					t.Errorf("connection %d was left open", i)
				}
			}
		})
	}
}

// An engine that has nothing to do, or works for long without a word, keeps its
// session: gRPC's servers put up with the signs of life that it is asked for, and
// weir answers theirs.
func TestQuietForAnHour(t *testing.T) {
	for name, options := range map[string][]grpc.ServerOption{
		"server as it is made":      nil,
		"server that asks for life": {grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: time.Second})},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, "bufconn", options...)
				b, e := start(t, p, p.options())
				time.Sleep(40 * time.Minute)
				// The bench's own patience has ended.
				req, sink := b.Request(10), b.NewSink(1)
				if _, err := e.Generate(t.Context(), req, 1, sink, new(trace.Leg)); err != nil {
					t.Fatal(err)
				}
				p.Step(enginetest.Out{ID: req.ID, IDs: []uint32{5}})
				time.Sleep(20 * time.Minute)
				p.Step(enginetest.Out{ID: req.ID, IDs: []uint32{6}, Finish: infer.ReasonStop})
				if f, err := sink.WaitFinish(t.Context()); err != nil || f.Reason != infer.ReasonStop {
					t.Fatalf("finish %v, %v", f, err)
				}
				if f := e.Figures(); f.Sessions != 1 || f.Lost != [mux.NumLosses]uint64{} {
					t.Errorf("figures %+v", f)
				}
				b.Stop()
				p.Cut()
			})
		})
	}
}

// A server that allows few streams at once has one for Control and one for
// Submit; Steps has a connection of its own.
func TestFewStreams(t *testing.T) {
	p := newPeer(t, "bufconn", grpc.MaxConcurrentStreams(2))
	b, _ := start(t, p, p.options())
	var calls []*enginetest.Call
	for range 20 {
		calls = append(calls, b.Go(b.Ctx, 4))
	}
	for _, c := range calls {
		b.Wait(c)
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		p.Step(enginetest.Out{ID: c.Request.ID, IDs: []uint32{5}, Finish: infer.ReasonStop})
		b.WantFinish(c, infer.ReasonStop)
	}
}

// Steps of many frames, of which more come than the windows hold.
func TestLargeSteps(t *testing.T) {
	networks := []string{"tcp", "bufconn"}
	if testing.Short() {
		networks = networks[:1]
	}
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			p := newPeer(t, network)
			b, e := start(t, p, p.options())
			call := b.Accept(100)
			slot := slotOf(p, call)
			const steps, size = 50, 2 << 20
			for i := range uint32(steps) {
				step := marshal(&planepb.Step{
					Sequence: uint64(i + 1), Slot: []uint32{slot}, Total: []uint32{i + 1}, Id: []uint32{i},
				})
				step = protowire.AppendTag(step, 99, protowire.BytesType) // a field of a later version
				p.last().send(raw(protowire.AppendBytes(step, make([]byte, size))))
			}
			b.Must(call.Sink.WaitIDs(b.Ctx, steps))
			if f := e.Figures(); f.Frames != steps || f.Bytes < steps*size || f.Bytes < connWindow {
				t.Errorf("figures %+v", f)
			}
		})
	}
}

// pairs is a Batch that knows whether it is inside of a pair.
type pairs struct {
	t      *testing.T
	inside bool
	pairs  int
}

// Reader implements engine.Batch.
func (p *pairs) Reader(string) engine.Reader { return p }

func (p *pairs) Begin(int64) {
	if p.inside {
		p.t.Error("two Begins")
	}
	p.inside = true
}

func (p *pairs) End(int) {
	if !p.inside {
		p.t.Error("an End without Begin")
	}
	p.inside = false
	p.pairs++
}

type insideSink struct {
	*enginetest.Recorder
	p *pairs
}

func (s insideSink) Offer(d *infer.Delta) {
	if !s.p.inside {
		s.p.t.Error("a delta outside of a batch")
	}
	s.Recorder.Offer(d)
}

// Every step's deltas, and those that end a session, come between a Begin and an
// End.
func TestBatch(t *testing.T) {
	p := newPeer(t, "bufconn")
	batch := &pairs{t: t}
	o := p.options()
	o.Batch = batch
	b, e := start(t, p, o)
	var ids []string
	var sinks []*enginetest.Recorder
	for range 3 {
		r, req := b.NewSink(1), b.Request(10)
		if _, err := e.Generate(b.Ctx, req, 1, insideSink{r, batch}, new(trace.Leg)); err != nil {
			t.Fatal(err)
		}
		ids, sinks = append(ids, req.ID), append(sinks, r)
	}
	p.Step(enginetest.Out{ID: ids[0], IDs: []uint32{1}}, enginetest.Out{ID: ids[1], IDs: []uint32{1}})
	p.Step(enginetest.Out{ID: ids[0], IDs: []uint32{2}, Finish: infer.ReasonStop})
	if _, err := sinks[0].WaitFinish(b.Ctx); err != nil {
		t.Fatal(err)
	}
	b.Stop()
	for _, r := range sinks {
		if _, err := r.WaitFinish(done()); err != nil {
			t.Error(err)
		}
	}
	if batch.pairs != 3 || batch.inside {
		t.Errorf("%d pairs for two steps and an end", batch.pairs)
	}
}

// An engine whose second connection leads nowhere gives no session, in time.
func TestStepsConnectionRefusals(t *testing.T) {
	for _, c := range []struct {
		name, want string
		second     func(ctx context.Context) (net.Conn, error)
	}{
		{"cannot be made", "steps: dial: no route", func(context.Context) (net.Conn, error) {
			return nil, errors.New("no route")
		}},
		{"says nothing", "no session within 10s", func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go io.Copy(io.Discard, theirs)
			return ours, nil
		}},
		{"is not read", "timeout", func(context.Context) (net.Conn, error) {
			ours, _ := net.Pipe()
			return ours, nil
		}},
		{"is another protocol's", "HTTP/1.1", func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go io.Copy(io.Discard, theirs)
			go io.WriteString(theirs, "HTTP/1.1 400 Bad Request\r\n\r\n")
			return ours, nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, "bufconn")
				o := p.options()
				first, dials := o.Dial, 0
				o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
					if dials++; dials == 2 {
						return c.second(ctx)
					}
					return first(ctx, addr)
				}
				e := New(o)
				ctx, cancel := context.WithCancel(t.Context())
				began := time.Now()
				e.Run(ctx, func(s engine.State) {
					if s.Ready || s.Err == nil || !strings.Contains(s.Err.Error(), c.want) || time.Since(began) > 10*time.Second {
						t.Errorf("state %+v after %v", s, time.Since(began))
					}
					cancel()
				})
				p.Cut()
			})
		})
	}
}

// The engine's message at the end of the stream reaches the operator.
func TestEngineWordsAtTheEnd(t *testing.T) {
	p := newPeer(t, "bufconn")
	b, _ := start(t, p, p.options())
	call := b.Accept(10)
	s := p.last()
	s.endWith = status.Error(codes.Internal, "weights fell out: 100% (café)")
	s.stop.Do(func() { close(s.end) })
	end := b.WantFinish(call, infer.ReasonError)
	if cause := end.Err.Cause.Error(); !strings.Contains(cause, "weights fell out: 100% (café)") {
		t.Errorf("cause %s", cause)
	}
}

// An engine whose control handler starves while its steps flow keeps its
// session, also where nothing else ever comes on the connection of the calls: the
// windows are set, so that the server does not measure it with pings.
func TestStarvedControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, "bufconn", grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(1<<20))
		b, e := start(t, p, p.options())
		call := b.Accept(1000)
		p.mu.Update(func() { p.mute = true })
		for range 100 {
			time.Sleep(2 * time.Second)
			p.Step(enginetest.Out{ID: call.Request.ID, IDs: []uint32{5}})
		}
		synctest.Wait()
		if f := e.Figures(); f.Lost != [mux.NumLosses]uint64{} || len(call.Sink.IDs()) != 100 {
			t.Errorf("%d ids, figures %+v", len(call.Sink.IDs()), f)
		}
		b.Stop()
		p.Cut()
	})
}
