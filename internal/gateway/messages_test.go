package gateway

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir/internal/infer"
	"weir/models"
)

const messagesPath = "/v1/messages"

// askMessage is a body of Anthropic's API.
func askMessage(fields string) string {
	return `{"model":"` + models.SimName + `","max_tokens":100,"messages":[{"role":"user","content":"Hello"}]` + fields + `}`
}

// names gives the names of a stream's events, each once in a row.
func (a *answer) names() (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^event: (\w+)$`).FindAllSubmatch(a.body, -1) {
		names = append(names, string(m[1]))
	}
	return slices.Compact(names)
}

// Anthropic's API over a token engine: the prompt is the one that the chat of
// OpenAI's API has, and stream and whole answer say what the engine did.
func TestMessages(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, `{"model":"`+models.SimName+`","messages":[{"role":"system","content":"s"},{"role":"user","content":"Hello"}]}`)
		prompt := e.call(t, 1).req.Prompt
		e.call(t, 1).end(infer.ReasonStop)
		c.answer()

		const stop = `,"system":"s","stop_sequences":["STOP"]`
		text := "I look it up. \U0001F9FF"
		var whole struct {
			ID      string
			Content []struct{ Type, Text string }
			Reason  string `json:"stop_reason"`
			Stop    string `json:"stop_sequence"`
			Usage   struct {
				Input  int `json:"input_tokens"`
				Cached int `json:"cache_read_input_tokens"`
				Output int `json:"output_tokens"`
			}
		}
		w := b.post(messagesPath, askMessage(stop), "anthropic-version", "2023-06-01", "x-api-key", "k")
		call := e.call(t, 2)
		if !slices.Equal(call.req.Prompt, prompt) {
			t.Errorf("prompt %v, of the chat %v", call.req.Prompt, prompt)
		}
		call.send(said(t, text+"STOP and more")...)
		a := w.answer()
		if err := json.Unmarshal(a.body, &whole); err != nil || a.status != 200 || !a.whole {
			t.Fatalf("status %d, %s: %v", a.status, a.body, err)
		}
		if len(whole.Content) != 1 || whole.Content[0].Text != text || whole.Reason != "stop_sequence" || whole.Stop != "STOP" || whole.ID != "msg_"+w.id {
			t.Errorf("%s", a.body)
		}
		if whole.Usage.Input != len(prompt) || whole.Usage.Output == 0 || a.header.Get("Request-Id") != w.id {
			t.Errorf("%s, head %v", a.body, a.header)
		}
		if !call.aborted() {
			t.Error("the engine was not told to stop")
		}

		s := b.post(messagesPath+"?beta=true", askMessage(`,"stream":true`))
		call = e.call(t, 3)
		for _, id := range said(t, text) {
			call.send(id)
			s.answer()
		}
		call.end(infer.ReasonLength)
		a = s.answer()
		want := []string{"message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}
		if !slices.Equal(a.names(), want) || !a.whole || !strings.Contains(string(a.body), `"stop_reason":"max_tokens"`) {
			t.Errorf("%v\n%s", a.names(), a.body)
		}
		b.wantRecord(s, "finished", "")

		n := b.post(messagesPath+"/count_tokens", strings.Replace(askMessage(`,"system":"s"`), `"max_tokens":100,`, "", 1))
		var count struct {
			Tokens int `json:"input_tokens"`
		}
		if a := n.answer(); json.Unmarshal(a.body, &count) != nil || count.Tokens != len(prompt) {
			t.Errorf("%s, want %d", a.body, len(prompt))
		}
		b.wantRecord(n, "finished", "")
		if got := len(e.calls); got != 3 {
			t.Errorf("the engine heard of %d requests, want 3", got)
		}
	})
}

// A stream that breaks ends with an error event of the dialect; what fails
// before the first output goes elsewhere, and what is refused has its shape.
func TestMessagesErrors(t *testing.T) {
	e, other := &tokenEngine{name: "a"}, &tokenEngine{name: "b"}
	opts := Options{MaxBody: 1000}
	inBubble(t, opts, []any{e, other}, func(t *testing.T, b *bench) {
		refused := func(c *caller, status int, kind, says string) {
			t.Helper()
			a := c.answer()
			var body struct {
				Type  string
				Error struct{ Type, Message string }
			}
			if err := json.Unmarshal(a.body, &body); err != nil || a.status != status || body.Type != "error" || body.Error.Type != kind || !strings.Contains(body.Error.Message, says) {
				t.Errorf("status %d, %s (%v); want %d, %s, %q", a.status, a.body, err, status, kind, says)
			}
		}
		refused(b.post(messagesPath, `{"model":`), 400, "invalid_request_error", "not valid JSON")
		refused(b.post(messagesPath, askMessage(`,"n":1`)), 400, "invalid_request_error", `"n"`)
		refused(b.post(messagesPath, askMessage(strings.Repeat(" ", 1000))), 413, "request_too_large", "1000 bytes")
		refused(b.post(messagesPath, strings.Replace(askMessage(``), models.SimName, "x", 1)), 404, "not_found_error", `"x"`)
		refused(b.post(messagesPath, askMessage(``), "Content-Encoding", "gzip"), 415, "invalid_request_error", "gzip")
		refused(b.post(messagesPath+"/count_tokens", askMessage(``)), 400, "invalid_request_error", "max_tokens")

		c := b.post(messagesPath, askMessage(`,"stream":true`))
		var call *call
		if len(e.calls) == 1 {
			call = e.call(t, 1)
		} else {
			call = other.call(t, 1)
		}
		call.send(said(t, "some words")...)
		c.answer()
		call.fail(infer.CodeEngine, true)
		a := c.answer()
		names := a.names()
		if a.whole || !a.closed || names[len(names)-1] != "error" || slices.Contains(names, "message_stop") ||
			!strings.HasSuffix(string(a.body), "\n\n") || !strings.Contains(string(a.body), `{"type":"error","error":{"type":"api_error",`) {
			t.Errorf("whole %v, closed %v: %s", a.whole, a.closed, a.body)
		}
		b.wantRecord(c, "failed", "engine")
	})
}
