package load

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"weir/internal/trace"
)

// TestWaitUntil holds that the pacer is never early, and stops with its
// context.
func TestWaitUntil(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, 0, 100 * time.Microsecond, 4 * time.Millisecond} {
		at := trace.Now() + int64(d)
		if !waitUntil(t.Context(), at) || trace.Now() < at {
			t.Errorf("woken %v early", time.Duration(at-trace.Now()))
		}
	}
}

func TestRequestRendering(t *testing.T) {
	for _, p := range []Plan{
		{InputTokens: 50, Seed: 1},
		{InputTokens: 50, Seed: 1, API: Completions},
		{Prompt: "say \"\u00e9\"\n\\ <b>", OutputTokens: 7, Body: map[string]any{"seed": 3}},
	} {
		p.URL, p.Requests, p.Header = "http://[::1]:80/base", 1, map[string]string{"host": "h.example", "User-Agent": "u"}
		target, err := p.normalize()
		if err != nil {
			t.Fatal(err)
		}
		m, err := newMessage(&p, target, `mo"del`)
		if err != nil {
			t.Fatal(err)
		}
		if m.prompts, err = newPrompts(&p); err != nil {
			t.Fatal(err)
		}
		wire, storage := m.render(nil, &ask{input: p.InputTokens, output: p.OutputTokens})
		first := string(wire)
		wire, _ = m.render(storage, &ask{input: p.InputTokens, output: p.OutputTokens})
		if string(wire) != first {
			t.Error("the same request is rendered in two ways")
		}
		req, body := parseRequest(t, first)
		if req.Host != "h.example" || req.UserAgent() != "u" || !strings.HasPrefix(req.URL.Path, "/base/v1/") {
			t.Errorf("request %v", req)
		}
		var got struct {
			Model    string
			Prompt   string
			Messages []struct{ Content string }
			Max      int `json:"max_tokens"`
			Seed     int
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		prompt := got.Prompt
		if p.API == Chat {
			prompt = got.Messages[0].Content
		}
		if got.Model != `mo"del` || got.Max != p.OutputTokens {
			t.Errorf("body %s", body)
		}
		if p.Prompt != "" && (prompt != p.Prompt || got.Seed != 3) || p.Prompt == "" && len(strings.Fields(prompt)) != 50 {
			t.Errorf("prompt %q of body %s", prompt, body)
		}
		if other, _ := m.render(nil, &ask{index: 1, input: p.InputTokens, output: p.OutputTokens}); p.Prompt == "" && string(other) == first {
			t.Error("two requests have the same prompt")
		}
	}
}

// A server that is named without a scheme is told how to be named.
func TestTarget(t *testing.T) {
	for url, want := range map[string]string{
		"127.0.0.1:8000": "did you mean http://127.0.0.1:8000?", "localhost:8000": "did you mean http://localhost:8000?", "ftp://h": `"ftp://h": must be http://HOST`,
		"http://": "must be http", "": `"": must be http`, "http://h:x": "must be http", "http://h/?q=1": "without user, query",
	} {
		if _, err := (&Plan{URL: url}).target(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", url, err, want)
		}
	}
	for url, addr := range map[string]string{"http://h": "h:80", "https://h": "h:443", "http://127.0.0.1:9": "127.0.0.1:9"} {
		if got, err := (&Plan{URL: url}).target(); err != nil || got.addr != addr {
			t.Errorf("%q: %+v, %v", url, got, err)
		}
	}
}
