package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/internal/engine/enginetest"
	"weir/internal/infer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is a vLLM server as a test plays it, with the shapes of 0.32.
type peer struct {
	t        testing.TB
	scaleOut bool
	addr     string
	pages    map[string]string // that it has besides, by path

	panics   enginetest.Panics
	mu       enginetest.Watched
	server   *http.Server
	serving  sync.WaitGroup
	hold     bool
	refuse   infer.Code
	refusing bool
	requests map[string]*played
	aborted  map[string]bool
	asked    int      // how often it was asked what it has
	probes   []string // the paths and ranks of those that it answered
}

// played is a request as its peer knows it.
type played struct {
	body     map[string]any
	header   http.Header
	generate bool
	prompt   int
	held     bool
	told     int      // ids that were counted
	lines    []string // to be written
	began    bool
	ended    bool
}

func newPeer(t testing.TB, scaleOut bool) *peer {
	p := &peer{t: t, scaleOut: scaleOut, requests: map[string]*played{}, aborted: map[string]bool{}, pages: map[string]string{"/version": `{"version":"0.32.0"}`}}
	p.start("127.0.0.1:0")
	t.Cleanup(p.Cut)
	return p
}

func (p *peer) start(addr string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.addr = l.Addr().String()
	s := &http.Server{Handler: p}
	p.mu.Lock()
	p.server = s
	p.mu.Unlock()
	p.serving.Go(func() { _ = s.Serve(l) })
}

func (p *peer) options() Options {
	return Options{Name: "peer", URL: &url.URL{Scheme: "http", Host: p.addr}, ProbeInterval: 20 * time.Millisecond, Panicked: p.panics.Tell}
}

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"test","owned_by":"vllm","parent":null,"max_model_len":4096},{"id":"tuned","owned_by":"vllm","parent":"test"}]}`)
	case "/inference/v1/generate":
		if !p.scaleOut {
			w.WriteHeader(403)
			_, _ = io.WriteString(w, `{"error":{"message":"Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.","type":"PermissionDeniedError","param":null,"code":403}}`)
			return
		}
		p.generate(w, r)
	case "/v1/completions":
		p.generate(w, r)
	default:
		if text, ok := p.pages[r.URL.Path]; ok {
			_, _ = io.WriteString(w, text)
			return
		}
		http.NotFound(w, r)
	}
}

func refusal(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"message":%q,"type":"BadRequestError","param":null,"code":%d}}`, message, status)
}

func (p *peer) generate(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		p.t.Error(err)
		return
	}
	generate := r.URL.Path != "/v1/completions"
	prompt := body["prompt"]
	if generate {
		prompt = body["token_ids"]
	}
	ids, _ := prompt.([]any)
	if len(ids) == 0 {
		p.mu.Update(func() { p.asked++ })
		refusal(w, 400, "token_ids: Field required")
		return
	}
	if body["stream"] != true { // a probe
		p.mu.Update(func() { p.probes = append(p.probes, r.URL.Path+" "+r.Header.Get(rankHeader)) })
		_, _ = io.WriteString(w, `{"choices":[]}`)
		return
	}
	id, _ := body["request_id"].(string)
	q := &played{body: body, header: r.Header.Clone(), generate: generate, prompt: len(ids)}
	refused, code := false, infer.CodeInternal
	p.mu.Update(func() {
		if p.refusing {
			refused, code, p.refusing = true, p.refuse, false
			return
		}
		q.held = p.hold
		p.requests[id] = q
	})
	if refused {
		refusal(w, map[infer.Code]int{infer.CodeInvalid: 400, infer.CodeOverloaded: 503, infer.CodeUnavailable: 502}[code], "as the test wants it")
		return
	}
	// A client that goes has aborted. The engine's words from then on are the script's.
	gone := func() { p.mu.Update(func() { p.aborted[id] = true }) }
	defer context.AfterFunc(r.Context(), gone)()
	if p.mu.Await(r.Context(), "the confirmation", func() bool { return !q.held || len(q.lines) > 0 }) != nil {
		gone() // what is to run after may be stopped as it begins
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(200)
	patience, stop := context.WithTimeout(context.Background(), enginetest.Patience)
	defer stop()
	for {
		if w.(http.Flusher).Flush(); patience.Err() != nil {
			return
		}
		var lines []string
		var ended bool
		if p.mu.Await(patience, "output", func() bool {
			lines, ended = q.lines, q.ended || p.server == nil
			q.lines = nil
			return len(lines) > 0 || ended
		}) != nil {
			return
		}
		for _, line := range lines {
			if _, err := io.WriteString(w, line); err != nil {
				gone()
				return
			}
		}
		if ended {
			return
		}
	}
}

