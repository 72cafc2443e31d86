package access

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/disk"
	"weir/test/certtest"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Without anything there is nothing, and asking it is fine.
func TestNone(t *testing.T) {
	a, err := New(Options{Log: slog.Default()})
	if err != nil || a != nil || a.TLS() != nil || a.Authorization() != "" || !strings.Contains(a.Advice(), "key-file=FILE") {
		t.Errorf("%+v, %v", a, err)
	}
}

// A key is what its file holds now. A file that cannot be used changes nothing, is told
// of once, and its contents never are.
func TestKeyIsReadAgain(t *testing.T) {
	name := filepath.Join(t.TempDir(), "key")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		write(t, name, "secret-one\n")
		a, err := New(Options{KeyFile: name, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		want := func(key string) {
			t.Helper()
			if got := a.Authorization(); got != "Bearer "+key {
				t.Errorf("%q, want %q", got, key)
			}
		}
		// later asks once a second until a change counts.
		later := func(key string) {
			t.Helper()
			for range 2 + int(disk.Still/time.Second) {
				time.Sleep(time.Second)
				a.Authorization()
			}
			want(key)
		}
		want("secret-one")
		write(t, name, "secret-two")
		want("secret-one") // looked at within this second
		later("secret-two")
		for _, broken := range []string{"", "  \n", "secret three", "secret\nfour", "secret\x00"} {
			write(t, name, broken)
			later("secret-two")
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		later("secret-two")
		write(t, name, "secret-five\r\n")
		later("secret-five")
		if n := strings.Count(log.String(), "WARN"); n != 3 { // empty, more than a key, gone
			t.Errorf("%d warnings:\n%s", n, log.String())
		}
		if strings.Contains(log.String(), "secret") || strings.Contains(a.Advice(), "secret") {
			t.Errorf("a key is told:\n%s\n%s", log.String(), a.Advice())
		}
	})
}

func TestWrongFiles(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	write(t, empty, "")
	for want, o := range map[string]Options{
		"key-file: open":    {KeyFile: filepath.Join(dir, "none")},
		"the file is empty": {KeyFile: empty},
		"ca: open":          {CA: filepath.Join(dir, "none")},
		"no certificate":    {CA: empty},
		"cert: open":        {Cert: filepath.Join(dir, "none")},
		"cert: " + empty:    {Cert: empty},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// A certificate of weir's own comes from one file or two, and is what they hold now.
func TestCertificate(t *testing.T) {
	dir := t.TempDir()
	both, cert, key := filepath.Join(dir, "both"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	synctest.Test(t, func(t *testing.T) {
		put := func(serial int64) {
			c, k := pair(t, serial)
			write(t, both, c+k)
			write(t, cert, c)
			write(t, key, k)
		}
		put(1)
		for _, o := range []Options{{Cert: both}, {Cert: cert, CertKey: key}} {
			put(1)
			a, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			serial := func() int64 {
				c, err := a.TLS().GetClientCertificate(&tls.CertificateRequestInfo{})
				if err != nil {
					t.Fatal(err)
				}
				return c.Leaf.SerialNumber.Int64()
			}
			if n := serial(); n != 1 {
				t.Errorf("certificate %d", n)
			}
			put(2)
			time.Sleep(time.Second)
			if n := serial(); n != 1 {
				t.Errorf("certificate %d while the files are written", n)
			}
			time.Sleep(disk.Still)
			if n := serial(); n != 2 {
				t.Errorf("certificate %d after the change", n)
			}
		}
	})
}

func pair(t *testing.T, serial int64) (cert, key string) {
	t.Helper()
	c, k, err := certtest.Make("weir", serial)
	if err != nil {
		t.Fatal(err)
	}
	return string(c), string(k)
}
