//go:build linux

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"
)

// answers runs every case against a gateway in this process.
func answers(t *testing.T, gateway func(engine string) http.Handler) map[string]string {
	e, err := newEngine()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	s := httptest.NewServer(gateway(e.addr()))
	t.Cleanup(s.Close)
	r := &rig{engine: e, gateway: strings.TrimPrefix(s.URL, "http://"), memory: func() int64 { return 0 }, patience: 2 * time.Second, flood: time.Second}
	got := map[string]string{}
	for _, c := range cases() {
		got[c.name] = c.ask(t.Context(), r)
	}
	return got
}

func check(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for name, answer := range got {
		of, ok := "", false
		for part, w := range want {
			if strings.Contains(name, part) {
				of, ok = w, true
			}
		}
		if !ok || !strings.Contains(answer, of) {
			t.Errorf("%s: %q, want %q", name, answer, of)
		}
	}
}

// TestFaithful runs a gateway that carries bytes and ends as its engine did.
func TestFaithful(t *testing.T) {
	got := answers(t, func(engine string) http.Handler {
		return &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: engine}) },
			FlushInterval: -1, ErrorLog: nil,
		}
	})
	check(t, got, map[string]string{
		"breaks in mid-stream":      "a broken connection",
		"without a finish":          "a clean end",
		"error event":               "its bytes; an error event, `[DONE]`, a clean end",
		"503":                       "503, 1",
		"body at the engine":        "the same bytes",
		"bytes at the client":       "the same",
		"hangs up in mid-stream":    " ms (",
		"before the first token":    " ms (",
		"client that does not read": " MB, +0 MB",
	})
	for name, answer := range got {
		if strings.Contains(answer, "words)") {
			t.Errorf("%s: %s", name, answer)
		}
	}
}

// TestUnfaithful runs a gateway that reads everything, writes it anew and reports no failure.
func TestUnfaithful(t *testing.T) {
	got := answers(t, func(engine string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			body = bytes.ReplaceAll(body, []byte("9007199254740993"), []byte("9007199254740992"))
			body = bytes.ReplaceAll(body, []byte(`"zeta": {"b": [1, 2.50, null], "a": true}, `), nil)
			// No hang-up reaches the engine before this time is over.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 3*time.Second)
			defer cancel()
			for range 3 {
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+engine+"/v1/chat/completions", bytes.NewReader(body))
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					continue
				}
				defer resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					continue
				}
				said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
				said = bytes.ReplaceAll(said, []byte(": ping\n\n"), nil)
				said = bytes.ReplaceAll(said, []byte(`"error"`), []byte(`"warning"`))
				_, _ = w.Write(append(said, done...))
				return
			}
			w.WriteHeader(http.StatusBadGateway)
		})
	})
	check(t, got, map[string]string{
		"breaks in mid-stream":      "`[DONE]`, a clean end",
		"without a finish":          "`[DONE]`, a clean end",
		"error event":               "its message in other words",
		"503":                       "502, 3",
		"body at the engine":        "unknown field lost, integer above 2^53 lost, `1.0` kept, order of fields kept",
		"bytes at the client":       "comment lost, unknown fields kept",
		"hangs up in mid-stream":    "not within 2s",
		"before the first token":    "not within 2s",
		"client that does not read": " MB",
	})
}

func TestFlags(t *testing.T) {
	var out, problems bytes.Buffer
	if err := run(t.Context(), []string{"-gateways", "ngnix"}, &out, &problems); err == nil || !strings.Contains(err.Error(), "ngnix") {
		t.Errorf("%v", err)
	}
	if err := run(t.Context(), []string{"-gateways", "weir plane"}, &out, &problems); err == nil {
		t.Error("the plane relays nothing")
	}
}
