package jwt

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"weir/internal/infer"
	"weir/internal/tenancy"
)

const here = "https://login.example"

// signing is a key that an issuer signs with.
type signing struct {
	kid, alg string
	key      crypto.Signer
}

var (
	rsaKey = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	ecKey  = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	ecKey2 = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// jwks is the list of keys that an issuer publishes.
func jwks(keys ...signing) []byte {
	var set jose.JSONWebKeySet
	for _, k := range keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.key.Public(), KeyID: k.kid, Algorithm: k.alg, Use: "sig"})
	}
	return must(json.Marshal(set))
}

type claims map[string]any

// good are claims that are good now, with changes; nil removes a claim.
func good(changes ...claims) claims {
	c := claims{"iss": here, "aud": "weir", "sub": "alice", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	for _, change := range changes {
		for name, v := range change {
			if c[name] = v; v == nil {
				delete(c, name)
			}
		}
	}
	return c
}

// token signs claims.
func (k signing) token(c claims) string {
	return sign(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(k.alg), Key: jose.JSONWebKey{Key: k.key, KeyID: k.kid}}, c, nil)
}

func sign(k jose.SigningKey, c claims, o *jose.SignerOptions) string {
	s := must(jose.NewSigner(k, o))
	return must(must(s.Sign(must(json.Marshal(c)))).CompactSerialize())
}

// raw writes a token with a head of one's own, and a signature that is none.
func raw(head string, c claims) string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(head)) + "." + enc(must(json.Marshal(c))) + "." + enc([]byte("signature"))
}

// server is where an issuer has its keys.
type server struct {
	mu    sync.Mutex
	text  []byte
	err   error
	hangs bool
	asked atomic.Int32
}

func (s *server) set(text []byte, err error, hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.err, s.hangs = text, err, hangs
}

func (s *server) get(ctx context.Context) ([]byte, error) {
	s.asked.Add(1)
	s.mu.Lock()
	text, err, hangs := s.text, s.err, s.hangs
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return text, err
}

// issuers takes the tokens of one issuer, whose keys a server has.
func issuers(t testing.TB, s *server) *Issuers {
	from := newSource(Location{Issuer: here}, s.get)
	t.Cleanup(from.Close)
	return NewIssuers([]*Issuer{NewIssuer(Config{Name: "login", URL: here, Audiences: []string{"weir", "weir-2"}, Algorithms: Algorithms, Leeway: 30 * time.Second,
		Grant: func(c *Claims) (*tenancy.Caller, error) {
			if c.Subject == "mallory" {
				return nil, errors.New("its claim x is not taken")
			}
			return &tenancy.Caller{Key: "login:" + c.Subject, Tenant: "t", Share: 1}, nil
		}}, from)})
}

// reason is why a token was refused, empty if it was not. An error has nothing of the token.
func reason(t *testing.T, s *Issuers, token string) string {
	t.Helper()
	c, err := s.Caller(token)
	if err == nil {
		if c == nil || !strings.HasPrefix(c.Key, "login:") {
			t.Fatalf("caller %+v", c)
		}
		return ""
	}
	e := infer.AsError(err)
	for part := range strings.SplitSeq(token, ".") {
		if len(part) > 20 && strings.Contains(err.Error(), part[:20]) {
			t.Errorf("the error has part of the token: %v", err)
		}
	}
	for _, secret := range []string{"alice", "evil", "elsewhere"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error has a claim of the token: %v", err)
		}
	}
	if e.Code == infer.CodeUnavailable {
		return "unavailable"
	}
	if e.Code != infer.CodeUnauthorized || e.Reason == "" {
		t.Fatalf("error %+v", e)
	}
	return e.Reason
}

