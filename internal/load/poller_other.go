//go:build !linux

package load

import (
	"context"
	"net"
	"time"

	"weir/internal/wire/sock"
)

// poller needs the kernel's receive stamps. On other systems a goroutine reads each
// connection.
type poller struct{}

func newPoller(bool) (*poller, error) { return nil, sock.ErrNoStamps }

func (*poller) close() {}

func (*poller) conn(*net.TCPConn) (*conn, error) { return nil, sock.ErrNoStamps }

// socket is a polled connection; other systems have none.
type socket struct{ source }

func (*socket) write(context.Context, *time.Timer, []byte) error { return sock.ErrNoStamps }
func (*socket) try([]byte) (int, error)                          { return 0, sock.ErrNoStamps }
func (*socket) listen(*exchange, *conn) bool                     { return true }
func (*socket) leave(*exchange) bool                             { return true }
func (*socket) quiet() bool                                      { return false }
func (*socket) close() error                                     { return nil }
