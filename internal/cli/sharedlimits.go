package cli

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"weir/internal/config/keyfile"
	"weir/internal/gateway"
	"weir/internal/observe/metrics"
	"weir/internal/tenancy"
	"weir/internal/tenancy/shared"
	"weir/internal/wire/trust"
)

// sharedFlags are where several gateways count the limits of callers together.
type sharedFlags struct {
	Limits       string        `name:"limits" placeholder:"URL" help:"Redis or Valkey server in which gateways count the limits of callers (--keys) together: redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], or rediss:// for TLS (docs/keys.md). Without it each gateway counts by itself. A URL with a password is better set as WEIR_LIMITS."`
	LimitsWait   time.Duration `name:"limits-wait" default:"5ms" placeholder:"DURATION" help:"Longest time that a request of a caller with limits waits for --limits (${default})."`
	LimitsOutage string        `name:"limits-outage" default:"local" enum:"local,allow,refuse" help:"What to do with requests of callers with limits while --limits does not answer, or not within --limits-wait: local allows each gateway its part of the limits, allow admits all, refuse answers 503 (${default})."`
	LimitsPrefix string        `name:"limits-prefix" default:"weir:" placeholder:"TEXT" help:"Beginning of the names under which --limits has its counts. Gateways with the same one count together (${default})."`
	LimitsCA     string        `name:"limits-ca" type:"path" placeholder:"FILE" help:"Certificates, as PEM, of the authorities that sign the certificate of --limits over TLS. By default those of the system."`

	location shared.Location // of Limits
}

// mostLimitsWait bounds --limits-wait: a request must not stand for the sake of a count.
const mostLimitsWait = 10 * time.Second

func (f *gatewayFlags) setSharedLimits(*gateway.Options) error {
	s := &f.sharedFlags
	switch {
	case s.LimitsWait <= 0 || s.LimitsWait > mostLimitsWait:
		return wrongf("--limits-wait %v: want more than 0 and at most %v", s.LimitsWait, mostLimitsWait)
	case s.Limits == "" && s.LimitsCA != "":
		return wrongf("--limits-ca verifies the server of --limits: add --limits rediss://HOST:PORT")
	case s.Limits == "":
		return nil
	case f.Keys == "":
		return wrongf("--limits counts the limits of callers, which are in a keys file: add --keys FILE")
	case f.BudgetFile != "" && f.BudgetFile != "off":
		return wrongf("--budget-file: with --limits the store has what is used of a day; leave it out")
	}
	var err error
	if s.location, err = shared.ParseLocation(s.Limits); err != nil {
		return wrongf("--limits: %w", err)
	}
	if s.LimitsCA != "" && !s.location.TLS {
		return wrongf("--limits-ca verifies a server over TLS: write --limits as rediss://HOST:PORT")
	}
	f.BudgetFile = "off"
	return nil
}

// store makes the count of several gateways and joins it with all callers; nil without --limits.
func (f *gatewayFlags) store(callers *keyfile.Registry, log *slog.Logger, m *metrics.Metrics) (*shared.Store, error) {
	s := &f.sharedFlags
	if s.Limits == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	secure := func() *tls.Config { return config }
	if s.LimitsCA != "" {
		authorities, err := trust.Watch("--limits-ca", s.LimitsCA, log)
		if err != nil {
			return nil, wrongf("%w", err)
		}
		secure = authorities.Client(config)
	}
	store := shared.New(shared.Options{Location: s.location, TLS: secure, Prefix: s.LimitsPrefix,
		Wait: s.LimitsWait, Outage: tenancy.Outage(s.LimitsOutage), Log: log,
		Panicked: peerPanicked("the store of --limits", log, m)})
	callers.Remember(store)
	m.SharedLimits(func() metrics.SharedLimits {
		n := store.Figures()
		return metrics.SharedLimits{Up: n.Up, Gateways: n.Gateways, ByStore: n.Decided, Alone: n.Alone, Late: n.Late, Exchanges: n.Exchanges, Failed: n.Failed, Exchanging: n.Exchanging}
	})
	return store, nil
}

// sharedLine says where limits are counted, as a gateway starts.
func sharedLine(s *shared.Store) string {
	v := s.View()
	if v.State == shared.Up {
		return fmt.Sprintf("%s, which counts for %s", v.Store, v.Counting())
	}
	return fmt.Sprintf("%s is %s: %s", v.Store, v.State, v.Reason)
}
