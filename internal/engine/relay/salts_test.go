package relay

import "testing"

// A release of vLLM is trusted with a salt at the paths at which its definitions have the
// field, and nowhere else.
func TestVLLMSalts(t *testing.T) {
	for _, c := range []struct {
		version, path string
		want          bool
	}{
		{"0.33.0", "/v1/chat/completions", true}, {"0.12.0", "/base/v1/completions", true}, {"0.12.0", "/v1/responses", true},
		{"0.32.1rc1.dev7+g0123", "/v1/messages", true}, {"0.28.0", "/v1/messages", true}, {"0.24.0", "/v1/messages", false},
		{"0.32.0", "/v1/embeddings", true}, {"0.28.0", "/v1/embeddings", false}, {"0.33.0", "/v1/audio/transcriptions", false},
		{"0.11.2", "/v1/chat/completions", false}, {"dev", "/v1/chat/completions", false}, {"", "/v1/chat/completions", false},
	} {
		s := vllmSalts(c.version)
		if s.Carried == (s.Why != "") {
			t.Errorf("vLLM %q: carried %v, and why not %q", c.version, s.Carried, s.Why)
		}
		if got := s.Carried && s.Paths.At(c.path) != nil; got != c.want {
			t.Errorf("vLLM %q, %s: %v, want %v", c.version, c.path, got, c.want)
		}
	}
}
