package keys_test

import (
	"crypto/tls"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// The admin listener has its own certificate: weir's commands trust it by --admin-ca, and send
// the operator's key to no server whose certificate they do not know.
func TestAdminTLS(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	pool := harness.KeyPair(t, at("admin.pem"), at("admin.key"), 1)
	harness.KeyPair(t, at("other.pem"), at("other.key"), 2)
	root := add(t, "root", "--keys", at("keys.yaml"), "--role", "operate")
	harness.WriteFile(t, at("root.key"), root+"\n")
	p := harness.Start(t, "up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--admin-keys", at("keys.yaml"), "--admin-tls-cert", at("admin.pem"), "--admin-tls-key", at("admin.key"))
	operator := p.Line("admin")
	if !strings.HasPrefix(operator, "https://") || !strings.HasPrefix(p.Line("gateway"), "http://") {
		t.Fatalf("admin at %s, the API at %s", operator, p.Line("gateway"))
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--admin-ca", at("admin.pem"), "--admin-key-file", at("root.key")}, 0, "sim-1"},
		{[]string{"--admin-ca", at("admin.pem")}, 1, "operator's key"},
		{[]string{"--admin-ca", at("other.pem"), "--admin-key-file", at("root.key")}, 1, "certificate"},
		{[]string{"--admin-key-file", at("root.key")}, 1, "certificate"},
		{[]string{"--admin-ca", at("root.key")}, 2, "no certificate as PEM"},
		{[]string{"--admin-ca", at("nothing.pem")}, 2, "--admin-ca"},
	} {
		out, errs, code := harness.Finish(t, "", append([]string{"engines", "--admin", operator}, test.args...)...)
		if code != test.code || !strings.Contains(out+errs, test.want) || strings.Contains(out+errs, root) {
			t.Errorf("weir engines %v: exit code %d, %s%s; want %d with %q", test.args, code, out, errs, test.code, test.want)
		}
	}
	if out, errs, code := harness.Finish(t, "", "engines", "drain", "sim-1", "--admin", operator, "--admin-ca", at("admin.pem"), "--admin-key-file", at("root.key")); code != 0 {
		t.Errorf("weir engines drain: exit code %d, %s%s", code, out, errs)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
	for path, status := range map[string]int{"/healthz": 200, "/metrics": 401} {
		resp, err := client.Get(operator + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%s without a key: status %d, want %d", path, resp.StatusCode, status)
		}
	}
	if resp, err := http.Get(strings.Replace(operator, "https", "http", 1) + "/healthz"); err == nil {
		resp.Body.Close()
		if resp.StatusCode == 200 {
			t.Error("the admin listener answers without TLS")
		}
	}
	p.Interrupt()
	p.Exits(0)
	for _, args := range [][]string{{"--admin-tls-cert", at("admin.pem")}, {"--admin-tls-cert", at("admin.pem"), "--admin-tls-key", at("other.key")}} {
		_, errs, code := harness.Finish(t, "", append([]string{"up", "--listen", "127.0.0.1:0"}, args...)...)
		if code == 0 || !strings.Contains(errs, "tls-key") {
			t.Errorf("%v: exit code %d, %s", args, code, errs)
		}
	}
}
