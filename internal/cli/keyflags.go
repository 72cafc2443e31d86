package cli

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"weir/internal/config"
	"weir/internal/config/keyfile"
	"weir/internal/disk"
	"weir/internal/gateway"
	"weir/internal/gateway/front"
	"weir/internal/tenancy/shared"
	"weir/internal/wire/trust"
)

// keyFlags are who may ask, and who may operate.
type keyFlags struct {
	Keys      string `type:"path" placeholder:"FILE" help:"Keys file: only callers with a key in it, with a token (JWT) of one of its issuers, or with a certificate (--client-ca), may use the API (docs/keys.md). The file contains hashes, never keys; weir keys add makes both. Read again when it changes."`
	AdminKeys string `type:"path" placeholder:"FILE" help:"Keys file of operators: the admin listener requires one of its keys, with the role read or operate. /healthz, /readyz and the page's own files need none. Read again when it changes."`
	ClientCA  string `name:"client-ca" type:"path" placeholder:"FILE" help:"Certificates, as PEM, of the authorities that sign client certificates. Read again when it changes. A caller needs no key if the section certificates: of the keys file lists a name in its certificate. Needs --tls-cert and --keys."`

	BudgetFile string `name:"budget-file" placeholder:"FILE" help:"File with what callers have used of their tokens_per_day, so that a restart renews no budget. It is written once a second where that changed; gateways that share it count together. By default the name of the keys file with .used. off keeps nothing (docs/keys.md)."`

	AdminTLSCert string `name:"admin-tls-cert" type:"path" placeholder:"FILE" help:"Serve the admin listener over TLS. FILE is the PEM certificate chain, and is read again when it changes."`
	AdminTLSKey  string `name:"admin-tls-key" type:"path" placeholder:"FILE" help:"Private key of the admin listener's certificate, as PEM."`
	Insecure     bool   `help:"Allow listeners without keys at addresses that other machines can reach: anyone who reaches --listen may use the engines, and anyone who reaches --admin-listen sees every request. Without this flag such an address needs --keys or --admin-keys."`
}

// identifies reports whether callers of the API must say who they are.
func (f *keyFlags) identifies() bool { return f.Keys != "" }

func (f *gatewayFlags) setKeys(*gateway.Options) error {
	switch {
	case (f.AdminTLSCert == "") != (f.AdminTLSKey == ""):
		return wrongf("--admin-tls-cert and --admin-tls-key belong together: give both or neither")
	case f.ClientCA != "" && (f.TLSCert == "" || f.Keys == ""):
		return wrongf("--client-ca verifies the certificates of callers over TLS, whose places are in the keys file: add --tls-cert, --tls-key and --keys")
	}
	if os.Getenv("LISTEN_FDS") == "" { // otherwise the sockets that are handed over are judged
		if err := f.mayListen("--listen", f.Listen, f.identifies(), "--keys"); err != nil {
			return err
		}
	}
	if f.AdminListen == "off" {
		return nil
	}
	return f.mayListen("--admin-listen", f.AdminListen, f.AdminKeys != "", "--admin-keys")
}

// mayListen refuses an address that other machines reach where nobody has to say who they are.
func (f *keyFlags) mayListen(flag, addr string, keys bool, add string) error {
	if keys || f.Insecure || onlyHere(addr) {
		return nil
	}
	return wrongf("%s %s: other machines reach this address, and without keys they need none to use it: add %s FILE (weir keys add makes keys), listen at 127.0.0.1, or add --insecure if something else keeps others away", flag, addr, add)
}

// onlyHere reports whether an address is reached from this machine only.
func onlyHere(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return true // listening says what is wrong with it
	}
	if at, err := netip.ParseAddr(host); err == nil {
		return at.IsLoopback()
	}
	return config.IsLocalhost(host)
}

// fit is mayListen for a socket that somebody else has bound.
func (f *keyFlags) fit(flag string, l net.Listener, keys bool, add string) error {
	if l == nil {
		return nil
	}
	return f.mayListen(flag, l.Addr().String(), keys, add)
}

