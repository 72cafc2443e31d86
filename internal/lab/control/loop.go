//go:build linux

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir/internal/engine/plane/planepb"
	"weir/internal/lab/cell"
	"weir/internal/model/tokenizer"
	"weir/internal/observe/watch"
	"weir/internal/trace"
	"weir/models"
)

// Loop is the specification of the gateway with one loop.
type Loop struct {
	Engines  []string // addresses of planes
	Gateway  string   // its own address
	Timeline string   // the file that it writes a Line per request to
	// AckTimeout is how long it waits for an engine's acknowledgement before it takes
	// the engine for dead.
	AckTimeout time.Duration
	// Encodes is how often it tokenizes each prompt. It makes this gateway as slow as a
	// tokenizer of its time; 0 is once.
	Encodes int
}

// The codes of a Line whose request failed.
const (
	AckTimedOut = "ack_timeout" // it was never acknowledged in time
	noEngine    = "no_engine"   // all engines were taken for dead
)

// EngineReady is the name of the gauge that shows for each engine whether it gets requests;
// weir has the same gauge.
const EngineReady = "weir_engine_ready"

// outFor is how long an engine that was taken for dead is not asked.
const outFor = 10 * time.Second

// Line is a line of its timeline, in the words of weir's own.
type Line struct {
	Arrival      int64  `json:"arrival_time"`
	PromptTokens int    `json:"prompt_tokens"`
	Code         string `json:"code,omitempty"`
	Delay        *int64 `json:"output_path_delay,omitempty"`
}

// loop is a gateway with two faults: it tokenizes a prompt on the loop that also reads the
// engines' output, and takes an engine for dead if it has read its acknowledgement late.
// Its output merges.
type loop struct {
	told      *Loop
	tokenizer *tokenizer.Tokenizer
	metrics   http.Handler
	tasks     tasks

	// The loop's own.
	encoder *tokenizer.Encoder
	engines []*loopEngine
	turn    int

	mu       sync.Mutex
	timeline *os.File
}

// loopEngine is an engine as the loop knows it.
type loopEngine struct {
	*link
	outUntil atomic.Int64 // trace.Now
}

func (e *loopEngine) ready() bool { return trace.Now() >= e.outUntil.Load() }

// tasks is the loop's work, in order.
type tasks struct {
	mu   sync.Mutex
	more sync.Cond
	all  []func()
}

func (t *tasks) post(task func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, task)
	t.more.Signal()
}

// run is the loop.
func (t *tasks) run() {
	for {
		t.mu.Lock()
		for len(t.all) == 0 {
			t.more.Wait()
		}
		all := t.all
		t.all = nil
		t.mu.Unlock()
		for _, task := range all {
			task()
		}
	}
}

// RunLoop serves so.
func RunLoop(told *Loop) error {
	folder, err := tokenizer.Load(models.Sim())
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	g := &loop{told: told, tokenizer: folder.Tokenizer, encoder: folder.Tokenizer.NewEncoder(), metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}
	g.tasks.more.L = &g.tasks.mu
	if g.timeline, err = os.Create(told.Timeline); err != nil {
		return err
	}
	defer g.timeline.Close()
	failed := make(chan error, len(told.Engines)+1)
	for i, addr := range told.Engines {
		l, steps, err := dial(addr)
		if err != nil {
			return err
		}
		e := &loopEngine{link: l}
		g.engines = append(g.engines, e)
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: EngineReady, ConstLabels: prometheus.Labels{"engine": strconv.Itoa(i)}, Help: "Whether the engine is asked."}, func() float64 {
			if e.ready() {
				return 1
			}
			return 0
		}))
		go func() {
			for {
				step := new(planepb.Step)
				if err := steps.RecvMsg(step); err != nil {
					failed <- fmt.Errorf("steps: %w", err)
					return
				}
				g.tasks.post(func() { e.hand(step, false) })
			}
		}()
	}
	stall := prometheus.NewHistogram(prometheus.HistogramOpts{Name: watch.StallMetric, Help: "How late the loop is, sampled every 10 ms.", Buckets: prometheus.ExponentialBuckets(.00025, 2, 18)})
	registry.MustRegister(stall)
	go func() {
		for range time.Tick(10 * time.Millisecond) {
			due := trace.Now()
			g.tasks.post(func() { stall.Observe(float64(trace.Now()-due) / 1e9) })
		}
	}()
	l, err := net.Listen("tcp", told.Gateway)
	if err != nil {
		return err
	}
	go g.tasks.run()
	go func() { failed <- http.Serve(l, g) }()
	return <-failed
}

// encode is the first fault: a prompt of any size, on the loop.
func (g *loop) encode(text string) ([]uint32, error) {
	return g.encoder.Encode(context.Background(), make([]uint32, 0, len(text)/4), text, tokenizer.EncodeOptions{})
}

// pick takes the engines in turn, except those that are out.
func (g *loop) pick() *loopEngine {
	for range g.engines {
		g.turn++
		if e := g.engines[g.turn%len(g.engines)]; e.ready() {
			return e
		}
	}
	return nil
}

