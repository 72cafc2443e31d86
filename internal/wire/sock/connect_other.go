//go:build unix && !linux

package sock

import "syscall"

// BeginConnect leaves all to package net.
func BeginConnect(string, string, syscall.RawConn) error { return nil }
