package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer is a DNS server on a loopback address, which knows one name.
type nameServer struct {
	t    *testing.T
	conn net.PacketConn

	mu    sync.Mutex
	code  dnsmessage.RCode
	addrs []netip.Addr
}

func startNameServer(t *testing.T) *nameServer {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{t: t, conn: conn}
	var serving sync.WaitGroup
	serving.Go(s.serve)
	t.Cleanup(func() { conn.Close(); serving.Wait() })
	return s
}

// answers has the server answer so from now on.
func (s *nameServer) answers(code dnsmessage.RCode, addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code, s.addrs = code, nil
	for _, a := range addrs {
		s.addrs = append(s.addrs, netip.MustParseAddr(a))
	}
}

func (s *nameServer) serve() {
	buf := make([]byte, 512)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(buf[:n]); err != nil || len(m.Questions) != 1 {
			s.t.Errorf("a question of %d bytes: %v", n, err)
			return
		}
		s.mu.Lock()
		m.Response, m.RCode, m.Additionals = true, s.code, nil
		for _, a := range s.addrs {
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}, Body: &dnsmessage.AResource{A: a.As4()}})
			}
		}
		s.mu.Unlock()
		b, err := m.Pack()
		if err != nil {
			s.t.Error(err)
			return
		}
		if _, err := s.conn.WriteTo(b, from); err != nil && !errors.Is(err, net.ErrClosed) {
			s.t.Error(err)
		}
	}
}

// look looks a name up at the server.
func (s *nameServer) look(ctx context.Context, host string) ([]netip.Addr, error) {
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", s.conn.LocalAddr().String())
	}}
	return r.LookupNetIP(ctx, "ip", host)
}

// A name that a name server answers for has an engine at each address. One that vanishes, that has
// no address left or cannot be asked for keeps its engines, and that is printed once; one that leads
// to this machine has none, whatever the server says.
func TestNameServer(t *testing.T) {
	server := startNameServer(t)
	const host = "engines.example."
	s := &sources{look: server.look}
	var said []string
	had := map[string][]netip.Addr{}
	engines := func() (at []string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		had = s.lookUp(ctx, []string{host}, had, func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
		w := &wishes{flags: []string{"openai=http://" + host + ":8000,resolve=each"}, names: had}
		desired, _, err := w.desired()
		if err != nil {
			return []string{err.Error()}
		}
		for _, e := range desired.Engines {
			at = append(at, e.Name)
		}
		slices.Sort(at)
		return at
	}
	for _, step := range []struct {
		what  string
		code  dnsmessage.RCode
		addrs []string
		want  string
		said  string // in the one line that is new; empty: none is
	}{
		{"two addresses", dnsmessage.RCodeSuccess, []string{"10.0.0.1", "10.0.0.2"}, "10.0.0.1 10.0.0.2", ""},
		{"vanished", dnsmessage.RCodeNameError, nil, "10.0.0.1 10.0.0.2", "no such host; its 2 engines stay"},
		{"vanished still", dnsmessage.RCodeNameError, nil, "10.0.0.1 10.0.0.2", ""},
		{"no address left", dnsmessage.RCodeSuccess, nil, "10.0.0.1 10.0.0.2", ""},
		{"another address", dnsmessage.RCodeSuccess, []string{"10.0.0.3"}, "10.0.0.3", "has addresses again"},
		{"failing", dnsmessage.RCodeServerFailure, nil, "10.0.0.3", "its 1 engines stay"},
		{"back", dnsmessage.RCodeSuccess, []string{"10.0.0.3"}, "10.0.0.3", "has addresses again"},
		{"loopback beside another", dnsmessage.RCodeSuccess, []string{"127.0.0.1", "10.0.0.3"}, "10.0.0.3", ""},
	} {
		said = nil
		server.answers(step.code, step.addrs...)
		at := strings.ReplaceAll(strings.Join(engines(), " "), ":8000", "")
		if at = strings.ReplaceAll(at, "http://", ""); at != step.want {
			t.Errorf("%s: engines at %s, want %s", step.what, at, step.want)
		}
		if got := strings.Join(said, "; "); len(said) > 1 || (step.said == "") != (got == "") || !strings.Contains(got, step.said) {
			t.Errorf("%s: printed %q, want %q", step.what, got, step.said)
		}
	}
}