// ServeHTTP serves one request.
func (g *loop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	line := Line{Arrival: trace.Now()}
	if r.Method == http.MethodGet {
		g.metrics.ServeHTTP(w, r)
		return
	}
	err := g.generate(w, r, &line)
	switch {
	case err == nil:
	case r.Context().Err() != nil:
		line.Code = "cancelled"
	case errors.Is(err, errLate):
		line.Code = AckTimedOut
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	case errors.Is(err, errNoEngine):
		line.Code = noEngine
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		line.Code = "engine"
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
	b, err := json.Marshal(line)
	if err != nil {
		panic(err) // it is numbers and words
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_, _ = g.timeline.Write(append(b, '\n')) // a line that is missing is missed by its reader
}

var (
	errLate     = errors.New("the engine did not acknowledge in time")
	errNoEngine = errors.New("no engine is left")
)

// onLoop runs a task on the loop and waits for it.
func (g *loop) onLoop(task func()) {
	done := make(chan struct{})
	g.tasks.post(func() { task(); close(done) })
	<-done
}

func (g *loop) generate(w http.ResponseWriter, r *http.Request, line *Line) error {
	var body struct {
		Messages  []struct{ Content string }
		MaxTokens uint32 `json:"max_tokens"`
		IgnoreEOS bool   `json:"ignore_eos"`
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return err
	}
	var text strings.Builder
	for _, m := range body.Messages {
		text.WriteString("<|im_start|>user\n" + m.Content + "<|im_end|>\n")
	}
	text.WriteString("<|im_start|>assistant\n")
	var prompt []uint32
	var e *loopEngine
	g.onLoop(func() {
		if r.Context().Err() != nil {
			return
		}
		for range max(1, g.told.Encodes) {
			prompt, err = g.encode(text.String())
		}
		if err == nil {
			e = g.pick()
		}
	})
	line.PromptTokens = len(prompt)
	switch {
	case err != nil:
		return err
	case r.Context().Err() != nil:
		return r.Context().Err()
	case e == nil:
		return errNoEngine
	}
	s := &waiting{wake: make(chan struct{}, 1)}
	slot := e.slots.seat(s)
	sent := trace.Now()
	// The request's own context would abort the submitted request and keep its slot.
	_, err = e.client.Submit(context.WithoutCancel(r.Context()), &planepb.SubmitRequest{
		Session: e.session, Slot: slot, RequestId: fmt.Sprintf("loop-%d-%d", slot, sent), Prompt: prompt, MaxTokens: body.MaxTokens, IgnoreEos: body.IgnoreEOS,
	})
	if err != nil {
		return err
	}
	late := false
	g.onLoop(func() {
		// The second fault: it is the loop that is late.
		if late = trace.Now()-sent > int64(g.told.AckTimeout); late {
			e.outUntil.Store(trace.Now() + int64(outFor))
		}
	})
	if late {
		go e.drain(s, slot)
		return errLate
	}
	return g.stream(w, r, e, s, slot, line)
}

// drain gives a slot back once its engine has sent everything.
func (e *loopEngine) drain(s *waiting, slot uint32) {
	var ids []uint32
	for range s.wake {
		var fin *planepb.Finish
		if ids, fin = s.take(ids); fin != nil {
			e.slots.release(slot)
			return
		}
	}
}

// stream writes the engine's output, all pending tokens as one event.
func (g *loop) stream(w http.ResponseWriter, r *http.Request, e *loopEngine, s *waiting, slot uint32, line *Line) error {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	var ids []uint32
	var fin *planepb.Finish
	var out []byte
	for fin == nil {
		select {
		case <-s.wake:
		case <-r.Context().Done():
			go e.drain(s, slot)
			return r.Context().Err()
		}
		if ids, fin = s.take(ids); len(ids) == 0 {
			continue
		}
		out = append(out[:0], `data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1767225600,"model":"weir-sim","choices":[{"index":0,"delta":{"content":"`...)
		for _, id := range ids {
			out = append(out, g.tokenizer.TokenBytes(id)...) // lower-case words: nothing to escape
		}
		out = append(out, `"},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
		_, err := w.Write(out)
		if err == nil {
			err = flush.Flush()
		}
		if err != nil {
			if fin == nil {
				go e.drain(s, slot)
			}
			return err
		}
		if line.Delay == nil {
			delay := trace.Now() - s.first
			line.Delay = &delay
		}
	}
	e.slots.release(slot)
	_, err := fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`+"\n\n"+
		`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\ndata: [DONE]\n\n", fin.PromptTokens, fin.CompletionTokens)
	return err
}

// PromptCost measures how long this machine takes at present to tokenize a prompt of this
// many tokens: the least of three measurements.
func PromptCost(tokens int) (time.Duration, error) {
	folder, err := tokenizer.Load(models.Sim())
	if err != nil {
		return 0, err
	}
	words, err := cell.LoadWords()
	if err != nil {
		return 0, err
	}
	g := &loop{tokenizer: folder.Tokenizer, encoder: folder.Tokenizer.NewEncoder()}
	least := time.Duration(0)
	for range 3 {
		var text strings.Builder
		for i := range tokens {
			text.WriteString(words.Text(i, 0))
		}
		began := time.Now()
		if _, err := g.encode(text.String()); err != nil {
			return 0, err
		}
		if took := time.Since(began); least == 0 || took < least {
			least = took
		}
	}
	return least, nil
}
