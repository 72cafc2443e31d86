// Package shared counts the limits of callers over several gateways, in a server that speaks the
// protocol of Redis. A script there decides about each account at once, by the server's clock.
//
// Each gateway has one connection and one exchange at a time. An exchange carries all requests
// that wait for a decision, and what has been used since the last one. A request waits for a
// bounded time. If the store is too late, or does not answer, the gateway decides alone
// (tenancy.Outage) and counts there afterwards.
package shared

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/infer"
	"weir/internal/tenancy"
)

// Options are how a Store works.
type Options struct {
	Location Location
	TLS      func() *tls.Config // of rediss, for the next connection
	Prefix   string             // of its keys in the store
	Wait     time.Duration
	Outage   tenancy.Outage
	Log      *slog.Logger
	// Panicked is called for panics while the store's answers are read, each of which ends the
	// connection only; it may be nil.
	Panicked func(*infer.Panic)
}

const (
	// interval is how often what was used is reported where no request asks.
	interval = 250 * time.Millisecond
	// presence is how often a gateway reports that it is there, with its requests under way.
	presence = 2 * time.Second
	// patience bounds a connection and an exchange.
	patience = time.Second
)

// Store is the count of several gateways. It implements tenancy.Counter.
type Store struct {
	o    Options
	id   string // of this process
	wake chan struct{}

	condition struct {
		sync.Mutex
		condition
	}
	up       atomic.Bool // the condition is Up
	gateways atomic.Int64
	counts   counts

	mu     sync.Mutex
	asking asking
	active map[*tenancy.Share]struct{} // have something to report sooner or later

	stop    context.CancelFunc
	running sync.WaitGroup
}

// asking are shares that want an exchange now.
type asking struct {
	shares map[*tenancy.Share]bool // true: also if there is nothing to ask or to report
	done   chan struct{}           // closed after that exchange
}

func nobody() asking { return asking{map[*tenancy.Share]bool{}, make(chan struct{})} }

// counts are what the metrics have.
type counts struct {
	decided, alone, late, exchanges, failed atomic.Uint64
	nanoseconds                             atomic.Int64 // of exchanges
}

// New makes a Store. It connects when it is started.
func New(o Options) *Store {
	s := &Store{o: o, id: strings.ToLower(rand.Text()[:16]), wake: make(chan struct{}, 1), asking: nobody(), active: map[*tenancy.Share]struct{}{}}
	s.condition.condition = condition{bound: o.Wait, state: Out, since: time.Now(), reason: "it was not connected yet"}
	return s
}

// Restore has an account counted together with those of the same name at other gateways. It makes
// a Store the memory of a keys file's accounts.
func (s *Store) Restore(name string, a *tenancy.Account, _ time.Time) { a.Share(name, s) }

// Ask implements tenancy.Counter.
func (s *Store) Ask(share *tenancy.Share, decided <-chan struct{}) {
	if !s.up.Load() {
		return
	}
	s.Changed(share, true)
	late := time.NewTimer(s.o.Wait)
	defer late.Stop()
	select {
	case <-decided:
		s.counts.decided.Add(1)
	case <-late.C:
		s.counts.late.Add(1)
		s.note(func(c *condition, now time.Time) { c.late(now) })
	}
}

// Alone implements tenancy.Counter.
func (s *Store) Alone() (tenancy.Outage, int) {
	s.counts.alone.Add(1)
	return s.o.Outage, int(s.gateways.Load())
}

// Known implements tenancy.Counter.
func (s *Store) Known() bool {
	s.condition.Lock()
	defer s.condition.Unlock()
	return s.condition.state != Out
}

// Changed implements tenancy.Counter.
func (s *Store) Changed(share *tenancy.Share, now bool) {
	now = now && s.up.Load() // a store in need is asked less, not more
	s.mu.Lock()
	s.active[share] = struct{}{}
	if _, asks := s.asking.shares[share]; now && !asks {
		s.asking.shares[share] = false
	}
	s.mu.Unlock()
	if now {
		s.ring()
	}
}

// Refresh has accounts show what all gateways have used, and waits for that for a bounded time.
func (s *Store) Refresh(accounts []*tenancy.Account) {
	if !s.up.Load() {
		return
	}
	s.mu.Lock()
	for _, a := range accounts {
		if share := a.Shared(); share != nil {
			s.asking.shares[share] = true
		}
	}
	done := s.asking.done
	s.mu.Unlock()
	s.ring()
	late := time.NewTimer(interval)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}

// ring wakes the loop.
func (s *Store) ring() {
	select {
	case s.wake <- struct{}{}:
	default: // it is going to look anyway
	}
}

// note changes the condition.
func (s *Store) note(change func(c *condition, now time.Time)) {
	now := time.Now()
	s.condition.Lock()
	defer s.condition.Unlock()
	change(&s.condition.condition, now)
	s.up.Store(s.condition.state == Up)
}

// Start connects, for a bounded time, and begins to exchange. A nil Store counts nothing.
func (s *Store) Start() {
	if s == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	l := &loop{Store: s}
	l.appear(ctx, time.Now())
	s.running.Go(func() { l.run(ctx) })
}

// Close reports what was used, and leaves.
func (s *Store) Close() {
	if s != nil && s.stop != nil {
		s.stop()
		s.running.Wait()
	}
}

// loop is what the goroutine of a Store owns.
type loop struct {
	*Store
	conn     *connection // nil: there is none
	appeared time.Time   // when the store had last heard that this gateway is there
}

