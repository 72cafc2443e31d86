package idstream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/trace"
	"weir/internal/wire/epoll"
)

// Host is the engine that generations run on. What is exported is set before Run.
type Host struct {
	Name   string
	Client *upstream.Client
	Kind   string // of the engine
	// Batch is notified around the deltas of sockets that were ready at once; it may be
	// nil.
	Batch engine.Batch
	// Panicked is called for panics while the engine's output is processed; it may be
	// nil.
	Panicked func(*infer.Panic)
	// AbortTimeout is how long an aborted generation may take to end before its
	// connection is closed.
	AbortTimeout time.Duration
	// Failure returns what a status of the engine's means, with its words.
	Failure func(engine string, status int, message string) *infer.Error
	// Polled has generations read in turns, where their sockets can be polled.
	Polled bool

	mu      sync.Mutex
	running *lifetime.Context // Run's, nil before and after
	polls   *epoll.Poller[*worker]
	live    sync.WaitGroup // generations; added to under mu, while running
}

// Run lets generations in while serve runs, and returns when they have ended. Those that
// are left then end with an error.
func (h *Host) Run(ctx context.Context, serve func()) {
	// An error that follows from the end of Run is not a hang-up of the client.
	running := new(lifetime.Context)
	polls := epoll.New(runtime.GOMAXPROCS(0), func() *worker { return newWorker(engine.NewReader(h.Batch, h.Kind)) })
	h.mu.Lock()
	h.running, h.polls = running, polls
	h.mu.Unlock()

	serve()

	h.mu.Lock()
	h.running = nil
	h.mu.Unlock()
	running.End(&infer.Error{Code: infer.CodeUnavailable, Engine: h.Name, Message: "the engine was taken out of use", Retryable: true})
	h.live.Wait()
	polls.Close()
}

// enter counts a generation in and gives the context that it lives in.
func (h *Host) enter() (*lifetime.Context, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running == nil || h.running.Err() != nil {
		return nil, &infer.Error{Code: infer.CodeUnavailable, Engine: h.Name, Message: "the engine is not connected", Retryable: true, NotRun: true}
	}
	h.live.Add(1)
	return h.running, nil
}

// Hand hands a generation's request over and returns once the engine has confirmed it,
// by its status 200. ctx bounds that alone. The generation is read from then on.
func (h *Host) Hand(ctx context.Context, g *Generation, req *upstream.Request) error {
	running, err := h.enter()
	if err != nil {
		return err
	}
	g.Begin(running, h)
	req.Waits = g.Waits
	unhook := lifetime.AfterFunc(ctx, func() { g.ctx.End(context.Cause(ctx)) })
	resp, err := h.ask(&g.ctx, req)
	switch {
	case err != nil:
	case !unhook():
		resp.Body.Close()
		err = infer.AsError(context.Cause(ctx))
	default:
		g.body = resp.TakeBody()
		if g.body.Unhold(); g.Short || !g.poll() {
			engine.Read(g.Sink, g.run)
		}
		return nil
	}
	unhook()
	g.ctx.End(nil)
	switch {
	case g.Waits.Held() != nil: // it was given up, and may not be aborted yet
		go func() {
			defer h.live.Done()
			g.Waits.Outlast(running.Done())
		}()
		return err
	case req.Leg.ToServer != 0 && g.Waits == nil && (resp == nil || resp.Status == http.StatusOK):
		// It may have the request, and would work on it until it notices.
		g.Wire.Stop()
	}
	h.live.Done()
	return err
}

// ask hands a request over, and gives the response that confirms it. With an error
// there may be a response, which says that the engine has not taken the request.
func (h *Host) ask(ctx context.Context, req *upstream.Request) (resp *upstream.Response, err error) {
	defer func() {
		if p := infer.Caught(recover(), h.Panicked); p != nil {
			err = p.Failed(h.Name)
		}
	}()
	resp, err = h.Client.Do(ctx, req)
	switch {
	case err != nil:
		return nil, upstream.Fault(h.Name, err)
	case resp.Status != http.StatusOK:
		return resp, h.refusal(resp)
	}
	return resp, nil
}

// Whole hands over a request whose answer comes whole and of at most so many bytes, and gives
// that. It ends with ctx, and with the engine's Run.
func (h *Host) Whole(ctx context.Context, req *upstream.Request, most int64) ([]byte, error) {
	running, err := h.enter()
	if err != nil {
		return nil, err
	}
	defer h.live.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(running, func() { cancel(context.Cause(running)) })()
	resp, err := h.ask(ctx, req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return nil, upstream.Fault(h.Name, err)
	case int64(len(body)) > most:
		return nil, &infer.Error{Code: infer.CodeIntegrity, Engine: h.Name, Retryable: true, Message: fmt.Sprintf("the engine's answer has more than %d bytes", most)}
	}
	return body, nil
}

// MaxRefusal bounds what is read of a refusal.
const MaxRefusal = 64 << 10

// refusal reads why the engine refused a request.
func (h *Host) refusal(resp *upstream.Response) error {
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, MaxRefusal))
	if err != nil {
		return upstream.Fault(h.Name, err)
	}
	refused := h.Failure(h.Name, resp.Status, Message(data))
	refused.NotRun = resp.Status < http.StatusInternalServerError || refused.Code == infer.CodeOverloaded
	refused.RetryAfter = upstream.RetryAfter(resp.Status, resp.Fields)
	return refused
}

// Message reads the words of an error's body: error.message, or message where it stands
// alone; empty where there are none.
func Message(data []byte) string {
	var said, inner struct {
		Error   jsontext.Value `json:"error"`
		Message jsontext.Value `json:"message"`
	}
	if json.Unmarshal(data, &said, jsontext.AllowDuplicateNames(true)) != nil {
		return ""
	}
	if said.Error.Kind() == '{' && json.Unmarshal(said.Error, &inner, jsontext.AllowDuplicateNames(true)) == nil {
		said.Message = inner.Message
	}
	var text string
	if json.Unmarshal(said.Message, &text) != nil {
		return ""
	}
	return text
}

// Fields are those of a request for a stream.
const Fields = "Content-Type: application/json\r\nAccept: text/event-stream\r\nAccept-Encoding: identity\r\nUser-Agent: weir\r\n"

// TraceOf is the header of a request that is part of a trace, if it is of one.
func TraceOf(c *trace.Caller) http.Header {
	if c == nil {
		return nil
	}
	h := http.Header{"Traceparent": {c.Parent}}
	if c.State != "" {
		h["Tracestate"] = []string{c.State}
	}
	return h
}
