package simserver

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/flags"
	"weir/internal/workload/content"
)

// couple is engines on one network in memory, inside a bubble of synctest.
type couple struct {
	t      *testing.T
	net    *network
	client *http.Client
}

// half is one of them.
type half struct {
	c    *couple
	e    *Engine
	sgl  string // base URL of its sglang wire
	vllm string
	kill func() // as the end of its process does
}

func newCouple(t *testing.T) *couple {
	c := &couple{t: t, net: new(network)}
	c.client = &http.Client{Transport: &http.Transport{DialContext: c.net.dial}}
	t.Cleanup(c.client.CloseIdleConnections)
	return c
}

// start starts an engine; NAME:8998 is its bootstrap address, NAME:5600 its side
// channel.
func (c *couple) start(name string, o Options) *half {
	c.t.Helper()
	tok := newToyTokenizer()
	words, err := content.New(toyVocab, func(id uint32) ([]byte, bool) { return tok.Text(id), true })
	if err != nil {
		c.t.Fatal(err)
	}
	o.Tokenizer = tok
	o.Sim.Words, o.Sim.VocabSize, o.Sim.EOS = words, toyVocab, []uint32{257, 258}
	if o.Sim.Cost == nil {
		o.Sim.Cost = sim.Constant{Prefill: 10 * time.Millisecond, Decode: 5 * time.Millisecond}
	}
	o.Legs.Dial = c.net.dial
	o.goTimers = true
	e, err := New(o)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 5)
	serve := func(addr string, f func(context.Context, net.Listener) error) {
		l := c.net.listen(addr)
		go func() { ended <- f(ctx, l) }()
	}
	serve(name+":80", e.ServeSGLang)
	serve(name+":8000", e.ServeVLLM)
	serve(name+":8998", e.ServeBootstrap)
	serve(name+":5600", e.ServeSideChannel)
	go func() { e.Run(ctx); ended <- nil }()
	h := &half{c: c, e: e, sgl: "http://" + name + ":80", vllm: "http://" + name + ":8000"}
	over := false
	h.kill = func() {
		if over {
			return
		}
		over = true
		cancel()
		for range 5 {
			if err := <-ended; err != nil {
				c.t.Errorf("%s: a server ended with %v", name, err)
			}
		}
	}
	c.t.Cleanup(h.kill)
	return h
}

// saidAnswer is what an engine answered.
type saidAnswer struct {
	status int
	text   string // all of it
	took   time.Duration
	err    error
}

