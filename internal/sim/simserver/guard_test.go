package simserver

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
		{new(Access).vllmKeys, "POST", "/v1/completions", "", true},
		{keys.vllmKeys, "POST", "/v1/completions", "", false},
		{keys.vllmKeys, "POST", "/v1/completions", "Bearer b", true},
		{keys.vllmKeys, "POST", "/v1/completions", "bearer a", true},
		{keys.vllmKeys, "POST", "/v1/completions", "Bearer  a", false},
		{keys.vllmKeys, "POST", "/v1/completions", "Basic a", false},
		{keys.vllmKeys, "POST", "/v1/completions", "a", false},
		{keys.vllmKeys, "OPTIONS", "/v1/completions", "", true},
		{keys.vllmKeys, "GET", "/v1/models", "", false},
		{keys.vllmKeys, "POST", "/v2/rerank", "", false},
		{keys.vllmKeys, "POST", "/inference/v1/generate", "", false},
		{keys.vllmKeys, "GET", "/version", "", true},
		{keys.vllmKeys, "POST", "/tokenize", "", true},
		{keys.vllmKeys, "GET", "/metrics", "", true},
		{keys.vllmKeys, "GET", "/admin/state", "", true},

		{new(Access).sglangKeys, "POST", "/generate", "", true},
		{keys.sglangKeys, "POST", "/generate", "", false},
		{keys.sglangKeys, "POST", "/generate", "Bearer a", true},
		{keys.sglangKeys, "GET", "/server_info", "", false},
		{keys.sglangKeys, "GET", "/version", "", false},
		{keys.sglangKeys, "GET", "/health_generate", "", true},
		{keys.sglangKeys, "GET", "/metrics", "", true},
		{keys.sglangKeys, "POST", "/abort_request", "Bearer a", true},
		{both.sglangKeys, "POST", "/abort_request", "Bearer a", false},
		{both.sglangKeys, "POST", "/abort_request", "Bearer c", true},
		{both.sglangKeys, "POST", "/generate", "Bearer c", false},
		{admin.sglangKeys, "POST", "/generate", "", true},
		{admin.sglangKeys, "POST", "/flush_cache", "", false},
	} {
		r := httptest.NewRequest(test.method, test.path, nil)
		if test.field != "" {
			r.Header.Set("Authorization", test.field)
		}
		w := httptest.NewRecorder()
		guarded(ok, test.keys).ServeHTTP(w, r)
		if in := w.Code == http.StatusNoContent; in != test.in || !in && (w.Code != 401 || w.Body.String() != `{"error":"Unauthorized"}`) {
			t.Errorf("%s %s %q: %d %q", test.method, test.path, test.field, w.Code, w.Body)
		}
	}
}
