package sglangserver

import (
	"slices"
	"testing"
)

// Releases of SGLang are given a salt in the fields that they read, and none where their API
// has no such field.
func TestSalts(t *testing.T) {
	skip := false
	for _, c := range []struct {
		version         string
		carried, untold bool
	}{{"0.5.2", false, false}, {"0.5.3", true, true}, {"0.5.17", true, true}, {"0.5.18", true, false}, {"0.5.23.post1", true, false}, {"", true, false}} {
		s := (&Mode{Version: c.version, SkipTokenizer: &skip}).Salts()
		if s.Carried != c.carried || s.Untold != c.untold || s.Carried == (s.Why != "") {
			t.Errorf("SGLang %s: %+v", c.version, s)
		}
	}
	if s := new(Mode).Salts(); s.Carried || s.Why == "" {
		t.Errorf("a server that does not say what it is: %+v", s)
	}
	at := (&Mode{Version: "0.5.23", SkipTokenizer: &skip}).Salts().Paths.At
	for path, want := range map[string][]string{"/generate": {"extra_key", "cache_salt"}, "/v1/chat/completions": {"cache_salt"}, "/v1/responses": {"cache_salt"}, "/v1/messages": nil, "/v1/embeddings": nil} {
		if got := at(path); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