// post posts a body, and gives what comes until the answer ends.
func (c *couple) post(ctx context.Context, url, body string, header ...string) saidAnswer {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return saidAnswer{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return saidAnswer{err: err, took: time.Since(began)}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return saidAnswer{status: resp.StatusCode, text: string(b), err: err, took: time.Since(began)}
}

// both posts to a prefill engine and to a decode engine at once.
func (c *couple) both(p, d *half, path, body string) (prefill, decode saidAnswer) {
	done := make(chan saidAnswer)
	go func() { done <- c.post(context.Background(), p.sgl+path, body) }()
	decode = c.post(context.Background(), d.sgl+path, body)
	return <-done, decode
}

// rest holds engines to having nothing left.
func rest(t *testing.T, engines ...*half) {
	t.Helper()
	for _, h := range engines {
		synctest.Wait()
		s := h.e.State()
		if s.Running != 0 || s.Waiting != 0 || s.Kept != 0 {
			t.Errorf("%s has %d running, %d waiting, %d kept", h.sgl, s.Running, s.Waiting, s.Kept)
		}
		if open, err := h.e.run.OpenLegs(t.Context()); err != nil {
			t.Error(err)
		} else if open != 0 {
			t.Errorf("%s knows %d legs of no request", h.sgl, open)
		}
	}
}

type nativeAnswer struct {
	Text      string   `json:"text"`
	OutputIDs []uint32 `json:"output_ids"`
	Meta      struct {
		ID           string `json:"id"`
		FinishReason *struct {
			Type       string `json:"type"`
			Length     *int   `json:"length"`
			Message    string `json:"message"`
			StatusCode int    `json:"status_code"`
		} `json:"finish_reason"`
		PromptTokens        int     `json:"prompt_tokens"`
		CompletionTokens    int     `json:"completion_tokens"`
		CachedTokens        int     `json:"cached_tokens"`
		InputTokenLogprobs  [][]any `json:"input_token_logprobs"`
		OutputTokenLogprobs [][]any `json:"output_token_logprobs"`
	} `json:"meta_info"`
	Index int `json:"index"`
}

// native reads the last event of a stream, or a whole answer.
func native(t *testing.T, a saidAnswer) (n nativeAnswer) {
	t.Helper()
	text := a.text
	if strings.HasPrefix(text, "data:") {
		for _, event := range strings.Split(text, "\n\n") {
			if data, ok := strings.CutPrefix(event, "data: "); ok && data != "[DONE]" {
				text = data
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &n); err != nil || a.err != nil {
		t.Fatalf("%d %s: %v, %v", a.status, a.text, err, a.err)
	}
	return n
}

const prompt40 = "tell me of a pair of engines, one by one"

func pairBody(fields string) string {
	return fmt.Sprintf(`{"text":%q,"sampling_params":{"max_new_tokens":12,"ignore_eos":true},"bootstrap_host":"p","bootstrap_port":8998,%s}`, prompt40, fields)
}

// TestSGLangPair sends both legs of requests to two engines: the decode leg says
// what an engine alone says, and the prefill leg one id of it, once its KV was
// fetched.
func TestSGLangPair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t)
		kv := sim.Options{KVTokens: 4096, Transfer: sim.Transfer{BytesPerToken: 1000, Bandwidth: 1e6, Latency: 3 * time.Millisecond}}
		p, d := c.start("p", Options{Role: infer.RolePrefill, Sim: kv}), c.start("d", Options{Role: infer.RoleDecode, Sim: kv})
		alone := native(t, c.post(context.Background(), c.start("alone", Options{}).sgl+"/generate", pairBody(`"bootstrap_room":1`)))
		for i, stream := range []bool{false, true, true} {
			prefill, decode := c.both(p, d, "/generate", pairBody(fmt.Sprintf(`"bootstrap_room":%d,"stream":%v,"rid":"r%d"`, 9223372036854775807-int64(i), stream, i)))
			got, one := native(t, decode), native(t, prefill)
			if prefill.status != 200 || decode.status != 200 || got.Text != alone.Text || got.Meta.CompletionTokens != 12 || *got.Meta.FinishReason.Length != 12 {
				t.Fatalf("the decode leg says %+v, alone %+v", got, alone)
			}
			if len(one.OutputIDs) != 1 || one.OutputIDs[0] != alone.OutputIDs[0] || one.Meta.CompletionTokens != 1 || one.Meta.FinishReason.Type != "length" || *one.Meta.FinishReason.Length != 0 {
				t.Errorf("the prefill leg says %+v", one)
			}
			if n := strings.Count(prefill.text, "data: {"); stream && n != 1 {
				t.Errorf("the prefill leg says %d events: %s", n, prefill.text)
			}
			// The prefill leg ends when the KV is there: the step, and 40 tokens at 1000 a
			// second and 3 ms, less what the step of decode rounds up. The decode leg finds
			// nothing in its own cache, and says what the prefill engine found.
			if want := (10 + 40 + 3) * time.Millisecond; i == 0 && (prefill.took < want || decode.took != want+12*5*time.Millisecond) {
				t.Errorf("prefill took %v, decode %v", prefill.took, decode.took)
			}
			if want := min(i, 1) * 32; got.Meta.CachedTokens != want || one.Meta.CachedTokens != want {
				t.Errorf("turn %d: cached %d and %d", i, got.Meta.CachedTokens, one.Meta.CachedTokens)
			}
		}
		rest(t, p, d)
		if s := d.e.State(); s.PromptTokens != 0 || s.CachedTokens != 0 {
			t.Errorf("the decode engine computed prompts: %+v", s)
		}
	})
}

// TestSGLangPairLate has the legs come one after the other, in either order.
func TestSGLangPairLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t)
		p, d := c.start("p", Options{Role: infer.RolePrefill}), c.start("d", Options{Role: infer.RoleDecode})
		for i, first := range []*half{p, d} {
			second := d
			if first == d {
				second = p
			}
			body := pairBody(fmt.Sprintf(`"bootstrap_room":%d`, i))
			done := make(chan saidAnswer)
			go func() { done <- c.post(context.Background(), first.sgl+"/generate", body) }()
			time.Sleep(100 * time.Second)
			if s := p.e.State(); first == p && (s.Waiting != 1 || s.PromptTokens != 0) {
				t.Errorf("the prefill leg did not wait: %+v", s)
			}
			late := c.post(context.Background(), second.sgl+"/generate", body)
			if a := <-done; a.status != 200 || late.status != 200 || late.took > time.Second {
				t.Errorf("%+v, then %+v", a, late)
			}
		}
		rest(t, p, d)
	})
}

// TestSGLangPairOpenAI sends both legs of chats and completions, with several prompts, and
// those of several choices, which would all meet in one room: SGLang refuses them, whatever
// rooms the request names.
func TestSGLangPairOpenAI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t)
		p, d, alone := c.start("p", Options{Role: infer.RolePrefill}), c.start("d", Options{Role: infer.RoleDecode}), c.start("alone", Options{})
		for i, x := range []struct{ path, body string }{
			{"/v1/chat/completions", `"messages":[{"role":"user","content":"hello"}],"max_tokens":9,"bootstrap_room":10`},
			{"/v1/completions", `"prompt":["hello","you"],"max_tokens":9,"bootstrap_room":[30,31]`},
			{"/v1/completions", `"prompt":"hello","max_tokens":9,"stream":true,"bootstrap_room":50`},
		} {
			body := `{"model":"m","ignore_eos":true,"bootstrap_host":"p","bootstrap_port":8998,` + x.body + `}`
			prefill, decode := c.both(p, d, x.path, body)
			whole := c.post(context.Background(), alone.sgl+x.path, body)
			if prefill.status != 200 || decode.status != 200 || texts(t, decode) != texts(t, whole) || texts(t, whole) == "" {
				t.Errorf("%d: %s\ndecode %s\nalone %s", i, prefill.text, decode.text, whole.text)
			}
		}
		for i, x := range []struct{ path, body string }{
			{"/v1/chat/completions", `"messages":[{"role":"user","content":"hello"}],"max_tokens":9,"n":3,"bootstrap_room":[20,21,22]`},
			{"/v1/completions", `"prompt":"hello","max_tokens":9,"n":2,"bootstrap_room":40`},
			{"/generate", `"text":"hello","sampling_params":{"max_new_tokens":9,"n":2},"bootstrap_room":60`},
		} {
			prefill, decode := c.both(p, d, x.path, `{"model":"m","bootstrap_host":"p","bootstrap_port":8998,`+x.body+`}`)
			for said, a := range map[string]saidAnswer{"Prefill bootstrap failed": prefill, "Decode handshake failed": decode} {
				if a.status != 500 || !strings.Contains(a.text, said) || !strings.Contains(a.text, "bootstrap room") {
					t.Errorf("%d: %d %s, want %s", i, a.status, a.text, said)
				}
			}
		}
		rest(t, p, d)
	})
}