// event returns an event of ids, with the count that it states, and a finish reason and a stop
// reason as JSON.
func (p *peer) event(q *played, ids []uint32, count int, l *infer.Logprobs, finish, stop string) string {
	b, err := json.Marshal(append([]uint32{}, ids...))
	if err != nil {
		panic(err)
	}
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d`, q.prompt, q.prompt+count, count)
	if q.generate {
		return fmt.Sprintf(`data: {"request_id":"generate-tokens-x","usage":%s,"prompt_tokens_details":null,"completion_tokens_details":null},"output_mode":"tokens","choices":[{"index":0,"finish_reason":%s,"stop_reason":%s,"token_ids":%s,"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":%s}]}`+"\n\n",
			usage, finish, stop, b, generateScores(ids, l, q.wants()))
	}
	echo := "null"
	if !q.began {
		q.began = true
		echo = "[" + string(bytes.Repeat([]byte("151643,"), q.prompt-1)) + "151643]"
	}
	return fmt.Sprintf(`data: {"id":"cmpl-x","object":"text_completion","created":1,"model":"test","choices":[{"index":0,"text":"a \"token_ids\":[7],\"usage\": é","logprobs":%s,"finish_reason":%s,"stop_reason":%s,"prompt_token_ids":%s,"token_ids":%s}],"usage":%s}}`+"\n\n",
		completionScores(ids, l), finish, stop, echo, b, usage)
}

// wants returns how many alternatives the request asks for.
func (q *played) wants() int {
	params, _ := q.body["sampling_params"].(map[string]any)
	n, _ := params["logprobs"].(float64)
	return int(n)
}

func written(v float32) float64 {
	if math.IsInf(float64(v), -1) {
		return -9999
	}
	return float64(v)
}

// ranked puts the alternatives of a position into the order that the engine has them in: the
// drawn one first, then the others.
func ranked(id uint32, l *infer.Logprobs, i, k int) (ids []uint32, values []float32) {
	ids, values = []uint32{id}, []float32{l.Own[i]}
	for j := i * k; j < (i+1)*k; j++ {
		if l.TopIDs[j] != id {
			ids, values = append(ids, l.TopIDs[j]), append(values, l.Top[j])
		}
	}
	return ids, values
}

func completionScores(of []uint32, l *infer.Logprobs) string {
	if l == nil {
		return "null"
	}
	tokens, own, tops := []string{}, []float64{}, []json.RawMessage{}
	k := len(l.Top) / max(1, len(l.Own))
	of = append(slices.Clone(of), make([]uint32, len(l.Own))...)
	for i := range l.Own {
		tokens, own = append(tokens, fmt.Sprint("token_id:", of[i])), append(own, written(l.Own[i]))
		ids, values := ranked(of[i], l, i, k)
		top := "{"
		for j := range ids {
			top += fmt.Sprintf(`%s"token_id:%d":%v`, ","[:min(j, 1)], ids[j], written(values[j]))
		}
		tops = append(tops, json.RawMessage(top+"}"))
	}
	b, err := json.Marshal(map[string]any{"text_offset": []int{}, "token_logprobs": own, "tokens": tokens, "top_logprobs": tops})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func generateScores(of []uint32, l *infer.Logprobs, asked int) string {
	if l == nil {
		return "null"
	}
	type one struct {
		ID    uint32  `json:"token_id"`
		Value float64 `json:"logprob"`
		Rank  int     `json:"rank"`
		Top   []one   `json:"top_logprobs,omitempty"`
	}
	list := []one{}
	k := len(l.Top) / max(1, len(l.Own))
	of = append(slices.Clone(of), make([]uint32, len(l.Own))...)
	for i := range l.Own {
		ids, values := ranked(of[i], l, i, k)
		x := one{ID: of[i], Value: written(l.Own[i]), Rank: 1}
		for j := range ids[:min(len(ids), max(asked, 1))] {
			x.Top = append(x.Top, one{ID: ids[j], Value: written(values[j]), Rank: j + 1})
		}
		list = append(list, x)
	}
	b, err := json.Marshal(map[string]any{"content": list})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// last returns what follows the end: the counts of all, and the marker.
func (p *peer) last(q *played) string {
	if q.generate {
		return fmt.Sprintf(`data: {"request_id":"generate-tokens-x","usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d},"output_mode":"tokens","choices":[]}`+"\n\ndata: [DONE]\n\n", q.prompt, q.prompt+q.told, q.told)
	}
	return fmt.Sprintf(`data: {"id":"cmpl-x","object":"text_completion","created":1,"model":"test","choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":1}}}`+"\n\ndata: [DONE]\n\n", q.prompt, q.prompt+q.told, q.told)
}