func TestTokens(t *testing.T) {
	one, two, ps := signing{"one", "RS256", rsaKey()}, signing{"two", "ES256", ecKey()}, signing{"one", "PS256", rsaKey()}
	other := signing{"two", "ES256", ecKey2()} // another issuer's key with a name that is known
	public := must(x509.MarshalPKIXPublicKey(rsaKey().Public()))
	hs := func(secret []byte) string {
		return sign(jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: secret, KeyID: "one"}}, good(), nil)
	}
	at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	embedded := sign(jose.SigningKey{Algorithm: jose.ES256, Key: ecKey2()}, good(), &jose.SignerOptions{EmbedJWK: true})
	critical := sign(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: ecKey(), KeyID: "two"}}, good(),
		(&jose.SignerOptions{}).WithHeader("crit", []string{"x"}).WithHeader("x", 1))
	whole := two.token(good())
	head, rest, _ := strings.Cut(whole, ".")
	_, signature, _ := strings.Cut(rest, ".")
	swapped := head + "." + base64.RawURLEncoding.EncodeToString(must(json.Marshal(good(claims{"sub": "evil"})))) + "." + signature

	s := issuers(t, &server{text: jwks(one, two)})
	for name, test := range map[string]struct{ token, want string }{
		"RS256":                         {one.token(good()), ""},
		"ES256":                         {whole, ""},
		"no kid":                        {signing{"", "ES256", ecKey()}.token(good()), ""},
		"a list of audiences":           {two.token(good(claims{"aud": []string{"x", "weir-2"}})), ""},
		"8 KB":                          {two.token(good(claims{"groups": strings.Repeat("g", 6<<10)})), ""},
		"expired within the leeway":     {two.token(good(claims{"exp": at(-20 * time.Second)})), ""},
		"a fraction of a second":        {two.token(good(claims{"exp": float64(at(time.Hour)) + 0.5})), ""},
		"not yet valid, within":         {two.token(good(claims{"nbf": at(20 * time.Second)})), ""},
		"never expires, nearly":         {two.token(good(claims{"exp": 1e300})), ""},
		"far future":                    {two.token(good(claims{"exp": int64(1) << 50})), ""},
		"expired":                       {two.token(good(claims{"exp": at(-31 * time.Second)})), expired},
		"expired long ago":              {two.token(good(claims{"exp": -1})), expired},
		"no exp":                        {two.token(good(claims{"exp": nil})), badClaim},
		"exp is text":                   {two.token(good(claims{"exp": "tomorrow"})), malformed},
		"not yet valid":                 {two.token(good(claims{"nbf": at(31 * time.Second)})), early},
		"wrong audience":                {two.token(good(claims{"aud": "elsewhere"})), wrongAud},
		"no audience":                   {two.token(good(claims{"aud": nil})), wrongAud},
		"wrong issuer":                  {two.token(good(claims{"iss": "https://evil.example"})), wrongIssuer},
		"issuer with a slash":           {two.token(good(claims{"iss": here + "/"})), wrongIssuer},
		"no issuer":                     {two.token(good(claims{"iss": nil})), wrongIssuer},
		"none":                          {raw(`{"alg":"none"}`, good()), wrongAlg},
		"None":                          {raw(`{"alg":"nOnE","kid":"one"}`, good()), wrongAlg},
		"none, without a signature":     {strings.TrimSuffix(raw(`{"alg":"none"}`, good()), base64.RawURLEncoding.EncodeToString([]byte("signature"))), wrongAlg},
		"no alg":                        {raw(`{"kid":"one"}`, good()), wrongAlg},
		"two algs":                      {raw(`{"alg":"none","kid":"two","alg":"ES256"}`, good()), malformed},
		"HS256 with the public key":     {hs(public), wrongAlg},
		"HS256 with the list of keys":   {hs(jwks(one)), wrongAlg},
		"PS256 by a key for RS256":      {ps.token(good()), unknownKey},
		"unknown kid":                   {signing{"three", "ES256", ecKey()}.token(good()), unknownKey},
		"another's key, a known name":   {other.token(good()), badSignature},
		"no kid, another's key":         {signing{"", "ES256", ecKey2()}.token(good()), badSignature},
		"a key of its own in the head":  {embedded, badSignature},
		"a critical field":              {critical, badSignature},
		"another payload":               {swapped, badSignature},
		"cut":                           {whole[:len(whole)-4], badSignature},
		"signature that is none":        {raw(`{"alg":"ES256","kid":"two"}`, good()), badSignature},
		"no JSON":                       {"eyJ.eyJ.x", malformed},
		"empty parts":                   {"eyJ..", malformed},
		"padding":                       {whole + "=", malformed},
		"longer than is read":           {two.token(good(claims{"groups": strings.Repeat("g", 16<<10)})), malformed},
		"a claim that is not taken":     {two.token(good(claims{"sub": "mallory"})), badClaim},
		"control characters in a claim": {two.token(good(claims{"iss": here + "\r\nX: y"})), wrongIssuer},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the second time it may be remembered
				if got := reason(t, s, test.token); got != test.want {
					t.Errorf("refused for %q, want %q", got, test.want)
				}
			}
		})
	}
	for presented, like := range map[string]bool{whole: true, "weir_abc": false, "sk-1.2.3": false, "eyJhbGciOi": false, whole + ".x": false, "": false} {
		if Like(presented) != like {
			t.Errorf("Like(%.20q) = %v", presented, !like)
		}
	}
}