// texts returns the texts of an answer's choices.
func texts(t *testing.T, a saidAnswer) string {
	t.Helper()
	var all strings.Builder
	one := func(b []byte) {
		var w wireAnswer
		if err := json.Unmarshal(b, &w); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		for _, choice := range w.Choices {
			all.WriteString(choice.Text + choice.Delta.Content + choice.Message.Content + "|")
		}
	}
	if !strings.HasPrefix(a.text, "data:") {
		one([]byte(a.text))
		return all.String()
	}
	for _, event := range strings.Split(a.text, "\n\n") {
		if data, ok := strings.CutPrefix(event, "data: "); ok && data != "[DONE]" {
			one([]byte(data))
		}
	}
	return strings.ReplaceAll(all.String(), "|", "")
}

// TestSGLangPairFails has pairs come to nothing in each way that needs no fault.
func TestSGLangPairFails(t *testing.T) {
	for _, x := range []struct {
		name    string
		prefill string // the body's fields to the prefill engine; empty: no request
		decode  string
		do      func(p, d *half)
		// The statuses, in the stream's last event where it streams, parts of what is
		// said, and when.
		prefillSays, decodeSays string
		prefillAt, decodeAt     time.Duration
	}{
		{name: "no decode leg", prefill: `"bootstrap_room":7,"rid":"a"`,
			prefillSays: "500 Prefill bootstrap failed for request rank=0 req.rid='a' req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): Request 7 timed out after 300.0s in KVPoll.Bootstrapping", prefillAt: 300 * time.Second},
		{name: "no prefill leg", decode: `"bootstrap_room":7,"rid":"a"`,
			decodeSays: "500 Decode transfer failed for request rank=0 decode_req.req.rid='a' decode_req.req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): Request 7 timed out after 300.0s in KVPoll.WaitingForInput", decodeAt: 300 * time.Second},
		{name: "streamed", decode: `"bootstrap_room":7,"rid":"a","stream":true`,
			decodeSays: "500 Decode transfer failed", decodeAt: 300 * time.Second},
		{name: "rooms that differ", prefill: `"bootstrap_room":7`, decode: `"bootstrap_room":8`,
			prefillSays: "500 Prefill bootstrap failed", decodeSays: "500 Decode transfer failed", prefillAt: 300 * time.Second, decodeAt: 300 * time.Second},
		{name: "no such prefill engine", decode: `"bootstrap_room":7,"bootstrap_host":"nobody"`,
			decodeSays: "500 Decode handshake failed for request", decodeAt: 14 * time.Second},
		{name: "no room", prefill: `"rid":"a"`, decode: `"rid":"b","bootstrap_room":null`,
			prefillSays: "400 Invalid request: Disaggregated request received without bootstrap room id. req.rid='a'", decodeSays: "400 Invalid request: Disaggregated request received without bootstrap room id. req.rid='b'"},
		{name: "another rank", prefill: `"bootstrap_room":7,"routed_dp_rank":0`, decode: `"bootstrap_room":7,"disagg_prefill_dp_rank":0`,
			prefillSays: "500 Prefill bootstrap failed for request rank=0 req.rid='r' req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): follow_bootstrap_room conflict: dispatched to dp_rank 0 but bootstrap_room 7 implies dp_rank 1.",
			decodeSays:  "500 Decode transfer failed", decodeAt: 300 * time.Second},
		{name: "rank believed wrongly", prefill: `"bootstrap_room":7`, decode: `"bootstrap_room":7,"disagg_prefill_dp_rank":0`,
			prefillSays: "500 Prefill bootstrap failed", decodeSays: "500 Decode transfer failed", prefillAt: 300 * time.Second, decodeAt: 300 * time.Second},
		{name: "prefill engine killed", prefill: `"bootstrap_room":7`, decode: `"bootstrap_room":7`,
			do:         func(p, _ *half) { time.Sleep(5 * time.Millisecond); p.kill() },
			prefillAt:  5 * time.Millisecond,
			decodeSays: "500 Decode transfer failed for request rank=0 decode_req.req.rid='r' decode_req.req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): Lost connection with prefill instance (bootstrap_addr: p:8998)", decodeAt: 10005 * time.Millisecond},
		{name: "decode engine killed", prefill: `"bootstrap_room":7`, decode: `"bootstrap_room":7`,
			do:          func(_, d *half) { time.Sleep(5 * time.Millisecond); d.kill() },
			prefillSays: "500 Prefill transfer failed for request rank=0 req.rid='r' req.bootstrap_room=7", prefillAt: 10 * time.Millisecond,
			decodeAt: 5 * time.Millisecond},
		{name: "prefill leg aborted", prefill: `"bootstrap_room":7`, decode: `"bootstrap_room":7`,
			do: func(p, _ *half) {
				time.Sleep(5 * time.Millisecond)
				p.c.post(context.Background(), p.sgl+"/abort_request", `{"rid":"r"}`)
			},
			prefillSays: "200 abort", prefillAt: 10 * time.Millisecond,
			decodeSays: "500 Decode transfer failed for request rank=0 decode_req.req.rid='r' decode_req.req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): Request 7 timed out after 300.0s in KVPoll.WaitingForInput", decodeAt: 300 * time.Second},
		{name: "prefill leg aborted before it met", prefill: `"bootstrap_room":7`,
			do: func(p, _ *half) {
				time.Sleep(5 * time.Millisecond)
				p.c.post(context.Background(), p.sgl+"/abort_request", `{"rid":"r"}`)
			},
			prefillSays: "500 Prefill bootstrap failed for request rank=0 req.rid='r' req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): Aborted by AbortReq.", prefillAt: 5 * time.Millisecond},
		{name: "decode leg aborted", prefill: `"bootstrap_room":7`, decode: `"bootstrap_room":7`,
			do: func(_, d *half) {
				time.Sleep(5 * time.Millisecond)
				d.c.post(context.Background(), d.sgl+"/abort_request", `{"rid":"r"}`)
			},
			prefillSays: "500 Prefill transfer failed for request rank=0 req.rid='r' req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): Aborted by AbortReq.", prefillAt: 10 * time.Millisecond,
			decodeSays: "200 abort", decodeAt: 5 * time.Millisecond},
		{name: "no partner is wanted", prefill: `"bootstrap_room":0,"bootstrap_host":"2.2.2.2"`, decode: `"bootstrap_room":0,"bootstrap_host":"2.2.2.2"`,
			prefillSays: "200 length", decodeSays: "200 length", prefillAt: 10 * time.Millisecond, decodeAt: 65 * time.Millisecond},
	} {
		t.Run(strings.ReplaceAll(x.name, " ", "-"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCouple(t)
				p, d := c.start("p", Options{Role: infer.RolePrefill, Sim: sim.Options{DPSize: 2}}), c.start("d", Options{Role: infer.RoleDecode})
				legs := []struct {
					h            *half
					fields, says string
					at           time.Duration
				}{{p, x.prefill, x.prefillSays, x.prefillAt}, {d, x.decode, x.decodeSays, x.decodeAt}}
				answers := make(chan func(), 2)
				for _, leg := range legs {
					go func() {
						if leg.fields == "" {
							answers <- func() {}
							return
						}
						body := map[string]any{"rid": "r", "text": prompt40, "sampling_params": map[string]any{"max_new_tokens": 12, "ignore_eos": true}, "bootstrap_host": "p", "bootstrap_port": 8998}
						if err := json.Unmarshal([]byte("{"+leg.fields+"}"), &body); err != nil {
							t.Error(err)
						}
						b, _ := json.Marshal(body)
						a := c.post(context.Background(), leg.h.sgl+"/generate", string(b))
						answers <- func() {
							if got := brief(t, a); !strings.HasPrefix(got, leg.says) || a.took != leg.at {
								t.Errorf("%s says after %v, want %v:\n%s\nwant\n%s", leg.h.sgl, a.took, leg.at, got, leg.says)
							}
						}
					}()
				}
				if x.do != nil {
					x.do(p, d)
				}
				for range legs {
					(<-answers)()
				}
				// A leg that nobody met is forgotten with its request.
				time.Sleep(10 * time.Minute)
				for _, h := range []*half{p, d} {
					if h.e.runs() {
						rest(t, h)
					}
				}
			})
		})
	}
}

