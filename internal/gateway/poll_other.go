//go:build !linux

package gateway

import (
	"errors"
	"net"

	"weir/internal/metrics"
)

// epolls is not there on this system, and neither is hangups: streams stay with
// net/http, which notices hang-ups itself.
type epolls struct{}

func newEpolls(int, *metrics.Metrics) *epolls { return nil }

func (*epolls) poll(int, func(*worker, bool)) (stop func(), err error) {
	return nil, errors.ErrUnsupported
}

func (*epolls) close() {}

type hangups struct{}

func newHangups(*epolls) hangups { return hangups{} }

func (hangups) watch(net.Conn, func()) (stop func(), err error) {
	return nil, errors.ErrUnsupported
}
