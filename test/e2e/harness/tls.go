package harness

import (
	"crypto/x509"
	"testing"

	"weir/test/certtest"
)

// KeyPair makes a certificate for 127.0.0.1 in two files, and a pool that trusts it.
func KeyPair(t testing.TB, certFile, keyFile string, serial int64) *x509.CertPool {
	t.Helper()
	cert, key, err := certtest.Make("weir", serial)
	if err != nil {
		t.Fatal(err)
	}
	Rewrite(t, certFile, string(cert))
	Rewrite(t, keyFile, string(key))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pool
}