// runs reports whether an engine has not ended.
func (e *Engine) runs() bool {
	select {
	case <-e.run.Done():
		return false
	default:
		return true
	}
}

// brief returns an answer's status, and its message or how it finished.
func brief(t *testing.T, a saidAnswer) string {
	t.Helper()
	if a.err != nil && a.status == 0 {
		return "0 " + a.err.Error()
	}
	if a.text == "" {
		return fmt.Sprintf("%d nothing", a.status)
	}
	var e struct {
		Message string `json:"message"`
		Error   struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if a.status != 200 {
		if err := json.Unmarshal([]byte(a.text), &e); err != nil {
			t.Fatalf("%d %q: %v", a.status, a.text, err)
		}
		return fmt.Sprintf("%d %s", a.status, cmp.Or(e.Message, e.Error.Message))
	}
	n := native(t, a)
	if n.Meta.FinishReason == nil {
		return a.text
	}
	if code := n.Meta.FinishReason.StatusCode; code != 0 {
		return fmt.Sprintf("%d %s", code, n.Meta.FinishReason.Message)
	}
	return fmt.Sprintf("%d %s", a.status, n.Meta.FinishReason.Type)
}

// TestSGLangAborts has the prefill half, and then the decode half, of a pair aborted while its
// prompt is computed, and the decode half alone while its KV is on its way, as releases differ
// in it.
func TestSGLangAborts(t *testing.T) {
	const computed, failed, dropped, queued = "length", "transfer failed", "Aborted", "Abort in waiting queue"
	for _, x := range []struct {
		release, computing, chunked string
		overwritten                 [2]uint64 // after both were aborted, and after the decode half was
	}{
		{"0.5.3", computed, computed, [2]uint64{1, 1}},
		{"0.5.16", failed, queued, [2]uint64{0, 1}},
		{"0.5.20", dropped, queued, [2]uint64{0, 1}},
		{"0.5.23", dropped, queued, [2]uint64{0, 0}},
	} {
		for i, late := range []bool{false, true} {
			for _, chunk := range []int{0, 16} {
				synctest.Test(t, func(t *testing.T) {
					c := newCouple(t)
					o := Options{SGLang: flags.SGLang{Version: x.release}, Sim: sim.Options{KVTokens: 1024, ChunkedPrefill: chunk, Transfer: sim.Transfer{BytesPerToken: 1000, Bandwidth: 1e6}}}
					p, d := o, o
					p.Role, d.Role = infer.RolePrefill, infer.RoleDecode
					prefill, decode := c.start("p", p), c.start("d", d)
					halves := []*half{decode}
					at := 5 * time.Millisecond
					if late {
						at = 40 * time.Millisecond // the prompt is computed by then, and its KV on its way
					} else {
						halves = []*half{prefill, decode}
					}
					body := pairBody(`"bootstrap_room":3,"rid":"r"`)
					first, second := make(chan saidAnswer, 1), make(chan saidAnswer, 1)
					go func() { first <- c.post(context.Background(), prefill.sgl+"/generate", body) }()
					go func() { second <- c.post(context.Background(), decode.sgl+"/generate", body) }()
					time.Sleep(at)
					for _, h := range halves {
						c.post(context.Background(), h.sgl+"/abort_request", `{"rid":"r"}`)
						synctest.Wait()
					}
					want, said := x.computing, <-first
					if chunk > 0 {
						want = x.chunked
					}
					if !late && !strings.Contains(said.text, want) {
						t.Errorf("%s, chunks of %d: the prefill half says %s, want %s", x.release, chunk, said.text, want)
					}
					<-second
					time.Sleep(time.Second)
					rest(t, prefill, decode)
					if s := decode.e.State(); s.Owed != 0 || s.KVUsed != 0 || s.Overwritten != x.overwritten[i] {
						t.Errorf("%s, late %v, chunks of %d: %+v", x.release, late, chunk, s)
					}
				})
			}
		}
	}
}

// TestSGLangPairLogprobs asks both legs for log probabilities: those of the prompt
// are the prefill leg's, those of the output the decode leg's.
func TestSGLangPairLogprobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t)
		p, d := c.start("p", Options{Role: infer.RolePrefill}), c.start("d", Options{Role: infer.RoleDecode})
		prefill, decode := c.both(p, d, "/generate", pairBody(`"bootstrap_room":3,"return_logprob":true,"logprob_start_len":0`))
		one, got := native(t, prefill), native(t, decode)
		if len(one.Meta.InputTokenLogprobs) != 40 || len(got.Meta.InputTokenLogprobs) != 0 || len(got.Meta.OutputTokenLogprobs) != 12 || len(one.Meta.OutputTokenLogprobs) != 1 {
			t.Errorf("prefill %s\ndecode %s", prefill.text, decode.text)
		}
		if decode.text == "" || !strings.Contains(decode.text, `"input_token_logprobs":[]`) {
			t.Error(decode.text)
		}
	})
}

