package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"weir/internal/engine"
)

// An engine's answer to a probe shows its state; the caller judges how long the answer may take.
// Each probe has a connection of its own.
func TestProbe(t *testing.T) {
	answers, came := make(chan string), make(chan string)
	p := play(t, func(_ int, w *wire) {
		for r, body := w.request(); r != nil; r, body = w.request() {
			came <- r.Method + " " + r.RequestURI + " " + string(body)
			if a, ok := <-answers; ok {
				w.send(a)
			}
		}
	})
	e := p.engine(Options{})
	done := make(chan error)
	ask := func(ctx context.Context) { done <- e.Probe(ctx, engine.Probe{Rank: -1, Model: "mo\"del"}) }
	status := func(code int) string {
		return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n{}", code)
	}
	const want = `POST /v1/chat/completions {"model":"mo\"del","max_tokens":1,"messages":[{"content":"x","role":"user"}]}`
	for code, is := range map[int]error{200: nil, 429: engine.ErrBusy, 503: engine.ErrBusy, 404: engine.ErrNoProbe, 401: engine.ErrNoProbe} {
		go ask(bounded(t))
		if got := <-came; got != want {
			t.Fatalf("asked %s", got)
		}
		select {
		case err := <-done:
			t.Fatalf("answered without the engine: %v", err)
		default:
		}
		answers <- status(code)
		if err := <-done; !errors.Is(err, is) || (err == nil) != (is == nil) {
			t.Errorf("%d: %v", code, err)
		}
	}
	if n := p.accepted(); n != 5 {
		t.Errorf("5 probes over %d connections", n)
	}
	for _, a := range []string{status(500), "garbage\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\n"} {
		go ask(bounded(t))
		<-came
		answers <- a
		if strings.Contains(a, "100") {
			p.mu.Lock()
			p.conns[len(p.conns)-1].Close()
			p.mu.Unlock()
		}
		if err := <-done; err == nil || errors.Is(err, engine.ErrBusy) || errors.Is(err, engine.ErrNoProbe) || errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%q: %v", a, err)
		}
	}
	hung, giveUp := context.WithCancel(bounded(t))
	go ask(hung)
	<-came
	giveUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a hung engine: %v", err)
	}
	close(answers)
	p.listener.Close()
	go ask(bounded(t))
	if err := <-done; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody there: %v", err)
	}
}

// An answer of 10 MB is no reason to read all of it.
func TestProbeOfMuch(t *testing.T) {
	p := play(t, func(_ int, w *wire) {
		if r, _ := w.request(); r != nil {
			w.send("HTTP/1.1 200 OK\r\nContent-Length: 10485760\r\n\r\n" + strings.Repeat("x", 10<<20))
		}
	})
	if err := p.engine(Options{}).Probe(bounded(t), engine.Probe{}); err != nil {
		t.Error(err)
	}
}

// A probe is a request of the kind that the engine was given.
func TestProbeOfKinds(t *testing.T) {
	for path, has := range map[string]string{
		"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/completions?x=/embeddings": "prompt", "/v1/embeddings": "input", "/v1/responses": "max_output_tokens",
		"/v1/messages": "max_tokens", "/v2/rerank": "query", "/generate": "sampling_params", "/score": "text_1", "/v1/audio/speech": "", "/": "", "": "",
	} {
		target, _, _ := strings.Cut(path, "?")
		fields, ok := kindOf(target)
		if _, got := fields[has]; ok != (has != "") || ok && !got {
			t.Errorf("%s: %v, %v", path, fields, ok)
		}
	}
	e := play(t, nil).engine(Options{})
	if err := e.Probe(t.Context(), engine.Probe{Path: "/v1/audio/speech"}); !errors.Is(err, engine.ErrNoProbe) {
		t.Error(err)
	}
}
