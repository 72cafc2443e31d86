package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/trace"
	"weir/internal/workload"
	"weir/internal/workload/content"
)

// engine is a well-behaved server: it answers with max_tokens words.
type engine struct {
	vocab    *content.Words
	pause    time.Duration // before each word
	running  atomic.Int64
	most     atomic.Int64
	conns    atomic.Int64
	gone     chan struct{} // has one for each client that hung up; nil where nobody asks
	mu       sync.Mutex
	requests []map[string]any
	headers  []http.Header
}

func (e *engine) start(t testing.TB) string {
	s := httptest.NewUnstartedServer(e)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			e.conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/models" {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"tiny","object":"model"}]}`)
		return
	}
	e.most.Store(max(e.most.Load(), e.running.Add(1)))
	defer e.running.Add(-1)
	var req map[string]any
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	e.requests = append(e.requests, req)
	e.headers = append(e.headers, r.Header)
	e.mu.Unlock()
	n := int(req["max_tokens"].(float64))
	s := e.vocab.Start([]uint32{1 << 20}, uint64(n))
	reply := whole(nil)
	_, reply.chat = req["messages"]
	next := func() string {
		id := e.vocab.Next(&s)
		e.vocab.Push(&s, id)
		text, _ := e.vocab.Text(id)
		return text
	}
	if req["stream"] != true {
		var text strings.Builder
		for range n {
			text.WriteString(next())
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, wholeBody([]string{text.String()}, n))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	for range n {
		if e.pause > 0 {
			select {
			case <-r.Context().Done():
			case <-time.After(e.pause):
			}
		}
		if r.Context().Err() != nil {
			e.left()
			return
		}
		fmt.Fprintf(w, "data: %s\n\n", reply.text(next()))
		if err := rc.Flush(); err != nil {
			e.left()
			return
		}
	}
	fmt.Fprintf(w, "data: %s\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", reply.end(), n)
}

func (e *engine) left() {
	if e.gone != nil {
		e.gone <- struct{}{}
	}
}

func TestClosedLoop(t *testing.T) {
	for _, api := range []API{Chat, Completions} {
		for _, noStream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", api, !noStream), func(t *testing.T) {
				e := &engine{vocab: vocabulary(t)}
				url := e.start(t)
				r, err := Run(t.Context(), Plan{
					URL: url + "/v1/", API: api, Concurrency: 8, Requests: 40, InputTokens: 20, OutputTokens: 25,
					NoStream: noStream, Verify: e.vocab, Seed: 3, Timeout: 20 * time.Second,
					Header: map[string]string{"X-Test": "yes"}, Body: map[string]any{"ignore_eos": true},
				})
				if err != nil {
					t.Fatal(err)
				}
				if r.Requests != 40 || r.Complete != 40 || !r.Clean() || r.Tokens != 40*25 || r.Lost != 0 || r.Model != "tiny" {
					t.Errorf("report %+v", r)
				}
				if got := e.conns.Load(); got > 9 {
					t.Errorf("%d connections for 8 workers and the model list", got)
				}
				if !noStream && (r.TTFT.Count != 40 || r.TPOT.Count != 40 || r.ITL.Count != 40*24 || r.EventsPerToken != 1) {
					t.Errorf("latencies %+v %+v %+v, %v events per token", r.TTFT, r.TPOT, r.ITL, r.EventsPerToken)
				}
				if r.E2E.Count != 40 || r.E2E.Max < r.E2E.P50 || r.E2E.P50 <= 0 || r.E2E.Mean > r.E2E.Max {
					t.Errorf("e2e %+v", r.E2E)
				}
				e.mu.Lock() // what came over the socket is ordered, but the race detector does not see it
				defer e.mu.Unlock()
				for i, req := range e.requests {
					if req["ignore_eos"] != true || req["model"] != "tiny" || e.headers[i].Get("X-Test") != "yes" {
						t.Fatalf("request %v, header %v", req, e.headers[i])
					}
					if _, asked := req["stream_options"]; asked == noStream {
						t.Errorf("stream_options %v where stream is %v", req["stream_options"], !noStream)
					}
				}
			})
		}
	}
}