// A token that was verified is known until it expires, by either clock.
func TestExpiresWhileKnown(t *testing.T) {
	two := signing{"two", "ES256", ecKey()}
	s := issuers(t, &server{text: jwks(two)})
	now := time.Now()
	token := two.token(good(claims{"exp": now.Add(time.Minute).Unix()})) // 90 s with the leeway
	ask := func(after, stepped time.Duration) string {
		c, err := s.caller(token, now.Add(after), now.Add(after+stepped).Unix())
		if err != nil {
			return infer.AsError(err).Reason
		}
		return strings.TrimPrefix(c.Key, "login:")
	}
	for _, test := range []struct {
		after, stepped time.Duration
		want           string
	}{
		{0, 0, "alice"},
		{80 * time.Second, 0, "alice"},
		{80 * time.Second, time.Hour, expired},         // the wall clock was set forward
		{80 * time.Second, 0, "alice"},                 // and back again
		{82 * time.Second, -80 * time.Second, "alice"}, // set back
	} {
		if got := ask(test.after, test.stepped); got != test.want {
			t.Errorf("after %v, stepped by %v: %s, want %s", test.after, test.stepped, got, test.want)
		}
	}
	if got := ask(10*time.Minute, 0); got != expired {
		t.Errorf("after its time: %s, want %s", got, expired)
	}
}

// Setting the clock back does not make a known token last longer: it is verified again.
func TestKnownNoLongerThanVerified(t *testing.T) {
	two := signing{"two", "ES256", ecKey()}
	s := issuers(t, &server{text: jwks(two)})
	now := time.Now()
	token := two.token(good(claims{"exp": now.Add(time.Minute).Unix()}))
	if _, err := s.caller(token, now, now.Unix()); err != nil {
		t.Fatal(err)
	}
	first := verifiedOf(t, s, token)
	if _, err := s.caller(token, now.Add(89*time.Second), now.Unix()); err != nil || verifiedOf(t, s, token) != first {
		t.Errorf("within its time it was verified again: %v", err)
	}
	if _, err := s.caller(token, now.Add(91*time.Second), now.Unix()); err != nil || verifiedOf(t, s, token) == first {
		t.Errorf("beyond its time it was not verified again: %v", err)
	}
}

// verifiedOf is what is remembered of the only token.
func verifiedOf(t *testing.T, s *Issuers, _ string) (v *verified) {
	t.Helper()
	for _, of := range s.verified.All() {
		v = of
	}
	if v == nil {
		t.Fatal("nothing is remembered")
	}
	return v
}

// Keys rotate: a new one is found by the first token that names it, and a withdrawn one is
// refused when the list is read next, tokens that were verified among them.
func TestRotation(t *testing.T) {
	one, two := signing{"one", "RS256", rsaKey()}, signing{"two", "ES256", ecKey()}
	synctest.Test(t, func(t *testing.T) {
		keys := &server{text: jwks(one)}
		s := issuers(t, keys)
		old := one.token(good(claims{"exp": time.Now().Add(24 * time.Hour).Unix()}))
		if got := reason(t, s, old); got != "" {
			t.Fatal(got)
		}
		fresh := two.token(good(claims{"exp": time.Now().Add(24 * time.Hour).Unix()}))
		if got := reason(t, s, fresh); got != unknownKey {
			t.Fatalf("a key that is not published yet: %q", got)
		}
		keys.set(jwks(one, two), nil, false)
		if got := reason(t, s, fresh); got != unknownKey {
			t.Fatalf("fetched again at once: %q", got)
		}
		time.Sleep(fetchAgain)
		if got := reason(t, s, fresh); got != "" {
			t.Fatalf("a new key: %q", got)
		}
		keys.set(jwks(two), nil, false)
		time.Sleep(refresh)
		reason(t, s, fresh) // which has the list read again
		synctest.Wait()
		if got := reason(t, s, old); got != unknownKey {
			t.Errorf("a withdrawn key: %q", got)
		}
		if got := reason(t, s, fresh); got != "" {
			t.Errorf("the key that stays: %q", got)
		}
	})
}

