package sglang

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/epoll"
	"weir/internal/trace"
)

// turns is how a generation is read where its socket is polled: in turns that
// never wait, never overlap, and none of which is missed. A goroutine for each
// generation, which waits in a read, costs a wake-up and a second read for every
// event, which are most of what it costs to take one in.
type turns struct {
	state   atomic.Int32
	socket  *epoll.Socket[*worker]
	unhook  func() bool // of the context's end, which is news too
	hup     atomic.Bool // the engine has ended its side: the socket is read to its end
	whole   bool        // the terminal delta was offered
	waiting *time.Timer // bounds the wait for what follows it
}

// The states of a generation that is polled.
const (
	parked  int32 = iota
	turning       // it has its turn, or has had its last
	again         // and there is news meanwhile
)

// worker is what a goroutine that gives turns has at hand. It implements
// epoll.Worker.
type worker struct {
	batch engine.Batch
	begun bool // of the batch
	given int  // turns since the batch began
	read  []byte
	scan  *scanner
}

// workers are those of the goroutines that a generation's first turn is given
// on, and its turn for other news than the socket's.
var workers = sync.Pool{New: func() any { return newWorker(nil) }}

func newWorker(b engine.Batch) *worker {
	return &worker{batch: b, read: make([]byte, 16<<10), scan: newScanner()}
}

// maxGiven is how many turns make a batch, some 100 us of work.
const maxGiven = 32

// Turned implements epoll.Worker.
func (w *worker) Turned() {
	if w.given++; w.given >= maxGiven {
		w.Idle()
		runtime.Gosched()
	}
}

// Idle implements epoll.Worker.
func (w *worker) Idle() {
	if w.given = 0; w.begun {
		w.begun = false
		w.batch.End()
	}
}

// begin is called before a delta is offered.
func (w *worker) begin() {
	if w.batch != nil && !w.begun {
		w.begun = true
		w.batch.Begin()
	}
}

// poll has the generation read where its socket is polled, beginning with what
// is there. It is false when its answer cannot be polled.
func (g *generation) poll() bool {
	if !g.e.polled {
		return false
	}
	fd, ok := g.body.Detach()
	if !ok {
		return false
	}
	g.state.Store(turning)
	socket, err := g.e.polls.Reads(fd, g.ready)
	if err != nil { // the answer cannot go back to being read as before
		g.broken(err, trace.Now())
		go g.close()
		return true
	}
	g.socket = socket
	w := workers.Get().(*worker)
	g.turn(w)
	workers.Put(w)
	return true
}

// ready gives a turn because the engine has sent something, or has ended its
// side.
func (g *generation) ready(w *worker, hup bool) {
	if hup {
		g.hup.Store(true)
	}
	if g.claim() {
		g.turn(w)
	}
}

// wake gives a turn for other news.
func (g *generation) wake() {
	if g.claim() {
		w := workers.Get().(*worker)
		g.turn(w)
		workers.Put(w)
	}
}

// claim takes a turn. Who has one already sees the news all the same.
func (g *generation) claim() bool {
	for {
		switch {
		case g.state.CompareAndSwap(parked, turning):
			return true
		case g.state.CompareAndSwap(turning, again), g.state.Load() == again:
			return false
		}
	}
}

func (g *generation) turn(w *worker) {
	for {
		if g.advance(w) {
			g.socket.Stop()
			go g.conclude() // the connection's end may wait
			return
		}
		if g.unhook == nil {
			g.unhook = context.AfterFunc(g.ctx, g.wake)
		}
		if g.state.CompareAndSwap(turning, parked) {
			return
		}
		g.state.Store(turning)
	}
}

// turnReads bounds the reads of a turn, so that an engine that sends without end
// holds up no other generation.
const turnReads = 4

// advance is a turn's work: it takes in what is there, and says whether nothing
// more is to come.
func (g *generation) advance(w *worker) (over bool) {
	defer g.caught(&over)
	for range turnReads {
		if g.ctx.Err() != nil {
			if !g.whole {
				g.broken(context.Cause(g.ctx), trace.Now())
			}
			return true
		}
		n, drained, err := g.body.TryRead(w.read)
		if n > 0 && !g.whole {
			w.begin()
			g.whole = g.take(w.scan, w.read[:n], trace.Now())
		}
		switch {
		case err != nil:
			if !g.whole {
				w.begin()
				g.broken(err, trace.Now())
			}
			return true
		case drained && (n <= 0 || !g.hup.Load()):
			if g.whole && g.waiting == nil {
				g.waiting = time.AfterFunc(afterwards, func() { g.cancel(nil) })
			}
			return false
		}
	}
	if err := g.socket.Again(); err != nil {
		g.cancel(err) // which gives a turn
	}
	return false
}

// conclude ends a generation that had its last turn.
func (g *generation) conclude() {
	if g.unhook != nil {
		g.unhook()
	}
	if g.waiting != nil {
		g.waiting.Stop()
	}
	g.close()
}
