//go:build !linux

package cli

import (
	"errors"
	"net"
	"syscall"
)

func sharePort(_, _ string, _ syscall.RawConn) error {
	return errors.New("--reuse-port needs Linux")
}

func giveWay(net.Listener) error { return errors.ErrUnsupported }

func kernelQueue(*net.TCPListener) *acceptQueue { return nil }
