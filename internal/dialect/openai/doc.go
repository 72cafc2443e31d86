// Package openai is the OpenAI API as weir speaks it: what a request body
// asks for, and the bytes that answer it. It holds no connection and starts
// nothing.
//
// A body is read in two steps, because which engines a model has is known only
// once its name is:
//
//   - [Endpoint.ParseHead] passes over the JSON once, notes where each top-level field
//     stands and reads the few that steer the gateway. A relayed request needs
//     no more: its bytes go on as they came, with at most the model's name
//     spliced in ([dialect.Head.Splice]).
//   - [Endpoint.Request] decodes every field for an engine that takes ids. A field that changes
//     the answer and that such an engine cannot carry is refused by name. A field that asks for
//     a service beside the answer is left out and named. [Fields] lists how each field is
//     treated. [DecodeTokenize] and [DecodeDetokenize] do the same for the endpoints that ask a
//     tokenizer.
//
// Both steps want one JSON object in UTF-8. Bytes that are not UTF-8 are refused, since no engine
// can read them either. A relay passes names that occur twice, except those that weir itself acts
// on (model, stream, n, stream_options), and an escape that is half a surrogate pair: both are
// JSON, and judging them is the engine's business. For an engine that takes ids weir is the judge,
// and both are refused in every field that it reads.
//
// Answers are appended to the caller's buffer, by the request's encoder
// ([dialect.Encoder]), and refusals by [AppendError]. Appending a chunk allocates
// nothing.
package openai

import "weir/internal/dialect"

// Endpoint is a path of the API.
type Endpoint uint8

// The endpoints. Those that weir can only relay are all Other.
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
