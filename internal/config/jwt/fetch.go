package jwt

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/coreos/go-oidc/v3/oidc"

	"weir/internal/config"
	"weir/internal/wire/bounded"
	"weir/internal/wire/trust"
)

// name is the URL that is asked.
func (l Location) name() string { return cmp.Or(l.JWKS, l.Issuer) }

// fetch gets the keys, within the time of ctx.
func (l Location) fetch(ctx context.Context) ([]byte, error) {
	transport, err := l.transport()
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: short{transport}, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("it redirects; name the place itself")
	}}
	at := l.JWKS
	if at == "" {
		var place struct {
			JWKS string `json:"jwks_uri"`
		}
		provider, err := oidc.NewProvider(oidc.ClientContext(ctx, client), l.Issuer)
		if err != nil {
			return nil, err
		}
		if err := provider.Claims(&place); err != nil {
			return nil, err
		}
		if at = place.JWKS; !Safe(at) {
			return nil, errors.New("jwks_uri in its description is no https:// URL")
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", at, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// transport makes connections for one fetch. None is kept: fetches are minutes apart.
func (l Location) transport() (*http.Transport, error) {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 64 << 10}
	if l.CA == "" {
		return t, nil
	}
	authorities, err := trust.Authorities(l.CA)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: authorities}
	return t, nil
}

// Safe reports whether what is read from a URL is what its server sent: by TLS, or on this
// machine.
func Safe(raw string) bool {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return false
	}
	at := net.ParseIP(u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && (config.IsLocalhost(u.Hostname()) || at.IsLoopback())
}

// short fails to read answers that are longer than maxBody.
type short struct{ under http.RoundTripper }

var errLong = fmt.Errorf("the answer is longer than %d bytes", maxBody)

// RoundTrip implements http.RoundTripper.
func (s short) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.under.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{&bounded.Reader{R: resp.Body, Left: maxBody, Err: errLong}, resp.Body}
	}
	return resp, err
}
