//go:build unix

package sock

import "errors"

// ErrNoStamps means that this system does not report when bytes arrived.
var ErrNoStamps = errors.New("receive stamps need Linux")

// Arrivals counts what the kernel has received on a TCP connection.
type Arrivals struct {
	// Segments counts those with data: of one that the device or its driver joined
	// (GRO), those that it was joined of; also what was sent again or came out of
	// order.
	Segments uint32
	// OutOfOrder counts those of them that came before one that belongs before them.
	OutOfOrder uint32
	// Bytes counts what can be read, or has been.
	Bytes uint64
}
