package prepare

import (
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/allow"
	"weir/internal/dialect/anthropic"
	"weir/internal/dialect/openai"
	"weir/internal/dialect/sglang"
)

// A path's errors are in its dialect from the beginning.
func TestEndpointOf(t *testing.T) {
	all := newServices(sglang.New(sglang.Options{}))
	relayed, err := allow.RelayPaths([]string{"/v1/messages/batches/"})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]dialect.Endpoint{
		"/v1/messages": anthropic.Messages, "/v1/messages/": anthropic.Messages, "/v1/messages/batches": anthropic.Messages,
		"/v1/messages/batches/": openai.Other, "/v1/messages/batches/7/results": openai.Other, "/v1/messagesbatches": openai.Other,
		"/v1/chat/completions": openai.Chat, "/v1/completions": openai.Completions, "/v1/tokenize": openai.Tokenize,
		"/detokenize": openai.Detokenize, "/v1/embeddings": openai.Other, "other": openai.Other, "": openai.Other,
	} {
		if got := all.endpointOf(path, relayed); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}
