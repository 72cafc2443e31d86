package gateway

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// certificateCheck is the least time between two looks at the files.
const certificateCheck = time.Second

// Certificate is a server's certificate and key, read from their files again
// when these change, so that a renewal needs no restart.
//
// The obvious ways are a watch over the files and a timer. Both need a goroutine, and
// a watch does not survive the symbolic links by which mounted secrets are replaced.
// Instead a handshake compares the files' contents, at most once per second. Times of
// change are not enough, because a file that is replaced within their resolution
// would be missed.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	current atomic.Pointer[tls.Certificate]
	checked atomic.Int64 // when the files were looked at last, in Unix nanoseconds

	mu        sync.Mutex // one reader of the files
	cert, key []byte     // what current was made of
	complaint string     // why the files were not taken last, logged once
}

// LoadCertificate reads a PEM certificate chain, the server's own first, and
// its key.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log}
	if _, err := c.load(); err != nil {
		return nil, err
	}
	c.checked.Store(time.Now().UnixNano())
	return c, nil
}

// Config returns the server's TLS configuration with the certificate: TLS 1.2 and
// later, HTTP/2 preferred to HTTP/1.1. The protocols are named because a server whose
// first connections are without TLS would not set up HTTP/2 otherwise.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(time.Now()), nil },
	}
}

// get returns the certificate for a handshake. One handshake a second looks at the
// files; the others do not wait for it.
func (c *Certificate) get(now time.Time) *tls.Certificate {
	last := c.checked.Load()
	since := now.UnixNano() - last // below 0 when the clock was set back
	if (since >= int64(certificateCheck) || since < 0) && c.checked.CompareAndSwap(last, now.UnixNano()) {
		_, _ = c.Reload() // it has logged its error
	}
	return c.current.Load()
}

// Expires returns when the certificate in use expires.
func (c *Certificate) Expires() time.Time { return c.current.Load().Leaf.NotAfter }

// Reload adopts the files' new contents if they are whole and belong together, and
// reports whether they hold another certificate. Otherwise the old certificate stays:
// one file may have been replaced before the other.
func (c *Certificate) Reload() (changed bool, err error) {
	changed, err = c.load()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil && err.Error() != c.complaint:
		c.complaint = err.Error()
		c.log.Warn("the changed TLS certificate cannot be used, the old one stays", "error", err)
	case err == nil:
		c.complaint = ""
		if changed {
			c.log.Info("TLS certificate read again", "file", c.certFile, "not_after", c.Expires())
		}
	}
	return changed, err
}

// load reads the files and says whether they hold another certificate now.
func (c *Certificate) load() (changed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return false, fmt.Errorf("--tls-cert: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return false, fmt.Errorf("--tls-key: %w", err)
	}
	if bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return false, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return false, fmt.Errorf("--tls-cert %s and --tls-key %s: %w", c.certFile, c.keyFile, err)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) {
		c.log.Warn("the TLS certificate has expired, clients will refuse it", "file", c.certFile, "not_after", pair.Leaf.NotAfter)
	}
	c.cert, c.key = cert, key
	c.current.Store(&pair)
	return true, nil
}
