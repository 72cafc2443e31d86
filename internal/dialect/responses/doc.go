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
	"strconv"

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

// AppendErrorEvent implements dialect.Endpoint, for a stream of which no number is known.
func (Endpoint) AppendErrorEvent(dst []byte, e *infer.Error) []byte {
	return appendErrorEvent(append(dst, "event: error\ndata: {\"type\":\"error\""...), e)
}

// AppendErrorEvent appends an error as the last event of the stream that was inspected, with the
// number that follows the engine's latest.
func (in *Inspector) AppendErrorEvent(dst []byte, e *infer.Error) []byte {
	dst = append(dst, "event: error\ndata: {\"type\":\"error\""...)
	if in.counts {
		dst = strconv.AppendInt(append(dst, `,"sequence_number":`...), in.next, 10)
	}
	return appendErrorEvent(dst, e)
}

// appendErrorEvent ends an event that has begun with what it says of an error. It says why twice:
// OpenAI's clients raise what is under error, and readers of OpenAI's own form find it beside the
// type.
func appendErrorEvent(dst []byte, e *infer.Error) []byte {
	dst = appendErrorMembers(dst, e)
	dst = append(dst, `,"error":{"type":`...)
	dst = dialect.AppendString(dst, openai.ClassOf(e).Type)
	return append(appendErrorMembers(dst, e), "}}\n\n"...)
}

// Stateless is the error for a path that refers to a stored answer.
func Stateless(path string) *infer.Error {
	return infer.Errorf(infer.CodeNotFound, "there is nothing at %s: weir keeps no answers, so none can be fetched, listed, cancelled or deleted; "+
		"the answer to POST %s is all there is of it, and a conversation goes on by sending its items in input", path, Path)
}
