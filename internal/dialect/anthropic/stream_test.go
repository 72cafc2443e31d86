package anthropic

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/wire/sse"
)

// said is a part of an answer: text, reasoning, or a call with its arguments.
type said struct {
	kind     kind
	id, name string
	text     string
}

// say tells an encoder an answer, each text in the pieces that cut gives.
func say(e dialect.Encoder, parts []said, cut func(string) []string, f dialect.Finish, u infer.Usage) []byte {
	out := e.AppendStart(nil, 0)
	calls := 0
	for _, p := range parts {
		switch p.kind {
		case toolUse:
			out = e.AppendCall(out, 0, calls, p.id, p.name)
			calls++
			for _, piece := range cut(p.text) {
				out = e.OpenDelta(out, 0, dialect.DeltaArguments, calls-1)
				out = e.CloseDelta(e.AppendDelta(out, []byte(piece)))
			}
		case thinking:
			for _, piece := range cut(p.text) {
				out = e.OpenDelta(out, 0, dialect.DeltaReasoning, 0)
				out = e.CloseDelta(e.AppendDelta(out, []byte(piece)))
			}
		default:
			for i, piece := range cut(p.text) {
				switch i % 3 {
				case 0:
					out = e.AppendText(out, 0, []byte(piece))
				case 1:
					out = e.OpenDelta(out, 0, dialect.DeltaContent, 0)
					_, n := utf8.DecodeRuneInString(piece)
					out = e.CloseDelta(e.AppendDelta(e.AppendDelta(out, []byte(piece[:n])), []byte(piece[n:])))
				default:
					out = e.AppendTokens(out, 0, []byte(piece), dialect.Tokens{IDs: []uint32{1}})
				}
			}
		}
	}
	out = e.AppendFinish(out, 0, f)
	return e.AppendEnd(out, u)
}

