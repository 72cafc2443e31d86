package vllm

import (
	"bytes"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim/simserver/completion"
	"weir/internal/sim/simserver/web"
)

// vLLM serves OpenAI's Responses and Anthropic's Messages by converting the request to a
// chat, and the parsed parts of the chat's answer to the API's answer. This file does the
// same.

// served serves an API whose requests are converted to chats. accept reads a body and
// returns the chat and the form of its answer. Errors in the body itself have vLLM's own
// format in every API; refuse writes the others.
func (f *Server) served(accept func(a *completion.Answer, body []byte) (*completion.Request, completion.API, error), refuse func(http.ResponseWriter, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a := f.completions.NewAnswer(w, r, completion.Chat)
		var body []byte
		err := web.WantJSON(r)
		if err == nil {
			body, err = web.ReadBody(w, r)
		}
		var req *completion.Request
		var as completion.API
		if err == nil {
			req, as, err = accept(a, body)
		}
		if err != nil {
			a.Serve(nil, err, nil, func(err error) { web.WriteVLLMError(w, err) })
			return
		}
		requests, err := a.Prepare(req)
		a.Serve(requests, err, as, func(err error) { refuse(w, err) })
	}
}

// chatMessage is a message of the chat that a request is made into.
type chatMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content,omitempty"` // a string, or parts
	Reasoning  string     `json:"reasoning,omitempty"`
	ToolCalls  []chatCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type chatCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

func newChatCall(id, name, arguments string) chatCall {
	c := chatCall{ID: id, Type: "function"}
	c.Function.Name, c.Function.Arguments = name, arguments
	return c
}

// chatPart is a part of a message's content.
type chatPart struct {
	Type  string `json:"type"`
	Text  string `json:"text,omitempty"`
	Image *struct {
		URL string `json:"url"`
	} `json:"image_url,omitempty"`
}

func imagePart(url string) chatPart {
	p := chatPart{Type: "image_url"}
	p.Image = &struct {
		URL string `json:"url"`
	}{url}
	return p
}

// chatTool is a tool of the chat.
type chatTool struct {
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name        string         `json:"name"`
	Description string         `json:"description,omitempty"`
	Parameters  jsontext.Value `json:"parameters,omitempty"`
	Strict      *bool          `json:"strict,omitempty"`
}

// chatJSON is a part of a chat as JSON.
func chatJSON(param string, v any) (jsontext.Value, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, infer.Invalid(param, "%s: %v", param, err)
	}
	return b, nil
}

// sendEvent appends an event with its name; write appends its JSON.
func sendEvent(b []byte, name string, data any) []byte {
	b = append(b, "event: "...)
	b = append(b, name...)
	b = append(b, "\ndata: "...)
	b = append(b, marshal(data)...)
	return append(b, "\n\n"...)
}

// marshal returns the JSON of a value of our own types, with names in the order of their
// fields, or, of maps, sorted.
func marshal(v any) []byte {
	var buf bytes.Buffer
	if err := json.MarshalWrite(&buf, v, json.Deterministic(true)); err != nil {
		panic(err) // all bodies are our own types
	}
	return buf.Bytes()
}
