package prepare

import (
	"net/http"
	"strings"
	"testing"

	"weir/internal/tenancy"
)

// A session is its caller's own, whatever header names it, and of any length.
func TestSession(t *testing.T) {
	p := &Preparer{opts: new(Options)}
	of := func(pairs ...string) uint64 {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return p.session(h, &tenancy.Caller{Key: h.Get("Test-Caller")})
	}
	if n := of("Authorization", "Bearer a"); n != 0 {
		t.Errorf("no session is %d", n)
	}
	a := of("x-session-id", "s", "Authorization", "Bearer a")
	if a == 0 || a != of("session_id", "s", "Authorization", "Bearer a") {
		t.Error("a session is another one by another header")
	}
	if a == of("x-session-id", "s", "Authorization", "Bearer b") || a == of("x-session-id", "s") {
		t.Error("two callers have one session")
	}
	if of("x-session-id", "s", "Test-Caller", "a") == of("x-session-id", "s", "Test-Caller", "b") {
		t.Error("two keys have one session")
	}
	if a == of("x-session-id", "t", "Authorization", "Bearer a") {
		t.Error("two sessions are one")
	}
	long := strings.Repeat("x", maxSession)
	if of("x-session-id", long) == 0 || of("x-session-id", long+"y") != of("x-session-id", long+"z") {
		t.Error("more than the bound counts")
	}
	p.opts.Sessions = []string{"x-user"}
	if of("x-session-id", "s") != 0 || of("x-user", "s") == 0 {
		t.Error("a header that the operator names is not the one that counts")
	}
}
