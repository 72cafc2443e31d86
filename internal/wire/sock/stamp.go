//go:build unix

package sock

import "errors"

// ErrNoStamps means that this system does not report when bytes arrived.
var ErrNoStamps = errors.New("receive stamps need Linux")

// Arrivals counts what the kernel has received on a TCP connection.
type Arrivals struct {
	// Segments counts the segments with data, including those that were sent again or
	// arrived out of order. A segment that the device or its driver joined (GRO) counts
	// as the segments that it was joined from.
	Segments uint32
	// OutOfOrder counts those of them that came before one that belongs before them.
	OutOfOrder uint32
	// Bytes counts what can be read, or has been.
	Bytes uint64
}
