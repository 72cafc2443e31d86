package coreclient

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/mux"
	"weir/internal/infer"
	"weir/internal/wire/zmtp"
)

// broken is a connection whose reads panic once it is struck, as a defect of whoever
// takes messages out of bytes would.
type broken struct {
	net.Conn
	struck chan struct{}
}

func (c *broken) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.struck:
		panic("a read's")
	default:
		return n, err
	}
}

// wire takes messages for nothing, or panics.
type wire struct {
	Dispatcher
	first chan struct{} // closed by the first message
}

func (w *wire) Message(frames [][]byte, _ int64) error {
	if string(frames[0]) != "first" {
		panic("a message's")
	}
	close(w.first)
	return nil
}

type noCode struct{}

func (noCode) AppendAborts(wire []byte, _ []string) []byte { return wire }
func (noCode) AppendFence(wire []byte, _ int64) []byte {
	return zmtp.AppendMessage(wire, []byte("fence"))
}

// pipe returns both ends of a connection, ours of which can be struck.
func pipe(t *testing.T, ours, theirs zmtp.Type) (*zmtp.Conn, *zmtp.Conn, *broken) {
	// The pipe of package net waits for its reader, and a greeting does not.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var far *zmtp.Conn
	var greeted sync.WaitGroup
	greeted.Go(func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			far, err = zmtp.Handshake(c, zmtp.Config{Type: theirs})
		}
		if err != nil {
			t.Error(err)
		}
	})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	b := &broken{c, make(chan struct{})}
	near, err := zmtp.Handshake(b, zmtp.Config{Type: ours})
	greeted.Wait()
	if err != nil || far == nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far, b
}

// Wherever an engine is read, a panic is the end of its session: with a terminal delta
// for each request, told of once.
func TestPanicEndsTheSession(t *testing.T) {
	for name, strike := range map[string]func(t *testing.T, read *broken, far *zmtp.Conn){
		"read": func(_ *testing.T, read *broken, far *zmtp.Conn) {
			close(read.struck)
			far.Close()
		},
		"message": func(t *testing.T, _ *broken, far *zmtp.Conn) {
			if err := far.Send([]byte("x")); err != nil {
				t.Error(err)
			}
		},
		"input": nil,
		"tick":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			var panics enginetest.Panics
			input, farInput, inputRead := pipe(t, zmtp.Push, zmtp.Pull)
			output, farOutput, outputRead := pipe(t, zmtp.Pull, zmtp.Push)
			host := NewHost("test", panics.Tell)
			o := Options{Name: "e1", Panicked: panics.Tell}.WithDefaults()
			if name == "tick" {
				o.ProbeInterval = 1
			}
			w, m := &wire{first: make(chan struct{})}, &Meters{}
			ctx, in := WatchInput(t.Context(), input, panics.Tell)
			defer in.Close()
			s := NewSession(ctx, Config{Options: &o, Host: host, Meters: m, In: input, Code: noCode{}, Ranks: 1}, w)
			sink := enginetest.NewRecorder(1)
			g := NewGeneration(s.Out, &infer.Request{ID: "r", MaxTokens: 4}, 1, sink)
			if err := s.Seat(g); err != nil {
				t.Fatal(err)
			}
			g.Hear(1)
			var reads sync.WaitGroup
			reads.Go(func() { ReadOutputs(output, func([][]byte) *Session { return s }) })
			if err := farOutput.Send([]byte("first")); err != nil { // it is the session's now
				t.Fatal(err)
			}
			<-w.first
			var tick func(int64)
			switch name {
			case "input":
				close(inputRead.struck)
				farInput.Close()
			case "tick":
				tick = func(int64) { panic("a tick's") }
			default:
				strike(t, outputRead, farOutput)
			}
			lost := s.Run(func() { input.Close(); output.Close() }, tick)
			reads.Wait()
			var end *mux.End
			if !errors.As(s.Err(), &end) || end.Why != mux.LossPanic || len(lost) != 1 || m.Lost[mux.LossPanic].Load() != 1 {
				t.Errorf("%v, lost %v", s.Err(), lost)
			}
			f, err := sink.WaitFinish(t.Context())
			if err != nil || f.Err == nil || f.Err.Code != infer.CodeInternal || !f.Err.Retryable {
				t.Errorf("%+v, %v", f, err)
			}
			if all := panics.All(); len(all) != 1 || !strings.Contains(string(all[0].Stack), "coreclient") {
				t.Errorf("%v", all)
			}
		})
	}
}

// A connection that is no session's yet ends alone, and the door stays open.
func TestPanicEndsTheConnection(t *testing.T) {
	var panics enginetest.Panics
	host := NewHost("test", panics.Tell)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan uint64, 1)
	door := Door{l, func(_ context.Context, c net.Conn, nth uint64) {
		defer c.Close()
		if nth == 1 {
			panic("a handshake's")
		}
		served <- nth
	}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		host.Run(ctx, func() ([]Door, error) { return []Door{door}, nil }, func() engine.State { return engine.State{} }, func(engine.State) {})
	})
	for range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if nth := <-served; nth != 2 {
		t.Errorf("served connection %d", nth)
	}
	if err := panics.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	running.Wait()
	if err := host.Why(); err == nil || !strings.Contains(err.Error(), "a handshake's") {
		t.Errorf("noted %v", err)
	}
}

// If two connections claim one place, the connection that was accepted later serves, in whichever
// order they come.
func TestPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Place
		evicted := make(chan struct{})
		leave, ok := p.Take(2, func() { close(evicted) })
		if !ok {
			t.Fatal("the first was not let in")
		}
		if _, ok := p.Take(1, func() {}); ok {
			t.Fatal("one that was accepted before took the place")
		}
		if p.Clear(1) {
			t.Error("one that was accepted before cleared the place")
		}
		go func() { <-evicted; leave() }()
		leave, ok = p.Take(3, func() {})
		if !ok {
			t.Fatal("the later one was not let in")
		}
		leave()
	})
}
