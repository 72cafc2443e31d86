package gateway

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/gateway/front"
)

// shaking is a gateway's server over TLS, in a bubble, whose certificates take their time.
type shaking struct {
	g         *Gateway
	net       *memListener
	computing atomic.Int64  // handshakes that are at their certificate
	compute   chan struct{} // lets one go on
}

func shake(t *testing.T, test func(s *shaking)) {
	cert, key := keyPair(t, 1)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	inBubble(t, Options{Front: front.Options{BodyTimeout: 30 * time.Second}}, nil, func(t *testing.T, b *bench) {
		s := &shaking{g: b.g, net: newMemListener(), compute: make(chan struct{})}
		server := b.g.Server()
		server.TLSConfig = b.g.front.TLS(&tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			s.computing.Add(1)
			<-s.compute
			s.computing.Add(-1)
			return &pair, nil
		}})
		done := make(chan error)
		go func() { done <- server.ServeTLS(b.g.front.Listener(s.net), "", "") }()
		test(s)
		server.Close()
		if err := <-done; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
}

// handshakeTurns is how many handshakes compute at once.
func handshakeTurns() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// dial begins a handshake, and gives what becomes of it.
func (s *shaking) dial() (client net.Conn, done chan error) {
	client, done = s.net.dial(1<<20), make(chan error, 1)
	go func() { done <- tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
	return client, done
}

// Only as many handshakes compute as there are turns, and each gets its own.
func TestHandshakesTakeTurns(t *testing.T) {
	shake(t, func(s *shaking) {
		turns, all := handshakeTurns(), []chan error{}
		for range 5 * turns {
			_, done := s.dial()
			all = append(all, done)
		}
		for left := 5 * turns; left > 0; left-- {
			if synctest.Wait(); s.computing.Load() != int64(min(turns, left)) {
				t.Fatalf("%d handshakes compute, want %d", s.computing.Load(), min(turns, left))
			}
			s.compute <- struct{}{}
		}
		for _, done := range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// A client that says nothing, half of its first word, or nothing behind the server's
// answer, has no turn; one that leaves in its turn gives it back; and one whose turn does
// not come in time fails.
func TestHandshakesEndTheirTurns(t *testing.T) {
	shake(t, func(s *shaking) {
		turns := handshakeTurns()
		for range 2 * turns {
			s.net.dial(1 << 20)
			if _, err := s.net.dial(1 << 20).Write([]byte{22, 3, 1, 2, 0, 1}); err != nil {
				t.Fatal(err)
			}
		}
		deaf := []net.Conn{}
		for range turns { // these never take in the server's answer
			client := s.net.dial(1 << 20)
			deaf = append(deaf, client)
			go func() {
				_ = tls.Client(writeOnly{client}, &tls.Config{InsecureSkipVerify: true}).Handshake() // ends with the connection
			}()
			synctest.Wait()
			s.compute <- struct{}{}
		}
		for _, client := range deaf {
			client.Close()
		}
		var left []net.Conn
		for range turns {
			client, _ := s.dial()
			left = append(left, client)
		}
		if synctest.Wait(); s.computing.Load() != int64(turns) {
			t.Fatalf("%d handshakes compute, of %d turns: the others are held, and nothing is to be computed", s.computing.Load(), turns)
		}
		_, late := s.dial()
		time.Sleep(31 * time.Second)
		if err := <-late; err == nil {
			t.Error("a handshake whose turn did not come in time has succeeded")
		}
		for _, client := range left {
			client.Close()
			s.compute <- struct{}{}
		}
		_, done := s.dial()
		synctest.Wait()
		s.compute <- struct{}{}
		if err := <-done; err != nil {
			t.Errorf("behind all of these: %v", err)
		}
	})
}

// writeOnly is a connection of which nothing is read before it closes.
type writeOnly struct{ net.Conn }

func (c writeOnly) Read(p []byte) (int, error) {
	_, _ = io.Copy(io.Discard, c.Conn)
	return 0, io.EOF
}
