package cli

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"weir/internal/fleet/admission"
)

// saying is a connection on which a client at an address has said everything.
type saying struct {
	net.Conn // nil: nothing else is asked of it
	from     net.Addr
	said     *bytes.Reader
}

func (s *saying) Read(p []byte) (int, error)       { return s.said.Read(p) }
func (s *saying) RemoteAddr() net.Addr             { return s.from }
func (s *saying) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8000} }
func (s *saying) SetReadDeadline(time.Time) error  { return nil }
func (s *saying) SetWriteDeadline(time.Time) error { return nil }
func (s *saying) SetDeadline(time.Time) error      { return nil }
func (s *saying) Close() error                     { return nil }

// one accepts one connection.
type one struct {
	net.Listener
	conn net.Conn
}

func (l *one) Accept() (net.Conn, error) { return l.conn, nil }

// FuzzProxyProtocol: however a connection of a trusted proxy begins, it has a client's
// address and the bytes behind the head, or nothing is read of it. One of anybody else is
// its peer's, whatever it claims, with every byte as it came.
func FuzzProxyProtocol(f *testing.F) {
	const request = "GET / HTTP/1.1\r\n\r\n"
	for _, head := range []string{
		"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", "PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n", "PROXY UNKNOWN\r\n", "PROXY TCP4 192.0.2.1 192.0.2.2 1 99999\r\n", "PROXY \r\n", "",
		"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x00\x01\x00\x02",
		"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00", "\r\n\r\n\x00\r\nQUIT\n\x21\x21\xff\xff",
		"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x12\xc0\x00\x02\x01\xc0\x00\x02\x02\x00\x01\x00\x02\x03\x00\x04\x00\x00\x00\x00",
		"\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\xd8",
	} {
		f.Add([]byte(head + request))
	}
	proxy := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7}
	anybody := &net.TCPAddr{IP: net.IPv4(203, 0, 113, 1), Port: 7}
	trusted := admission.Proxies{netip.MustParsePrefix("10.0.0.0/8")}
	f.Fuzz(func(t *testing.T, data []byte) {
		through := func(from net.Addr) (got []byte, addr net.Addr, err error) {
			c, err := (&apiListener{proxies: trusted, listener: &one{conn: &saying{from: from, said: bytes.NewReader(data)}}}).clients().Accept()
			if err != nil {
				return nil, nil, err
			}
			got, err = io.ReadAll(c)
			return got, c.RemoteAddr(), err
		}
		got, addr, err := through(proxy)
		switch {
		case err != nil:
			if len(got) > 0 {
				t.Fatalf("%q: %q was read, and then %v", data, got, err)
			}
		case addr == nil || !bytes.HasSuffix(data, got) || len(got) == len(data) && len(data) > 0:
			t.Fatalf("%q: %q of %v, without a head", data, got, addr)
		}
		if got, addr, err := through(anybody); err != nil || addr != net.Addr(anybody) || !bytes.Equal(got, data) {
			t.Fatalf("%q of anybody's: %q of %v, %v", data, got, addr, err)
		}
	})
}