func TestOpenLoop(t *testing.T) {
	e := &engine{vocab: vocabulary(t), pause: 5 * time.Millisecond}
	r, err := Run(t.Context(), Plan{
		URL: e.start(t), Model: "m", Rate: 400, Duration: 500 * time.Millisecond, OutputTokens: 10,
		Verify: e.vocab, Seed: 5, Timeout: 20 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := workload.NewSchedule(workload.Loop{Rate: workload.ConstantRate(400)}, 5)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for s.Next() < 500*time.Millisecond {
		want++
	}
	if r.Requests != want || r.Complete != want {
		t.Errorf("%d requests, %d complete; the schedule has %d", r.Requests, r.Complete, want)
	}
	// At 400/s and 50 ms each, a closed loop could not keep up with fewer.
	if e.most.Load() < 8 {
		t.Errorf("at most %d in flight", e.most.Load())
	}
	// Where the machine is busy, what was carried out is bunched and stretched, and
	// shows as slip.
	if punctual := r.Slip.Max < 2; punctual && (r.Realised.Rate < 300 || r.Realised.Rate > 500 || r.Realised.CV < 0.5 || r.Realised.CV > 1.5) {
		t.Errorf("realised %+v", r.Realised)
	}
	if r.TTFT.Mean < r.TTFTSent.Mean {
		t.Errorf("TTFT from intended %v is less than from sent %v", r.TTFT.Mean, r.TTFTSent.Mean)
	}
}

// TestHangUp holds that the client leaves after k tokens and that the server
// feels it.
func TestHangUp(t *testing.T) {
	e := &engine{vocab: vocabulary(t), pause: time.Millisecond, gone: make(chan struct{}, 8)}
	r, err := Run(t.Context(), Plan{
		URL: e.start(t), Model: "m", Concurrency: 4, Requests: 8, OutputTokens: 10000,
		HangUpAfter: 5, Verify: e.vocab, Timeout: 20 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Abandoned != 8 || r.Errored != 0 || r.Tokens < 8*5 || r.Tokens > 8*(5+readBuffer/100) { // an event is longer than 100 bytes
		t.Errorf("report %+v", r)
	}
	for range 8 {
		<-e.gone
	}
}

// TestStopReading holds that a pause in reading delays the rest and loses
// nothing, and that a pause without end is the plan's own doing.
func TestStopReading(t *testing.T) {
	t.Parallel() // it waits twice
	e := &engine{vocab: vocabulary(t)}
	url := e.start(t)
	const pause = 200 * time.Millisecond
	plan := Plan{URL: url, OutputTokens: 500, StopReadingAfter: 10, StopReadingFor: pause, ReceiveBuffer: 4096, Verify: e.vocab}
	_, s := once(t, t.Context(), plan)
	if s.Outcome != Complete || s.LastByte-s.FirstByte < int64(pause) {
		t.Errorf("%v %q after %v", s.Outcome, s.Kind, time.Duration(s.LastByte-s.FirstByte))
	}
	plan.StopReadingFor, plan.Timeout = 0, 3*time.Second
	if _, s := once(t, t.Context(), plan); s.Outcome != Abandoned {
		t.Errorf("%v %q", s.Outcome, s.Kind)
	}
}

func TestReadRate(t *testing.T) {
	e := &engine{vocab: vocabulary(t)}
	const rate = 200_000
	_, s := once(t, t.Context(), Plan{URL: e.start(t), OutputTokens: 500, ReadRate: rate, Verify: e.vocab})
	took := time.Duration(s.LastByte - s.FirstByte)
	least := time.Duration(s.Bytes) * time.Second / rate * 7 / 10
	if s.Outcome != Complete || took < least {
		t.Errorf("%v %q: %d bytes in %v, want at least %v", s.Outcome, s.Kind, s.Bytes, took, least)
	}
}

// TestInterrupted holds that what was measured before ^C is reported.
func TestInterrupted(t *testing.T) {
	e := &engine{vocab: vocabulary(t), pause: time.Millisecond}
	for _, p := range []Plan{{Concurrency: 4}, {Rate: 200}} {
		ctx, cancel := context.WithCancel(t.Context())
		var n atomic.Int64
		p.URL, p.Model, p.Duration, p.OutputTokens, p.Verify = e.start(t), "m", time.Hour, 5, e.vocab
		p.OnSample = func(*Sample) {
			if n.Add(1) == 10 {
				cancel()
			}
		}
		report, err := Run(ctx, p)
		cancel()
		if err != nil || report.Failed() || report.Verdict.Trust == Valid {
			t.Fatalf("%+v, %v", report, err)
		}
		var out bytes.Buffer
		if err := report.Text(&out); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"interrupted", "ttft", "lost        0 tokens"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in:\n%s", want, &out)
			}
		}
	}
}

// The report's JSON is one object with the figures under their names, which
// come back as they were.
func TestReportJSON(t *testing.T) {
	e := &engine{vocab: vocabulary(t)}
	plan := Plan{URL: e.start(t), Requests: 5, OutputTokens: 3, Verify: e.vocab}
	r, err := Run(t.Context(), plan)
	if err != nil || r.Failed() {
		t.Fatal(r, err)
	}
	var out bytes.Buffer
	if err := r.JSON(&out); err != nil {
		t.Fatal(err)
	}
	var report map[string]any
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ttft_ms", "ttft_answer_ms", "tpot_ms", "itl_ms", "e2e_ms", "ttft_sent_ms", "ttft_answer_sent_ms", "e2e_sent_ms"} {
		l, ok := report[name].(map[string]any)
		for _, figure := range []string{"mean", "p50", "max"} {
			if v, has := l[figure].(float64); !ok || !has || v < 0 {
				t.Errorf("%s.%s is %v", name, figure, l[figure])
			}
		}
		// Five values have no 99th percentile.
		v, has := l["p99"]
		reason, _ := l["refused"].(map[string]any)["p99"].(string)
		if !has || v != nil || !strings.Contains(reason, "needs 100") {
			t.Errorf("%s.p99 is %v, refused for %q", name, v, reason)
		}
	}
	var back Report
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back.TTFT.Mean != r.TTFT.Mean || !back.TTFT.P999.Refused() || back.Verdict.Trust != r.Verdict.Trust {
		t.Errorf("%+v, %v", back, err)
	}
	plan.URL = serveText(t, jsonReply(503, "{}"))
	plan.Model = "m"
	if r, err := Run(t.Context(), plan); err != nil || !r.Failed() || r.Verdict.Trust != Invalid || r.Errored != 5 {
		t.Errorf("refused requests: %+v, %v", r, err)
	}
}

func TestPlanRefused(t *testing.T) {
	ok := Plan{URL: "http://127.0.0.1:1", Model: "m", Requests: 1}
	for name, edit := range map[string]func(p *Plan){
		"url":          func(p *Plan) { p.URL = "127.0.0.1:8000" },
		"query":        func(p *Plan) { p.URL += "/?x=1" },
		"api":          func(p *Plan) { p.API = "openai" },
		"no bound":     func(p *Plan) { p.Requests = 0 },
		"both loops":   func(p *Plan) { p.Rate, p.Concurrency = 1, 1 },
		"rate":         func(p *Plan) { p.Rate = -1 },
		"slow rate":    func(p *Plan) { p.Rate = 1e-300 },
		"fast rate":    func(p *Plan) { p.Rate = 1e300 },
		"prompt":       func(p *Plan) { p.InputTokens = 1<<24 + 1 },
		"concurrency":  func(p *Plan) { p.Concurrency = 1<<20 + 1 },
		"arrival":      func(p *Plan) { p.Rate, p.Arrival = 1, "uniform" },
		"gamma":        func(p *Plan) { p.Rate, p.Arrival = 1, "gamma" },
		"burstiness":   func(p *Plan) { p.Rate, p.CV = 1, 2 },
		"own field":    func(p *Plan) { p.API, p.Body = Generate, map[string]any{"sampling_params": 1} },
		"negative":     func(p *Plan) { p.OutputTokens = -1 },
		"reserved":     func(p *Plan) { p.Body = map[string]any{"stream": true} },
		"unmarshaled":  func(p *Plan) { p.Body = map[string]any{"x": func() {}} },
		"verify cut":   func(p *Plan) { p.Verify, p.Body = new(content.Words), map[string]any{"stop": "x"} },
		"header":       func(p *Plan) { p.Header = map[string]string{"X": "a\r\nb: c"} },
		"hang up what": func(p *Plan) { p.NoStream, p.HangUpAfter = true, 1 },
	} {
		p := ok
		edit(&p)
		if r, err := Run(t.Context(), p); err == nil {
			t.Errorf("%s: accepted, report %+v", name, r)
		}
	}
	ok.Model = ""
	if _, err := Run(t.Context(), ok); err == nil || !strings.Contains(err.Error(), "model") {
		t.Errorf("no model, no server: %v", err)
	}
}

// TestReuse holds that a connection the server closed while idle is not used,
// so that its loss is not counted against a request.
func TestReuse(t *testing.T) {
	vocab := vocabulary(t)
	wire := whole(answer(t, vocab, 3)).wire()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		for range 2 {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if err := readRequest(bufio.NewReader(c)); err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(c, wire)
			_ = c.Close()
			closed <- struct{}{}
		}
	}()
	reused := 0
	r, err := Run(t.Context(), Plan{
		URL: "http://" + l.Addr().String(), Model: "m", Requests: 2, Verify: vocab, Timeout: 20 * time.Second,
		OnSample: func(s *Sample) {
			<-closed
			if s.Reused {
				reused++
			}
		},
	})
	if err != nil || r.Complete != 2 || reused != 0 {
		t.Errorf("%+v, %v, %d reused", r, err, reused)
	}
	<-served
	_ = l.Close()
}

