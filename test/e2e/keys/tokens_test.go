package keys_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"weir/test/e2e/harness"
)

// issuer is an identity provider: it signs tokens, and publishes the keys that the test chooses.
type issuer struct {
	t   testing.TB
	url string

	mu     sync.Mutex
	answer http.HandlerFunc // to a request for the keys
	asked  int
}

func newIssuer(t testing.TB) *issuer {
	i := &issuer{t: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/.well-known/") {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, i.url, i.url+"/keys")
			return
		}
		i.mu.Lock()
		i.asked++
		answer := i.answer
		i.mu.Unlock()
		answer(w, r)
	}))
	i.url = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections() // of one that hangs
		server.Close()
	})
	return i
}

func (i *issuer) answers(with http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = with
}

// publishes has the issuer list these keys.
func (i *issuer) publishes(keys ...jose.JSONWebKey) {
	var set jose.JSONWebKeySet
	for _, k := range keys {
		set.Keys = append(set.Keys, k.Public())
	}
	text, err := json.Marshal(set)
	if err != nil {
		i.t.Fatal(err)
	}
	i.answers(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) })
}

// signingKey makes a key to sign with.
func signingKey(t testing.TB, kid string) jose.JSONWebKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: crypto.Signer(key), KeyID: kid, Algorithm: string(jose.ES256), Use: "sig"}
}

// token signs the claims of alice at acme, with others; nil removes one.
func (i *issuer) token(key jose.JSONWebKey, others map[string]any) string {
	i.t.Helper()
	claims := map[string]any{"iss": i.url, "aud": "weir", "sub": "alice", "org": "acme", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, others)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	text, err := json.Marshal(claims)
	if err != nil {
		i.t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(key.Algorithm), Key: key}, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		i.t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return token
}

// playedEngine answers chats, and keeps all that it was sent.
func playedEngine(t testing.TB) (url string, got func() string) {
	var mu sync.Mutex
	var all bytes.Buffer
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_ = r.Write(&all)
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model","owned_by":"x"}]}`)
			return
		}
		fmt.Fprint(w, `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`)
	}))
	t.Cleanup(server.Close)
	return server.URL, func() string {
		mu.Lock()
		defer mu.Unlock()
		return all.String()
	}
}

