package sock

import (
	"errors"
	"syscall"
)

// Starved reports whether an error is caused by this process or machine and not by a
// peer: no descriptors are left for a socket, or no memory.
func Starved(err error) bool {
	for _, errno := range [...]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
