package sglang

import (
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
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/internal/engine/enginetest"
	"weir/internal/engine/idstream"
	"weir/internal/infer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newScanner() *scanner { return &scanner{Scanner: idstream.NewScanner()} }

// peer is an SGLang server as a test plays it.
type peer struct {
	t testing.TB
	// promptMeta is what events tell of the log probabilities of prompts in place of none.
	promptMeta string
	form       form
	addr       string
	info       string // of /server_info, or 404

	panics   enginetest.Panics
	mu       enginetest.Watched
	server   *http.Server
	serving  sync.WaitGroup
	hold     bool
	refuse   infer.Code
	refusing bool
	requests map[string]*played
	aborted  map[string]bool
}

// played is a request as its peer knows it.
type played struct {
	body   map[string]any
	held   bool
	scored infer.Logprobs // as the next event says them
	of     []uint32       // their ids
	sent   []uint32
	lines  []string // to be written
	ended  bool
}

func newPeer(t testing.TB, f form) *peer {
	p := &peer{t: t, form: f, requests: map[string]*played{}, aborted: map[string]bool{}}
	if f != unknownForm {
		p.info = fmt.Sprintf(`{"version":"0.5.16","max_running_requests":7,"context_length":4096,"incremental_streaming_output":%v,"internal_states":[{}]}`, f == incremental)
	}
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
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"test","max_model_len":4096},{"id":"tuned","parent":"test"}]}`)
	case "/server_info":
		if p.info == "" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, p.info)
	case "/abort_request":
		var body struct{ RID string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			p.t.Error(err)
		}
		p.mu.Update(func() { p.aborted[body.RID] = true })
	case "/generate":
		p.generate(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (p *peer) generate(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		p.t.Error(err)
		return
	}
	id, _ := body["rid"].(string)
	q := &played{body: body}
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
		status := map[infer.Code]int{infer.CodeInvalid: 400, infer.CodeOverloaded: 503, infer.CodeUnavailable: 502}[code]
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":{"message":"as the test wants it"}}`)
		return
	}
	defer p.mu.Update(func() { p.aborted[id] = p.aborted[id] || !q.ended }) // a closed connection is an abort
	if p.mu.Await(r.Context(), "the confirmation", func() bool { return !q.held || len(q.lines) > 0 }) != nil {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(200)
	for {
		if w.(http.Flusher).Flush(); r.Context().Err() != nil {
			return
		}
		var lines []string
		var ended bool
		if p.mu.Await(r.Context(), "output", func() bool {
			lines, ended = q.lines, q.ended
			q.lines = nil
			return len(lines) > 0 || ended
		}) != nil {
			return
		}
		for _, line := range lines {
			_, _ = io.WriteString(w, line)
		}
		if ended {
			return
		}
	}
}

// event returns a chunk in the server's form: the ids in it, the count it states
// and the rest of meta_info.
func (p *peer) event(q *played, ids []uint32, completion int, meta string) string {
	q.sent = append(q.sent, ids...)
	said := ids
	if p.form != incremental {
		said = q.sent
	}
	b, err := json.Marshal(append([]uint32{}, said...))
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`data: {"text":"a \"output_ids\":[7],\"meta_info\": é","output_ids":%s,"meta_info":{"id":"x","finish_reason":null,"prompt_tokens":3,"weight_version":"default","completion_tokens":%d,"cached_tokens":1%s}}`+"\n\n", b, completion, meta)
}

// logprobsMeta writes log probabilities as the server does, in the midst of
// meta_info.
func logprobsMeta(of []uint32, l *infer.Logprobs) string {
	entry := func(v float32, id uint32) []any {
		if math.IsInf(float64(v), -1) {
			return []any{nil, id, nil}
		}
		return []any{v, id, nil}
	}
	own, top := []any{}, []any{}
	k := len(l.Top) / max(1, len(l.Own))
	for i := range l.Own {
		own = append(own, entry(l.Own[i], of[i]))
		some := []any{}
		for j := i * k; j < (i+1)*k; j++ {
			some = append(some, entry(l.Top[j], l.TopIDs[j]))
		}
		top = append(top, some)
	}
	b, err := json.Marshal(own)
	if err != nil {
		panic(err)
	}
	text := fmt.Sprintf(`,"input_token_logprobs":[],"output_token_logprobs":%s,"output_token_logprobs_length":%d`, b, len(own))
	if k > 0 {
		if b, err = json.Marshal(top); err != nil {
			panic(err)
		}
		text += fmt.Sprintf(`,"input_top_logprobs":[],"output_top_logprobs":%s,"num_retractions":0`, b)
	}
	return text
}

// scores returns the members of meta_info with the log probabilities of a step.
func (p *peer) scores(q *played, o *enginetest.Out) string {
	if o.Logprobs == nil {
		return ""
	}
	l := o.Logprobs
	if p.form == incremental {
		q.scored = infer.Logprobs{}
		q.of = nil
	}
	q.scored.Append(l)
	of := append(slices.Clone(o.IDs), make([]uint32, len(l.Own))...)
	q.of = append(q.of, of[:len(l.Own)]...)
	meta := logprobsMeta(q.of, &q.scored)
	if p.promptMeta != "" {
		meta = strings.Replace(strings.Replace(meta, `,"input_top_logprobs":[]`, "", 1), `"input_token_logprobs":[]`, p.promptMeta, 1)
	}
	return meta
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
			text := p.event(q, o.IDs, len(q.sent)+len(o.IDs), p.scores(q, &o))
			finish := ""
			switch o.Finish {
			case "":
			case infer.ReasonStop:
				finish = `{"type":"stop","matched":null}`
			case infer.ReasonLength:
				finish = fmt.Sprintf(`{"type":"length","length":%d}`, len(q.sent))
			case infer.ReasonAbort:
				finish = `{"type":"abort","message":"Abort in waiting queue","status_code":null,"err_type":null}`
			case infer.ReasonError:
				finish = `{"type":"abort","message":"it broke","status_code":500,"err_type":"InternalError"}`
			}
			if finish != "" {
				text = strings.Replace(text, `"finish_reason":null`, `"finish_reason":`+finish, 1) + "data: [DONE]\n\n"
				q.ended = true
			}
			q.lines = append(q.lines, text)
		}
	})
}

func (p *peer) Miscount(id string, ids ...uint32) {
	p.mu.Update(func() {
		q := p.requests[id]
		q.lines = append(q.lines, p.event(q, ids, len(q.sent)+len(ids)+1, ""))
	})
}

func (p *peer) Cut() {
	p.mu.Lock()
	s := p.server
	p.mu.Unlock()
	if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		p.t.Error(err)
	}
	p.serving.Wait()
}

func (p *peer) Restore() { p.start(p.addr) }

func TestConformance(t *testing.T) {
	for _, f := range []form{cumulative, incremental} {
		for _, polled := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v/polled=%t", f, polled), func(t *testing.T) {
				enginetest.Run(t, func(t *testing.T) enginetest.Rig {
					p := newPeer(t, f)
					e := New(p.options())
					e.host.Polled = e.host.Polled && polled
					return enginetest.Rig{Engine: e, Peer: p, Alone: true, Panics: &p.panics}
				})
			})
		}
	}
}
