//go:build !linux

package gateway

import (
	"errors"
	"net"
)

// hangups is not there on this system: streams stay with net/http, which
// notices hang-ups itself.
type hangups struct{}

func newHangups() *hangups { return nil }

func (*hangups) watch(net.Conn, func()) (stop func(), err error) {
	return nil, errors.ErrUnsupported
}

func (*hangups) close() {}
