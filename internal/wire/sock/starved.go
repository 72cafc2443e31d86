package sock

import (
	"errors"
	"syscall"
)

// Starved says whether an error is of this process, or this machine, and not of a
// peer: there are no descriptors left for a socket, or no memory.
func Starved(err error) bool {
	for _, errno := range [...]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
