// Package trust reads the certificates of the authorities that weir trusts.
package trust

import (
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
