package gateway

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir/internal/gateway/front"
	"weir/internal/infer"
	"weir/models"
)

const messagesPath = "/v1/messages"

// askMessage is a body of Anthropic's API.
func askMessage(fields string) string {
	return `{"model":"` + models.SimName + `","max_tokens":100,"messages":[{"role":"user","content":"Hello"}]` + fields + `}`
}

// names gives the names of a stream's events, each once in a row.
func (a *received) names() (names []string) {
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
		if got := len(e.handed()); got != 3 {
			t.Errorf("the engine heard of %d requests, want 3", got)
		}
	})
}

// A stream that breaks ends with an error event of the dialect; what fails
// before the first output goes elsewhere, and what is refused has its shape.
func TestMessagesErrors(t *testing.T) {
	e, other := &tokenEngine{name: "a"}, &tokenEngine{name: "b"}
	opts := Options{Front: front.Options{MaxBody: 1000}}
	opts.Attempt.Continue.Off = true
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
		if len(e.handed()) == 1 {
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

const (
	messageBegin = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"a\",\"content\":[],\"usage\":{\"input_tokens\":3,\"output_tokens\":0}}}\n\n" +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
	messageWord = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n"
	messageEnd  = "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":4}}\n\n" +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
)

// A relay passes the API's bytes as they are, both ways, and counts what they
// say; count_tokens is the engine's to answer.
func TestMessagesRelayed(t *testing.T) {
	r := &relayEngine{name: "a"}
	inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
		const body = `{"model":"relayed","x-own" : 1e999,"stream":true,"messages":[{"role":"user","content":[{"type":"image"}]}]}`
		c := b.post(messagesPath, body, "anthropic-version", "2023-06-01", "x-api-key", "k")
		f := r.forward(t, 1)
		if string(f.req.Body) != body || f.req.Header.Get("X-Api-Key") != "k" || f.req.Header.Get("Anthropic-Version") != "2023-06-01" {
			t.Errorf("the engine got %s, %v", f.req.Body, f.req.Header)
		}
		f.send(messageBegin, messageWord, messageEnd)
		f.end()
		if a := c.answer(); string(a.body) != messageBegin+messageWord+messageEnd || !a.whole {
			t.Errorf("the client has %q, whole %v", a.body, a.whole)
		}
		if rec := b.wantRecord(c, "finished", ""); rec.Prompt != 3 || rec.Completion != 4 {
			t.Errorf("record %+v", rec)
		}
		n := b.post(messagesPath+"/count_tokens", `{"model":"relayed","messages":7}`)
		f = r.forward(t, 2)
		if f.req.Path != messagesPath+"/count_tokens" {
			t.Errorf("path %s", f.req.Path)
		}
		f.send("data: {}\n\n")
		f.end()
		if a := n.answer(); !a.whole || a.status != 200 {
			t.Errorf("%d, %s", a.status, a.body)
		}
		b.wantRecord(n, "finished", "")
	})
}

// A relayed stream that is cut, or does not add up, ends with an error event of
// the dialect and a broken connection.
func TestMessagesRelayBreaks(t *testing.T) {
	for name, play := range map[string]func(f *forward){
		"cut inside an event":       func(f *forward) { f.send(messageEnd[:30]); f.end() },
		"without message_stop":      func(f *forward) { f.end() },
		"broken":                    func(f *forward) { f.fail(true) },
		"delta of another block":    func(f *forward) { f.send(strings.Replace(messageWord, `"index":0`, `"index":1`, 1)) },
		"stopped without a reason":  func(f *forward) { f.send(messageEnd[strings.Index(messageEnd, "event: message_stop"):]) },
		"not JSON behind good ones": func(f *forward) { f.send(messageWord[:0] + "event: ping\ndata: {\n\n") },
	} {
		t.Run(name, func(t *testing.T) {
			r := &relayEngine{name: "a"}
			inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
				c := b.post(messagesPath, `{"model":"relayed","stream":true,"messages":[]}`)
				f := r.forward(t, 1)
				f.send(messageBegin, messageWord)
				play(f)
				a := c.answer()
				rest, ok := strings.CutPrefix(string(a.body), messageBegin+messageWord)
				if !ok || a.whole || !a.closed || !strings.HasPrefix(rest, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",") || strings.Count(rest, "\n\n") != 1 {
					t.Errorf("whole %v, closed %v: %q", a.whole, a.closed, rest)
				}
				if rec := b.record(c); rec.Outcome != "failed" {
					t.Errorf("record %+v", rec)
				}
			})
		})
	}
}
