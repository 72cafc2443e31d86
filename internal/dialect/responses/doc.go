// Package responses implements the stateless part of OpenAI's Responses API for
// weir's callers: POST /v1/responses, whole and streamed. It holds no connection and
// starts no goroutine.
//
// A body's input is a list of items: messages, calls of functions and their outputs,
// reasoning. [Endpoint.Request] translates it to the conversation that chat templates
// take. It refuses by name what needs a server that keeps answers, and what no engine
// here can do. [Fields] lists how each field is treated.
//
// The answer is a list of items too. The encoder opens an item when the output
// changes to reasoning, text or a call, and closes it at the next change. A stream
// and a whole answer have the same items in the same order.
//
// weir keeps no answers. A request that refers to an earlier one is refused, and the
// error states what to send instead.
package responses

import (
	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/internal/infer"
)

// Path is where the API is served.
const Path = "/v1/responses"

// Endpoint is the API's one path that generates.
type Endpoint struct{}

// String implements dialect.Endpoint.
func (Endpoint) String() string { return Path }

// Traits implements dialect.Endpoint.
func (Endpoint) Traits() dialect.Traits { return dialect.Traits{Ignored: ignoredHeads} }

// ignoredHeads are those of the table.
var ignoredHeads = []dialect.HeadField{{Name: "header openai-beta", Canonical: "Openai-Beta"}}

// ParseHead implements dialect.Endpoint.
func (Endpoint) ParseHead(body []byte) (*dialect.Head, error) {
	h, err := dialect.ParseHead(body, names, takeHead)
	if err != nil {
		return nil, err
	}
	return h, h.NeedModel()
}

// takeHead reads the fields that steer the gateway.
func takeHead(h *dialect.Head, name string, value []byte) (err error) {
	if name == "stream" && dialect.KindOf(value) != 'n' {
		h.Stream, err = dialect.BoolOf(name, value)
	}
	return err
}

// NewInspector implements dialect.Endpoint.
func (Endpoint) NewInspector(*dialect.Head) dialect.Inspector { return new(Inspector) }

// Errors have the shape of the other APIs of OpenAI.

// Status implements dialect.Endpoint.
func (Endpoint) Status(e *infer.Error) int { return openai.ClassOf(e).Status }

// AppendError implements dialect.Endpoint.
func (Endpoint) AppendError(dst []byte, e *infer.Error) []byte { return openai.AppendError(dst, e) }

// AppendErrorEvent implements dialect.Endpoint. The event has no sequence_number,
// because the number of the engine's latest event is not known here.
func (Endpoint) AppendErrorEvent(dst []byte, e *infer.Error) []byte {
	dst = append(dst, "event: error\ndata: "...)
	dst = appendErrorMembers(append(dst, `{"type":"error"`...), e)
	return append(dst, "}\n\n"...)
}

// Stateless is the error for a path that refers to a stored answer.
func Stateless(path string) *infer.Error {
	return infer.Errorf(infer.CodeNotFound, "there is nothing at %s: weir keeps no answers, so none can be fetched, listed, cancelled or deleted; "+
		"the answer to POST %s is all there is of it, and a conversation goes on by sending its items in input", path, Path)
}
