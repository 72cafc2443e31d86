package gateway

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"

	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/models"
)

// byHeader knows the callers who name themselves in a header.
func byHeader(head http.Header, _ *tls.ConnectionState) (*tenancy.Caller, error) {
	name := head.Get("Test-Caller")
	if name == "" {
		return nil, infer.Errorf(infer.CodeUnauthorized, "there is no key")
	}
	return &tenancy.Caller{Key: name, Tenant: "tenant-" + name, Share: 1}, nil
}

// A request of an unknown caller is refused before its body, path and method are looked at, in
// the caller's dialect and with the header that RFC 9110 wants.
func TestUnknownCaller(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Callers: byHeader}, []any{e}, func(t *testing.T, b *bench) {
		for path, shape := range map[string]string{
			chatPath: `"code":"invalid_api_key"`, "/v1/messages": `"type":"authentication_error"`, "/v1/responses": `"code":"invalid_api_key"`,
			"/generate": `"message":"there is no key"`, "/v1/nothing": `"code":"invalid_api_key"`,
		} {
			a := b.post(path, `{"not": json`).answer()
			if a.status != 401 || a.header.Get("WWW-Authenticate") != "Bearer" || !strings.Contains(string(a.body), shape) {
				t.Errorf("%s: status %d, WWW-Authenticate %q, body %s; want 401, Bearer and %s", path, a.status, a.header.Get("WWW-Authenticate"), a.body, shape)
			}
		}
		for _, path := range []string{"/v1/models", "/v1/models/weir-sim", "/v1/loads", "/server_info", "/v1/responses/resp_1"} {
			c := b.dial(0)
			if c.send("GET", path, ""); c.answer().status != 401 {
				t.Errorf("GET %s: status %d, want 401", path, c.answer().status)
			}
		}
		c := b.dial(0)
		if c.send("GET", "/health", ""); c.answer().status != 200 {
			t.Errorf("GET /health of no caller: status %d; a load balancer has no key", c.answer().status)
		}
	})
}

// The record of a request names its caller.
func TestRecordOfCaller(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Callers: byHeader}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askChat(``), "Test-Caller", "k1")
		e.call(t, 1).end(infer.ReasonStop)
		c.whole()
		if r := b.record(c); r.Key != "k1" || r.Tenant != "tenant-k1" {
			t.Errorf("the record names key %q, tenant %q; want k1, tenant-k1", r.Key, r.Tenant)
		}
	})
}

// A caller aborts only what was sent with the same key, whoever used the same id.
func TestAbortOfAnothersRequest(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Callers: byHeader, AllowAbort: true}, []any{e}, func(t *testing.T, b *bench) {
		ask := `{"model":"` + models.SimName + `","text":"hi","rid":"same","sampling_params":{"max_new_tokens":5}}`
		mine := b.post("/generate", ask, "Test-Caller", "k1")
		call := e.call(t, 1)
		abort := func(key string) {
			c := b.post("/abort_request", `{"rid":"same"}`, "Test-Caller", key)
			delete(b.sent, c.id) // it has no record
			if a := c.answer(); a.status != 200 {
				t.Fatalf("abort: status %d, %s", a.status, a.body)
			}
		}
		if abort("k2"); call.aborted() {
			t.Fatal("another key's caller aborted the request")
		}
		if abort("k1"); !call.aborted() {
			t.Fatal("the request's own key did not abort it")
		}
		call.end(infer.ReasonAbort)
		mine.answer()
	})
}
