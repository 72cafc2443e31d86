package judge

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// broken reports whether an error is a failure of the connection, as opposed to an
// error in what was received over it.
func broken(err error) bool {
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.As(err, &network)
}
