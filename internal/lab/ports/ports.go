// Package ports finds loopback addresses for programs that are started by their address:
// by tests, scenarios and benchmarks.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
)

// Free finds a loopback address that nobody listens at. No connection can take its port
// while its program restarts, because the port is below those that the system gives to
// connections. No address is returned twice.
func Free() (string, error) {
	addrs, err := Adjacent(1)
	if err != nil {
		return "", err
	}
	return addrs[0], nil
}

// Adjacent finds n addresses as Free does, with consecutive ports.
func Adjacent(n int) ([]string, error) {
	const lowest, tries = 10240, 200
	below := ephemeral()
	for range tries {
		if addrs := take(lowest+rand.IntN(below-lowest-n+1), n); addrs != nil {
			return addrs, nil
		}
	}
	return nil, fmt.Errorf("no %d consecutive free ports were found between %d and %d in %d tries: stop the programs that listen there", n, lowest, below, tries)
}

// given has the addresses that were given.
var given sync.Map

// take returns the n addresses from a port on, or nil if one of them is in use.
func take(port, n int) (addrs []string) {
	for i := range n {
		addr := fmt.Sprintf("127.0.0.1:%d", port+i)
		if _, taken := given.LoadOrStore(addr, true); taken {
			return nil
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return nil
		}
		defer l.Close()
		addrs = append(addrs, addr)
	}
	return addrs
}

// ephemeral is the lowest port that the system gives to connections, by Linux's default
// where it does not say.
func ephemeral() int {
	low := 32768
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &low)
	}
	return max(low, 16384)
}
