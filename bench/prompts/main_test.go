//go:build linux

package main

import (
	"bytes"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
)

// The benchmark runs, over a wire of each kind.
func TestPrompts(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-n", "1", "-clients", "2", "-requests", "1", "-warm", "1", "-bytes", "20000", "-wires", "weir,vllm"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n| weir | "); n != 4 {
		t.Errorf("%d rows:\n%s", n, &out)
	}
}

// The floor writes two bytes for each token, and answers as a gateway does.
func TestFloor(t *testing.T) {
	var wire bytes.Buffer
	body := strings.Repeat("text ", 7000)
	w := httptest.NewRecorder()
	(&floor{to: &wire}).ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)))
	if n, ok := readAnswer(w.Body.Bytes()); !ok || n != 10001 || wire.Len() != 2*n {
		t.Errorf("%d tokens, %v, %d bytes: %s", n, ok, wire.Len(), w.Body)
	}
}

func TestReadAnswer(t *testing.T) {
	const usage = "data: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n"
	for stream, want := range map[string]int{
		"data: {}\n\n" + usage + "data: [DONE]\n\n": 7,
		usage: 0, "data: {}\n\ndata: [DONE]\n\n": 0, "": 0,
		strings.Replace(usage, ":2", ":1", 1) + "data: [DONE]\n\n": 0,
	} {
		if n, ok := readAnswer([]byte(stream)); ok != (want > 0) || ok && n != want {
			t.Errorf("%q: %d %v", stream, n, ok)
		}
	}
}
