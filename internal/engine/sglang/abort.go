package sglang

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"weir/internal/engine/idstream"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
	"weir/internal/trace"
)

// maxAborters is how many aborts are on their way to an engine at once.
const maxAborters = 16

// abortTimeout bounds one.
const abortTimeout = 5 * time.Second

// aborts is the queue of requests to abort at an engine. Adding one does not block.
type aborts struct {
	post     func(ctx context.Context, id string)
	panicked func(*infer.Panic)

	mu      sync.Mutex
	queue   []string
	workers int
	closed  bool
	ended   sync.WaitGroup
}

func (a *aborts) add(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.queue = append(a.queue, id)
	if a.workers < maxAborters {
		a.workers++
		a.ended.Go(a.work)
	}
}

func (a *aborts) work() {
	for {
		a.mu.Lock()
		if len(a.queue) == 0 {
			a.workers--
			a.mu.Unlock()
			return
		}
		id := a.queue[0]
		a.queue = a.queue[1:]
		a.mu.Unlock()
		a.tell(id)
	}
}

// tell sends one abort to the engine.
func (a *aborts) tell(id string) {
	defer func() { infer.Caught(recover(), a.panicked) }()
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	a.post(ctx, id)
}

// close takes no more and returns when the engine was told of all.
func (a *aborts) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.ended.Wait()
}

// postAbort requests the abort of a request. A failure is not reported: the engine's
// connection is then broken, and the generation ends by its own timeout.
func (e *Engine) postAbort(ctx context.Context, id string) {
	resp, err := e.client.Do(ctx, &upstream.Request{Method: http.MethodPost, Path: "/abort_request", Fields: idstream.Fields,
		Body: []byte(`{"rid":` + strconv.Quote(id) + `}`), Leg: &trace.Leg{}})
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, idstream.MaxRefusal))
	resp.Body.Close()
}
