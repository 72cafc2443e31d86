package keyfile

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"weir/internal/tenancy"
)

// fileOf writes a keys file of entries.
func fileOf(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFile(t *testing.T) {
	key, hash := NewKey()
	r, err := Open(fileOf(t, fmt.Sprintf(`
# who may ask
keys:
  alice:
    hash: %s
    tenant: research
    models: [llama, qwen]
    band: interactive
    share: 2.5
    max_requests: 3
    requests_per_minute: 60
    tokens_per_minute: 1000
    tokens_per_day: 50000
    max_prompt_tokens: 100
    max_output_tokens: 200
`, hash)))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []http.Header{
		{"Authorization": {"Bearer " + key}}, {"Authorization": {"bearer  " + key}}, {"X-Api-Key": {key}}, {"Api-Key": {key}},
		{"Authorization": {"Basic YTpi"}, "X-Api-Key": {key}},
	} {
		c, err := r.Identify(h, nil)
		if err != nil || c.Key != "alice" || c.Tenant != "research" || c.Band != "interactive" || c.Share != 2.5 || !c.Uses("qwen") || c.Uses("gpt") {
			t.Errorf("caller %+v, %v", c, err)
		}
		if want := (tenancy.Limits{Requests: 3, RequestsPerMinute: 60, TokensPerMinute: 1000, TokensPerDay: 50000, PromptTokens: 100, OutputTokens: 200}); err == nil && c.Account.Limits() != want {
			t.Errorf("limits %+v, want %+v", c.Account.Limits(), want)
		}
	}
	for _, h := range []http.Header{{}, {"Authorization": {"Bearer " + key + "x"}}, {"Authorization": {key}}, {"Authorization": {"Bearer " + strings.Repeat("k", 8<<10)}}, {"Authorization": {"Bearer "}}} {
		c, err := r.Identify(h, nil)
		if c != nil || err == nil || strings.Contains(err.Error(), key) {
			t.Errorf("caller %+v, error %v; want an error without the key", c, err)
		}
	}
}

// Each file is refused with its line, and no error has what may be a key.
func TestBadFiles(t *testing.T) {
	key, hash := NewKey()
	other := strings.Repeat("0", 63) + "1"
	for _, test := range []struct{ file, want string }{
		{"keys:\n  a:\n    hash: " + key, "line 3: a: hash: it is not sha256:"},
		{"keys:\n  a:\n    key: " + key, "line 3: a: key: the file holds hashes only"},
		{"keys:\n  a: " + key, "line 2: a: want fields"},
		{"keys:\n  " + key + ":\n    tenant: x", "line 2: keys: a name looks like a key itself"},
		{"keys:\n  a:\n    hash: sha256:12", "line 3: a: hash: it is not sha256:"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    tenat: x", `line 4: unknown key "tenat"`},
		{"keyz:\n  a: b\n", `line 1: unknown key "keyz"`},
		{"keys:\n  a:\n    tenant: x", "line 2: a has no hash"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    role: read", `line 4: unknown key "role"`},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n  \"a\":\n    hash: sha256:0" + other, `line 4: key "a" is set twice, first in line 2`},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n  b:\n    hash: " + hash.String(), "a and b have the same hash"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    tenant: \"x\\u0007y\"", "line 4: a: tenant: tenant: the name"},
		{"keys:\n  \"a\\nb\":\n    hash: " + hash.String(), "line 2: keys: the name"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    share: 0", "line 4: a: share: want a weight"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    tokens_per_day: -1", "line 4: a: tokens_per_day: want a whole number"},
		{"keys:\n  a:\n    hash: " + hash.String() + "\n    models: []", "line 4: a: models: the list is empty"},
		{"keys: [a]", "line 1: keys: want a mapping"},
		{"keys:\n\ta: b", "line 2: found character"},
	} {
		_, err := Open(fileOf(t, test.file))
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), key) {
			t.Errorf("%q:\n  error %v\n  want  %s", test.file, err, test.want)
		}
	}
}

