package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/internal/load"
)

const askStream = `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":40,"messages":[{"role":"user","content":"x"}]}`

// What a client sees when an engine fails: before the first byte nothing,
// because another engine answers; after it an error event and a broken
// connection, never [DONE].
func TestEngineFaults(t *testing.T) {
	t.Parallel()
	quick := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms"}
	for _, path := range paths {
		for _, c := range []struct {
			fault string
			retry bool // nothing had reached the client
			code  string
		}{
			{"unavailable", true, ""},
			{"cut,after=0", true, "engine"},
			{"reset,after=0", true, "engine"},
			{"cut,after=10", false, "engine"},
			{"reset,after=10", false, "engine"},
			{"stall,after=0", true, "deadline"},
			{"stall,after=10", false, "deadline"},
		} {
			t.Run(path+" "+c.fault, func(t *testing.T) {
				beside(t, light)
				bad, good := startSim(t, append(quick, "--fault", c.fault)...), startSim(t, quick...)
				g := startGateway(t, "serve", "--engine", bad.spec(path), "--engine", good.spec(path), "--idle-timeout", "2s", "--first-timeout", "2s")
				eventually(t, "both ready", func() bool { return metric(t, g.admin, "weir_engine_ready") == 2 })
				broken := 0
				for range 4 { // round-robin: the bad engine's turn comes
					a := post(t, g.url+"/v1/chat/completions", askStream)
					done := bytes.HasSuffix(a.body, []byte("data: [DONE]\n\n"))
					failed := bytes.Contains(a.body, []byte(`data: {"error":`))
					if a.status != 200 || done == failed || done != (a.err == nil) {
						t.Errorf("status %d, done %t, error event %t, read error %v: %.200s", a.status, done, failed, a.err, a.body)
					}
					if failed {
						broken++
					}
				}
				ended := g.balanced()
				if c.retry && (broken != 0 || ended["finished"] != 4) {
					t.Errorf("%d streams failed and %v ended; all should have gone to the other engine", broken, ended)
				}
				if !c.retry && (broken == 0 || ended["failed"] != broken) {
					t.Errorf("%d streams failed, and %v ended", broken, ended)
				}
				if c.code != "" && metric(t, g.admin, "weir_engine_faults_total", `code="`+c.code+`"`) == 0 &&
					metric(t, g.admin, "weir_engine_faults_total", `code="unavailable"`) == 0 {
					t.Errorf("no fault of code %s was counted", c.code)
				}
				eventually(t, "free", func() bool {
					return engineState(t, good.admin).Running == 0
				})
				g.interrupt()
			})
		}
	}
}

// Without another engine, a refusal before the first byte is an HTTP error.
func TestEngineRefusals(t *testing.T) {
	beside(t, light)
	t.Run("nobody there", func(t *testing.T) {
		addr := freeAddress(t)
		for _, spec := range []string{"openai=http://" + addr + ",model=weir-sim", "weir=" + addr} {
			g := startUnready(t, "serve", "--engine", spec, "--engine-timeout", "200ms")
			if a := get(t, g.admin+"/readyz"); a.status != 503 || !strings.Contains(string(a.body), addr) {
				t.Errorf("readyz: %d %s", a.status, a.body)
			}
			a := post(t, g.url+"/v1/chat/completions", askStream)
			if a.status != 503 || a.header.Get("Retry-After") == "" || !strings.Contains(string(a.body), "ready") {
				t.Errorf("%s: status %d, Retry-After %q: %s", spec, a.status, a.header.Get("Retry-After"), a.body)
			}
			g.interrupt()
		}
	})
	t.Run("refuses and comes back", func(t *testing.T) {
		s := startSim(t, "--fault", "refuse")
		g := startUnready(t, "serve", "--engine", "weir="+s.plane, "--engine-timeout", "200ms")
		if a := post(t, g.url+"/v1/chat/completions", askStream); a.status != 503 {
			t.Errorf("status %d: %s", a.status, a.body)
		}
		if a := post(t, s.admin+"/admin/faults", `{"faults":[]}`); a.status/100 != 2 {
			t.Fatalf("faults: %d %s", a.status, a.body)
		}
		eventually(t, "ready", func() bool { return get(t, g.admin+"/readyz").status == 200 })
		if a := post(t, g.url+"/v1/chat/completions", askStream); a.status != 200 || a.err != nil {
			t.Errorf("status %d, %v", a.status, a.err)
		}
		g.interrupt()
	})
	t.Run("relay passes a 503 on", func(t *testing.T) {
		s := startSim(t, "--fault", "unavailable")
		g := startGateway(t, "serve", "--engine", "openai="+s.openai)
		direct := post(t, s.openai+"/v1/chat/completions", askStream)
		through := post(t, g.url+"/v1/chat/completions", askStream)
		if through.status != 503 || !bytes.Equal(direct.body, through.body) {
			t.Errorf("direct %d %s\nthrough weir %d %s", direct.status, direct.body, through.status, through.body)
		}
		g.interrupt()
	})
}

