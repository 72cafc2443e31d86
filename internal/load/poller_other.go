//go:build !linux

package load

import (
	"context"
	"net"
	"time"

	"weir/internal/wire/sock"
)

// poller is where the kernel stamps what it receives; elsewhere each connection
// is read by a goroutine.
type poller struct{}

func newPoller(bool) (*poller, error) { return nil, sock.ErrNoStamps }

func (*poller) close() {}

func (*poller) conn(*net.TCPConn) (*conn, error) { return nil, sock.ErrNoStamps }

// socket is a polled connection, of which there are none.
type socket struct{ source }

func (*socket) write(context.Context, *time.Timer, []byte) error { return sock.ErrNoStamps }
func (*socket) try([]byte) (int, error)                          { return 0, sock.ErrNoStamps }
func (*socket) listen(*exchange, *conn) bool                     { return true }
func (*socket) leave(*exchange) bool                             { return true }
func (*socket) quiet() bool                                      { return false }
func (*socket) close() error                                     { return nil }
