package front

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"weir/internal/disk"
	"weir/internal/wire/trust"
)

// Certificate is a server's certificate and key, read from their files again
// when these change, so that a renewal needs no restart. A handshake looks at the
// files, at most once per second.
type Certificate struct {
	pair *disk.Watched[tls.Certificate]
}

// LoadCertificate reads a PEM certificate chain, the server's own first, and
// its key.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{}
	var err error
	c.pair, err = disk.NewWatched([]disk.File{{What: "--tls-cert", Path: certFile}, {What: "--tls-key", Path: keyFile}}, disk.MaxPEM,
		func(contents [][]byte) (pair tls.Certificate, err error) {
			if pair, err = trust.Pair(contents[0], contents[1]); err != nil {
				return pair, fmt.Errorf("--tls-cert %s and --tls-key %s: %w", certFile, keyFile, err)
			}
			if now := time.Now(); now.After(pair.Leaf.NotAfter) {
				log.Warn("the TLS certificate has expired, clients will refuse it", "file", certFile, "not_after", pair.Leaf.NotAfter)
			}
			return pair, nil
		},
		func(_ bool, err error) {
			if err != nil {
				log.Warn("the changed TLS certificate cannot be used, the old one stays", "error", err)
				return
			}
			log.Info("TLS certificate read again", "file", certFile, "not_after", c.Expires())
		})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Config returns the server's TLS configuration with the certificate: TLS 1.2 and
// later, HTTP/2 preferred to HTTP/1.1. The protocols are named because a server whose
// first connections are without TLS would not set up HTTP/2 otherwise.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Get(time.Now()), nil },
	}
}

// Expires returns when the certificate in use expires.
func (c *Certificate) Expires() time.Time { return c.pair.Value().Leaf.NotAfter }

// Reload adopts the files' new contents if they are whole and belong together, and
// reports whether they hold another certificate. Otherwise the old certificate stays.
func (c *Certificate) Reload() (changed bool, err error) { return c.pair.Reload() }