// Of many streams, those that a fault struck say so and all others are whole:
// nothing is lost silently.
func TestFaultsUnderLoad(t *testing.T) {
	beside(t, heavy)
	s := startSim(t, append([]string{"--fault", "cut,after=10,rate=0.05", "--fault", "stall,after=10,rate=0.05"}, fast...)...)
	g := startGateway(t, "serve", "--engine", "openai="+s.openai, "--idle-timeout", "2s")
	r := run(t, load.Plan{URL: g.url, Concurrency: 64, Requests: 400, OutputTokens: 32, Body: map[string]any{"ignore_eos": true}})
	if r.Corrupt != 0 || r.Lost != 0 || r.Errored == 0 || r.Complete+r.Errored != 400 {
		t.Errorf("%d complete, %d errored, %d corrupt, %d lost: %v %v", r.Complete, r.Errored, r.Corrupt, r.Lost, r.Errors, r.Examples)
	}
	if ended := g.balanced(); ended["failed"] != r.Errored || ended["finished"] != r.Complete {
		t.Errorf("ended %v, the client counts %d complete and %d errored", ended, r.Complete, r.Errored)
	}
	g.interrupt()
}

// scripted is an engine that answers every POST with the bytes it is told to,
// cut into writes as given.
func scripted(t *testing.T, pieces func(body []byte) (header http.Header, chunks [][]byte)) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		header, chunks := pieces(body)
		for k, v := range header {
			w.Header()[k] = v
		}
		for _, c := range chunks {
			_, _ = w.Write(c)
			_ = http.NewResponseController(w).Flush()
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return "http://" + l.Addr().String()
}

// A relay changes no byte in either direction, wherever the engine's writes
// were cut.
func TestRelayTouchesNoByte(t *testing.T) {
	beside(t, light)
	const strange = "\r\n : not an event\r\n: a comment\n\n" +
		"event: odd\r\ndata:  {\"seed\": 9007199254740993, \"x\": 1.0, \"y\": 1e400, \"z\": null, \"a\":\"<&>\\u0041\"}\r\n\r\n" +
		"data: {\"b\":1,\ndata:  \"a\":2}\n\nid: 7\nretry: 10\n\ndata: \n\ndata: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	var got []byte
	cut := 1
	engine := scripted(t, func(body []byte) (http.Header, [][]byte) {
		got = body
		var chunks [][]byte
		for rest := []byte(strange); len(rest) > 0; {
			n := min(cut, len(rest))
			chunks, rest = append(chunks, rest[:n]), rest[n:]
		}
		return http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, "X-Engine": {"kept"}}, chunks
	})
	g := startGateway(t, "serve", "--engine", "openai="+engine, "--engine", "openai="+engine+",model=other,name=alias")
	sent := "{ \"model\" :\t\"m\",\r\n \"stream\":true, \"seed\":9007199254740993,\"t\":1.0,\"u\":null,\"unknown\":[ 1 ,2],\"dup\":1,\"dup\":2,\"messages\":[]}\n"
	for _, cut = range []int{1, 2, 3, 7, 50, 1000} {
		a := post(t, g.url+"/v1/chat/completions?q=1", sent)
		if a.status != 200 || string(a.body) != strange || a.err != nil || a.header.Get("X-Engine") != "kept" {
			t.Fatalf("cut %d: status %d, error %v, header %v, body\n%q", cut, a.status, a.err, a.header, a.body)
		}
		if string(got) != sent {
			t.Fatalf("the engine received\n%q", got)
		}
	}
	// An alias is spliced in and nothing else changes.
	aliased := strings.Replace(sent, `"m"`, `"other"`, 1)
	if a := post(t, g.url+"/v1/chat/completions", aliased); a.status != 200 || string(got) != sent {
		t.Errorf("status %d, the engine received\n%q", a.status, got)
	}
	// Other endpoints with a model pass as well, also when they do not stream.
	for _, path := range []string{"/v1/embeddings", "/v1/rerank", "/v1/audio/speech"} {
		if a := post(t, g.url+path, sent); a.status != 200 || string(a.body) != strange || string(got) != sent {
			t.Errorf("%s: status %d, %v", path, a.status, a.err)
		}
	}
	for _, field := range []string{"model", "stream", "n"} {
		a := post(t, g.url+"/v1/chat/completions", `{"model":"m","stream":true,"n":1,"`+field+`":1}`)
		if a.status != 400 || !strings.Contains(string(a.body), field) {
			t.Errorf("%s twice: status %d %s", field, a.status, a.body)
		}
	}
	g.interrupt()
}