// run exchanges until ctx ends, and then for the last time.
func (l *loop) run(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-l.wake:
			l.exchange(false, false)
		case now := <-tick.C:
			present := l.appear(ctx, now)
			l.exchange(true, present)
			l.report(now)
		}
	}
	l.exchange(true, false)
	if l.conn != nil {
		_, _ = l.conn.enroll(true) // without it, the others find out by the silence
		l.conn.close()
	}
}

// appear connects if need be, and reports that this gateway is there if it is time or the store
// is not well. It returns whether requests under way are to be reported as well.
func (l *loop) appear(ctx context.Context, now time.Time) bool {
	if l.up.Load() && now.Sub(l.appeared) < presence {
		return false
	}
	if l.conn == nil {
		conn, err := l.o.dial(ctx, l.id, patience)
		if err != nil {
			l.failed(err)
			return false
		}
		l.conn = conn
		l.mu.Lock()
		active := maps.Clone(l.active)
		l.mu.Unlock()
		for share := range active {
			share.Lost(now)
		}
	}
	began := time.Now()
	gateways, err := l.conn.enroll(false)
	if err != nil {
		l.failed(err)
		return false
	}
	l.gateways.Store(int64(gateways))
	l.appeared = now
	l.answered(time.Since(began))
	return true
}

// exchange carries what shares ask and report to the store: of those that want it now, or of all
// that are active. Present has those with requests under way report them again.
func (l *loop) exchange(all, present bool) {
	l.mu.Lock()
	now, active := l.asking, l.active
	l.asking = nobody()
	if all && l.conn != nil {
		l.active = map[*tenancy.Share]struct{}{}
		for share := range active {
			now.shares[share] = now.shares[share] || present
		}
	}
	l.mu.Unlock()
	defer close(now.done)
	if l.conn == nil || len(now.shares) == 0 {
		return
	}
	calls := make([]*carried, 0, len(now.shares))
	began := time.Now()
	for share, always := range now.shares {
		call, ok, idle := share.Call(began, always)
		if ok {
			calls = append(calls, &carried{share: share, call: call})
		}
		if !idle {
			l.Changed(share, false)
		}
	}
	if len(calls) == 0 {
		return
	}
	err := l.conn.exchange(calls)
	took := time.Since(began)
	l.counts.exchanges.Add(1)
	l.counts.nanoseconds.Add(int64(took))
	end := began.Add(took)
	for _, x := range calls {
		if x.done {
			x.share.Answered(x.call, x.answer, end)
		} else {
			x.share.Failed(x.call)
		}
	}
	if err != nil {
		l.failed(err)
		return
	}
	l.answered(took)
}

// answered notes an answer of the store.
func (l *loop) answered(took time.Duration) {
	l.note(func(c *condition, now time.Time) { c.answered(took, now) })
}

// failed notes that the store does not answer, and gives the connection up: what still comes on
// it is no answer to what is asked next.
func (l *loop) failed(err error) {
	if l.conn != nil {
		l.conn.close()
		l.conn = nil
	}
	l.counts.failed.Add(1)
	l.note(func(c *condition, now time.Time) { c.failed(err, now) })
}

// report logs when the store has not been up for a while, and when it is again.
func (l *loop) report(now time.Time) {
	l.condition.Lock()
	down, again := l.condition.news(now)
	v := l.condition.condition
	l.condition.Unlock()
	switch {
	case down:
		l.o.Log.Error("limits are not counted together with other gateways: their store does not answer in time", "store", l.o.Location, "state", v.state, "reason", v.reason, "outage", l.o.Outage, "gateways", l.gateways.Load())
	case again:
		l.o.Log.Info("limits are counted together with other gateways again", "store", l.o.Location, "gateways", l.gateways.Load())
	}
}

// View is the store as operators see it.
type View struct {
	Store    string         `json:"store"`
	State    State          `json:"state"`
	Reason   string         `json:"reason,omitzero"` // why it is not up
	Since    time.Time      `json:"since,omitzero"`  // when it was up last
	Gateways int64          `json:"gateways"`        // that count there, this one included
	Outage   tenancy.Outage `json:"outage"`
}

// String says who counts, in a line.
func (v View) String() string {
	if v.State == Up {
		return fmt.Sprintf("counted for %s in %s", v.Counting(), v.Store)
	}
	does := map[tenancy.Outage]string{
		tenancy.OutageLocal:  fmt.Sprintf("this gateway allows 1/%d of each limit", v.Gateways),
		tenancy.OutageAllow:  "limits do not hold",
		tenancy.OutageRefuse: "callers with limits are refused",
	}[v.Outage]
	return fmt.Sprintf("%s is %s since %s, so %s: %s", v.Store, v.State, v.Since.Format(time.TimeOnly), does, v.Reason)
}

// Counting says how many gateways count together.
func (v View) Counting() string {
	if v.Gateways == 1 {
		return "1 gateway"
	}
	return fmt.Sprintf("%d gateways", v.Gateways)
}

// View returns how the store is now.
func (s *Store) View() View {
	s.condition.Lock()
	defer s.condition.Unlock()
	c := &s.condition
	v := View{Store: s.o.Location.String(), State: c.state, Reason: c.reason, Gateways: max(1, s.gateways.Load()), Outage: s.o.Outage}
	if c.state != Up {
		v.Since = c.since
	}
	return v
}

// Figures are those of the metrics.
type Figures struct {
	Up                                      bool
	Gateways                                int64
	Decided, Alone, Late, Exchanges, Failed uint64
	Exchanging                              time.Duration
}

// Figures returns the counts so far.
func (s *Store) Figures() Figures {
	c := &s.counts
	return Figures{s.up.Load(), s.gateways.Load(), c.decided.Load(), c.alone.Load(), c.late.Load(), c.exchanges.Load(), c.failed.Load(), time.Duration(c.nanoseconds.Load())}
}
