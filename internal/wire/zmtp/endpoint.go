package zmtp

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Endpoint is where a socket listens, "tcp://HOST:PORT" or "ipc://PATH".
type Endpoint struct {
	Network string // "tcp" or "unix"
	Address string // HOST:PORT or PATH
}

// maxPath is what fits a Unix socket's address, its end mark left out.
const maxPath = 107

// ParseEndpoint reads an endpoint.
func ParseEndpoint(s string) (Endpoint, error) {
	scheme, address, ok := strings.Cut(s, "://")
	switch {
	case !ok:
		return Endpoint{}, fmt.Errorf("endpoint %q: want tcp://HOST:PORT or ipc://PATH", s)
	case scheme == "tcp":
		if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
			return Endpoint{}, fmt.Errorf("endpoint %q: want HOST:PORT after tcp://", s)
		}
		return Endpoint{"tcp", address}, nil
	case scheme == "ipc":
		if address == "" || strings.HasPrefix(address, "@") || len(address) > maxPath {
			return Endpoint{}, fmt.Errorf("endpoint %q: want a path of 1 to %d bytes after ipc://", s, maxPath)
		}
		return Endpoint{"unix", address}, nil
	}
	return Endpoint{}, fmt.Errorf("endpoint %q: the transport %q is not spoken; tcp and ipc are", s, scheme)
}

// String returns the endpoint as ParseEndpoint reads it.
func (e Endpoint) String() string {
	if e.Network == "unix" {
		return "ipc://" + e.Address
	}
	return e.Network + "://" + e.Address
}

// EndpointOf returns the endpoint of a listener, whose port may have been chosen by the
// system.
func EndpointOf(l net.Listener) Endpoint {
	return Endpoint{l.Addr().Network(), l.Addr().String()}
}

// Listen binds an endpoint. A socket's file that an ended process has left behind
// is replaced; that of a living one is not. The file is gone when the listener is
// closed.
func Listen(e Endpoint) (net.Listener, error) {
	l, err := net.Listen(e.Network, e.Address)
	if err == nil || e.Network != "unix" || !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if info, statErr := os.Lstat(e.Address); statErr != nil || info.Mode()&fs.ModeSocket == 0 {
		return nil, err
	}
	if c, dialErr := net.Dial("unix", e.Address); dialErr == nil {
		c.Close()
		return nil, err
	}
	if err := os.Remove(e.Address); err != nil {
		return nil, err
	}
	return net.Listen(e.Network, e.Address)
}

// PrivateDir makes a folder for sockets, unless it is there, and sees to it that
// nobody but this user can look into it: the wires have no authentication.
func PrivateDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || ok && int(owner.Uid) != os.Getuid() {
		return &fs.PathError{Op: "use", Path: dir, Err: errors.New("it must be a folder of this user's own with mode 0700; remove it")}
	}
	return nil
}