func inOnePiece(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// The events of a stream, and the whole answer with the same content.
func TestAnswerGolden(t *testing.T) {
	o := dialect.AnswerOptions{ID: "req-1", Model: `a"b`, PromptIDs: []uint32{1, 2, 3}}
	parts := []said{{kind: thinking, text: "hm\n"}, {kind: text, text: "I \"look\"."}, {kind: toolUse, id: "t1", name: "f", text: `{"a":1}`}, {kind: toolUse, id: "t2", name: "g"}}
	usage := infer.Usage{PromptTokens: 3, CompletionTokens: 9, CachedTokens: 2}
	got := string(say(newEncoder(true, false)(o), parts, inOnePiece, dialect.Finish{Reason: infer.ReasonToolCalls}, usage))
	const want = `event: message_start
data: {"type":"message_start","message":{"id":"msg_req-1","type":"message","role":"assistant","model":"a\"b","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0,"service_tier":"standard"}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm\n"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"unsigned"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"I \"look\"."}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t1","name":"f","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"t2","name":"g","input":{}}}

event: content_block_stop
data: {"type":"content_block_stop","index":3}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":1,"cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":9,"service_tier":"standard"}}

event: message_stop
data: {"type":"message_stop"}

`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got = string(say(newEncoder(false, false)(o), parts, inOnePiece, dialect.Finish{Reason: infer.ReasonStop, Stop: "\n"}, usage))
	const whole = `{"id":"msg_req-1","type":"message","role":"assistant","model":"a\"b","content":[` +
		`{"type":"thinking","thinking":"hm\n","signature":"unsigned"},{"type":"text","text":"I \"look\"."},` +
		`{"type":"tool_use","id":"t1","name":"f","input":{"a":1}},{"type":"tool_use","id":"t2","name":"g","input":{}}],` +
		`"stop_reason":"stop_sequence","stop_sequence":"\n","usage":{"input_tokens":1,"cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":9,"service_tier":"standard"}}`
	if diff := cmp.Diff(whole, got); diff != "" {
		t.Error(diff)
	}
}

// Arguments that are no object stay readable, and the answer JSON.
func TestInputThatIsNone(t *testing.T) {
	for arguments, want := range map[string]string{
		"":               `{}`,
		" {\"a\": 1}\n":  `{"a": 1}`,
		`{"a":1,"a":2}`:  `{"a":1,"a":2}`,
		`{"city": "Par`:  `{"INVALID_JSON":"{\"city\": \"Par"}`,
		`[1]`:            `{"INVALID_JSON":"[1]"}`,
		`get_weather(7)`: `{"INVALID_JSON":"get_weather(7)"}`,
	} {
		if got := string(appendInput(nil, []byte(arguments))); got != want || !json.Valid([]byte(got)) {
			t.Errorf("%q became %s, want %s", arguments, got, want)
		}
	}
}

type message struct {
	Content []map[string]any `json:"content"`
	Reason  *string          `json:"stop_reason"`
	Stop    *string          `json:"stop_sequence"`
	Usage   map[string]any   `json:"usage"`
}

// assemble puts a stream's message together as official clients do, strictly.
func assemble(stream []byte) (*message, error) {
	var p sse.Parser
	p.Feed(stream)
	var m *message
	open, ended := -1, false
	var input string
	for ev, ok := p.Next(); ok; ev, ok = p.Next() {
		var e struct {
			Type    string
			Message *message
			Index   int
			Block   map[string]any `json:"content_block"`
			Delta   struct {
				Type, Text, Thinking, Signature string
				Partial                         string  `json:"partial_json"`
				Reason                          *string `json:"stop_reason"`
				Stop                            *string `json:"stop_sequence"`
			}
			Usage map[string]any
		}
		if err := json.Unmarshal(ev.Data, &e); err != nil {
			return nil, fmt.Errorf("%q: %w", ev.Data, err)
		}
		if string(ev.Name) != e.Type || ended {
			return nil, fmt.Errorf("event %q is %s, ended %v", ev.Name, ev.Data, ended)
		}
		if m == nil != (e.Type == "message_start") {
			return nil, fmt.Errorf("%s at the wrong place", ev.Data)
		}
		switch e.Type {
		case "message_start":
			m = e.Message
		case "ping":
		case "content_block_start":
			if open >= 0 || e.Index != len(m.Content) {
				return nil, fmt.Errorf("block %d begins, %d is open", e.Index, open)
			}
			open, input = e.Index, ""
			m.Content = append(m.Content, e.Block)
		case "content_block_delta", "content_block_stop":
			if open < 0 || e.Index != open {
				return nil, fmt.Errorf("%s while %d is open", ev.Data, open)
			}
			b := m.Content[open]
			switch e.Delta.Type {
			case "text_delta":
				b["text"] = b["text"].(string) + e.Delta.Text
			case "thinking_delta":
				b["thinking"] = b["thinking"].(string) + e.Delta.Thinking
			case "signature_delta":
				b["signature"] = e.Delta.Signature
			case "input_json_delta":
				input += e.Delta.Partial
			}
			if e.Type == "content_block_stop" {
				if open = -1; input != "" {
					var v map[string]any
					if err := json.Unmarshal(appendInput(nil, []byte(input)), &v); err != nil {
						return nil, err
					}
					b["input"] = v
				}
			}
		case "message_delta":
			m.Reason, m.Stop, m.Usage = e.Delta.Reason, e.Delta.Stop, e.Usage
		case "message_stop":
			ended = open < 0 && m.Reason != nil
		default:
			return nil, fmt.Errorf("an event of type %q", e.Type)
		}
	}
	if !ended || p.Partial() {
		return nil, errors.New("the stream is not complete")
	}
	return m, nil
}

// However an answer comes in pieces, its stream says the same, and the same as
// the whole answer; a beginning of the stream never looks complete.
func TestStreamedAndWholeAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) said {
			p := said{kind: rapid.SampledFrom([]kind{text, thinking, toolUse}).Draw(t, "kind")}
			p.text = rapid.StringN(1, 20, -1).Draw(t, "text")
			if p.kind == toolUse {
				p.id, p.name = rapid.StringMatching(`[a-z"]{1,5}`).Draw(t, "id"), "f"
				p.text = rapid.SampledFrom([]string{"", "{}", `{"a":"é\n"}`, `{"a":`, "x"}).Draw(t, "arguments")
			}
			return p
		}), 0, 6).Draw(t, "parts")
		omit := rapid.Bool().Draw(t, "omit")
		finish := rapid.SampledFrom([]dialect.Finish{{Reason: infer.ReasonStop}, {Reason: infer.ReasonLength}, {Reason: infer.ReasonToolCalls}, {Reason: infer.ReasonToolCalls, Stop: "é"}}).Draw(t, "finish")
		usage := infer.Usage{PromptTokens: 7, CompletionTokens: 4, CachedTokens: rapid.IntRange(-1, 7).Draw(t, "cached")}
		cut := func(s string) (pieces []string) {
			for runes := []rune(s); len(runes) > 0; {
				n := rapid.IntRange(1, len(runes)).Draw(t, "piece")
				pieces, runes = append(pieces, string(runes[:n])), runes[n:]
			}
			return pieces
		}
		o := dialect.AnswerOptions{ID: "1", Model: "m", PromptIDs: make([]uint32, 7)}
		stream := say(newEncoder(true, omit)(o), parts, cut, finish, usage)
		got, err := assemble(stream)
		if err != nil {
			t.Fatalf("%v in %s", err, stream)
		}
		var want message
		if err := json.Unmarshal(say(newEncoder(false, omit)(o), parts, inOnePiece, finish, usage), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Fatalf("%s in %s", diff, stream)
		}
		if _, err := assemble(stream[:rapid.IntRange(0, len(stream)-1).Draw(t, "cut off")]); err == nil {
			t.Fatal("a part of the stream looks complete")
		}
	})
}

