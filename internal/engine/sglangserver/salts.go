package sglangserver

import (
	"fmt"
	"strings"

	"weir/internal/engine"
)

// SaltFields are the fields by which a /generate carries a cache salt: extra_key from 0.5.3
// on, and cache_salt, which KV events name, from 0.5.18 on. A release reads those that it
// knows.
var SaltFields = []string{"extra_key", "cache_salt"}

// Salts reports whether requests carry a cache salt. Where the server's own API is relayed, its
// bodies have cache_salt since 0.5.3; that of messages has none in any release.
func (m *Mode) Salts() engine.Salts {
	switch {
	case !m.Known():
		return engine.Salts{Why: "does not say that it is SGLang (no /server_info), and so not whether it reads extra_key; give it to weir without what stands before it"}
	case m.before(0, 5, 3):
		return engine.Salts{Why: fmt.Sprintf("is SGLang %s, which passes over extra_key; 0.5.3 and later read it", m.Version)}
	}
	return engine.Salts{Carried: true, Paths: saltPaths{}, Untold: m.before(0, 5, 18)}
}

// saltPaths are the paths of the server's.
type saltPaths struct{}

// At implements engine.SaltPaths.
func (saltPaths) At(path string) []string {
	switch {
	case strings.HasSuffix(path, "/generate"):
		return SaltFields
	case strings.HasSuffix(path, "/v1/chat/completions"), strings.HasSuffix(path, "/v1/completions"), strings.HasSuffix(path, "/v1/responses"):
		return SaltFields[1:]
	}
	return nil
}