// The list is read at most once in an interval, by one request for all, whichever keys the tokens
// name.
func TestUnknownKeysFetchSeldom(t *testing.T) {
	two := signing{"two", "ES256", ecKey()}
	synctest.Test(t, func(t *testing.T) {
		keys := &server{text: jwks(two)}
		s := issuers(t, keys)
		began := time.Now()
		for range 60 {
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() { reason(t, s, signing{fmt.Sprint(i), "ES256", ecKey2()}.token(good())) })
			}
			all.Wait()
			time.Sleep(time.Second)
		}
		if most := int32(time.Since(began)/fetchAgain) + 1; keys.asked.Load() > most {
			t.Errorf("fetched %d times within a minute, want at most %d", keys.asked.Load(), most)
		}
	})
}

// A server that hangs holds up nobody whose key is known, others for a bounded time, and is
// asked again.
func TestServerHangs(t *testing.T) {
	one, two := signing{"one", "RS256", rsaKey()}, signing{"two", "ES256", ecKey()}
	synctest.Test(t, func(t *testing.T) {
		keys := &server{text: jwks(one), hangs: true}
		s := issuers(t, keys)
		took := func(token, want string, most time.Duration) {
			t.Helper()
			began := time.Now()
			if got := reason(t, s, token); got != want || time.Since(began) > most {
				t.Errorf("refused for %q after %v, want %q within %v", got, time.Since(began), want, most)
			}
		}
		from := s.byURL[here].source
		from.Start(slog.New(slog.DiscardHandler)) // which does not wait
		took(one.token(good()), "unavailable", findBound)
		time.Sleep(fetchBound)
		keys.set(jwks(one), nil, false)
		time.Sleep(fetchAgain)
		took(one.token(good()), "", 0)
		keys.set(nil, nil, true)
		time.Sleep(refresh)
		for i := range 5 {
			took(one.token(good(claims{"n": i})), "", 0) // another token, a known key
		}
		took(two.token(good()), unknownKey, findBound)
		keys.set(jwks(one, two), nil, false)
		time.Sleep(fetchBound + fetchAgain)
		took(two.token(good()), "", 0)
	})
}

// An answer that is not a list of keys changes nothing, and is logged once until the next good one.
func TestServerAnswersGarbage(t *testing.T) {
	one := signing{"one", "RS256", rsaKey()}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		keys := &server{text: jwks(one)}
		s := issuers(t, keys)
		s.byURL[here].source.Start(slog.New(slog.NewTextHandler(&log, nil)))
		synctest.Wait()
		private := must(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: rsaKey(), KeyID: "p"}, {Key: []byte("secret"), KeyID: "s"}}}))
		many := []byte(`{"keys":[` + strings.Repeat(`{},`, 200) + `{}]}`)
		for _, text := range []string{"", "garbage \x00\x1b[31m", "{}", `{"keys":[]}`, `{"keys":[{"kty":"RSA"}]}`, `{"keys":3}`, string(private), string(many), "[" + strings.Repeat("[", 100_000)} {
			keys.set([]byte(text), nil, false)
			time.Sleep(refresh)
			for i := range 3 {
				if got := reason(t, s, one.token(good(claims{"n": i}))); got != "" {
					t.Errorf("after %.20q a known key is refused: %s", text, got)
				}
				synctest.Wait()
			}
		}
		keys.set(jwks(one), nil, false)
		time.Sleep(refresh)
		reason(t, s, one.token(good()))
		synctest.Wait()
		if lines := strings.Split(strings.TrimSpace(log.String()), "\n"); len(lines) != 3 || !strings.Contains(lines[1], "cannot be fetched") || strings.Contains(log.String(), "secret") {
			t.Errorf("log:\n%s", &log)
		}
	})
}

// A panic while keys are read is logged with its stack and fails that fetch alone.
func TestPanicInFetch(t *testing.T) {
	one := signing{"one", "RS256", rsaKey()}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		keys := &server{text: jwks(one)}
		s := issuers(t, keys)
		source := s.byURL[here].source
		source.get = func(context.Context) ([]byte, error) { panic("in a key") }
		source.Start(slog.New(slog.NewTextHandler(&log, nil)))
		synctest.Wait()
		source.get = keys.get
		time.Sleep(refresh)
		reason(t, s, one.token(good()))
		synctest.Wait()
		if got := reason(t, s, one.token(good())); got != "" || !strings.Contains(log.String(), "panic(") {
			t.Errorf("%s; log:\n%s", got, &log)
		}
	})
}

