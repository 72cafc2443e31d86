package guard

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// The paths that ask for a key are those of vLLM's AuthenticationMiddleware and of
// SGLang's decide_request_auth.
func TestGuards(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	keys, both, admin := &Access{Keys: []string{"a", "b"}}, &Access{Keys: []string{"a"}, AdminKey: "c"}, &Access{AdminKey: "c"}
	for _, test := range []struct {
		keys   func(*http.Request) []string
		method string
		path   string
		field  string
		in     bool
	}{
		{new(Access).VLLMKeys, "POST", "/v1/completions", "", true},
		{keys.VLLMKeys, "POST", "/v1/completions", "", false},
		{keys.VLLMKeys, "POST", "/v1/completions", "Bearer b", true},
		{keys.VLLMKeys, "POST", "/v1/completions", "bearer a", true},
		{keys.VLLMKeys, "POST", "/v1/completions", "Bearer  a", false},
		{keys.VLLMKeys, "POST", "/v1/completions", "Basic a", false},
		{keys.VLLMKeys, "POST", "/v1/completions", "a", false},
		{keys.VLLMKeys, "OPTIONS", "/v1/completions", "", true},
		{keys.VLLMKeys, "GET", "/v1/models", "", false},
		{keys.VLLMKeys, "POST", "/v2/rerank", "", false},
		{keys.VLLMKeys, "POST", "/inference/v1/generate", "", false},
		{keys.VLLMKeys, "GET", "/version", "", true},
		{keys.VLLMKeys, "POST", "/tokenize", "", true},
		{keys.VLLMKeys, "GET", "/metrics", "", true},
		{keys.VLLMKeys, "GET", "/admin/state", "", true},

		{new(Access).SGLangKeys, "POST", "/generate", "", true},
		{keys.SGLangKeys, "POST", "/generate", "", false},
		{keys.SGLangKeys, "POST", "/generate", "Bearer a", true},
		{keys.SGLangKeys, "GET", "/server_info", "", false},
		{keys.SGLangKeys, "GET", "/version", "", false},
		{keys.SGLangKeys, "GET", "/health_generate", "", true},
		{keys.SGLangKeys, "GET", "/metrics", "", true},
		{keys.SGLangKeys, "POST", "/abort_request", "Bearer a", true},
		{both.SGLangKeys, "POST", "/abort_request", "Bearer a", false},
		{both.SGLangKeys, "POST", "/abort_request", "Bearer c", true},
		{both.SGLangKeys, "POST", "/generate", "Bearer c", false},
		{admin.SGLangKeys, "POST", "/generate", "", true},
		{admin.SGLangKeys, "POST", "/flush_cache", "", false},
	} {
		r := httptest.NewRequest(test.method, test.path, nil)
		if test.field != "" {
			r.Header.Set("Authorization", test.field)
		}
		w := httptest.NewRecorder()
		Paths(ok, test.keys).ServeHTTP(w, r)
		if in := w.Code == http.StatusNoContent; in != test.in || !in && (w.Code != 401 || w.Body.String() != `{"error":"Unauthorized"}`) {
			t.Errorf("%s %s %q: %d %q", test.method, test.path, test.field, w.Code, w.Body)
		}
	}
}
