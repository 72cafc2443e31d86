//go:build unix && !linux

package sock

// Acknowledged counts the bytes that the peer has acknowledged; ok is false, because
// this system does not report it.
func Acknowledged(int) (n uint64, ok bool) { return 0, false }