// Callers have tokens of four issuers. One issuer's server changes its keys; the others' hang,
// or answer garbage or 100 MB. Each bad token is refused with its reason, in the caller's
// dialect. No token is in any output, and none reaches an engine.
func TestTokens(t *testing.T) {
	dir := t.TempDir()
	login, hangs, garbage, huge := newIssuer(t), newIssuer(t), newIssuer(t), newIssuer(t)
	one, two := signingKey(t, "one"), signingKey(t, "two")
	login.publishes(one)
	hung := make(chan struct{})
	t.Cleanup(func() { close(hung) })
	hangs.answers(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hung:
		case <-r.Context().Done():
		}
	})
	garbage.answers(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "garbage \x00\x1b[31m") })
	huge.answers(func(w http.ResponseWriter, _ *http.Request) {
		for n := range 100 {
			if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<20)); err != nil {
				return
			}
			if n > 50 {
				t.Error("half of 100 MB was read")
			}
		}
	})
	file, timeline := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "timeline.jsonl")
	bob := add(t, "bob", "--keys", file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = fmt.Appendf(text, "issuers:\n  login:\n    issuer: %s\n    audience: weir\n    tenant_claim: org\n    max_output_tokens: 50\n", login.url)
	for name, of := range map[string]*issuer{"hangs": hangs, "garbage": garbage, "huge": huge} {
		text = fmt.Appendf(text, "  %s:\n    issuer: %s\n    jwks: %[2]s/keys\n    audience: weir\n", name, of.url)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	engine, reached := playedEngine(t)
	p := harness.Start(t, "serve", "--engine", "openai="+engine+",pass-key=true", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--keys", file, "--timeline", timeline, "--access-log", "1", "--log-level", "debug")
	base, operator := p.Line("gateway"), p.Line("admin") // a server hangs, the start does not
	begun := time.Now()

	const chat = `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`
	var secrets, said []string
	want := func(status int, path, header, presented, holds, reason string) {
		t.Helper()
		secrets = append(secrets, strings.TrimPrefix(presented, "Bearer "))
		got, head, body := ask(t, "POST", base+path, chat, header, presented)
		said = append(said, body, fmt.Sprint(head))
		if got != status || !strings.Contains(body, holds) || head.Get("X-Refusal-Reason") != reason {
			t.Fatalf("%s: status %d, reason %q, %s; want %d, %q and %q", path, got, head.Get("X-Refusal-Reason"), body, status, reason, holds)
		}
		if challenge := head.Get("WWW-Authenticate"); status == 401 && challenge != `Bearer error="invalid_token", error_description="`+reason+`"` {
			t.Errorf("WWW-Authenticate %q", challenge)
		}
	}
	const chats = "/v1/chat/completions"
	good := login.token(one, nil)
	for _, presented := range []string{bob, good} { // until the engine is ready and the keys are there
		for until := time.Now().Add(harness.Patience); ; time.Sleep(20 * time.Millisecond) {
			if status, _, body := ask(t, "POST", base+chats, chat, "X-Api-Key", presented); status == 200 {
				break
			} else if time.Now().After(until) {
				t.Fatalf("beside servers that fail: status %d, %s", status, body)
			}
		}
	}
	want(200, chats, "X-Api-Key", good, "hello", "")
	want(200, chats, "Authorization", "Bearer "+login.token(one, map[string]any{"groups": strings.Repeat("g", 6<<10)}), "hello", "")
	for name, of := range map[string]*issuer{"hangs": hangs, "garbage": garbage, "huge": huge} {
		want(503, chats, "Authorization", "Bearer "+of.token(one, nil), "keys of issuer "+name+" cannot be fetched", "")
	}

	ago := func(d time.Duration) int64 { return time.Now().Add(-d).Unix() }
	for _, test := range []struct {
		token, reason string
	}{
		{login.token(one, map[string]any{"exp": ago(time.Minute)}), "token_expired"},
		{login.token(one, map[string]any{"exp": nil}), "token_claim"},
		{login.token(one, map[string]any{"nbf": ago(-time.Minute)}), "token_not_yet_valid"},
		{login.token(one, map[string]any{"aud": "another"}), "token_audience"},
		{login.token(one, map[string]any{"iss": "https://evil.example"}), "token_issuer"},
		{login.token(one, map[string]any{"org": nil}), "token_claim"},
		{login.token(one, map[string]any{"org": "evil\r\nX-Y: z"}), "token_claim"},
		{login.token(one, map[string]any{"sub": "evil\x1b[31m"}), "token_claim"},
		{login.token(signingKey(t, "one"), nil), "token_signature"},
		{login.token(jose.JSONWebKey{Key: []byte(strings.Repeat("public key ", 5)), KeyID: "one", Algorithm: "HS256"}, nil), "token_algorithm"},
		{"eyJhbGciOiJub25lIn0." + strings.Split(good, ".")[1] + ".", "token_algorithm"},
		{strings.Join(strings.Split(good, ".")[:2], ".") + "." + strings.Repeat("A", 86), "token_signature"},
		{login.token(one, map[string]any{"groups": strings.Repeat("g", 16<<10)}), "token_malformed"},
	} {
		want(401, chats, "Authorization", "Bearer "+test.token, `"code":"invalid_api_key"`, test.reason)
		want(401, "/v1/messages", "X-Api-Key", test.token, `"type":"authentication_error"`, test.reason)
	}

	// A new key is found, by one fetch within ten seconds however many tokens name it.
	want(401, chats, "Authorization", "Bearer "+login.token(two, nil), "does not list", "token_key")
	login.publishes(one, two)
	for until := time.Now().Add(harness.Patience); ; time.Sleep(200 * time.Millisecond) {
		if status, _, body := ask(t, "POST", base+chats, chat, "Authorization", "Bearer "+login.token(two, nil)); status == 200 {
			break
		} else if time.Now().After(until) {
			t.Fatalf("a key that was published: status %d, %s", status, body)
		}
	}
	login.mu.Lock()
	if most := int(time.Since(begun)/(10*time.Second)) + 2; login.asked > most {
		t.Errorf("asked for the keys %d times within %v", login.asked, time.Since(begun))
	}
	login.mu.Unlock()

	for _, path := range []string{"/metrics", "/requests", "/records", "/config", "/live"} {
		_, _, body := ask(t, "GET", operator+path, "", "", "")
		said = append(said, body)
	}
	p.Interrupt()
	p.Exits(0)
	records, err := os.ReadFile(timeline)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(records), `"key":"login:alice","tenant":"acme"`) {
		t.Error("the timeline does not name the caller")
	}
	said = append(said, string(records), p.Stderr.String(), p.Output(), reached())
	for _, text := range said {
		for _, secret := range secrets {
			for part := range strings.SplitSeq(secret, ".") {
				if len(part) >= 40 && strings.Contains(text, part[:40]) && !strings.HasPrefix(part, "AAAA") {
					t.Fatalf("part of a token is in %.300q", text)
				}
			}
		}
		if strings.Contains(text, "\x1b[31m") {
			t.Errorf("control characters of a claim are in %.300q", text)
		}
	}
	if !strings.Contains(reached(), "hi") {
		t.Error("the engine was sent nothing")
	}
}
