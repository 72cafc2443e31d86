package keyfile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"weir/internal/infer"
	"weir/internal/tenancy"
)

// login is an issuer of tokens.
type login struct {
	keys string // its URL
	sign jose.Signer
}

func newLogin(t testing.TB) *login {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "one"}}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(list) }))
	t.Cleanup(server.Close)
	sign, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "one"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &login{server.URL, sign}
}

// token has the claims of alice, with others.
func (l *login) token(t testing.TB, others map[string]any) string {
	t.Helper()
	claims := map[string]any{"iss": "https://login.example", "aud": "weir", "sub": "alice", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, others)
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := l.sign.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// file is a keys file with the issuer, and more fields of it.
func (l *login) file(fields string) string {
	return fmt.Sprintf("issuers:\n  login:\n    issuer: https://login.example\n    audience: [weir, weir-2]\n    jwks: %s\n%s", l.keys, fields)
}

func open(t testing.TB, text string) *Registry {
	t.Helper()
	r, err := Open(fileOf(t, text))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

// The claims of a token say whose it is and what its caller may use.
func TestCallersOfTokens(t *testing.T) {
	l := newLogin(t)
	r := open(t, l.file(`    tenant_claim: https://example/org
    models_claim: models
    band_claim: band
    models: [llama, qwen]
    share: 2
    band: batch
    max_output_tokens: 100
    tokens_per_day: 1000
    tenants:
      research: {share: 5, tokens_per_day: 9}
`))
	type want struct {
		key, tenant, band string
		share             float64
		models            string
		limits            tenancy.Limits
	}
	const org = "https://example/org"
	for _, test := range []struct {
		claims map[string]any
		want   want
	}{
		{map[string]any{org: "acme"}, want{"login:alice", "acme", "batch", 2, "[llama qwen]", tenancy.Limits{OutputTokens: 100, TokensPerDay: 1000}}},
		{map[string]any{org: "research"}, want{"login:alice", "research", "batch", 5, "[llama qwen]", tenancy.Limits{OutputTokens: 100, TokensPerDay: 9}}},
		{map[string]any{org: 42, "sub": 7, "band": "fast", "models": "qwen gpt"}, want{}}, // a subject is text
		{map[string]any{org: 42, "band": "fast", "models": "qwen gpt"}, want{"login:alice", "42", "fast", 2, "[qwen]", tenancy.Limits{OutputTokens: 100, TokensPerDay: 1000}}},
		{map[string]any{org: "acme", "models": []string{"gpt"}}, want{"login:alice", "acme", "batch", 2, "[]", tenancy.Limits{OutputTokens: 100, TokensPerDay: 1000}}},
	} {
		c, err := r.Identify(bearer(l.token(t, test.claims)), nil)
		if err != nil {
			if test.want.key != "" {
				t.Errorf("%v: %v", test.claims, err)
			}
			continue
		}
		got := want{c.Key, c.Tenant, c.Band, c.Share, fmt.Sprint(c.Models), c.Account.Limits()}
		if got != test.want {
			t.Errorf("%v: %+v, want %+v", test.claims, got, test.want)
		}
		if len(c.Models) == 0 && c.Uses("gpt") {
			t.Error("a token without a model that it may use may use all")
		}
	}
	for name, claims := range map[string]map[string]any{
		"no claim https://example/org":     {},
		"cannot be printed":                {org: "a\r\nb"},
		"longer than 64":                   {org: strings.Repeat("x", 65)},
		"neither text nor a number":        {org: []string{"a"}},
		"not whole":                        {org: 1.5},
		"claim sub has characters":         {org: "acme", "sub": "evil\x1b[31m"},
		"claim sub is longer":              {org: "acme", "sub": strings.Repeat("s", 256)},
		"claim band has characters":        {org: "acme", "band": "\u202eevil"},
		"claim models has something":       {org: "acme", "models": []any{"a", 1}},
		"claim models is no list of names": {org: "acme", "models": map[string]any{}},
	} {
		_, err := r.Identify(bearer(l.token(t, claims)), nil)
		e := infer.AsError(err)
		if e == nil || e.Code != infer.CodeUnauthorized || e.Reason != "token_claim" || !strings.Contains(e.Message, name) || strings.Contains(e.Message, "evil") {
			t.Errorf("%v: error %v, want one with %q", claims, err, name)
		}
	}
}

// Without a claim for it the tenant is the issuer's, or the one that its entry names.
func TestTenantsOfTokens(t *testing.T) {
	l := newLogin(t)
	for fields, want := range map[string]string{
		"": "login", "    tenant: staff\n": "staff", "    tenant: staff\n    tenant_claim: org\n": "staff", "    tenant_claim: sub\n": "alice",
	} {
		c, err := open(t, l.file(fields)).Identify(bearer(l.token(t, nil)), nil)
		if err != nil || c.Tenant != want || c.Key != "login:alice" {
			t.Errorf("%q: %+v, %v; want tenant %s", fields, c, err, want)
		}
	}
}

// All tokens of a tenant share an account, which goes on when the file is read again.
func TestTokensShareAnAccount(t *testing.T) {
	l := newLogin(t)
	text := l.file("    tenant_claim: org\n    tokens_per_day: 10\n")
	path := fileOf(t, text)
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Start(slog.New(slog.DiscardHandler))
	account := func(org, sub string) *tenancy.Account {
		t.Helper()
		c, err := r.Identify(bearer(l.token(t, map[string]any{"org": org, "sub": sub})), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Account
	}
	account("acme", "alice").Charge(10)
	if got := account("acme", "bob").Enter(time.Now()); got.Reason != tenancy.OverTokensPerDay {
		t.Errorf("another token of the tenant: %+v", got)
	}
	if got := account("other", "alice").Enter(time.Now()); got.Reason != "" {
		t.Errorf("another tenant: %+v", got)
	}
	for _, step := range []struct{ text, want string }{
		{strings.Replace(text, ": 10", ": 11", 1), ""},
		{text + "    tenants:\n      acme: {tokens_per_day: 5}\n", tenancy.OverTokensPerDay},
	} {
		if err := os.WriteFile(path, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reload(); err != nil {
			t.Fatal(err)
		}
		a := account("acme", "alice")
		got := a.Enter(time.Now())
		if got.Reason != step.want || a.Usage(time.Now()).TokensToday != 10 {
			t.Errorf("%+v, %+v, want %q", got, a.Usage(time.Now()), step.want)
		}
		if got.Reason == "" {
			a.Leave()
		}
	}
	if err := os.WriteFile(path, []byte("keys: {}\nissuers: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	if c, err := r.Identify(bearer(l.token(t, map[string]any{"org": "acme"})), nil); err == nil {
		t.Errorf("an issuer that was removed: %+v", c)
	}
}

// Accounts of tenants that have used nothing are dropped once there are many.
func TestFewUnusedAccounts(t *testing.T) {
	var of tokens
	now := time.Now()
	busy, _ := of.account(tokenTenant{"login", "busy"}, tenancy.Limits{}, now)
	busy.Charge(1)
	swept := 0
	for i := range 5 * fewAccounts {
		if _, did := of.account(tokenTenant{"login", fmt.Sprint(i)}, tenancy.Limits{}, now); did {
			swept++
		}
	}
	if len(of.accounts) > 2*fewAccounts || swept == 0 || swept > 10 {
		t.Errorf("%d accounts, dropped %d times", len(of.accounts), swept)
	}
	if again, _ := of.account(tokenTenant{"login", "busy"}, tenancy.Limits{}, now); again != busy {
		t.Error("an account that was used was dropped")
	}
}

// A key of the file that has a token's form is still a key; what looks like a token is refused as
// an unknown key where there are no issuers.
func TestKeysLikeTokens(t *testing.T) {
	l := newLogin(t)
	token := l.token(t, nil)
	none := open(t, "keys: {}\n")
	if _, err := none.Identify(bearer(token), nil); err == nil || infer.AsError(err).Message != unknownKey {
		t.Errorf("error %v", err)
	}
}

func TestBadIssuers(t *testing.T) {
	_, hash := NewKey()
	entry := func(fields string) string { return "issuers:\n  login:\n    " + fields }
	for _, test := range []struct{ file, want string }{
		{"issuers:\n  login: x", "line 2: login: want fields"},
		{entry("issuer: https://a.example"), "line 2: login: it has no field audience"},
		{entry("audience: weir"), "line 2: login: it has no field issuer"},
		{entry("issuer: a\n    audience: weir"), "line 2: login: issuer: its keys cannot be found"},
		{entry("issuer: http://a.example\n    audience: weir"), "line 2: login: issuer: its keys cannot be found"},
		{entry("issuer: a\n    audience: weir\n    jwks: http://a.example/keys"), "line 2: login: jwks: want an https:// URL"},
		{entry("issuer: https://a.example\n    audience: weir\n    algorithms: [RS256, HS256]"), `algorithms: "HS256" is not taken`},
		{entry("issuer: https://a.example\n    audience: weir\n    algorithms: none"), `algorithms: "none" is not taken`},
		{entry("issuer: https://a.example\n    audience: weir\n    leeway: 1h"), "line 5: login: leeway: want a time up to 5m"},
		{entry("issuer: https://a.example\n    audience: weir\n    audiense: x"), `line 5: unknown key "audiense"`},
		{entry("issuer: https://a.example\n    audience: [weir, \"\"]"), "line 4: login: audience: want a value"},
		{entry("issuer: [a, b]\n    audience: weir"), "line 3: login: issuer: want a value"},
		{entry("issuer: https://a.example\n    audience: weir\n    tenant: \"a\\u0007b\""), "line 5: login: tenant: tenant: the name"},
		{entry("issuer: https://a.example\n    audience: weir\n    tenants:\n      a: {share: 2}"), "line 5: login: tenants: want the names"},
		{entry("issuer: https://a.example\n    audience: weir\n    tenant_claim: org\n    tenants:\n      a: {tenant: b}"), `line 7: unknown key "tenant"`},
		{entry("issuer: https://a.example\n    audience: weir\n    tenant_claim: org\n    tenants:\n      \"a\\nb\": {share: 2}"), "line 7: login: tenants: the name"},
		{entry("issuer: https://a.example\n    audience: weir\n    tenant_claim: org\n    tenants:\n      a: {share: 0}"), "line 7: login: tenant a: share: want a weight"},
		{entry("issuer: https://a.example\n    audience: weir\n    hash: " + hash.String()), `line 5: unknown key "hash"`},
		{entry("issuer: https://a.example\n    audience: weir\n  other:\n    issuer: https://a.example\n    audience: x"), "login and other have the same issuer"},
		{"keys:\n  login:x:\n    hash: " + hash.String() + "\n" + entry("issuer: https://a.example\n    audience: weir"), "login:x: the name begins as"},
		{"keys:\n  certificate:x:\n    hash: " + hash.String(), "certificate:x: the name begins as"},
	} {
		_, err := Open(fileOf(t, test.file))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q:\n  error %v\n  want  %s", test.file, err, test.want)
		}
	}
	if _, err := ParseFile([]byte(entry("issuer: https://a.example\n    audience: weir")), true); err == nil || !strings.Contains(err.Error(), `unknown key "issuers"`) {
		t.Errorf("a file of operators with issuers: %v", err)
	}
}

// BenchmarkIdentifyToken is what a token costs a request after its first, beside 10,000 keys.
func BenchmarkIdentifyToken(b *testing.B) {
	l := newLogin(b)
	var text strings.Builder
	text.WriteString(l.file("    tokens_per_minute: 1000000000\n    requests_per_minute: 1000000000\n    tokens_per_day: 1000000000000\n    max_requests: 10\nkeys:\n"))
	for i := range 10_000 {
		_, hash := NewKey()
		fmt.Fprintf(&text, "  key-%d: {hash: %s}\n", i, hash)
	}
	r := open(b, text.String())
	h := bearer(l.token(b, map[string]any{"groups": strings.Repeat("g", 600)}))
	if _, err := r.Identify(h, nil); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c, err := r.Identify(h, nil)
		if err != nil || c.Account.Enter(time.Now()).Reason != "" {
			b.Fatal(err)
		}
		c.Account.Charge(100)
		c.Account.Leave()
	}
}
