// Package openai implements the OpenAI API for weir's callers: it decodes request
// bodies and appends answers. It holds no connection and starts no goroutine.
//
// A body is read in two steps, because the engines are known only after the model's
// name has been read:
//
//   - [Endpoint.ParseHead] reads the JSON in one pass, records the position of each top-level field
//     and reads the few that steer the gateway. A relayed request needs no more: its bytes are
//     forwarded unchanged, with at most the model's name replaced ([dialect.Head.Splice]).
//   - [Endpoint.Request] decodes every field for an engine that takes ids. A field that changes
//     the answer and that such an engine cannot carry is refused by name. A field that asks for
//     a service beside the answer is left out and named. [Fields] lists how each field is
//     treated. [DecodeTokenize] and [DecodeDetokenize] do the same for the endpoints that ask a
//     tokenizer.
//
// Both steps require one JSON object in UTF-8, because no engine can read anything else. A relay
// accepts duplicate names, except those that weir itself acts on (model, stream, n,
// stream_options), and escapes that are half a surrogate pair. Both are JSON, and the engine
// judges them. For an engine that takes ids weir is the judge, and refuses both in every field
// that it reads.
//
// The request's encoder ([dialect.Encoder]) appends answers to a buffer of the
// caller's, and [AppendError] appends refusals. Appending a chunk allocates nothing.
package openai

import "weir/internal/dialect"

// Endpoint is a path of the API.
type Endpoint uint8

// The endpoints. Other stands for all those that weir can only relay.
const (
	Other Endpoint = iota
	Chat
	Completions
	Tokenize   // of vLLM and SGLang, not OpenAI
	Detokenize // of vLLM and SGLang, not OpenAI
	numEndpoints
)

var endpointPaths = [numEndpoints]string{"other", "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}

// Traits implements dialect.Endpoint.
func (e Endpoint) Traits() dialect.Traits {
	switch e {
	case Tokenize:
		return dialect.Traits{Wants: dialect.TokenIDs}
	case Detokenize:
		return dialect.Traits{Wants: dialect.Text}
	case Other:
		return dialect.Traits{RelaysOnly: true}
	}
	return dialect.Traits{}
}

// tokenizes reports whether the endpoint asks a tokenizer and no engine.
func (e Endpoint) tokenizes() bool { return e == Tokenize || e == Detokenize }

// String returns the endpoint's path, and "other" for Other.
func (e Endpoint) String() string { return endpointPaths[e] }

// ObjectID returns the id of the answer to a request: the endpoint's prefix and
// the request's own id.
func (e Endpoint) ObjectID(requestID string) string {
	if e == Completions {
		return "cmpl-" + requestID
	}
	return "chatcmpl-" + requestID
}
