package gateway

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/models"
)

// accounts are those of byHeader's callers.
var accounts = map[string]*tenancy.Account{}

// withAccount gives a caller an account with limits.
func withAccount(t *testing.T, name string, l tenancy.Limits) *tenancy.Account {
	t.Cleanup(func() { delete(accounts, name) })
	accounts[name] = tenancy.NewAccount(l, time.Now())
	return accounts[name]
}

// byHeader knows the callers who name themselves in a header.
func byHeader(head http.Header, _ *tls.ConnectionState) (*tenancy.Caller, error) {
	name := head.Get("Test-Caller")
	if name == "" {
		return nil, infer.Errorf(infer.CodeUnauthorized, "there is no key")
	}
	c := &tenancy.Caller{Key: name, Tenant: "tenant-" + name, Share: 1, Account: accounts[name]}
	if name == "elsewhere" {
		c.Models = []string{"another-model"}
	}
	return c, nil
}

// A request of an unknown caller is refused before its body, path and method are looked at, in
// the caller's dialect and with the header that RFC 9110 wants.
func TestUnknownCaller(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{e}, func(t *testing.T, b *bench) {
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
	inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{e}, func(t *testing.T, b *bench) {
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
	inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader, AllowAbort: true}}, []any{e}, func(t *testing.T, b *bench) {
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

// Tokens are charged as they come: a stream that goes on uses up the budget for requests that
// begin meanwhile, and what is charged in the end is what the usage says.
func TestBudgetWhileStreaming(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{e}, func(t *testing.T, b *bench) {
		account := withAccount(t, "k1", tenancy.Limits{TokensPerDay: 10})
		w := words()
		c := b.post(chatPath, askStream(`,"stream_options":{"include_usage":true}`), "Test-Caller", "k1")
		call := e.call(t, 1)
		prompt := account.Usage(time.Now()).TokensToday
		if prompt < 1 {
			t.Fatal("the prompt is not charged when it goes to an engine")
		}
		for i := range 10 {
			call.send(w[i])
			c.answer()
		}
		if got := account.Usage(time.Now()).TokensToday; got != prompt+10 {
			t.Fatalf("%d tokens are charged while the stream goes on, want %d", got, prompt+10)
		}
		refused := b.post(chatPath, askChat(``), "Test-Caller", "k1")
		a := refused.answer()
		if a.status != 429 || a.header.Get("X-Refusal-Reason") != tenancy.OverTokensPerDay || a.header.Get("Retry-After") == "" {
			t.Errorf("a request beyond the budget: status %d, %v, %s", a.status, a.header, a.body)
		}
		call.end(infer.ReasonStop)
		s := c.story()
		used := account.Usage(time.Now())
		if s.usage == nil || used.TokensToday != int64(s.usage.Total) || used.Running != 0 {
			t.Errorf("charged %+v, usage %+v", used, s.usage)
		}
	})
}

// A request on which no engine worked costs nothing, and leaves no request behind.
func TestRefusedCostsNothing(t *testing.T) {
	e := &tokenEngine{name: "a", accept: refuse(infer.CodeOverloaded, false)}
	inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{e}, func(t *testing.T, b *bench) {
		account := withAccount(t, "k1", tenancy.Limits{TokensPerDay: 1000, Requests: 1})
		for range 3 {
			if a := b.post(chatPath, askChat(``), "Test-Caller", "k1").answer(); a.status == 200 {
				t.Fatalf("status %d", a.status)
			}
		}
		if used := account.Usage(time.Now()); used.TokensToday != 0 || used.Running != 0 {
			t.Errorf("charged %+v", used)
		}
	})
}

// A key's limits bound each request, with errors that name the field and the key.
func TestLimitsOfAKey(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{e}, func(t *testing.T, b *bench) {
		withAccount(t, "k1", tenancy.Limits{Requests: 1, OutputTokens: 5, PromptTokens: 3})
		err := b.post(completionsPath, askText(`,"max_tokens":6`), "Test-Caller", "k1").refusal(400)
		if err.Param == nil || *err.Param != "max_tokens" || !strings.Contains(err.Message, "for the key k1 it may be at most 5") {
			t.Errorf("error %+v", err)
		}
		long := `{"model":"` + models.SimName + `","prompt":[300,301,302,303],"max_tokens":1}`
		if err = b.post(completionsPath, long, "Test-Caller", "k1").refusal(400); !strings.Contains(err.Message, "the key k1 may send at most 3") {
			t.Errorf("error %+v", err)
		}
		first := b.post(completionsPath, askText(`,"max_tokens":5`), "Test-Caller", "k1")
		call := e.call(t, 1)
		a := b.post(completionsPath, askText(`,"max_tokens":5`), "Test-Caller", "k1").answer()
		if a.status != 429 || a.header.Get("X-Refusal-Reason") != tenancy.OverRequests || a.header.Get("Retry-After") == "" {
			t.Errorf("a second request at once: status %d, %v", a.status, a.header)
		}
		call.end(infer.ReasonStop)
		first.answer()
	})
}

// A model that a key may not use is not there for it: in requests, lists and messages.
func TestModelsOfAKey(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{e}, func(t *testing.T, b *bench) {
		err := b.post(chatPath, askChat(``), "Test-Caller", "elsewhere").refusal(404)
		if err.code() != "model_not_found" || strings.Contains(strings.TrimPrefix(err.Message, `there is no model "`+models.SimName+`"`), models.SimName) {
			t.Errorf("error %+v", err)
		}
		c := b.dial(0)
		c.send("GET", "/v1/models", "", "Test-Caller", "elsewhere")
		if a := c.answer(); a.status != 200 || strings.Contains(string(a.body), models.SimName) {
			t.Errorf("list: status %d, %s", a.status, a.body)
		}
		c.send("GET", "/v1/models/"+models.SimName, "", "Test-Caller", "elsewhere")
		if a := c.answer(); a.status != 404 {
			t.Errorf("model: status %d", a.status)
		}
	})
}
