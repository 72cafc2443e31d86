package admission

import (
	"fmt"
	"net/netip"
	"strings"
)

// Proxies are the networks of trusted proxies, which state the addresses of their
// clients.
type Proxies []netip.Prefix

// ParseProxies reads networks, or single addresses.
func ParseProxies(list []string) (Proxies, error) {
	var p Proxies
	for _, s := range list {
		s = strings.TrimSpace(s)
		network, err := netip.ParsePrefix(s)
		if err != nil {
			one, errOne := netip.ParseAddr(s)
			if errOne != nil {
				return nil, fmt.Errorf("%q: want a network such as 10.0.0.0/8, or an address", s)
			}
			network = netip.PrefixFrom(one, one.BitLen())
		}
		p = append(p, network.Masked())
	}
	return p, nil
}

// Trusts reports whether an address is a proxy's.
func (p Proxies) Trusts(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, n := range p {
		if n.Contains(a) {
			return true
		}
	}
	return false
}

// Client returns the client's address of a request from peer with these X-Forwarded-For
// headers. It is the rightmost address that does not belong to a trusted proxy. Each
// proxy appends the address of its caller, and only addresses appended by trusted
// proxies can be relied on.
func (p Proxies) Client(peer netip.Addr, forwarded []string) netip.Addr {
	client := peer
	for i := len(forwarded) - 1; i >= 0; i-- {
		hops := strings.Split(forwarded[i], ",")
		for j := len(hops) - 1; j >= 0; j-- {
			if !p.Trusts(client) {
				return client
			}
			hop := strings.TrimSpace(hops[j])
			a, err := netip.ParseAddr(strings.Trim(hop, "[]"))
			if err != nil {
				at, err := netip.ParseAddrPort(hop)
				if err != nil {
					return client // what is no address says nothing, nor what is left of it
				}
				a = at.Addr()
			}
			client = a.Unmap().WithZone("")
		}
	}
	return client
}
