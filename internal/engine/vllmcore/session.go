package vllmcore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync/atomic"

	"weir/internal/engine/coreclient"
	"weir/internal/engine/mux"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/wire/zmtp"
)

// session is one engine's two connections, from its word that it can serve to the
// loss of either.
//
// Neither connection shows which engine is at the other end of the output. So a
// session begins with a question over the input, and the output is the connection on
// which the answer arrives.
type session struct {
	*coreclient.Session
	dispatcher

	e      *Engine
	opts   *Options
	rank   int
	ready  ready
	loras  loading
	output atomic.Pointer[zmtp.Conn]
	load   load
	drafts atomic.Bool // the engine decodes speculatively
	peer   string      // the engine's host; empty: this machine
}

// load is the latest report of an engine's load.
type load struct {
	running, waiting atomic.Int64
	kvUsage          atomic.Uint64 // a float64's bits
}

func (e *Engine) newSession(ctx context.Context, rank int, r ready, in *zmtp.Conn) *session {
	s := &session{e: e, opts: &e.opts, rank: rank, ready: r, loras: newLoading(len(e.lora)), dispatcher: dispatcher{index: rank, context: r.contextLength}}
	s.meeting.told = e.host.Signal
	s.Session = coreclient.NewSession(ctx, coreclient.Config{
		Options: &e.opts.Options, Kind: "vllm-core", Label: fmt.Sprintf("engine %d: ", rank), Rank: rank, Host: e.host, Meters: &e.meters,
		In: in, Code: code{}, Ranks: 1,
	}, s)
	return s
}

// hostOf is the host at the other end of a connection, empty for a Unix socket's.
func hostOf(c net.Conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return ""
	}
	return host
}

// lacks are what the engine would pass over: its own front end refuses them.
func (s *session) lacks() []infer.Lack {
	if !s.opts.Speculative && !s.drafts.Load() {
		return nil
	}
	return []infer.Lack{{What: infer.CarriesMinP | infer.CarriesLogitBias, Why: "decodes speculatively (--speculative-config), and draws without it"}}
}

// carries is what the engine takes beyond what every engine does.
func (s *session) carries() infer.Carries {
	return s.ready.carries(s.opts.Priorities).Without(s.lacks())
}

// traced returns the trace context for the engine, if the trace is sampled. Otherwise
// it returns nothing, because the engine returns the context with each output.
func (s *session) traced(of *trace.Caller) *trace.Caller {
	if of == nil || !of.Sampled() || !s.ready.placed() {
		return nil
	}
	return of
}

// serve serves the session to its end and gives the requests that the engine may
// still have.
func (s *session) serve(in *zmtp.Conn) (lost []string) {
	s.loadAdapters()
	return s.Run(func() {
		in.Close()
		if c := s.output.Load(); c != nil {
			c.Close()
		}
	}, nil)
}

// asked reports whether a message answers what this session has asked, which no message
// of another engine, or of another time, does.
func (s *session) asked(b []byte) bool {
	var d batch
	return d.decode(b) == nil && d.utility && (s.Out.Asked(d.call) || s.loras.asked(d.call))
}

// Message implements coreclient.Wire.
func (s *session) Message(frames [][]byte, received int64) error {
	if len(frames) == 1 && string(frames[0]) == coreDead {
		return &mux.End{Why: mux.LossDead, Cause: errors.New("the engine reports that it is dead")}
	}
	if fault := s.message(frames[0], frames[1:], received); fault != nil {
		return fault
	}
	d := &s.batch
	if d.stats {
		s.load.running.Store(int64(d.running))
		s.load.waiting.Store(int64(d.waiting))
		s.load.kvUsage.Store(math.Float64bits(d.kvUsage))
		if d.drafts && !s.drafts.Swap(true) {
			s.e.host.Signal()
		}
	}
	if d.waves {
		s.e.wave(d.complete, d.start)
	}
	if !d.utility || s.adapterLoaded(d) {
		return nil
	}
	f, sent, ok := s.Answered(d.call, received)
	if !ok {
		return nil
	}
	s.askHalves()
	// The answer was stamped between the question and its arrival. If the stamp
	// lies there on our clock, it is our clock: another machine's would have to be
	// within this fraction of a second by chance, of all the time it may be up.
	const slack = 1000 // ns, of the conversion
	s.oneClock = d.timestamp >= sent-slack && d.timestamp <= received+slack
	// The wire says nothing of a request that was aborted, and of one before the
	// fence nothing more can come.
	for _, g := range f.Aborts {
		s.Aborted(g, received)
	}
	return nil
}