// A workload's requests are sent as it says: their lengths, their times, and the
// beginnings that they share.
func TestWorkload(t *testing.T) {
	e := &engine{vocab: vocabulary(t)}
	url := e.start(t)
	const trace = `{"timestamp":0,"input_length":600,"output_length":3,"hash_ids":[1,2]}
{"timestamp":100,"input_length":700,"output_length":5,"hash_ids":[1,3]}
{"timestamp":150,"input_length":9,"output_length":0}
{"timestamp":400,"input_length":20,"output_length":2,"hash_ids":[9]}
`
	open := func(text string, o workload.Options) *workload.Workload {
		w, err := workload.NewTrace(strings.NewReader(text), "trace.jsonl", workload.Mooncake, o)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	for _, api := range []API{Chat, Completions} {
		e.mu.Lock() // what came over the socket is ordered, but the race detector does not see it
		e.requests = nil
		e.mu.Unlock()
		var mu sync.Mutex
		var samples []Sample
		r, err := Run(t.Context(), Plan{URL: url, API: api, Model: "m", Workload: open(trace, workload.Options{Speed: 2}), Verify: e.vocab, Timeout: 20 * time.Second,
			OnSample: func(s *Sample) {
				mu.Lock()
				defer mu.Unlock()
				samples = append(samples, *s)
			}})
		if err != nil || r.Requests != 3 || r.Complete != 3 || r.Skipped != 1 || r.Tokens != 10 || r.Workload != "mooncake" || r.Failed() {
			t.Fatalf("%+v, %v", r, err)
		}
		slices.SortFunc(samples, func(a, b Sample) int { return a.Index - b.Index })
		for i, want := range []struct {
			at            time.Duration
			input, output int
		}{{0, 600, 3}, {50 * time.Millisecond, 700, 5}, {200 * time.Millisecond, 20, 2}} {
			s := samples[i]
			if got := time.Duration(s.Intended - samples[0].Intended); got != want.at || s.AskedInput != want.input || s.AskedOutput != want.output || s.Tokens != want.output {
				t.Errorf("request %d at %v: %+v, want %+v", i, got, s, want)
			}
		}
		prompts := map[int][]string{} // by their lengths: a busy machine may send them in another order
		e.mu.Lock()
		for _, req := range e.requests {
			text, _ := req["prompt"].(string)
			if api == Chat {
				text = req["messages"].([]any)[0].(map[string]any)["content"].(string)
			}
			words := strings.Fields(text)
			prompts[len(words)] = words
		}
		e.mu.Unlock()
		first, second, third := prompts[600], prompts[700], prompts[20]
		if len(prompts) != 3 || first == nil || second == nil || third == nil {
			t.Fatalf("prompts of %v words", slices.Sorted(maps.Keys(prompts)))
		}
		if !slices.Equal(first[:512], second[:512]) || slices.Equal(first[512:530], second[512:530]) || slices.Equal(first[:20], third) {
			t.Error("the beginnings in common are others than the trace's")
		}
	}
	// A trace that breaks off ends the run and is no success.
	r, err := Run(t.Context(), Plan{URL: url, Model: "m", Workload: open(trace[:strings.Index(trace, "\n")+1]+"{broken\n", workload.Options{}), Verify: e.vocab})
	if err != nil || r.Complete != 1 || !r.Failed() || !strings.Contains(r.Problem, "trace.jsonl:2") || r.Verdict.Trust != Invalid {
		t.Errorf("%+v, %v", r, err)
	}
	// Users of a closed loop think.
	w, err := workload.NewSynthetic("concurrency=2,think=50ms,requests=6,input=10,output=2", workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.most.Store(0)
	r, err = Run(t.Context(), Plan{URL: url, Model: "m", Workload: w, Verify: e.vocab})
	if err != nil || r.Complete != 6 || r.Concurrency != 2 || e.most.Load() > 2 || r.Elapsed < 0.1 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := Run(t.Context(), Plan{URL: url, Model: "m", Workload: w, Rate: 3}); err == nil {
		t.Error("a workload and a rate were taken")
	}
}

// asked keeps when a source was asked first.
type asked struct {
	workload.Source
	done int64
}

func (a *asked) Next(r *workload.Request) error {
	err := a.Source.Next(r)
	if a.done == 0 {
		a.done = trace.Now()
	}
	return err
}

// The schedule begins when its first request is there to be sent: how long that
// took is no lateness of the request.
func TestScheduleBeginsWithARequest(t *testing.T) {
	e := &engine{vocab: vocabulary(t)}
	w, err := workload.NewSynthetic("rate=50,input=10,output=2,requests=3", workload.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	source := &asked{Source: w.Source}
	w.Source = source
	r, err := Run(t.Context(), Plan{URL: e.start(t), Model: "m", Workload: w, Verify: e.vocab})
	if err != nil || r.Complete != 3 || r.Origin <= source.done {
		t.Errorf("began %v before the first request was drawn: %+v, %v", time.Duration(source.done-r.Origin), r, err)
	}
}
