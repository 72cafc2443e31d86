// Package trust reads the certificates that weir shows, and those of the authorities that it trusts.
package trust

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"weir/internal/disk"
)

// Authorities reads a file with the certificates of authorities, as PEM, once. Where connections
// are made later on, Watch reads it.
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

// Roots are the certificates of authorities in a file, which is read again when it changes.
type Roots struct{ pool *disk.Watched[*x509.CertPool] }

// Watch reads a file with the certificates of authorities, as PEM; option is what an operator calls
// it. If a changed file cannot be used, the old certificates stay, and the log, which may be nil,
// is told.
func Watch(option, file string, log *slog.Logger) (*Roots, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	pool, err := disk.NewWatched([]disk.File{{What: option, Path: file}}, disk.MaxPEM,
		func(contents [][]byte) (*x509.CertPool, error) { return Pool(contents[0], file) },
		func(_ bool, err error) {
			if err != nil {
				log.Warn("a changed file of authorities cannot be used, the old ones stay", "option", option, "error", err)
				return
			}
			log.Info("authorities read again", "option", option, "file", file)
		})
	if err != nil {
		return nil, err
	}
	return &Roots{pool}, nil
}

// Pool returns the certificates as they are now.
func (r *Roots) Pool() *x509.CertPool { return *r.pool.Get(time.Now()) }

// Client returns a client's configuration whose servers must have certificates of the authorities.
// It is good for one handshake, or for as long as Client returns the same one.
func (r *Roots) Client(config *tls.Config) func() *tls.Config {
	return r.of(config, func(c *tls.Config, now *x509.CertPool) { c.RootCAs = now })
}

// Server has a server verify the certificates of its clients, each by the authorities at the time
// of its handshake.
func (r *Roots) Server(config *tls.Config, auth tls.ClientAuthType) {
	config.ClientAuth, config.ClientCAs = auth, r.Pool()
	now := r.of(config, func(c *tls.Config, now *x509.CertPool) { c.ClientCAs = now })
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return now(), nil }
}

// of returns a copy of a configuration with the certificates as they are now, another one only if
// these are others.
func (r *Roots) of(config *tls.Config, set func(c *tls.Config, now *x509.CertPool)) func() *tls.Config {
	type made struct {
		by     *x509.CertPool
		config *tls.Config
	}
	config = config.Clone()
	var last atomic.Pointer[made]
	return func() *tls.Config {
		by := r.Pool()
		if m := last.Load(); m != nil && m.by == by {
			return m.config
		}
		m := &made{by, config.Clone()}
		set(m.config, by)
		last.Store(m)
		return m.config
	}
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
