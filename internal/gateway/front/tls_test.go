package front

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/test/certtest"
)

// keyPair makes a certificate of the given serial number, as PEM.
func keyPair(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	cert, key, err := certtest.Make("weir", serial)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// A changed certificate is taken over within a second of handshakes; files that
// do not belong together, or are cut, change nothing and are complained about
// once.
func TestCertificateReload(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write := func(file string, text []byte) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert1, key1 := keyPair(t, 1)
	cert2, key2 := keyPair(t, 2)
	write(certFile, cert1)
	write(keyFile, key1)
	var log bytes.Buffer
	c, err := LoadCertificate(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	serial := func(later time.Duration) int64 {
		now = now.Add(later)
		return c.pair.Get(now).Leaf.SerialNumber.Int64()
	}
	want := func(what string, got, want int64) {
		t.Helper()
		if got != want {
			t.Errorf("%s: certificate %d, want %d", what, got, want)
		}
	}
	want("unchanged", serial(2*time.Second), 1)
	write(certFile, cert2)
	want("the key is still the old one", serial(4*time.Second), 1)
	want("and later", serial(4*time.Second), 1)
	write(keyFile, key2)
	want("both exchanged, within the second", serial(time.Second/2), 1)
	want("both exchanged", serial(4*time.Second), 2)
	write(certFile, cert1[:len(cert1)/2])
	want("cut", serial(4*time.Second), 2)
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	want("gone", serial(4*time.Second), 2)
	want("gone for good", serial(4*time.Second), 2)
	write(certFile, cert2)
	want("as it was", serial(4*time.Second), 2)

	write(certFile, cert1)
	write(keyFile, key1)
	want("the clock was set back", serial(-time.Hour), 2)
	want("and went on", serial(4*time.Second), 1)
	write(certFile, cert2)
	write(keyFile, key2)
	if changed, err := c.Reload(); !changed || err != nil {
		t.Errorf("reloaded: changed %t, %v", changed, err)
	}
	want("reloaded, within the second", serial(time.Second/2), 2)
	if changed, err := c.Reload(); changed || err != nil {
		t.Errorf("reloaded the same: changed %t, %v", changed, err)
	}
	if n := strings.Count(log.String(), "cannot be used"); n != 3 {
		t.Errorf("%d complaints, want one each for the pair, the cut and the missing file:\n%s", n, log.String())
	}
	if n := strings.Count(log.String(), "read again"); n != 3 {
		t.Errorf("%d times read again, want 3:\n%s", n, log.String())
	}
}

func TestLoadCertificateRefuses(t *testing.T) {
	dir := t.TempDir()
	cert, key := keyPair(t, 1)
	_, other := keyPair(t, 2)
	for name, c := range map[string]struct {
		cert, key []byte
		want      string
	}{
		"no certificate": {nil, key, "--tls-cert"},
		"no key":         {cert, nil, "--tls-key"},
		"another key":    {cert, other, "does not match"},
		"not PEM":        {[]byte("x"), key, "PEM"},
		"a long chain":   {bytes.Repeat(cert, 17), key, "17 certificates, and at most 16"},
		"a long file":    {bytes.Repeat(cert, 3000), key, "longer than 1 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			files := []string{filepath.Join(dir, name+" cert"), filepath.Join(dir, name+" key")}
			for i, text := range [][]byte{c.cert, c.key} {
				if text == nil {
					continue
				}
				if err := os.WriteFile(files[i], text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := LoadCertificate(files[0], files[1], slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