// TestSGLangHangUp has a client hang up on both legs of a pair at each stage: soon
// both engines have nothing left.
func TestSGLangHangUp(t *testing.T) {
	for at := time.Duration(0); at < 60*time.Millisecond; at += 4 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			c := newCouple(t)
			o := sim.Options{KVTokens: 1024, Transfer: sim.Transfer{BytesPerToken: 1000, Bandwidth: 2e6}}
			p, d := c.start("p", Options{Role: infer.RolePrefill, Sim: o}), c.start("d", Options{Role: infer.RoleDecode, Sim: o})
			ctx, cancel := context.WithTimeout(context.Background(), at)
			defer cancel()
			body := pairBody(`"bootstrap_room":3,"stream":true`)
			done := make(chan saidAnswer)
			go func() { done <- c.post(ctx, p.sgl+"/generate", body) }()
			c.post(ctx, d.sgl+"/generate", body)
			<-done
			time.Sleep(time.Second)
			rest(t, p, d)
		})
	}
}

// TestSGLangLegsSeen reads of legs in /v1/loads and /metrics at each of their stages,
// and that a decode leg has no time of a prefill.
func TestSGLangLegsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t)
		o := Options{SGLang: flags.SGLang{Metrics: true}, Sim: sim.Options{Transfer: sim.Transfer{BytesPerToken: 1000, Bandwidth: 1e4}}}
		p, d := o, o
		p.Role, d.Role = infer.RolePrefill, infer.RoleDecode
		prefill, decode := c.start("p", p), c.start("d", d)
		seen := func(h *half, gauges string, words ...string) {
			t.Helper()
			synctest.Wait()
			for path, words := range map[string][]string{"/v1/loads": words, "/metrics": strings.Fields(gauges)} {
				resp, err := c.client.Get(h.sgl + path)
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				for _, w := range words {
					if path == "/metrics" {
						name, n, _ := strings.Cut(w, "=")
						w = fmt.Sprintf("sglang:num_%s_reqs{engine_type=\"%s\",model_name=\"weir-sim\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"} %s\n", name, h.e.run.Role(), n)
					}
					if !strings.Contains(string(b), w) {
						t.Errorf("%s%s: no %s in %s", h.sgl, path, w, b)
					}
				}
			}
		}
		body := pairBody(`"bootstrap_room":5`)
		answers := make(chan saidAnswer, 2)
		go func() { answers <- c.post(context.Background(), prefill.sgl+"/generate", body) }()
		seen(prefill, "prefill_bootstrap_queue=1 prefill_inflight_queue=0", `"prefill_bootstrap_queue_reqs":1`, `"num_waiting_reqs":1`, `"num_running_reqs":0`)
		go func() { answers <- c.post(context.Background(), decode.sgl+"/generate", body) }()
		seen(decode, "decode_transfer_queue=1 decode_prealloc_queue=0", `"decode_transfer_queue_reqs":1`, `"num_waiting_reqs":1`, `"num_running_reqs":0`)
		time.Sleep(time.Second) // the transfer takes 4 s
		seen(prefill, "prefill_bootstrap_queue=0 prefill_inflight_queue=1", `"prefill_inflight_queue_reqs":1`, `"num_waiting_reqs":0`)
		<-answers
		if last := <-answers; strings.Contains(last.text, "prefill_finished_time") || !strings.Contains(last.text, "forward_entry_time") {
			t.Errorf("the decode leg says %s", last.text)
		}
		seen(decode, "decode_transfer_queue=0", `"decode_transfer_queue_reqs":0`)
	})
}

