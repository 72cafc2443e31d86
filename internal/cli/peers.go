package cli

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"weir/internal/config"
	"weir/internal/engine/access"
	"weir/internal/fleet/peering"
	"weir/internal/fleet/route"
	"weir/internal/gateway"
	"weir/internal/gateway/front"
	"weir/internal/observe/metrics"
	"weir/internal/wire/trust"
)

// peerFlags are the other gateways in front of the same engines.
type peerFlags struct {
	Peers      []string `sep:"," placeholder:"HOST:PORT,..." help:"Gateways in front of the same engines. Each reports to the others which work it has sent to which engine (docs/peers.md). A host may have several addresses, like a headless Service of Kubernetes, and this gateway's own may be among them. Hosts are looked up at each --resolve-interval."`
	PeerListen string   `placeholder:"ADDR" help:"Address at which the other gateways reach this one, such as :8002."`
	PeerCert   string   `type:"path" placeholder:"FILE" help:"This gateway's certificate among gateways, as PEM, for serving and for connecting. It must be for the host in --peers. Read again when it changes."`
	PeerKey    string   `type:"path" placeholder:"FILE" help:"Private key of the certificate, as PEM."`
	PeerCA     string   `name:"peer-ca" type:"path" placeholder:"FILE" help:"Certificates, as PEM, of the authorities that sign the certificates of gateways. Nobody else may connect."`
}

func (f *gatewayFlags) setPeers(*gateway.Options) error {
	p := &f.peerFlags
	given := 0
	for _, file := range [...]string{p.PeerCert, p.PeerKey, p.PeerCA} {
		if file != "" {
			given++
		}
	}
	switch {
	case len(p.Peers) == 0 && p.PeerListen == "" && given == 0:
		return nil
	case len(p.Peers) == 0 || p.PeerListen == "":
		return wrongf("--peers and --peer-listen belong together: each gateway follows the others, and they follow it")
	case given != 0 && given != 3:
		return wrongf("--peer-cert, --peer-key and --peer-ca belong together: give all three or none")
	case given == 0 && !f.Insecure && !onlyHere(p.PeerListen):
		return wrongf("--peer-listen %s: other machines reach this address, and without certificates each of them can steer requests: add --peer-cert, --peer-key and --peer-ca, listen at 127.0.0.1, or add --insecure if something else keeps others away", p.PeerListen)
	}
	for _, peer := range p.Peers {
		if host, port, err := net.SplitHostPort(peer); err != nil || host == "" || port == "" {
			return wrongf("--peers %s: want HOST:PORT, such as weir-gateways:8002", peer)
		}
	}
	return nil
}

// oneFrontEnd refuses engines that can have one gateway only.
func (f *peerFlags) oneFrontEnd(engines []config.Engine) error {
	if len(f.Peers) == 0 {
		return nil
	}
	for _, e := range engines {
		if e.Kind == "vllm-core" || e.Kind == "sglang-ipc" {
			return wrongf("--engine %s: an engine of kind %s has one front end, so several gateways (--peers) cannot share it; use its HTTP server, by vllm= or sglang=, or leave out --peers", e.Name, e.Kind)
		}
	}
	return nil
}

// peer is this gateway among several.
type peer struct {
	node     *peering.Node
	listener net.Listener
	of       []string // --peers
}

// run tells and follows the others until ctx ends.
func (p *peer) run(ctx context.Context, log *slog.Logger) {
	if err := p.node.Run(ctx, p.listener); err != nil {
		log.Error("this gateway no longer knows of others, and they not of it; restart weir", "listener", p.listener.Addr(), "error", err)
	}
}

// figures are those of the metrics.
func (p *peer) figures() metrics.Peers {
	n := p.node.Counts()
	of := metrics.Peers{Sent: n.Sent, Received: n.Received, Missed: n.Missed, Prompts: n.Placed, LeftOut: n.Unsaid}
	for _, l := range p.node.Links() {
		if l.Self {
			continue
		}
		of.Known++
		if l.Err == nil && l.Instance != "" {
			of.Followed++
			of.Oldest = max(of.Oldest, l.Age)
		}
	}
	return of
}

// peer makes this gateway's part among several; nil if it is alone. Its listener is bound
// later.
func (f *gatewayFlags) peer(log *slog.Logger, m *metrics.Metrics, snapshot func() *route.Snapshot) (*peer, error) {
	p := &f.peerFlags
	if len(p.Peers) == 0 {
		return nil, nil
	}
	o := peering.Options{Peers: p.Peers, Look: lookUp, LookEvery: f.ResolveInterval, Snapshot: snapshot, Log: log, Panicked: peerPanicked("another gateway", log, m)}
	if p.PeerCert == "" {
		return &peer{node: peering.New(o), of: p.Peers}, nil
	}
	own, err := front.LoadCertificate(p.PeerCert, p.PeerKey, log)
	if err != nil {
		return nil, wrongf("--peer-cert: %w", err)
	}
	authorities, err := trust.Watch("--peer-ca", p.PeerCA, log)
	if err != nil {
		return nil, wrongf("%w", err)
	}
	o.TLS = own.Config()
	o.TLS.NextProtos = []string{"h2"}
	authorities.Server(o.TLS, tls.RequireAndVerifyClientCert)
	a, err := access.New(access.Options{TLS: true, CA: p.PeerCA, Cert: p.PeerCert, CertKey: p.PeerKey, Log: log})
	if err != nil {
		return nil, wrongf("--peer-cert: %w", err)
	}
	o.Client = a.TLS
	return &peer{node: peering.New(o), of: p.Peers}, nil
}

// lookUpPatience bounds one look-up of other gateways.
const lookUpPatience = 5 * time.Second

// lookUp returns the addresses of a host.
func lookUp(ctx context.Context, host string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpPatience)
	defer cancel()
	if ip, err := netip.ParseAddr(host); err == nil {
		return []string{ip.String()}, nil
	}
	found, err := resolver(ctx, host)
	var all []string
	for _, ip := range found {
		all = append(all, ip.Unmap().String())
	}
	return all, err
}

// peerView is another gateway, as /peers shows it.
type peerView struct {
	Address  string  `json:"address"`
	Instance string  `json:"instance,omitempty"`
	State    string  `json:"state"` // followed, self, unreachable
	Error    string  `json:"error,omitempty"`
	Age      float64 `json:"seconds_since_heard,omitzero"`
}

// peers answers GET /peers.
func (p *process) peers(w http.ResponseWriter, _ *http.Request) {
	views := []peerView{}
	if p.peer != nil {
		for _, l := range p.peer.node.Links() {
			v := peerView{Address: l.Address, Instance: l.Instance, State: "followed", Age: l.Age.Seconds()}
			switch {
			case l.Self:
				v.State = "self"
			case l.Err != nil:
				v.State, v.Error = "unreachable", l.Err.Error()
			}
			views = append(views, v)
		}
	}
	writeView(w, struct {
		Peers []peerView `json:"peers"`
	}{views})
}
