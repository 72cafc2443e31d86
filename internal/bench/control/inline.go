//go:build linux

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/bench/cell"
	"weir/internal/engine/plane/planepb"
	"weir/internal/tokenizer"
	"weir/internal/trace"
	"weir/internal/watch"
	"weir/models"
)

// AckTimeout is how long the inline control waits for an engine's
// acknowledgement: what the founding incident's gateways did.
const AckTimeout = 5 * time.Second

// AckTimedOut is the code of a line whose request was never acknowledged in
// time.
const AckTimedOut = "ack_timeout"

// inline is a gateway that does everything right but one: it tokenizes a prompt
// where its request is handled, as soon as it has come, however many others are
// at it. Its output merges.
type inline struct {
	control
	tokenizer *tokenizer.Tokenizer
	encoders  sync.Pool // of *tokenizer.Encoder

	metrics http.Handler

	mu       sync.Mutex
	timeline *os.File
}

// Line is a line of the inline control's timeline, in the words of weir's own.
type Line struct {
	Arrival      int64  `json:"arrival_time"`
	PromptTokens int    `json:"prompt_tokens"`
	Code         string `json:"code,omitempty"`
	Delay        *int64 `json:"output_path_delay,omitempty"`
}

// RunInline serves a cell so.
func RunInline(c *cell.Cell) error {
	folder, err := tokenizer.Load(models.Sim())
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	canary := watch.NewCanary(registry)
	go canary.Run(context.Background()) // as long as the process
	g := &inline{tokenizer: folder.Tokenizer, metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}
	if g.timeline, err = os.Create(c.Timeline); err != nil {
		return err
	}
	defer g.timeline.Close()
	return g.serve(c, g)
}

// encode is the fault: a prompt of any size, here and now.
func (g *inline) encode(ctx context.Context, text string) ([]uint32, error) {
	enc, _ := g.encoders.Get().(*tokenizer.Encoder)
	if enc == nil {
		enc = g.tokenizer.NewEncoder()
	}
	defer g.encoders.Put(enc)
	return enc.Encode(ctx, make([]uint32, 0, len(text)/4), text, tokenizer.EncodeOptions{})
}

// ServeHTTP serves one request.
func (g *inline) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	line := Line{Arrival: trace.Now()}
	if r.Method == http.MethodGet {
		g.metrics.ServeHTTP(w, r)
		return
	}
	err := g.generate(w, r, &line)
	switch {
	case err == nil:
	case status.Code(err) == codes.DeadlineExceeded, errors.Is(err, context.DeadlineExceeded):
		line.Code = AckTimedOut
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	case r.Context().Err() != nil:
		line.Code = "cancelled"
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

func (g *inline) generate(w http.ResponseWriter, r *http.Request, line *Line) error {
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
	prompt, err := g.encode(r.Context(), text.String())
	if err != nil {
		return err
	}
	line.PromptTokens = len(prompt)
	s := &waiting{wake: make(chan struct{}, 1)}
	slot := g.slots.seat(s)
	ack, cancel := context.WithTimeout(r.Context(), AckTimeout)
	_, err = g.client.Submit(ack, &planepb.SubmitRequest{
		Session: g.session, Slot: slot, RequestId: fmt.Sprintf("inline-%d", slot), Prompt: prompt, MaxTokens: body.MaxTokens, IgnoreEos: body.IgnoreEOS,
	})
	cancel()
	if err != nil {
		return err
	}
	return g.stream(w, r, s, slot, line)
}

// stream writes what the engine says, all that is pending as one event.
func (g *inline) stream(w http.ResponseWriter, r *http.Request, s *waiting, slot uint32, line *Line) error {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	var ids []uint32
	var fin *planepb.Finish
	var out []byte
	for fin == nil {
		select {
		case <-s.wake:
		case <-r.Context().Done():
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
		if _, err := w.Write(out); err != nil {
			return err
		}
		if err := flush.Flush(); err != nil {
			return err
		}
		if line.Delay == nil {
			delay := trace.Now() - s.first
			line.Delay = &delay
		}
	}
	g.slots.release(slot)
	_, err := fmt.Fprintf(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`+"\n\n"+
		`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\ndata: [DONE]\n\n", fin.PromptTokens, fin.CompletionTokens)
	return err
}
