//go:build unix && !linux

package sock

import "net"

// Unread returns the number of bytes that have arrived on a connection and were not read,
// if the connection reports it by a method of the same name. Sockets are not queried on
// this system.
func Unread(c net.Conn) int {
	if u, ok := c.(interface{ Unread() int }); ok {
		return u.Unread()
	}
	return 0
}
