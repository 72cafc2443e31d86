package idstream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/lifetime"
	"weir/internal/trace"
	"weir/internal/wire/epoll"
)

// turns reads a generation whose socket is polled: in turns that never wait or overlap,
// and none of which is missed. With a goroutine per generation that waits in a read,
// every event would cost a wake-up and a second read, which are most of the cost of an
// event.
type turns struct {
	state   atomic.Int32
	hup     atomic.Bool // the engine has ended its side: the socket is read to its end
	socket  *epoll.Socket[*worker]
	ends    lifetime.Follower // of the generation's context, whose end is news too
	follows bool
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
	reader engine.Reader
	begun  bool // a batch has
	had    int  // turns of it that had something
	read   []byte
	scan   *Scanner
}

// workers are those of the goroutines that a generation's first turn is given
// on, and its turn for other news than the socket's.
var workers = sync.Pool{New: func() any { return newWorker(engine.NewReader(nil, "")) }}

func newWorker(r engine.Reader) *worker {
	return &worker{reader: r, read: make([]byte, 16<<10), scan: NewScanner()}
}

// Idle implements epoll.Worker.
func (w *worker) Idle() {
	if w.begun {
		w.reader.End(w.had)
		w.begun, w.had = false, 0
	}
}

// begin is called before what was received is offered.
func (w *worker) begin(received int64) {
	if !w.begun {
		w.begun = true
		w.reader.Begin(received)
	}
}

// poll has the generation read where its socket is polled, beginning with what
// is there. It is false when its answer cannot be polled.
func (g *Generation) poll() bool {
	if !g.host.Polled {
		return false
	}
	fd, ok := g.body.Detach()
	if !ok {
		return false
	}
	g.state.Store(turning)
	socket, err := g.host.polls.Reads(fd, g.ready)
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
func (g *Generation) ready(w *worker, hup bool) {
	if hup {
		g.hup.Store(true)
	}
	if g.claim() {
		g.turn(w)
	}
}

// Over implements lifetime.Waiter: it gives a turn for the end of the generation's context.
func (g *Generation) Over() {
	if g.claim() {
		w := workers.Get().(*worker)
		g.turn(w)
		workers.Put(w)
	}
}

// claim takes a turn. Who has one already sees the news all the same.
func (g *Generation) claim() bool {
	for {
		switch {
		case g.state.CompareAndSwap(parked, turning):
			return true
		case g.state.CompareAndSwap(turning, again), g.state.Load() == again:
			return false
		}
	}
}

func (g *Generation) turn(w *worker) {
	for {
		if g.advance(w) {
			g.socket.Stop()
			go g.conclude() // the connection's end may wait
			return
		}
		if !g.follows {
			g.follows = true
			g.ends.Follow(&g.ctx.Context, g)
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

// advance does the work of a turn: it reads the available input and reports whether the
// answer is over.
func (g *Generation) advance(w *worker) (over bool) {
	defer g.caught(&over)
	for range turnReads {
		if g.ctx.Err() != nil {
			if !g.whole {
				g.broken(context.Cause(&g.ctx), trace.Now())
			}
			return true
		}
		n, drained, err := g.body.TryRead(w.read)
		if n > 0 && !g.whole {
			now := trace.Now()
			w.begin(now)
			w.had++
			g.whole = g.Feed(w.scan, w.read[:n], now)
		}
		switch {
		case err != nil:
			if !g.whole {
				now := trace.Now()
				w.begin(now)
				g.broken(err, now)
			}
			return true
		case drained && (n <= 0 || !g.hup.Load()):
			if g.whole && g.waiting == nil {
				g.waiting = time.AfterFunc(afterwards, func() { g.ctx.End(nil) })
			}
			return false
		}
	}
	if err := g.socket.Again(); err != nil {
		g.ctx.End(err) // which gives a turn
	}
	return false
}

// conclude ends a generation that had its last turn.
func (g *Generation) conclude() {
	g.ends.Leave()
	if g.waiting != nil {
		g.waiting.Stop()
	}
	g.close()
}
