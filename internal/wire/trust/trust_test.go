package trust

import (
	"bytes"
	"crypto/tls"
	"errors"
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

// A file that cannot be used is named in the error.
func TestAuthoritiesRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	for _, text := range []string{"", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Authorities(file); err == nil || !strings.Contains(err.Error(), file+" has no certificate as PEM") {
			t.Errorf("%q: got %v", text, err)
		}
	}
	if _, err := Authorities(file + ".gone"); err == nil || !strings.Contains(err.Error(), file+".gone") {
		t.Errorf("a missing file: got %v", err)
	}
}

// Each handshake goes by the authorities that the file has at its time, on both sides, and also
// where a session is resumed. A file that cannot be used changes nothing.
func TestWatch(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	var texts [2]string
	var pairs [2]tls.Certificate
	for i := range pairs {
		cert, key, err := certtest.Make("a.example", int64(i))
		if err != nil {
			t.Fatal(err)
		}
		if pairs[i], err = Pair(cert, key); err != nil {
			t.Fatal(err)
		}
		texts[i] = string(cert)
	}
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(texts[0])
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		roots, err := Watch("--client-ca", file, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		asks := &tls.Config{Certificates: pairs[:1]}
		roots.Server(asks, tls.RequireAndVerifyClientCert)
		client := roots.Client(&tls.Config{ServerName: "a.example"})
		sessions := [2]tls.ClientSessionCache{tls.NewLRUClientSessionCache(4), tls.NewLRUClientSessionCache(4)}
		taken := func(by int) {
			t.Helper()
			for i, pair := range pairs {
				of := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, ServerName: "a.example", ClientSessionCache: sessions[i]}
				if err := shake(asks, of); (err == nil) != (i == by) {
					t.Errorf("a client of authority %d, where %d is known: %v", i, by, err)
				}
				if err := shake(&tls.Config{Certificates: []tls.Certificate{pair}}, client()); (err == nil) != (i == by) {
					t.Errorf("a server of authority %d, where %d is known: %v", i, by, err)
				}
			}
		}
		later := func() {
			for range 2 + int(disk.Still/time.Second) {
				time.Sleep(time.Second)
				roots.Pool()
			}
		}
		taken(0)
		if now := client(); now != client() {
			t.Error("the configuration is another one without a change")
		}
		for _, text := range []string{"", "no PEM"} {
			put(text)
			later()
			taken(0)
		}
		put(texts[1])
		later()
		taken(1)
		for _, want := range []string{"cannot be used, the old ones stay", "authorities read again"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%q is not in the log:\n%s", want, log.String())
			}
		}
	})
}

// shake makes a connection, on which the server says something.
func shake(server, client *tls.Config) error {
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		return err
	}
	defer l.Close()
	answered := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = c.Write([]byte("x"))
			c.Close()
		}
		answered <- err
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		c.Close()
	}
	return errors.Join(err, <-answered)
}
