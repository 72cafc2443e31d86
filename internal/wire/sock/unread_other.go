//go:build unix && !linux

package sock

import "net"

// Unread gives how many bytes have arrived on a connection that nobody has read, where the
// connection says it by a method of the name; a socket is not asked on this system.
func Unread(c net.Conn) int {
	if u, ok := c.(interface{ Unread() int }); ok {
		return u.Unread()
	}
	return 0
}
