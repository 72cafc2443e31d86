package vllmcore

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"weir/internal/wire/zmtp"
)

// Place derives from the handshake address the addresses that engines connect to, and
// the place where their descriptions are kept. These are the same after a restart of
// weir, so that running engines find it again.
//
// If the handshake address is a loopback address, the engines are on this machine and
// get Unix sockets in a folder that only their user can open, because the wire has no
// authentication. Others get the two ports after the handshake's.
func (o *Options) Place() error {
	host, port, err := net.SplitHostPort(o.Handshake.Address)
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(port)
	if err != nil || number < 1 || number > 65533 {
		return fmt.Errorf("port %q: want a number from 1 to 65533", port)
	}
	dir, err := privateDir()
	if err != nil {
		return err
	}
	name := filepath.Join(dir, "vllm-core-"+port)
	o.Memory = name + ".engines"
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		o.Input = zmtp.Endpoint{Network: "unix", Address: name + ".in"}
		o.Output = zmtp.Endpoint{Network: "unix", Address: name + ".out"}
		return nil
	}
	o.Input = zmtp.Endpoint{Network: "tcp", Address: net.JoinHostPort(host, strconv.Itoa(number+1))}
	o.Output = zmtp.Endpoint{Network: "tcp", Address: net.JoinHostPort(host, strconv.Itoa(number+2))}
	return nil
}

// privateDir returns a folder of this user's that nobody else can look into.
func privateDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "weir-"+strconv.Itoa(os.Getuid()))
	if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
		dir = filepath.Join(run, "weir")
	}
	return dir, zmtp.PrivateDir(dir)
}