// The conformance suite's side.

func (p *peer) Hold() { p.mu.Update(func() { p.hold = true }) }

func (p *peer) Confirm(id string) { p.mu.Update(func() { p.requests[id].held = false }) }

func (p *peer) Refuse(code infer.Code) {
	p.mu.Update(func() { p.refuse, p.refusing = code, true })
}

func (p *peer) Arrived(ctx context.Context, id string) error {
	return p.mu.Await(ctx, "request "+id, func() bool { return p.requests[id] != nil })
}

func (p *peer) Aborted(ctx context.Context, id string) error {
	return p.mu.Await(ctx, "the abort of "+id, func() bool { return p.aborted[id] })
}

func (p *peer) Step(out ...enginetest.Out) {
	p.mu.Update(func() {
		for _, o := range out {
			q := p.requests[o.ID]
			q.told += len(o.IDs)
			switch o.Finish {
			case "":
				q.lines = append(q.lines, p.event(q, o.IDs, q.told, o.Logprobs, "null", "null"))
			case infer.ReasonError:
				if len(o.IDs) > 0 {
					q.lines = append(q.lines, p.event(q, o.IDs, q.told, o.Logprobs, "null", "null"))
				}
				q.lines = append(q.lines, `data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}`+"\n\ndata: [DONE]\n\n")
				q.ended = true
			default:
				q.lines = append(q.lines, p.event(q, o.IDs, q.told, o.Logprobs, `"`+string(o.Finish)+`"`, "null"), p.last(q))
				q.ended = true
			}
		}
	})
}

func (p *peer) Miscount(id string, ids ...uint32) {
	p.mu.Update(func() {
		q := p.requests[id]
		q.lines = append(q.lines, p.event(q, ids, q.told+len(ids)+1, nil, "null", "null"))
	})
}

func (p *peer) Cut() {
	p.mu.Lock()
	s := p.server
	p.mu.Unlock()
	p.mu.Update(func() { p.server = nil }) // handlers that wait for output end
	if s == nil {
		return
	}
	if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		p.t.Error(err)
	}
	p.serving.Wait()
}

func (p *peer) Restore() { p.start(p.addr) }

func TestConformance(t *testing.T) {
	for _, scaleOut := range []bool{false, true} {
		for _, polled := range []bool{true, false} {
			t.Run(fmt.Sprintf("scale-out=%t/polled=%t", scaleOut, polled), func(t *testing.T) {
				enginetest.Run(t, func(t *testing.T) enginetest.Rig {
					p := newPeer(t, scaleOut)
					e := New(p.options(), Flags{})
					e.host.Polled = e.host.Polled && polled
					return enginetest.Rig{Engine: e, Peer: p, Alone: true, Panics: &p.panics}
				})
			})
		}
	}
}