// TestBootstrapRegistry reads what the registry tells of a prefill engine.
func TestBootstrapRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t)
		p := c.start("p", Options{Role: infer.RolePrefill, Sim: sim.Options{DPSize: 2, PageSize: 32}, Legs: engine.LegsOptions{BootstrapPort: 8998}})
		get := func(url string) (int, string) {
			resp, err := c.client.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			return resp.StatusCode, string(bytes.TrimSpace(b))
		}
		for path, want := range map[string]string{
			"/health": "200 OK",
			"/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1": `200 "dp_size":2 "page_size":32 "follow_bootstrap_room":true`,
			"/route?prefill_dp_rank=1&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0":     `200 "rank_ip":"p" "rank_port":8998`,
			"/route?prefill_dp_rank=2&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0":     `404 dp_rank=2`,
			"/route":        "400 Missing inputs for bootstrap server.",
			engine.LinkPath: "400 simulated",
		} {
			status, body := get("http://p:8998" + path)
			words := strings.Fields(want)
			if words[0] != fmt.Sprint(status) {
				t.Errorf("%s: %d %s", path, status, body)
			}
			for _, w := range words[1:] {
				if !strings.Contains(body, w) {
					t.Errorf("%s: no %s in %s", path, w, body)
				}
			}
		}
		_, info := get(p.sgl + "/server_info")
		for _, w := range []string{`"disaggregation_mode":"prefill"`, `"disaggregation_bootstrap_port":8998`} {
			if !strings.Contains(info, w) {
				t.Errorf("no %s in %s", w, info)
			}
		}
	})
}

// fault sets an engine's faults.
func (h *half) fault(list ...string) {
	h.c.t.Helper()
	var all []sim.Fault
	for _, text := range list {
		f, err := sim.ParseFault(text)
		if err != nil {
			h.c.t.Fatal(err)
		}
		all = append(all, f)
	}
	if err := h.e.SetFaults(all); err != nil {
		h.c.t.Fatal(err)
	}
}

