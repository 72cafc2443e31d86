//go:build unix && !linux

package sock

import "net"

// LimitUnsent does nothing: this system has no such limit, or another one.
func LimitUnsent(net.Conn) error { return nil }
