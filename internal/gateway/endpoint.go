package gateway

import (
	"net/http"

	"weir/internal/anthropic"
	"weir/internal/api"
	"weir/internal/generate"
	"weir/internal/openai"
	"weir/internal/responses"
)

// endpoints are the paths that weir itself serves, each with the dialect that is
// spoken there. Another dialect joins by its endpoints' entries here.
var endpoints = map[string]api.Endpoint{
	"/v1/chat/completions":      openai.Chat,
	"/v1/completions":           openai.Completions,
	"/v1/messages":              anthropic.Messages,
	"/v1/messages/count_tokens": anthropic.CountTokens,
	responses.Path:              responses.Endpoint{},
	"/tokenize":                 openai.Tokenize,
	"/detokenize":               openai.Detokenize,
	"/v1/tokenize":              openai.Tokenize, // where SGLang has them too
	"/v1/detokenize":            openai.Detokenize,
	generate.Path:               generate.New(generate.Options{}), // but see Gateway.endpointOf
}

// endpointOf gives the endpoint of a path. What weir does not know it can relay.
func endpointOf(path string) api.Endpoint {
	if e, ok := endpoints[path]; ok {
		return e
	}
	return openai.Other
}

// endpointOf is endpointOf with the gateway's own settings.
func (g *Gateway) endpointOf(path string) api.Endpoint {
	if path == generate.Path {
		return g.generate
	}
	return endpointOf(path)
}

// tokenizes says whether an endpoint asks a tokenizer and no engine.
func tokenizes(e api.Endpoint) bool { return e == openai.Tokenize || e == openai.Detokenize }

// counts says whether an endpoint asks for a prompt's length and no answer.
func counts(e api.Endpoint) bool { return e == anthropic.CountTokens }

// setRequestID puts a request's id into a response's head: where every caller
// finds it, and where those of the endpoint's dialect look for it.
func setRequestID(h http.Header, e api.Endpoint, id string) {
	h.Set("X-Request-Id", id)
	if _, ok := e.(anthropic.Endpoint); ok {
		h.Set("Request-Id", id)
	}
}

// endpointLabel keeps the label's values few, whatever clients ask for.
func endpointLabel(path string) string {
	if _, ok := endpoints[path]; ok {
		return path
	}
	switch path {
	case "/v1/embeddings", "/v1/rerank":
		return path
	}
	return otherEndpoint
}

// otherEndpoint is the label of paths that a relay may know and weir does not.
const otherEndpoint = "other"
