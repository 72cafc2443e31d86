//go:build interop

// Package keys has others' issuers and certificates name the callers of the built binary: tokens
// that PyJWT signs, certificates that openssl makes, sent by curl and OpenAI's client.
package keys

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// openssl runs a command of openssl in a folder.
func openssl(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(harness.Context(t), "openssl", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("openssl %v: %v\n%s", args, err, out)
	}
}

// authority makes NAME.pem and NAME.key, of an authority.
func authority(t *testing.T, dir, name string) {
	t.Helper()
	openssl(t, dir, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN="+name, "-keyout", name+".key", "-out", name+".pem",
		"-addext", "keyUsage=critical,keyCertSign")
	for file, text := range map[string]string{
		name + ".cnf": "[ca]\ndefault_ca=x\n[x]\nnew_certs_dir=.\ndatabase=" + name + ".db\nserial=" + name + ".srl\ndefault_md=sha256\npolicy=any\nunique_subject=no\n" +
			"[any]\norganizationName=optional\ncommonName=supplied\n",
		name + ".db": "", name + ".srl": "01\n",
	} {
		harness.WriteFile(t, filepath.Join(dir, file), text)
	}
}

// certificate makes NAME.pem and NAME.key, signed by an authority, with extensions, from a year
// to another.
func certificate(t *testing.T, dir, by, name, subject, extensions, from, to string) {
	t.Helper()
	harness.WriteFile(t, filepath.Join(dir, name+".ext"), extensions)
	openssl(t, dir, "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", name+".key", "-out", name+".csr")
	openssl(t, dir, "ca", "-batch", "-notext", "-config", by+".cnf", "-cert", by+".pem", "-keyfile", by+".key", "-in", name+".csr", "-out", name+".pem",
		"-extfile", name+".ext", "-startdate", from+"0101000000Z", "-enddate", to+"0101000000Z")
}

// TestKeys has callers come with tokens of another library's issuer, whose keys rotate, and with
// openssl's certificates.
func TestKeys(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	authority(t, dir, "ca")
	authority(t, dir, "other")
	const client, server = "extendedKeyUsage=clientAuth", "extendedKeyUsage=serverAuth"
	certificate(t, dir, "ca", "server", "/CN=weir", server+"\nsubjectAltName=IP:127.0.0.1", "2020", "2099")
	certificate(t, dir, "ca", "subject", "/O=Example/CN=batch", client, "2020", "2099")
	certificate(t, dir, "ca", "uri", "/CN=any", client+"\nsubjectAltName=URI:spiffe://example/batch", "2020", "2099")
	certificate(t, dir, "ca", "nobody", "/CN=nobody", client, "2020", "2099")
	certificate(t, dir, "ca", "expired", "/O=Example/CN=batch", client, "2020", "2021")
	certificate(t, dir, "ca", "early", "/O=Example/CN=batch", client, "2090", "2099")
	certificate(t, dir, "other", "stranger", "/O=Example/CN=batch", client, "2020", "2099")
	certificate(t, dir, "ca", "usage", "/O=Example/CN=batch", server, "2020", "2099")

	issuer := "http://" + harness.FreeAddress(t)
	file, timeline := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "timeline.jsonl")
	harness.WriteFile(t, file, fmt.Sprintf("certificates:\n  \"CN=batch,O=Example\": {tenant: by-subject}\n  spiffe://example/batch: {tenant: by-uri}\n"+
		"issuers:\n  login: {issuer: %q, audience: weir, tenant_claim: org, models_claim: models}\n", issuer))
	at := func(name string) string { return filepath.Join(dir, name) }
	p := harness.Start(t, "up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--keys", file, "--timeline", timeline,
		"--tls-cert", at("server.pem"), "--tls-key", at("server.key"), "--client-ca", at("ca.pem"))
	base := p.Line("gateway")

	for name, want := range map[string]string{
		"subject": "200", "uri": "200", "nobody": "401", "": "401", // no certificate
		"expired": "", "early": "", "stranger": "", "usage": "", // no answer
	} {
		t.Run("curl/"+name, func(t *testing.T) {
			args := []string{"-sS", "--max-time", "60", "--cacert", at("ca.pem"), "-o", at("answer"), "-w", "%{http_code}", base + "/v1/models"}
			if name != "" {
				args = append(args, "--cert", at(name+".pem"), "--key", at(name+".key"))
			}
			out, err := exec.CommandContext(harness.Context(t), "curl", args...).CombinedOutput()
			if want != "" && (err != nil || string(out) != want) || want == "" && (err == nil || !strings.HasSuffix(string(out), "000")) {
				t.Errorf("%v, %s; want status %q", err, out, want)
			}
		})
	}
	cmd := exec.CommandContext(harness.Context(t), harness.Python(t), "tokens_python.py", "--base-url", base, "--issuer", issuer, "--certificates", dir)
	harness.Checks(t, 12, cmd)

	p.Interrupt()
	p.Exits(0)
	records, err := os.ReadFile(timeline)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"key":"login:alice","tenant":"acme"`, `"tenant":"by-subject"`, `"tenant":"by-uri"`} {
		if !strings.Contains(string(records), want) {
			t.Errorf("no record has %s", want)
		}
	}
	if all := string(records) + p.Output() + p.Stderr.String(); strings.Contains(all, "eyJ") {
		t.Error("a token is in the records or the log")
	}
}