// A relayed stream that does not end as it must never looks complete.
func TestRelayCutStreams(t *testing.T) {
	beside(t, light)
	const event = "data: {\"x\":1}\n\n"
	finish := "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	huge := "data: " + strings.Repeat("x", 200_000)
	var answer string
	engine := scripted(t, func([]byte) (http.Header, [][]byte) {
		return http.Header{"Content-Type": {"text/event-stream"}}, [][]byte{[]byte(answer)}
	})
	g := startGateway(t, "serve", "--engine", "openai="+engine)
	for _, c := range []struct {
		name, answer string
		keeps        string // what the client has before the error
	}{
		{"no end marker", event + event, event + event},
		{"inside an event", event + "data: {\"x\":", event},
		{"inside a huge event", event + huge, ""},
		{"before a blank line", event + "data: [DONE]\n", event},
		{"garbage in an event", event + "data: {\"x\":\n\n" + event + finish + "data: [DONE]\n\n", event},
		{"no finish_reason", event + "data: [DONE]\n\n", event},
		{"token after the end", event + finish + "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n", event + finish},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer = c.answer
			a := post(t, g.url+"/v1/chat/completions", `{"model":"m","stream":true,"messages":[]}`)
			if a.err == nil || bytes.Contains(a.body, []byte("data: [DONE]")) {
				t.Errorf("ended as complete: error %v, %d bytes", a.err, len(a.body))
			}
			if c.keeps != "" && !bytes.HasPrefix(a.body, []byte(c.keeps+`data: {"error":`)) {
				t.Errorf("body %.300q", a.body)
			}
		})
	}
	answer = event + huge + "\n\ndata: [DONE]\n\n"
	if a := post(t, g.url+"/v1/chat/completions", `{"model":"m","stream":true,"messages":[]}`); a.err != nil || string(a.body) != answer {
		t.Errorf("a huge whole event: error %v, %d bytes of %d", a.err, len(a.body), len(answer))
	}
	g.interrupt()
}

// A gateway configured by file and environment, the command line first.
func TestConfiguration(t *testing.T) {
	beside(t, light)
	s := startSim(t, fast...)
	file := t.TempDir() + "/weir.yaml"
	writeFile(t, file, fmt.Sprintf("engine:\n  - kind: openai\n    url: %s\n    name: from-file\nmax-body: 100\nlisten: 127.0.0.1:1\n", s.openai))
	g := startGatewayWith(t, []string{"WEIR_MAX_BODY=60"}, "serve", "--config", file)
	if a := get(t, g.admin+"/engines"); !strings.Contains(string(a.body), `"from-file"`) {
		t.Errorf("engines: %s", a.body)
	}
	if a := post(t, g.url+"/v1/chat/completions", askStream); a.status != 413 || !strings.Contains(string(a.body), "60") {
		t.Errorf("status %d %s: the environment should win over the file", a.status, a.body)
	}
	g.interrupt()

	writeFile(t, file, "engins:\n- x\n")
	p := start(t, "serve", "--config", file)
	p.exits(2)
	if !strings.Contains(p.stderr.String(), `line 1: unknown key "engins" (did you mean "engine"?)`) {
		t.Errorf("stderr: %s", p.stderr.String())
	}
}

func TestDrainTimeout(t *testing.T) {
	beside(t, light)
	s := startSim(t, "--cost", "constant", "--decode-cost", "50ms")
	g := startGateway(t, "serve", "--engine", "weir="+s.plane, "--drain-timeout", "500ms")
	done := make(chan answer)
	go func() {
		resp, err := http.Post(g.url+"/v1/chat/completions", "application/json", strings.NewReader(strings.Replace(askStream, "40", "4000", 1)))
		if err != nil {
			done <- answer{err: err}
			return
		}
		done <- read(resp)
	}()
	eventually(t, "streaming", func() bool { return engineState(t, s.admin).Running == 1 })
	began := time.Now()
	g.interrupt()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if a := <-done; a.err == nil || bytes.Contains(a.body, []byte("[DONE]")) {
		t.Errorf("a cut stream looks complete: %v", a.err)
	}
	eventually(t, "free", func() bool { return engineState(t, s.admin).Running == 0 })
	if records := g.records(); len(records) != 1 {
		t.Errorf("%d records, want 1", len(records))
	}
}
