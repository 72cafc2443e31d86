//go:build unix && !linux

package sock

// Stamps makes the kernel stamp what it receives, where it does.
func Stamps() (stop func(), err error) { return nil, ErrNoStamps }

// Stamp asks for the receive stamps of a socket's bytes.
func Stamp(int) error { return ErrNoStamps }

// Receiver reads sockets together with the stamps, where there are any.
type Receiver struct{}

// TryReceive is TryRead; at is always 0.
func (*Receiver) TryReceive(fd int, p []byte) (n int, at int64, err error) {
	n, err = TryRead(fd, p)
	return n, 0, err
}

// Arrived counts what has arrived on a TCP connection, where the kernel tells.
func Arrived(int) (a Arrivals, ok bool) { return Arrivals{}, false }
