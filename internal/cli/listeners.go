package cli

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"

	"weir/internal/fleet/admission"
	"weir/internal/gateway"
	"weir/internal/gateway/front"
	"weir/internal/wire/trust"
)

// apiListener is where clients connect, and what a connection of theirs may be.
type apiListener struct {
	listener    net.Listener
	proxies     admission.Proxies  // that begin each connection with the PROXY protocol
	certificate *front.Certificate // nil: it has no TLS
	authorities *trust.Roots       // of client certificates; nil: none are asked for
	h2c         bool               // without TLS it has HTTP/2 too
}

// adminListener is where operators connect, and what they may do there.
type adminListener struct {
	listener    net.Listener       // nil: there is none
	certificate *front.Certificate // nil: it has no TLS
	hosts       names              // by which it may be called
	pprof       bool               // it serves /debug/pprof/
	changes     string             // who may change the fleet
}

// url is the API's base URL at an address.
func (l *apiListener) url(addr string) string {
	if l.certificate != nil {
		return "https://" + addr
	}
	return "http://" + addr
}

// server returns the API's server and how it serves the API's own listener.
func (l *apiListener) server(g *gateway.Gateway) (api *http.Server, serve func(net.Listener) error) {
	api = g.Server()
	if l.certificate == nil {
		api.Protocols.SetUnencryptedHTTP2(l.h2c)
		return api, api.Serve
	}
	config := l.certificate.Config()
	if l.authorities != nil {
		l.authorities.Server(config, tls.VerifyClientCertIfGiven)
	}
	api.TLSConfig = g.Front().TLS(config)
	return api, func(from net.Listener) error { return api.ServeTLS(from, "", "") }
}

// proxyHeaderTimeout bounds the wait for the PROXY header of a connection.
const proxyHeaderTimeout = 10 * time.Second

// clients returns the API's listener, whose connections know the addresses of their clients.
// With the PROXY protocol, a trusted proxy must send the client's address, and no other
// client may send one.
func (l *apiListener) clients() net.Listener {
	if len(l.proxies) == 0 {
		return l.listener
	}
	return &proxyproto.Listener{Listener: l.listener, ReadHeaderTimeout: proxyHeaderTimeout,
		ConnPolicy: func(o proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if tcp, ok := o.Upstream.(*net.TCPAddr); ok && l.proxies.Trusts(tcp.AddrPort().Addr()) {
				return proxyproto.REQUIRE, nil
			}
			return proxyproto.SKIP, nil
		}}
}

// listen returns the API's listener as the gateway's front serves it.
func (l *apiListener) listen(f *front.Front) net.Listener {
	if l.certificate == nil {
		return f.PlainListener(l.clients())
	}
	return f.Listener(l.clients())
}

// url is the admin listener's base URL at an address.
func (l *adminListener) url(addr string) string {
	if l.certificate != nil {
		return "https://" + addr
	}
	return "http://" + addr
}

// here is an address as this machine reaches it.
func here(addr string) string {
	if at, err := netip.ParseAddrPort(addr); err == nil && at.Addr().IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", at.Port())
	}
	return addr
}
