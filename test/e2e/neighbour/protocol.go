//go:build linux

package neighbour

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"weir/test/e2e/harness"
)

// Protocol is how clients speak to the gateway.
type Protocol string

// The protocols: HTTP/1.1, the same over TLS, and HTTP/2 over TLS.
const (
	Plain Protocol = "plain"
	TLS   Protocol = "tls"
	HTTP2 Protocol = "http2"
)

// Protocols are all of them.
var Protocols = []Protocol{Plain, TLS, HTTP2}

// target is the gateway as its clients reach it.
type target struct {
	Protocol Protocol
	Address  string
	Roots    string // the file of the certificate to trust
}

// url is the base of the API.
func (g target) url() string {
	if g.Protocol == Plain {
		return "http://" + g.Address
	}
	return "https://" + g.Address
}

func (g target) config() (*tls.Config, error) {
	if g.Protocol == Plain {
		return nil, nil
	}
	text, err := os.ReadFile(g.Roots)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	c := &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{"http/1.1"}}
	if g.Protocol == HTTP2 {
		c.NextProtos = []string{"h2"}
	}
	return c, nil
}

// transport speaks the protocol by net/http, and keeps each connection.
func (g target) transport() (*http.Transport, error) {
	config, err := g.config()
	if err != nil {
		return nil, err
	}
	t := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true, TLSClientConfig: config,
		MaxIdleConns: 0, MaxIdleConnsPerHost: 1 << 20}
	t.Protocols.SetHTTP1(g.Protocol != HTTP2)
	t.Protocols.SetHTTP2(g.Protocol == HTTP2)
	return t, nil
}

// bare is a connection whose bytes the caller writes.
type bare struct {
	net.Conn
	tcp *net.TCPConn // below TLS
}

// dialer opens bare connections.
type dialer struct {
	target
	config *tls.Config
	narrow bool // the connection holds little that its client does not read
}

func (g target) dialer() (*dialer, error) {
	config, err := g.config()
	return &dialer{target: g, config: config}, err
}

// dial opens a connection, its handshake done.
func (d *dialer) dial(ctx context.Context) (*bare, error) {
	var nd net.Dialer
	if d.narrow {
		nd.Control = harness.Narrow
	}
	conn, err := nd.DialContext(ctx, "tcp", d.Address)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return nil, errors.New("no TCP connection")
	}
	if d.config == nil {
		return &bare{conn, tcp}, nil
	}
	secure := tls.Client(conn, d.config)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return &bare{secure, tcp}, nil
}

// reset ends the connection at once, and what is on its way with it.
func (b *bare) reset() {
	_ = b.tcp.SetLinger(0) // a connection that is gone already needs none
	b.tcp.Close()
}

// halfClose ends the sending side: of TLS, where there is one, and of TCP.
func (b *bare) halfClose() error {
	if secure, ok := b.Conn.(*tls.Conn); ok {
		if err := secure.CloseWrite(); err != nil {
			return err
		}
	}
	return b.tcp.CloseWrite()
}

// opening is what a connection sends before its first request.
func (g target) opening() []byte {
	if g.Protocol != HTTP2 {
		return nil
	}
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	if err := http2.NewFramer(&b, nil).WriteSettings(); err != nil {
		panic(err) // a buffer takes all
	}
	return b.Bytes()
}

// request is a request as bytes: of HTTP/2, on the stream of that number, 1, 3, 5 and
// so on. A body is one frame of at most 16 KB.
func (g target) request(stream uint32, method, path, body string) []byte {
	if g.Protocol != HTTP2 {
		return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, g.Address, len(body), body)
	}
	var head, b bytes.Buffer
	fields := hpack.NewEncoder(&head)
	fields.SetMaxDynamicTableSize(0) // requests are made apart from each other
	for _, f := range [][2]string{{":method", method}, {":scheme", "https"}, {":authority", g.Address}, {":path", path},
		{"content-type", "application/json"}, {"content-length", strconv.Itoa(len(body))}} {
		if err := fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			panic(err) // a buffer takes all
		}
	}
	framer := http2.NewFramer(&b, nil)
	err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndHeaders: true, EndStream: body == ""})
	if err == nil && body != "" {
		err = framer.WriteData(stream, true, []byte(body))
	}
	if err != nil {
		panic(err)
	}
	return b.Bytes()
}

// frames are frames of HTTP/2, as bytes.
func frames(write func(f *http2.Framer) error) []byte {
	var b bytes.Buffer
	if err := write(http2.NewFramer(&b, nil)); err != nil {
		panic(err)
	}
	return b.Bytes()
}
