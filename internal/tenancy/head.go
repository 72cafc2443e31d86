package tenancy

import (
	"net/http"
	"strings"
)

// credentials are the header fields in which clients present a key, in the order in which they
// are looked at: OpenAI's SDKs, vLLM's and SGLang's clients send the first, Anthropic's SDK the
// second (or the first, of an auth token), Azure's the third.
var credentials = [...]string{"Authorization", "X-Api-Key", "Api-Key"}

// Presented returns what a request presents as its key; "" if it presents nothing.
func Presented(h http.Header) string {
	for _, name := range credentials {
		values := h[name]
		if len(values) == 0 {
			continue
		}
		key := values[0]
		if name == "Authorization" {
			scheme, rest, _ := strings.Cut(key, " ")
			if !strings.EqualFold(scheme, "Bearer") {
				continue
			}
			key = rest
		}
		if key = strings.TrimSpace(key); key != "" {
			return key
		}
	}
	return ""
}

// Conceal removes what a request presents, so that no engine and no record gets it.
func Conceal(h http.Header) {
	for _, name := range credentials {
		delete(h, name)
	}
}
