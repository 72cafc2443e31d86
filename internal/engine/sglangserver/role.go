package sglangserver

import (
	"fmt"

	"weir/internal/engine"
	"weir/internal/infer"
)

// fakeHost is the bootstrap host of a half that has no other: SGLang's own warm-ups and
// health checks name it.
const fakeHost = "2.2.2.2"

// Fault returns why no request can be given to the server, if so.
func (m *Mode) Fault() error {
	switch m.Disaggregation {
	case "", "null", "prefill", "decode":
		return nil
	}
	if !m.Known() {
		return nil
	}
	return fmt.Errorf("runs with --disaggregation-mode %s, which weir does not know; it knows null, prefill and decode", m.Disaggregation)
}

// Role is the server's part in requests, by its --disaggregation-mode.
func (m *Mode) Role() infer.Role {
	switch {
	case m.Known() && m.Disaggregation == "prefill":
		return infer.RolePrefill
	case m.Known() && m.Disaggregation == "decode":
		return infer.RoleDecode
	}
	return infer.RoleBoth
}

// Meets returns how halves of requests meet at the server, which is reached at a host.
func (m *Mode) Meets(host string) engine.Meets {
	switch m.Role() {
	case infer.RolePrefill:
		return engine.Meets{Way: engine.ByRoom, Host: host, Port: m.BootstrapPort, Ranks: max(m.Ranks, 1), PageTokens: m.PageSize}
	case infer.RoleDecode:
		return engine.Meets{Way: engine.ByRoom, PageTokens: m.PageSize, HoldsPages: m.holdsPages()}
	}
	return engine.Meets{}
}

// holdsPages reports whether a server of decode halves keeps the pages of an aborted half until
// its prefill engine says that nobody writes to them. Releases do so by default from 0.5.21 on
// (SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE, which no server reports), with the
// transfer backends that can say it. The backend mooncake_tcp is Mooncake over TCP. A server of
// which the release or the backend is not known is taken for one that does not.
func (m *Mode) holdsPages() bool {
	switch m.Transfer {
	case "mooncake", "mooncake_tcp", "nixl":
		return m.since(0, 5, 21)
	case "mori":
		return m.since(0, 5, 22)
	}
	return false
}

// AbortsChunks reports whether a prefill half that is aborted between two chunks of its prompt
// ends in the same words as one that had only waited. Its first chunks may still be on their
// way to the decode engine. Releases do so from 0.5.13 or 0.5.14 on.
func (m *Mode) AbortsChunks() bool { return !m.before(0, 5, 13) }

// Forgets reports whether the server never finds a prompt in its KV cache. A server of decode
// halves keeps none unless it was configured to. Its arguments may not show that: from 0.5.19
// on they are the arguments as given, not the resulting settings.
func (m *Mode) Forgets() bool {
	return m.Known() && (m.NoRadix || m.Role() == infer.RoleDecode && !m.DecodeRadix)
}

// Takes refuses a request that does not match the server's role. A server serves either
// halves or whole requests. If a server does not report its role, the caller must know
// it.
func (m *Mode) Takes(req *infer.Request) *infer.Error {
	role := infer.RoleBoth
	if req.Half != nil {
		role = req.Half.Role
	}
	if !m.Known() || role == m.Role() {
		return nil
	}
	what := "a whole request"
	if req.Half != nil {
		what = "the " + role.String() + " half of a request"
	}
	e := infer.Errorf(infer.CodeUnsupported, "the engine does not serve %s (it runs with --disaggregation-mode %s)", what, m.mode())
	e.Retryable, e.NotRun = true, true
	return e
}

func (m *Mode) mode() string {
	if role := m.Role(); role != infer.RoleBoth {
		return role.String()
	}
	return "null"
}

// Alone is a half for the server that has no other, at one of its ranks or, with -1, at
// any; nil where the server serves whole requests.
func (m *Mode) Alone(rank int) *infer.Half {
	if m.Role() == infer.RoleBoth {
		return nil
	}
	return &infer.Half{Role: m.Role(), Bootstrap: infer.Bootstrap{Host: fakeHost, Port: m.BootstrapPort, Room: int64(max(rank, 0)), Rank: rank}}
}
