package front

import (
	"crypto/tls"
	"errors"
	"time"
)

// handshakes limits the TLS handshakes that compute at once. A handshake uses a core for
// some hundred microseconds without a break. If hundreds of clients connect at once, the
// next output of a stream would wait behind all of them. Handshakes therefore have half of
// the cores and take turns in order. A handshake that waits for its client does not hold a
// turn.
type handshakes chan struct{}

func newHandshakes(cores int) handshakes { return make(handshakes, max(1, cores/2)) }

// TLS returns the configuration of the server for a certificate. Handshakes
// take turns by it. A connection's turn lasts from its client's first message, read
// whole, to the server's answer.
func (f *Front) TLS(config *tls.Config) *tls.Config {
	config = config.Clone()
	of := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if c, ok := hello.Conn.(*conn); ok {
			if err := c.takeTurn(f.handshakes, f.opts.BodyTimeout); err != nil {
				return nil, err
			}
		}
		if of == nil {
			return nil, nil
		}
		return of(hello)
	}
	return config
}

var errCrowded = errors.New("too many handshakes at once")

// takeTurn waits for the connection's turn. The bound is that of the whole handshake, so
// one whose turn comes too late is not computed in vain.
func (c *conn) takeTurn(turns handshakes, bound time.Duration) error {
	late := time.NewTimer(bound)
	defer late.Stop()
	select {
	case turns <- struct{}{}:
	case <-late.C:
		return errCrowded
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		<-turns
		return errCrowded
	}
	c.turn.Store(&turns)
	return nil
}

// endTurn ends the connection's turn, if it has one.
func (c *conn) endTurn() {
	if turns := c.turn.Swap(nil); turns != nil {
		<-*turns
	}
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	if c.turn.Load() != nil {
		c.endTurn()
	}
	return c.Conn.Write(p)
}
