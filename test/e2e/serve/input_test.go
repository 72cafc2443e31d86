package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// Every way of asking wrongly gets an error in the API's shape that names the
// field and the fix, and costs nobody else anything.
func TestBadInput(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up", "--max-body", "2000000")
	chat := g.URL + "/v1/chat/completions"
	complete := g.URL + "/v1/completions"
	ask := func(fields string) string {
		return `{"model":"weir-sim","messages":[{"role":"user","content":"hi"}]` + fields + `}`
	}
	long := strings.Repeat("all work and no play ", 40_000)
	for _, c := range []struct {
		name, url, body string
		status          int
		param           string
		want            []string // parts of the message
	}{
		{"empty body", chat, "", 400, "", []string{"empty"}},
		{"truncated JSON", chat, "{\"model\": \"weir-sim\",\n \"messages\": [", 400, "", []string{"line 2", "column"}},
		{"bad JSON", chat, `{"model" "x"}`, 400, "", []string{"line 1", "column 1"}},
		{"an array", chat, `[]`, 400, "", []string{"object"}},
		{"no model", chat, `{"messages":[]}`, 400, "model", []string{"model"}},
		{"model is a number", chat, `{"model":7,"messages":[]}`, 400, "model", []string{"string"}},
		{"unknown model", chat, `{"model":"gpt-9","messages":[{"role":"user","content":"x"}]}`, 404, "model", []string{"gpt-9", "weir-sim"}},
		{"no messages", chat, `{"model":"weir-sim"}`, 400, "messages", []string{"messages"}},
		{"empty messages", chat, `{"model":"weir-sim","messages":[]}`, 400, "messages", []string{"messages"}},
		{"messages is text", chat, `{"model":"weir-sim","messages":"hi"}`, 400, "messages", []string{"array"}},
		{"wrong role", chat, `{"model":"weir-sim","messages":[{"role":"king","content":"x"}]}`, 400, "messages[0].role", []string{"king"}},
		{"content is a number", chat, `{"model":"weir-sim","messages":[{"role":"user","content":5}]}`, 400, "messages[0].content", []string{"string"}},
		{"an image", chat, `{"model":"weir-sim","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`, 400, "", []string{"image_url.url", "data:TYPE;base64,DATA"}},
		{"negative max_tokens", chat, ask(`,"max_tokens":-1`), 400, "max_tokens", []string{"-1"}},
		{"huge max_tokens", chat, ask(`,"max_tokens":10000000`), 400, "max_tokens", []string{"10000000", "131072"}},
		{"max_tokens is text", chat, ask(`,"max_tokens":"5"`), 400, "max_tokens", []string{"integer"}},
		{"temperature too high", chat, ask(`,"temperature":9`), 400, "temperature", []string{"2"}},
		{"duplicate key", chat, ask(`,"seed":1,"seed":2`), 400, "seed", []string{"seed"}},
		{"duplicate model", chat, ask(`,"model":"weir-sim"`), 400, "model", []string{"model"}},
		{"a built-in tool", chat, ask(`,"tools":[{"type":"web_search"}]`), 400, "tools[0].type", []string{"web_search", "weir"}},
		{"a forced call of nothing", chat, ask(`,"tool_choice":"required"`), 400, "tool_choice", []string{"tools is empty"}},
		{"n", chat, ask(`,"n":129`), 400, "n", []string{"128"}},
		{"best_of", complete, `{"model":"weir-sim","prompt":"x","best_of":2}`, 400, "best_of", []string{"weir"}},
		{"echo", complete, `{"model":"weir-sim","prompt":"x","echo":true}`, 400, "echo", []string{"weir"}},
		{"top_logprobs", chat, ask(`,"top_logprobs":2`), 400, "top_logprobs", []string{"logprobs"}},
		{"unknown field", chat, ask(`,"temprature":1`), 400, "temprature", []string{"temprature", "did you mean", "weir"}},
		{"empty prompt", complete, `{"model":"weir-sim","prompt":""}`, 400, "prompt", []string{"empty"}},
		{"prompt of no ids", complete, `{"model":"weir-sim","prompt":[]}`, 400, "prompt", []string{"empty"}},
		{"prompt id too high", complete, `{"model":"weir-sim","prompt":[1,99999999]}`, 400, "prompt", []string{"99999999"}},
		{"prompt over the context", complete, `{"model":"weir-sim","prompt":"` + long + `"}`, 400, "prompt", []string{"tokens", "131072"}},
		{"body over the limit", chat, ask(`,"user":"` + strings.Repeat("x", 2_000_001) + `"`), 413, "", []string{"2000000"}},
		{"an endpoint of relays", g.URL + "/v1/embeddings", `{"model":"weir-sim","input":"x"}`, 404, "", []string{"/v1/embeddings", "weir"}},
		{"unknown path", g.URL + "/v2/chat", `{}`, 404, "", []string{"/v1/"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := harness.Post(t, c.url, c.body, "X-Request-Id", "bad-input")
			var e harness.APIError
			if err := json.Unmarshal(a.Body, &e); err != nil {
				t.Fatalf("status %d, body %.200q: %v", a.Status, a.Body, err)
			}
			if a.Status != c.status {
				t.Errorf("status %d, want %d: %s", a.Status, c.status, a.Body)
			}
			if c.param != "" && (e.Error.Param == nil || *e.Error.Param != c.param) {
				t.Errorf("param %v, want %q: %s", e.Error.Param, c.param, e.Error.Message)
			}
			for _, part := range c.want {
				if !strings.Contains(e.Error.Message, part) {
					t.Errorf("message %q lacks %q", e.Error.Message, part)
				}
			}
			if e.Error.Type == "" {
				t.Error("no type")
			}
		})
	}

	// Many clients send all of a body before they read an answer.
	t.Run("body over the limit, sent to its end", func(t *testing.T) {
		whole := strings.Repeat("x", 3_500_000)
		declared := fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(whole), whole)
		chunked := fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(whole), whole)
		for _, c := range []struct {
			path, body string
			status     int
		}{
			{"/v1/chat/completions", declared, 413},
			{"/v1/chat/completions", chunked, 413},
			{"/v2/chat", declared, 404},
			{"/v2/chat", chunked, 404},
		} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(harness.Patience))
			_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s", c.path, c.body)
			if err != nil {
				t.Errorf("%s, %.20q: %v", c.path, c.body, err)
			}
			if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), fmt.Sprintf("HTTP/1.1 %d", c.status)) {
				t.Errorf("%s, %.20q: answer %q, %v", c.path, c.body, answer, err)
			}
		}
	})

	t.Run("content type", func(t *testing.T) {
		a := harness.Post(t, chat, ask(""), "Content-Type", "application/x-www-form-urlencoded")
		if a.Status != http.StatusUnsupportedMediaType || !strings.Contains(string(a.Body), "Content-Type: application/json") {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
	})
	t.Run("method", func(t *testing.T) {
		a := harness.Get(t, chat)
		if a.Status != http.StatusMethodNotAllowed || a.Header.Get("Allow") != "POST" {
			t.Errorf("status %d, Allow %q", a.Status, a.Header.Get("Allow"))
		}
	})
	t.Run("request id", func(t *testing.T) {
		if a := harness.Post(t, chat, ask(`,"max_tokens":1`), "X-Request-Id", "mine-1"); a.Header.Get("X-Request-Id") != "mine-1" {
			t.Errorf("X-Request-Id %q", a.Header.Get("X-Request-Id"))
		}
		if a := harness.Post(t, chat, ask(`,"max_tokens":1`), "X-Request-Id", "no {good}"); !strings.HasPrefix(a.Header.Get("X-Request-Id"), "req-") {
			t.Errorf("X-Request-Id %q", a.Header.Get("X-Request-Id"))
		}
	})
	t.Run("slow body", func(t *testing.T) {
		g := harness.StartGateway(t, "up", "--body-timeout", "1s")
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		_ = conn.SetReadDeadline(time.Now().Add(harness.Patience))
		if answer, err := io.ReadAll(conn); !strings.HasPrefix(string(answer), "HTTP/1.1 408") {
			t.Errorf("answer %q, %v", answer, err)
		}
		g.Interrupt()
	})

	ended := g.Balanced()
	if ended["failed"] != 0 || ended["finished"] != 2 {
		t.Errorf("ended %v, want 2 finished and none failed", ended)
	}
	g.Interrupt()
}