// Each thing that an HTTP server may do: 100 MB, redirects, errors, discovery of another issuer.
func TestFetch(t *testing.T) {
	one := signing{"one", "RS256", rsaKey()}
	var base string
	mux := http.NewServeMux()
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(jwks(one)) })
	mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) {
		for range 100 {
			if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<20)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/keys", http.StatusFound) })
	describe := func(issuer, keys string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": issuer, "jwks_uri": keys})
		}
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	base = server.URL
	mux.HandleFunc("/good/.well-known/openid-configuration", describe(base+"/good", base+"/keys"))
	mux.HandleFunc("/other/.well-known/openid-configuration", describe(base+"/good", base+"/keys"))
	mux.HandleFunc("/unsafe/.well-known/openid-configuration", describe(base+"/unsafe", "http://10.0.0.1/keys"))
	mux.HandleFunc("/file/.well-known/openid-configuration", describe(base+"/file", "file:///etc/passwd"))
	for _, test := range []struct {
		at   Location
		want string // part of the error
	}{
		{Location{JWKS: base + "/keys"}, ""},
		{Location{Issuer: base + "/good"}, ""},
		{Location{JWKS: base + "/huge"}, "longer than"},
		{Location{JWKS: base + "/elsewhere"}, "redirects"},
		{Location{JWKS: base + "/nothing"}, "404"},
		{Location{Issuer: base + "/nothing"}, "404"},
		{Location{Issuer: base + "/other"}, "issuer"},
		{Location{Issuer: base + "/unsafe"}, "no https://"},
		{Location{Issuer: base + "/file"}, "no https://"},
		{Location{JWKS: base + "/keys", CA: "/nowhere.pem"}, "ca:"},
	} {
		text, err := test.at.fetch(t.Context())
		if test.want == "" && (err != nil || !bytes.Equal(text, jwks(one))) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %.50q, %v; want an error with %q", test.at, text, err, test.want)
		}
	}
}

func TestSafe(t *testing.T) {
	for url, want := range map[string]bool{
		"https://a.example/keys": true, "http://127.0.0.1:1/k": true, "http://[::1]/k": true, "http://localhost:80/k": true,
		"http://a.example/keys": false, "http://127.0.0.1.example/": false, "https://": false, "https://u:p@a.example/": false, "file:///etc/passwd": false, "": false, ":": false,
	} {
		if Safe(url) != want {
			t.Errorf("Safe(%q) = %v", url, !want)
		}
	}
}

// BenchmarkCaller is what a token costs a request that is not its first.
func BenchmarkCaller(b *testing.B) {
	two := signing{"two", "ES256", ecKey()}
	for _, size := range []int{0, 1 << 10, 6 << 10} {
		s := issuers(b, &server{text: jwks(two)})
		token := two.token(good(claims{"groups": strings.Repeat("g", size)}))
		if _, err := s.Caller(token); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("known/%d", len(token)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Caller(token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	s := issuers(b, &server{text: jwks(two)})
	token := two.token(good())
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Forget()
			if _, err := s.Caller(token); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Other claims under the signature of a token that is remembered are refused, whichever byte is
// another one.
func TestChangedAfterVerified(t *testing.T) {
	two := signing{"two", "ES256", ecKey()}
	s := issuers(t, &server{text: jwks(two)})
	token := two.token(good())
	if _, err := s.Caller(token); err != nil {
		t.Fatal(err)
	}
	end := strings.LastIndexByte(token, '.')
	for i := range end {
		other := byte('A')
		if token[i] == other {
			other = 'B'
		}
		changed := token[:i] + string(other) + token[i+1:]
		if caller, err := s.Caller(changed); err == nil {
			t.Errorf("with another byte at %d it is %s", i, caller.Key)
		}
	}
	for _, changed := range []string{token[end:], "." + token[end:], token[:end] + token[end:] + token[end:], strings.Repeat("A", 8<<10) + token[end:]} {
		if caller, err := s.Caller(changed); err == nil {
			t.Errorf("%.40s... is %s", changed, caller.Key)
		}
	}
	if _, err := s.Caller(token); err != nil {
		t.Error(err)
	}
}