func TestDeltasAllocateNothing(t *testing.T) {
	s := newEncoder(true, false)(dialect.AnswerOptions{ID: "1", Model: "m", PromptIDs: []uint32{1}})
	buf := make([]byte, 0, 4096)
	s.AppendStart(buf, 0)
	word := []byte("tök\"n")
	s.AppendText(buf, 0, word)
	n := testing.AllocsPerRun(100, func() {
		b := s.AppendText(buf, 0, word)
		b = s.OpenDelta(b, 0, dialect.DeltaReasoning, 0)
		b = s.CloseDelta(s.AppendDelta(b, word))
		s.AppendFinish(b, 0, dialect.Finish{})
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Every code has a status and a type, in a body and in an event.
func TestErrors(t *testing.T) {
	for _, test := range []struct {
		err    infer.Error
		status int
		kind   string
	}{
		{infer.Error{Code: infer.CodeInvalid}, http.StatusBadRequest, "invalid_request_error"},
		{infer.Error{Code: infer.CodeUnsupported}, http.StatusBadRequest, "invalid_request_error"},
		{infer.Error{Code: infer.CodeUnsupported, Param: "thread"}, http.StatusBadRequest, "invalid_request_error"},
		{infer.Error{Code: infer.CodeContext}, http.StatusBadRequest, "invalid_request_error"},
		{infer.Error{Code: infer.CodeUnauthorized}, http.StatusUnauthorized, "authentication_error"},
		{infer.Error{Code: infer.CodeNotFound}, http.StatusNotFound, "not_found_error"},
		{infer.Error{Code: infer.CodeMethod}, http.StatusMethodNotAllowed, "invalid_request_error"},
		{infer.Error{Code: infer.CodeBodyTimeout}, http.StatusRequestTimeout, "invalid_request_error"},
		{infer.Error{Code: infer.CodeTooLarge}, http.StatusRequestEntityTooLarge, "request_too_large"},
		{infer.Error{Code: infer.CodeMediaType}, http.StatusUnsupportedMediaType, "invalid_request_error"},
		{infer.Error{Code: infer.CodeCancelled}, 499, "invalid_request_error"},
		{infer.Error{Code: infer.CodeSlowClient}, 499, "invalid_request_error"},
		{infer.Error{Code: infer.CodeInternal}, http.StatusInternalServerError, "api_error"},
		{infer.Error{Code: infer.CodeEngine}, http.StatusBadGateway, "api_error"},
		{infer.Error{Code: infer.CodeIntegrity}, http.StatusBadGateway, "api_error"},
		{infer.Error{Code: infer.CodeUnavailable}, http.StatusServiceUnavailable, "api_error"},
		{infer.Error{Code: infer.CodeShutdown}, http.StatusServiceUnavailable, "api_error"},
		{infer.Error{Code: infer.CodeDeadline}, http.StatusServiceUnavailable, "timeout_error"},
		{infer.Error{Code: infer.CodeDeadline, Engine: "a"}, http.StatusGatewayTimeout, "timeout_error"},
		{infer.Error{Code: infer.CodeOverloaded}, StatusOverloaded, "overloaded_error"},
	} {
		e := test.err
		e.Message = "it \"broke\""
		want := `{"type":"error","error":{"type":"` + test.kind + `","message":"it \"broke\""}}`
		if got := Messages.Status(&e); got != test.status {
			t.Errorf("%v: status %d, want %d", e.Code, got, test.status)
		}
		if test.err.Param != "" {
			want = strings.TrimSuffix(want, "}}") + `,"details":{"error_code":"thread_unsupported_request","unsupported":["thread"]}}}`
		}
		if got := string(Messages.AppendError(nil, &e)); got != want {
			t.Errorf("%v: %s", e.Code, got)
		}
		event := "event: error\ndata: " + want + "\n\n"
		if got := string(newEncoder(true, false)(dialect.AnswerOptions{}).AppendError(nil, &e)); got != event {
			t.Errorf("%v: %q", e.Code, got)
		}
		if got := string(CountTokens.AppendErrorEvent(nil, &e)); got != event || strings.Count(got, "\n\n") != 1 {
			t.Errorf("%v: %q", e.Code, got)
		}
	}
}
