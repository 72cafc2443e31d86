//go:build linux

// Package control holds the gateways of the output path's benchmark that are not products:
// httputil.ReverseProxy as people deploy it, and controls that must fail. Latest-wins keeps
// only the last step of a stream, and so loses tokens. One-write-per-token merges nothing,
// and so falls behind. Both read the plane as weir does. A third, loop, tokenizes on the
// loop that reads the engines' output, and takes an engine for dead when that makes it
// late. A benchmark in which they do not fail measures nothing.
package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weir/internal/engine/plane/planepb"
	"weir/internal/lab/cell"
)

// RunReverseProxy is the standard library's proxy as people deploy it.
func RunReverseProxy(c *cell.Cell) error {
	target := &url.URL{Scheme: "http", Host: c.Engine}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		FlushInterval: -1,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 1 << 14, DisableCompression: true},
	}
	return http.ListenAndServe(c.Gateway, proxy)
}

// control is a gateway that reads the plane as weir does but forwards the tokens in a way
// that is known to be wrong. It shows that the benchmark detects such faults.
type control struct {
	*link
	latest bool // keep only the last step's ids of a stream; otherwise one write per token
	words  *cell.Words
}

// link is a session with an engine.
type link struct {
	client  planepb.PlaneClient
	session uint64
	slots   slotTable
}

// slotTable gives out slots.
type slotTable struct {
	mu     sync.RWMutex
	bySlot []*waiting
	free   []uint32
}

// waiting is a stream as its reader leaves it for its writer.
type waiting struct {
	wake chan struct{}
	mu   sync.Mutex
	ids  []uint32
	// first is when the engine sent the first of them, CLOCK_MONOTONIC ns.
	first int64
	fin   *planepb.Finish
}

// RunLatest serves a cell and keeps the latest step of each stream only.
func RunLatest(c *cell.Cell) error { return run(c, true) }

// RunSingle serves a cell with one write for each token.
func RunSingle(c *cell.Cell) error { return run(c, false) }

func run(c *cell.Cell, latest bool) error {
	w, err := cell.LoadWords()
	if err != nil {
		return err
	}
	l, steps, err := dial(c.Engine)
	if err != nil {
		return err
	}
	g := &control{link: l, latest: latest, words: w}
	at, err := net.Listen("tcp", c.Gateway)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- g.read(steps) }()
	go func() { failed <- http.Serve(at, g) }()
	return <-failed
}

// steps is an engine's stream of steps.
type steps = grpc.ServerStreamingClient[planepb.Step]

// dial begins a session with an engine. Its connection lasts as long as the process.
func dial(engine string) (*link, steps, error) {
	conn, err := grpc.NewClient("passthrough:///"+engine, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(cell.PlaneWindow), grpc.WithInitialConnWindowSize(cell.PlaneWindow),
		grpc.WithReadBufferSize(128<<10), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cell.PlaneWindow)))
	if err != nil {
		return nil, nil, fmt.Errorf("dial: %w", err)
	}
	l := &link{client: planepb.NewPlaneClient(conn), session: 1}
	from, err := l.client.Steps(context.Background(), &planepb.StepsRequest{Session: l.session}, grpc.WaitForReady(true))
	if err != nil {
		return nil, nil, fmt.Errorf("steps: %w", err)
	}
	if _, err := from.Recv(); err != nil {
		return nil, nil, fmt.Errorf("steps: %w", err)
	}
	return l, from, nil
}

// read hands the steps' ids to their streams.
func (g *control) read(from steps) error {
	step := planepb.Step{}
	for {
		if err := from.RecvMsg(&step); err != nil {
			return fmt.Errorf("steps: %w", err)
		}
		g.hand(&step, g.latest)
	}
}

// hand passes a step's ids to their streams: added to the pending ones, or with latest in
// their place.
func (l *link) hand(step *planepb.Step, latest bool) {
	l.slots.mu.RLock()
	defer l.slots.mu.RUnlock()
	ids := step.Id
	for i, slot := range step.Slot {
		count := 1
		if len(step.Count) > 0 {
			count = int(step.Count[i])
		}
		s := l.slots.bySlot[slot]
		s.mu.Lock()
		if latest {
			s.ids = s.ids[:0]
		}
		s.ids = append(s.ids, ids[:count]...)
		if s.first == 0 {
			s.first = int64(step.SendTime)
		}
		s.mu.Unlock()
		s.notify()
		ids = ids[count:]
	}
	for _, n := range step.Notice {
		if n.Finish != nil {
			s := l.slots.bySlot[n.Slot]
			s.mu.Lock()
			s.fin = n.Finish
			s.mu.Unlock()
			s.notify()
		}
	}
}

func (s *waiting) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns all pending ids; ids is a buffer to swap with.
func (s *waiting) take(ids []uint32) ([]uint32, *planepb.Finish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.ids
	s.ids = ids[:0]
	return taken, s.fin
}

func (t *slotTable) seat(s *waiting) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.free); n > 0 {
		slot := t.free[n-1]
		t.free = t.free[:n-1]
		t.bySlot[slot] = s
		return slot
	}
	t.bySlot = append(t.bySlot, s)
	return uint32(len(t.bySlot) - 1)
}

func (t *slotTable) release(slot uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = append(t.free, slot)
}

// ServeHTTP serves one stream.
func (g *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		return // ready
	}
	var body struct {
		Seed      int64  `json:"seed"`
		MaxTokens uint32 `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s := &waiting{wake: make(chan struct{}, 1)}
	slot := g.slots.seat(s)
	if _, err := g.client.Submit(r.Context(), &planepb.SubmitRequest{
		Session: g.session, Slot: slot, RequestId: r.Header.Get("X-Request-Id"),
		Prompt: []uint32{1, 2, 3, 4}, MaxTokens: body.MaxTokens, Seed: &body.Seed,
	}); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	var ids []uint32
	var fin *planepb.Finish
	var out []byte
	for fin == nil {
		select {
		case <-s.wake:
		case <-r.Context().Done():
			return
		}
		ids, fin = s.take(ids)
		for _, id := range ids {
			out = g.appendEvent(out[:0], id)
			if _, err := w.Write(out); err != nil {
				return
			}
			if err := flush.Flush(); err != nil {
				return
			}
		}
	}
	g.slots.release(slot)
	fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`+"\n\n"+
		`data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":%d}}`+"\n\ndata: [DONE]\n\n", fin.CompletionTokens)
}

// appendEvent appends a chunk of the length that weir's have.
func (g *control) appendEvent(b []byte, id uint32) []byte {
	b = append(b, `data: {"id":"chatcmpl-00000000","object":"chat.completion.chunk","created":1767225600,"model":"weir-sim","choices":[{"index":0,"delta":{"content":"`...)
	b = append(b, g.words.ByID(id)...)
	return append(b, `"},"logprobs":null,"finish_reason":null}],"usage":null}`+"\n\n"...)
}
