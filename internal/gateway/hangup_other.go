//go:build !linux

package gateway

import (
	"errors"
	"syscall"
)

// hangups is not there on this system: streams stay with net/http, which
// notices hang-ups itself.
type hangups struct{}

func newHangups() (*hangups, error) { return nil, errors.ErrUnsupported }

func (*hangups) watch(syscall.RawConn, func()) (watched, error) {
	return watched{}, errors.ErrUnsupported
}

func (*hangups) close() {}

type watched struct{}

func (watched) stop() {}