// keys are who may ask and who may operate, as files say. A nil one is not wanted.
type keys struct {
	callers   *keyfile.Registry
	operators *operators
	budgets   *budgets
	shared    *shared.Store // counts limits with other gateways; nil: this one counts by itself
	watch     disk.Watch    // of the files
	unread    unread
}

// openKeys reads the files.
func (f *keyFlags) openKeys() (k *keys, err error) {
	k = new(keys)
	k.watch.Took(f.Keys, f.AdminKeys)
	if f.Keys != "" {
		if k.callers, err = keyfile.Open(f.Keys); err != nil {
			return nil, wrongf("--keys: %w", err)
		}
	}
	if k.budgets, err = f.budgets(k.callers); err != nil {
		return nil, err
	}
	if f.AdminKeys != "" {
		if k.operators, err = openOperators(f.AdminKeys); err != nil {
			return nil, wrongf("--admin-keys: %w", err)
		}
	}
	return k, nil
}

func (k *keys) files() (paths []string) {
	if k.callers != nil {
		paths = append(paths, k.callers.Path())
	}
	if k.operators != nil {
		paths = append(paths, k.operators.path)
	}
	return paths
}

// start fetches the keys of the issuers of tokens and keeps what is used; close ends that.
func (k *keys) start(log *slog.Logger) {
	if k.callers != nil {
		k.callers.Start(log)
	}
	k.budgets.start(log)
}

func (k *keys) close() {
	k.budgets.close()
	k.shared.Close()
	if k.callers != nil {
		k.callers.Close()
	}
}

// reload reads the files again, and says so. It returns what has changed of callers. A file with
// an error changes nothing, and is a note.
func (k *keys) reload(log *slog.Logger, say func(format string, args ...any)) (steps []config.Step, notes []string) {
	k.watch.Took(k.files()...)
	tell := func(flag string, count int, err error) {
		k.unread.note(flag, err, time.Now())
		if err != nil {
			log.Error("a keys file cannot be read again, the old one stays", "flag", flag, "error", err)
			say("reload    the old %s stay: %v", flag, err)
			notes = append(notes, fmt.Sprintf("the old %s stay: %v", flag, err))
			return
		}
		say("reload    %s read again, %d keys", flag, count)
	}
	if k.callers != nil {
		var err error
		steps, err = k.callers.Reload()
		tell("--keys", k.callers.Keys(), err)
		for i, step := range steps {
			if i == mostSteps {
				say("change    and %d callers more", len(steps)-i)
				break
			}
			say("change    %s", step)
		}
	}
	if k.operators != nil {
		err := k.operators.reload()
		tell("--admin-keys", k.operators.ring.Load().Keys(), err)
	}
	return steps, notes
}

// mostSteps bounds the lines that a reload prints about callers.
const mostSteps = 100

// adminCertificate returns what --admin-tls-cert and --admin-tls-key name, nil without them.
func (f *keyFlags) adminCertificate(log *slog.Logger) (*front.Certificate, error) {
	if f.AdminTLSCert == "" {
		return nil, nil
	}
	return front.LoadCertificate(f.AdminTLSCert, f.AdminTLSKey, log)
}

// clientAuthorities reads the certificates of --client-ca.
func (f *keyFlags) clientAuthorities(log *slog.Logger) (*trust.Roots, error) {
	if f.ClientCA == "" {
		return nil, nil
	}
	roots, err := trust.Watch("--client-ca", f.ClientCA, log)
	if err != nil {
		return nil, wrongf("%w", err)
	}
	return roots, nil
}

// line reports how many keys there are, as a gateway starts.
func (k *keys) line() string {
	callers := ""
	if k.callers != nil {
		callers = fmt.Sprintf("%d of callers", k.callers.Keys())
		if n := k.callers.Issuers(); n > 0 {
			callers += fmt.Sprintf(" and the tokens of %d issuers", n)
		}
	}
	switch {
	case k.callers != nil && k.operators != nil:
		return fmt.Sprintf("%s, %d of operators", callers, k.operators.ring.Load().Keys())
	case k.callers != nil:
		return callers + "; the admin listener wants none"
	case k.operators != nil:
		return fmt.Sprintf("%d of operators; the API wants none", k.operators.ring.Load().Keys())
	}
	return ""
}