// TestPairFaults strikes either half of SGLang's pairs with each fault of legs, and
// with those of requests that a partner waits for.
func TestPairFaults(t *testing.T) {
	const (
		never  = 300 * time.Second
		either = 0 // lost, after 10 s, or not to be reached, after 14: the legs come at the same time
		prompt = 10 * time.Millisecond
		there  = prompt + 40*time.Millisecond // its KV
		all    = there + 12*5*time.Millisecond
	)
	for _, x := range []struct {
		at, fault               string
		prefillSays, decodeSays string
		prefillAt, decodeAt     time.Duration
		dies                    bool
	}{
		{"p", "unmet", "500 Prefill bootstrap failed", "500 Decode transfer failed", never, never, false},
		{"d", "unmet", "500 Prefill bootstrap failed", "500 Decode transfer failed", never, never, false},
		{"p", "misrank", "500 Prefill bootstrap failed", "500 Decode transfer failed", never, never, false},
		{"d", "misrank", "500 Prefill bootstrap failed", "500 Decode transfer failed", never, never, false},
		{"p", "stuck", "500 Prefill transfer failed", "500 Decode transfer failed", never, never, false},
		{"d", "stuck", "500 Prefill transfer failed", "500 Decode transfer failed", never, never, false},
		{"p", "evict", "500 Prefill transfer failed", "500 Decode transfer failed", prompt, prompt, false},
		{"d", "evict", "200 length", "200 length", there, all, false}, // it keeps nothing
		{"p", "fail", "500 failed by fault", "500 Decode transfer failed", 0, never, false},
		{"p", "unavailable", "503 unavailable by fault", "500 Decode transfer failed", 0, never, false},
		{"p", "abort", "500 aborted by fault", "500 Decode transfer failed for request rank=0 decode_req.req.rid='r' decode_req.req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): Failed to get kvcache from prefill instance, it might be dead", prompt, prompt, false},
		{"d", "fail", "500 Prefill bootstrap failed", "500 failed by fault", never, 0, false},
		{"p", "die,stage=bootstrap", "0", "500 Decode ", 0, either, true},
		{"p", "die,stage=prefill", "0", "500 Decode transfer failed", 0, 10 * time.Second, true},
		{"p", "die,stage=transfer", "0", "500 Decode transfer failed", prompt, prompt + 10*time.Second, true},
		{"d", "die,stage=bootstrap", "500 Prefill bootstrap failed", "0", never, 0, true},
		{"d", "die,stage=transfer", "500 Prefill transfer failed", "0", prompt, prompt, true},
		{"d", "die,stage=decode", "500 Prefill transfer failed", "0", there, there, true},
	} {
		t.Run(x.at+"-"+strings.ReplaceAll(x.fault, ",", "-"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCouple(t)
				kv := sim.Options{Transfer: sim.Transfer{BytesPerToken: 1000, Bandwidth: 1e6}}
				p, d := c.start("p", Options{Role: infer.RolePrefill}), c.start("d", Options{Role: infer.RoleDecode, Sim: kv})
				// The engines know each other.
				if a, b := c.both(p, d, "/generate", pairBody(`"bootstrap_room":1`)); a.status != 200 || b.status != 200 {
					t.Fatal(a.text, b.text)
				}
				struck := p
				if x.at == "d" {
					struck = d
				}
				struck.fault(x.fault)
				prefill, decode := c.both(p, d, "/generate", pairBody(`"bootstrap_room":7,"rid":"r"`))
				for _, leg := range []struct {
					name, says string
					a          saidAnswer
					at         time.Duration
				}{{"prefill", x.prefillSays, prefill, x.prefillAt}, {"decode", x.decodeSays, decode, x.decodeAt}} {
					lost := x.fault == "die,stage=bootstrap" && x.at == "p" && (leg.a.took == 10*time.Second || leg.a.took == 14*time.Second)
					if got := brief(t, leg.a); !strings.HasPrefix(got, leg.says) || leg.a.took != leg.at && !lost {
						t.Errorf("the %s leg says %s after %v, want %s after %v", leg.name, got, leg.a.took, leg.says, leg.at)
					}
				}
				if died := struck.e.Died(); (died != nil) != x.dies {
					t.Errorf("died: %v", died)
				}
				if s := struck.e.State(); s.Faults[0].Times != 1 {
					t.Errorf("faults %+v", s.Faults)
				}
				time.Sleep(time.Minute)
				for _, h := range []*half{p, d} {
					if h.e.runs() {
						rest(t, h)
					}
				}
				if x.dies {
					return
				}
				// And then all is well.
				struck.fault()
				if a, b := c.both(p, d, "/generate", pairBody(`"bootstrap_room":7`)); a.status != 200 || b.status != 200 {
					t.Errorf("afterwards: %s, %s", a.text, b.text)
				}
			})
		})
	}
}

// TestVLLMPairFaults does so with those of vLLM's.
func TestVLLMPairFaults(t *testing.T) {
	for _, x := range []struct {
		at, fault string
		push      bool
		says      string
		took      time.Duration
		garbled   bool
	}{
		{at: "p", fault: "unmet", says: "0", took: time.Minute},
		{at: "d", fault: "unmet", says: "0", took: time.Minute},
		{at: "p", fault: "stuck", says: "0", took: time.Minute},
		{at: "d", fault: "stuck", says: "0", took: time.Minute},
		{at: "p", fault: "misrank", says: "200", took: 100 * time.Millisecond}, // it has no rooms
		{at: "p", fault: "evict", says: "200", took: 100 * time.Millisecond, garbled: true},
		{at: "p", fault: "evict", push: true, says: "0", took: time.Minute},
		{at: "d", fault: "die,stage=transfer", says: "0", took: 0},
		{at: "d", fault: "die,stage=decode", says: "0", took: 40 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%s-%s-%v", x.at, strings.ReplaceAll(x.fault, ",", "-"), x.push), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCouple(t)
				p, d := c.start("p", transferring("p", x.push, 4096)), c.start("d", transferring("d", x.push, 4096))
				alone := texts(t, c.post(context.Background(), c.start("alone", Options{}).vllm+"/v1/completions", decodeBody("null", "")))
				struck := p
				if x.at == "d" {
					struck = d
				}
				struck.fault(x.fault)
				params := prefilled(t, p, "same")
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				a := c.post(ctx, d.vllm+"/v1/completions", decodeBody(string(params), ""), "X-Request-Id", "same")
				if got := fmt.Sprint(a.status); got != x.says || a.took != x.took {
					t.Errorf("%s after %v: %s %v", got, a.took, a.text, a.err)
				}
				if a.status == 200 && (texts(t, a) == alone) == x.garbled {
					t.Errorf("garbled: want %v: %s", x.garbled, a.text)
				}
				time.Sleep(2 * time.Minute) // the lease ends
				for _, h := range []*half{p, d} {
					if s := h.e.State(); h.e.runs() && (s.Running != 0 || s.Waiting != 0 || s.Kept != 0) {
						t.Errorf("%s: %+v", h.vllm, s)
					}
				}
			})
		})
	}
}

