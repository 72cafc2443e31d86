package prepare

import (
	"mime"
	"net/http"
	"slices"
	"strings"

	"weir/internal/dialect"
	"weir/internal/dialect/allow"
	"weir/internal/dialect/anthropic"
	"weir/internal/dialect/openai"
	"weir/internal/dialect/responses"
	"weir/internal/infer"
)

// Service is what is served at a path: an endpoint of a dialect, by the methods
// that it takes.
type Service struct {
	dialect.Endpoint
	Methods []string
}

// Services are those of the paths that weir knows. Another dialect joins by its
// endpoints' entries in newServices.
type Services map[string]Service

func newServices(own dialect.Endpoint) Services {
	all := Services{
		own.String(): {own, []string{http.MethodPost, http.MethodPut}}, // as SGLang takes it
	}
	for path, e := range map[string]dialect.Endpoint{
		"/v1/chat/completions":      openai.Chat,
		"/v1/completions":           openai.Completions,
		"/v1/messages":              anthropic.Messages,
		"/v1/messages/count_tokens": anthropic.CountTokens,
		responses.Path:              responses.Endpoint{},
		"/tokenize":                 openai.Tokenize,
		"/detokenize":               openai.Detokenize,
		"/v1/tokenize":              openai.Tokenize, // where SGLang has them too
		"/v1/detokenize":            openai.Detokenize,
		"/v1/embeddings":            openai.Other,
		"/v1/rerank":                openai.Other,
	} {
		all[path] = Service{e, []string{http.MethodPost}}
	}
	return all
}

// endpointOf returns the endpoint of a path, in whose form its errors are. A path that
// weir does not know can be relayed.
func (s Services) endpointOf(path string, relayed allow.Paths) dialect.Endpoint {
	if at, ok := s[path]; ok {
		return at.Endpoint
	}
	if strings.HasPrefix(path, belowMessages) && !relayed.Has(path) {
		return anthropic.Messages // which refuses it to a client that reads only such errors
	}
	return openai.Other
}

// Check refuses a request by its path, its method, or the type of its body. allowed are the methods
// of a path that does not take the request's.
func (pr *Preparer) Check(path, method string, h http.Header) (allowed string, err error) {
	if allowed, err = pr.Services.method(path, method, pr.opts.Allow.Paths); err == nil {
		err = contentType(h)
	}
	return allowed, err
}

// Endpoint returns the endpoint of a path, in whose form its errors are.
func (pr *Preparer) Endpoint(path string) dialect.Endpoint {
	return pr.Services.endpointOf(path, pr.opts.Allow.Paths)
}

// belowMessages begins the paths of Anthropic's API that weir does not serve, such as
// those of batches.
const belowMessages = "/v1/messages/"

// DialectOf returns the name of the API to which an endpoint belongs.
func DialectOf(e dialect.Endpoint) string {
	switch e.(type) {
	case anthropic.Endpoint:
		return "anthropic"
	case responses.Endpoint:
		return "responses"
	case openai.Endpoint:
		return "openai"
	}
	return "generate"
}

// method refuses a request by its path, and by its method, with those that the path
// takes.
func (s Services) method(path, method string, relayed allow.Paths) (allowed string, err error) {
	at, ok := s[path]
	switch {
	case slices.Contains(at.Methods, method), !ok && method == http.MethodPost && relayed.Has(path):
		return "", nil
	case !ok && method == http.MethodPost && s.Meant(path) == "":
		return "", infer.Errorf(infer.CodeNotFound, "weir serves nothing at %s and does not relay it to engines; an operator can add the path with --relay-path", dialect.Clip(path, 128))
	case !ok:
		return "", s.NothingAt(path)
	}
	return strings.Join(at.Methods, ", "), infer.Errorf(infer.CodeMethod, "%s does not take %s; use %s", path, method, at.Methods[0])
}

// twice begins the paths of a client that was given a base URL with /v1 and adds its
// own.
const twice = "/v1/v1/"

// Meant returns the path that a caller has put a slash behind or /v1 in front of, or
// "".
func (s Services) Meant(path string) string {
	meant := strings.TrimRight(path, "/")
	if strings.HasPrefix(meant, twice) {
		meant = meant[len("/v1"):]
	}
	if _, ok := s[meant]; (ok || meant == "/v1/models") && meant != path {
		return meant
	}
	return ""
}

// adminPaths are the paths of the admin listener that other routers serve beside their API.
var adminPaths = []string{"/metrics", "/healthz", "/readyz"}

// NothingAt answers requests for a path that does not exist.
func (s Services) NothingAt(path string) *infer.Error {
	path = dialect.Clip(path, 128)
	switch meant := s.Meant(path); {
	case meant != "" && strings.HasPrefix(path, twice):
		return infer.Errorf(infer.CodeNotFound, "there is nothing at %s; did you mean %s? Leave /v1 out of the base URL that the client is given: it adds its own", path, meant)
	case meant != "":
		return infer.Errorf(infer.CodeNotFound, "there is nothing at %s; did you mean %s?", path, meant)
	case slices.Contains(adminPaths, path):
		return infer.Errorf(infer.CodeNotFound, "there is nothing at %s here: the admin listener (--admin-listen) has it; GET /health reports whether this listener answers", path)
	}
	return infer.Errorf(infer.CodeNotFound, "there is nothing at %s; the API is under /v1/, for example POST /v1/chat/completions", path)
}

// Label keeps the metric label's values few, whatever clients ask for.
func (s Services) Label(path string) string {
	if _, ok := s[path]; ok {
		return path
	}
	return otherEndpoint
}

// otherEndpoint is the label of paths that a relay may know and weir does not.
const otherEndpoint = "other"

func contentType(h http.Header) error {
	if e := first(h, "Content-Encoding"); e != "" && e != "identity" {
		return infer.Errorf(infer.CodeMediaType, "Content-Encoding %s is not supported; send the body uncompressed", e)
	}
	given := first(h, "Content-Type")
	if given == "" || given == "application/json" { // as nearly all say it
		return nil
	}
	kind, _, err := mime.ParseMediaType(given)
	if err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return infer.Errorf(infer.CodeMediaType, "Content-Type is %q; send JSON with the header Content-Type: application/json", given)
}
