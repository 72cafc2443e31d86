package prepare

import (
	"crypto/tls"
	"net/http"

	"weir/internal/infer"
	"weir/internal/tenancy"
)

// Callers returns the caller of a request, from its head and its TLS connection, which is nil
// without TLS. It is called before anything else is done for the request, on the request's
// goroutine, and may wait a few seconds for the key of a token. The error refuses an unknown
// caller. It has a code (infer.CodeUnauthorized) and never contains what the caller presented.
type Callers func(head http.Header, secure *tls.ConnectionState) (*tenancy.Caller, error)

// anyone is Callers where no keys are configured.
func anyone(http.Header, *tls.ConnectionState) (*tenancy.Caller, error) { return tenancy.Anyone, nil }

// Unknown is the caller of a request that is refused for want of one. Its record names no tenant.
var Unknown = &tenancy.Caller{Share: 1}

// Caller returns who sends a request. It is never nil.
func (pr *Preparer) Caller(r *http.Request) (*tenancy.Caller, error) {
	c, err := pr.opts.Callers(r.Header, r.TLS)
	if err != nil || c == nil {
		if err == nil {
			err = infer.Errorf(infer.CodeUnauthorized, "the caller is not known")
		}
		return Unknown, err
	}
	if c.Key != "" {
		tenancy.Conceal(r.Header) // from engines and records
	}
	return c, nil
}