// TestPairIsTheWires holds sim.Pair, which joins two cores without delay, to two
// engines that meet over a network without delay: each request's every id comes at the
// same nanosecond.
func TestPairIsTheWires(t *testing.T) {
	options := func() (p, d sim.Options) {
		p = sim.Options{KVTokens: 600, MaxRunning: 4, ChunkedPrefill: 37, Cost: sim.PerBatch{}}
		d = sim.Options{KVTokens: 500, MaxRunning: 3, Cost: sim.PerBatch{}, Transfer: sim.Transfer{BytesPerToken: 131072, Bandwidth: 53e6, Latency: 1234567}}
		return p, d
	}
	type arrival struct {
		at     time.Duration
		prompt string
		max    int
	}
	var work []arrival
	for i := range 40 {
		work = append(work, arrival{
			at:     time.Duration(i)*9_100_003 + time.Duration(i%7)*1_000_033,
			prompt: strings.Repeat("abcdefgh", 2+i%5*3) + strings.Repeat("x", i%13), max: 5 + i*7%40,
		})
	}
	want := map[string][]int64{} // when the legs end: prefill, decode
	tok := newToyTokenizer()
	words, err := content.New(toyVocab, func(id uint32) ([]byte, bool) { return tok.Text(id), true })
	if err != nil {
		t.Fatal(err)
	}
	var cores []*sim.Core
	po, do := options()
	for _, o := range []sim.Options{po, do} {
		o.Words, o.VocabSize, o.EOS = words, toyVocab, []uint32{257, 258}
		core, err := sim.New(o)
		if err != nil {
			t.Fatal(err)
		}
		cores = append(cores, core)
	}
	pair := sim.NewPair(cores[0], cores[1])
	names := []map[sim.Ref]string{{}, {}}
	run := func(until int64) {
		for due, ok := pair.Due(); ok && due <= until; due, ok = pair.Due() {
			for core, s := pair.Advance(due); s != nil; core, s = pair.Advance(due) {
				for _, done := range s.Done {
					side := 0
					if core == cores[1] {
						side = 1
					}
					name := names[side][done.Ref]
					if want[name] == nil {
						want[name] = make([]int64, 2)
					}
					want[name][side] = s.End
				}
			}
		}
	}
	for i, w := range work {
		run(int64(w.at) - 1)
		ids, err := tok.Encode(w.prompt, true)
		if err != nil {
			t.Fatal(err)
		}
		for side, core := range cores {
			params := sim.Params{Prompt: ids, MaxTokens: w.max, IgnoreEOS: true, Leg: sim.LegDecode, Await: true, Fresh: true}
			submit := pair.SubmitDecode
			if side == 0 {
				params = sim.Params{Prompt: ids, MaxTokens: 1, IgnoreEOS: true, Leg: sim.LegPrefill, Await: true}
				submit = pair.SubmitPrefill
			}
			r, err := core.Options().Prepare(params)
			if err != nil {
				t.Fatal(err)
			}
			ref, err := submit(int64(w.at), int64(w.at), fmt.Sprint(i), r)
			if err != nil {
				t.Fatal(err)
			}
			names[side][ref] = fmt.Sprint(i)
		}
	}
	run(int64(time.Hour))
	if len(want) != len(work) {
		t.Fatalf("%d of %d requests ended", len(want), len(work))
	}

	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t)
		po, do := options()
		p, d := c.start("p", Options{Role: infer.RolePrefill, Sim: po}), c.start("d", Options{Role: infer.RoleDecode, Sim: do})
		// They know each other.
		if a, b := c.both(p, d, "/generate", pairBody(`"bootstrap_room":1000000`)); a.status != 200 || b.status != 200 {
			t.Fatal(a.text, b.text)
		}
		if _, err := p.e.run.FlushCache(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		type ended struct {
			name string
			side int
			at   int64
		}
		all := make(chan ended)
		for i, w := range work {
			time.Sleep(time.Until(began.Add(w.at)))
			body := fmt.Sprintf(`{"text":%q,"sampling_params":{"max_new_tokens":%d,"ignore_eos":true},"bootstrap_host":"p","bootstrap_port":8998,"bootstrap_room":%d}`, w.prompt, w.max, i)
			for side, h := range []*half{p, d} {
				go func() {
					if a := c.post(context.Background(), h.sgl+"/generate", body); a.status != 200 {
						t.Errorf("%d: %s", i, a.text)
					}
					all <- ended{fmt.Sprint(i), side, int64(time.Since(began))}
				}()
			}
		}
		for range 2 * len(work) {
			e := <-all
			if e.at != want[e.name][e.side] {
				t.Errorf("side %d of request %s ended at %d, and in a Pair at %d", e.side, e.name, e.at, want[e.name][e.side])
			}
		}
	})
}
