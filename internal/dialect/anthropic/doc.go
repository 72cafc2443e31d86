// Package anthropic implements Anthropic's Messages API for weir's callers: it
// decodes request bodies and appends answers. It is a dialect (package dialect),
// holds no connection and starts no goroutine.
//
// A conversation is translated to the shape that chat templates take. The system
// prompt becomes the first message, tool_use blocks become tool calls, and a
// tool_result becomes a message of its own. Thinking becomes reasoning_content.
// Adjacent texts are joined by a line end. Every field of a body is carried, refused
// by name, or left out and named; [Fields] is the table, and docs/apis.md shows it.
//
// Answers have a content block for each stretch of reasoning, text and tool
// call, in the order in which the model wrote them.
package anthropic

import (
	"weir/internal/dialect"
	"weir/internal/infer"
)

// Endpoint is a path of the API.
type Endpoint uint8

// The endpoints.
const (
	Messages Endpoint = iota
	CountTokens
	numEndpoints
)

var endpointPaths = [numEndpoints]string{"/v1/messages", "/v1/messages/count_tokens"}

// String returns the endpoint's path.
func (e Endpoint) String() string { return endpointPaths[e] }

// Traits implements dialect.Endpoint.
func (e Endpoint) Traits() dialect.Traits {
	t := dialect.Traits{RequestIDField: "Request-Id", Ignored: ignoredHeads}
	if e == CountTokens {
		t.Wants = dialect.PromptLength
	}
	return t
}

// ignoredHeads are those of the table.
var ignoredHeads = []dialect.HeadField{
	{Name: "header anthropic-beta", Canonical: "Anthropic-Beta"},
	{Name: "header anthropic-user-profile-id", Canonical: "Anthropic-User-Profile-Id"},
	{Name: "header anthropic-workspace-id", Canonical: "Anthropic-Workspace-Id"},
}

// ParseHead implements dialect.Endpoint.
func (e Endpoint) ParseHead(body []byte) (*dialect.Head, error) {
	h, err := dialect.ParseHead(body, tables[e], func(h *dialect.Head, name string, value []byte) (err error) {
		if name == "stream" && e == Messages && dialect.KindOf(value) != 'n' {
			h.Stream, err = dialect.BoolOf(name, value)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return h, h.NeedModel()
}

var fieldNames = dialect.FieldNames{Prompt: "messages", MaxTokens: "max_tokens", MinTokens: "min_tokens"}

// Request implements dialect.Endpoint. A request of CountTokens has a prompt and asks
// for no answer.
func (e Endpoint) Request(h *dialect.Head, kind string, carries infer.Carries) (*dialect.Request, error) {
	if err := h.Unambiguous(); err != nil {
		return nil, err
	}
	d := &decoding{endpoint: e, Decoding: dialect.NewDecoding(e, h, kind, carries, &fieldNames)}
	d.CallPrefix = "toolu_"
	for _, at := range h.Fields {
		if err := d.field(at.Name, h.Body[at.Start:at.End]); err != nil {
			return nil, err
		}
	}
	if err := d.finish(); err != nil {
		return nil, err
	}
	return &d.Request, nil
}