// The used part of a limit stays used when the file is read again, with other limits; a broken file
// changes nothing.
func TestReload(t *testing.T) {
	key, hash := NewKey()
	path := fileOf(t, "keys:\n  a:\n    hash: "+hash.String()+"\n    tokens_per_day: 100\n")
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	caller := func() *tenancy.Caller {
		c, err := r.Identify(http.Header{"X-Api-Key": {key}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	write := func(text string) error {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := r.Reload()
		return err
	}
	now := time.Now()
	caller().Account.Charge(100)
	if got := caller().Account.Enter(now); got.Reason != tenancy.OverTokensPerDay {
		t.Fatalf("refusal %+v", got)
	}
	if err := write("keys:\n  a:\n    hash: nonsense\n"); err == nil || caller().Account.Enter(now).Reason != tenancy.OverTokensPerDay {
		t.Fatalf("a broken file: %v; the old one must stay", err)
	}
	if err := write("keys:\n  a:\n    hash: " + hash.String() + "\n    tokens_per_day: 101\n"); err != nil || caller().Account.Enter(now).Reason != "" {
		t.Fatalf("a higher limit does not apply: %v", err)
	}
	if err := write("keys: {}\n"); err != nil {
		t.Fatal(err)
	}
	if c, err := r.Identify(http.Header{"X-Api-Key": {key}}, nil); err == nil {
		t.Fatalf("a revoked key is known: %+v", c)
	}
}

// A verified certificate is a caller by one of its names; one that was not verified is nobody.
func TestCertificates(t *testing.T) {
	r, err := Open(fileOf(t, "certificates:\n  batch.example:\n    tenant: batch\n  \"CN=old,O=Example\": {tenant: old, max_requests: 1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse("spiffe://example/other")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		cert   *x509.Certificate
		tenant string
	}{
		{&x509.Certificate{DNSNames: []string{"x.example", "batch.example"}}, "batch"},
		{&x509.Certificate{Subject: pkix.Name{CommonName: "old", Organization: []string{"Example"}}}, "old"},
		{&x509.Certificate{Subject: pkix.Name{CommonName: "batch.example"}, URIs: []*url.URL{u}}, "batch"},
		{&x509.Certificate{Subject: pkix.Name{CommonName: "old"}}, ""},
	} {
		state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{test.cert}}
		if c, err := r.Identify(http.Header{}, state); err == nil {
			t.Errorf("a certificate that was not verified is %+v", c)
		}
		state.VerifiedChains = [][]*x509.Certificate{{test.cert}}
		c, err := r.Identify(http.Header{}, state)
		if (err == nil) != (test.tenant != "") || err == nil && c.Tenant != test.tenant {
			t.Errorf("%+v: caller %+v, %v; want tenant %q", test.cert.Subject, c, err, test.tenant)
		}
	}
}

// BenchmarkIdentify is what a key costs a request: the look-up among 10,000, and the account
// with all limits set.
func BenchmarkIdentify(b *testing.B) {
	var text strings.Builder
	text.WriteString("keys:\n")
	var key string
	for i := range 10_000 {
		k, hash := NewKey()
		if i == 5000 {
			key = k
		}
		fmt.Fprintf(&text, "  key-%d:\n    hash: %s\n    tokens_per_minute: 1000000000\n    tokens_per_day: 1000000000000\n    requests_per_minute: 1000000000\n    max_requests: 10\n", i, hash)
	}
	r, err := Open(fileOf(b, text.String()))
	if err != nil {
		b.Fatal(err)
	}
	for name, value := range map[string]string{"known": key, "unknown": key[:len(key)-1] + "!"} {
		h := http.Header{"Authorization": {"Bearer " + value}, "Content-Type": {"application/json"}}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c, err := r.Identify(h, nil)
				if err == nil {
					if c.Account.Enter(time.Now()).Reason != "" {
						b.Fatal("refused")
					}
					c.Account.Charge(100)
					c.Account.Leave()
				} else if name == "known" {
					b.Fatal(err)
				}
			}
		})
	}
}

// A file in whose place another one is in force must say that it has nothing: otherwise its writer
// has come no further yet.
func TestReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	const keys, certs = "keys:\n  a:\n    hash: sha256:0000000000000000000000000000000000000000000000000000000000000001\n", "certificates:\n  c: {}\n"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ had, has, want string }{
		{keys, "", "it has no keys any more"},
		{keys, "# keys\n", "it has no keys any more"},
		{keys, "keys:\n", "has no value"},
		{keys, certs, "it has no keys any more"},
		{keys + certs, keys, "it has no certificates any more"},
		{keys, "keys: {}\n", ""},
		{keys, "keys: []\n", ""},
		{keys + certs, keys + "certificates: {}\n", ""},
		{"keys: {}\n", "", ""},
	} {
		write(test.had)
		had, err := ReadAgain(path, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		write(test.has)
		if _, err := ReadAgain(path, false, had); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q after %q: %v, want %q", test.has, test.had, err, test.want)
		}
	}
}

// The time and the memory for a keys file grow with its size, also where it is read again.
func TestManyKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	allocated := func(n int) uint64 {
		var text strings.Builder
		text.WriteString("keys:\n")
		for i := range n {
			fmt.Fprintf(&text, "  \"u%d\":\n    hash: sha256:%064x\n    tenant: t%d\n", i, i+1, i)
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if steps, err := r.Reload(); err != nil || len(steps) != 0 || r.Keys() != n {
			t.Fatalf("%d steps, %d keys, %v", len(steps), r.Keys(), err)
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / uint64(text.Len())
	}
	few, many := allocated(500), allocated(5000)
	t.Logf("%d and %d bytes for each byte of the file, read twice", few, many)
	if many > few+few/2 || many > 200 {
		t.Errorf("a file of 5,000 keys takes %d bytes for each of its own, and one of 500 %d", many, few)
	}
	runtime.GC()
}
