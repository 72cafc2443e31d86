package allow

import (
	"fmt"
	"slices"
	"strings"

	"weir/internal/infer"
)

// relayed are the paths at which vLLM 0.33 and SGLang 0.5.23 answer clients: from
// vllm/entrypoints/**/api_router.py and sglang/srt/entrypoints/http_server.py, those
// below /v1/. Not among them are the ones by which a server is managed (load_lora_adapter
// and unload_lora_adapter below /v1/, and all others elsewhere), nor those that hand out
// the parts of a request (render, derender).
var relayed = []string{
	"/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses",
	"/v1/messages", "/v1/messages/count_tokens",
	"/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify", "/v1/decisions", "/v1/systemone",
	"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech",
	"/v1/tokenize", "/v1/detokenize", "/tokenize", "/detokenize",
}

// Paths are the paths that are relayed. The zero value has the paths of vLLM and
// SGLang that clients use.
type Paths struct{ more []string }

// RelayPaths adds paths. A path that ends with a slash adds all paths below it.
func RelayPaths(more []string) (Paths, error) {
	for _, path := range more {
		if err := plainPath(path); err != nil {
			return Paths{}, fmt.Errorf("%q: %w; want a path such as /v1/images/generations, or /v1/images/ for all below it", path, err)
		}
	}
	return Paths{more}, nil
}

// More returns the paths that were added.
func (p Paths) More() []string { return slices.Clone(p.more) }

// Has reports whether a path is relayed.
func (p Paths) Has(path string) bool {
	return slices.Contains(relayed, path) || slices.ContainsFunc(p.more, func(more string) bool {
		return path == more || strings.HasSuffix(more, "/") && strings.HasPrefix(path, more)
	})
}

// Added reports whether a path is relayed only because it was added. The effect of a
// request to such a path is not known.
func (p Paths) Added(path string) bool { return p.Has(path) && !slices.Contains(relayed, path) }

// CheckPlain refuses a path of a request line that a server behind weir could read as
// another path.
func CheckPlain(escaped string) error {
	if err := plainPath(escaped); err != nil {
		return infer.Errorf(infer.CodeInvalid, "%v, which is not relayed; write the path plainly", err)
	}
	return nil
}
