// Package trust reads the certificates that weir shows, and those of the authorities that it trusts.
package trust

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"weir/internal/disk"
)

// Authorities reads a file with the certificates of authorities, as PEM.
func Authorities(file string) (*x509.CertPool, error) {
	pem, err := disk.Read(file, disk.MaxPEM)
	if err != nil {
		return nil, err
	}
	return Pool(pem, file)
}

// Pool reads the certificates of authorities, as PEM; from is where they come from, for the
// error.
func Pool(pem []byte, from string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate as PEM", from)
	}
	return pool, nil
}

// maxChain bounds the certificates of a chain. Every handshake carries them, within 64 KiB.
const maxChain = 16

// Pair reads a certificate with its chain, and its key, as PEM.
func Pair(cert, key []byte) (pair tls.Certificate, err error) {
	if pair, err = tls.X509KeyPair(cert, key); err != nil {
		return pair, err
	}
	if n := len(pair.Certificate); n > maxChain {
		return tls.Certificate{}, fmt.Errorf("the chain has %d certificates, and at most %d are sent: give the server's own and those between it and its authority", n, maxChain)
	}
	return pair, nil
}
