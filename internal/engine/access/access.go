// Package access holds the credentials of connections to engines: the key and the
// client certificate that weir presents, and the authority that must have signed the
// engine's certificate.
//
// Keys and certificates are read from files, because arguments and URLs appear in
// process lists and in logs. A file is read again when it changes, so a new key needs
// no restart.
package access

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"weir/internal/disk"
	"weir/internal/wire/trust"
)

// Options say what there is for one engine. All are optional.
type Options struct {
	// KeyFile holds the key that the engine asks for.
	KeyFile string
	// TLS enables TLS for an engine whose address does not show it, such as that of a
	// gRPC server.
	TLS bool
	// CA holds the authorities that the engine's certificate may be signed by; empty:
	// those of the system. ServerName is the name that the certificate must be for;
	// empty: the host of its address.
	CA, ServerName string
	// Cert and CertKey hold weir's own certificate, with its chain, and the key of it. If
	// CertKey is empty, Cert holds both.
	Cert, CertKey string
	// Log is told when a file that has changed cannot be used; nil is fine.
	Log *slog.Logger
}

// Access is what there is for one engine. That of nil is nothing.
type Access struct {
	tls     *tls.Config
	secure  func() *tls.Config // tls with the authorities as they are now; nil: those of the system
	key     *disk.Watched[string]
	keyFile string
	cert    *disk.Watched[tls.Certificate]
}

// New reads the files.
func New(o Options) (*Access, error) {
	if o == (Options{Log: o.Log}) {
		return nil, nil
	}
	a := &Access{keyFile: o.KeyFile}
	var err error
	if o.KeyFile != "" {
		if a.key, err = open("key-file", []string{o.KeyFile}, disk.MaxSecret, parseKey, o.Log); err != nil {
			return nil, err
		}
	}
	if !o.TLS && o.CA == "" && o.ServerName == "" && o.Cert == "" {
		return a, nil
	}
	a.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName}
	if o.Cert != "" {
		files := []string{o.Cert}
		if o.CertKey != "" {
			files = append(files, o.CertKey)
		}
		if a.cert, err = open("cert", files, disk.MaxPEM, parsePair, o.Log); err != nil {
			return nil, err
		}
		a.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.cert.Get(time.Now()), nil }
	}
	if o.CA != "" {
		roots, err := trust.Watch("ca", o.CA, o.Log)
		if err != nil {
			return nil, err
		}
		a.secure = roots.Client(a.tls)
	}
	return a, nil
}

// parseKey reads a key: a line of visible characters. No error of it quotes the file.
func parseKey(contents [][]byte) (string, error) {
	key := bytes.TrimSpace(contents[0])
	if len(key) == 0 {
		return "", errors.New("the file is empty")
	}
	for _, c := range key {
		if c <= ' ' || c >= 0x7f {
			return "", errors.New("the file holds more than a key: want one line without blanks")
		}
	}
	return "Bearer " + string(key), nil
}

func parsePair(contents [][]byte) (tls.Certificate, error) {
	return trust.Pair(contents[0], contents[len(contents)-1])
}

// TLS returns the TLS configuration for the next connection to the engine, or nil if none was
// given. It is another one only if the authorities are others. The caller must clone it before
// changing it.
func (a *Access) TLS() *tls.Config {
	switch {
	case a == nil:
		return nil
	case a.secure != nil:
		return a.secure()
	}
	return a.tls
}

// Authorization is the field that requests to the engine carry, "Bearer KEY"; empty
// without a key.
func (a *Access) Authorization() string {
	if a == nil || a.key == nil {
		return ""
	}
	return *a.key.Get(time.Now())
}

// Advice returns the advice for an engine that refuses weir's credentials (401 or 403).
func (a *Access) Advice() string {
	if a == nil || a.key == nil {
		return "it asks for a key; give it with key-file=FILE"
	}
	return "it does not take the key in " + a.keyFile
}

// open reads files whose value is read again when they change. Unusable files leave the value
// unchanged, because they may be in the middle of an exchange.
func open[T any](what string, names []string, most int64, parse func([][]byte) (T, error), log *slog.Logger) (*disk.Watched[T], error) {
	var files []disk.File
	for _, name := range names {
		files = append(files, disk.File{What: what, Path: name})
	}
	return disk.NewWatched(files, most, func(contents [][]byte) (T, error) {
		value, err := parse(contents)
		if err != nil {
			err = fmt.Errorf("%s: %s: %w", what, names[0], err)
		}
		return value, err
	}, func(_ bool, err error) {
		switch {
		case log == nil:
		case err != nil:
			log.Warn("a changed file cannot be used, its old contents stay", "error", err)
		default:
			log.Info("file read again", "option", what, "file", names[0])
		}
	})
}
