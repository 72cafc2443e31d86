package health

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest has their form).
//
//	engine NAME [step=50ms] [prefill=20ms] [predict=MS|unknown] [ranks=N] [probe=generate] [serves=MODEL,...]
//	       [counted=yes]  gateways read how much it has made for anybody, by its fence if it has one
//	       [samples=yes]  it can be asked for one token, besides its probes
//	gateway NAME [share=F]  there is one, "gateway", unless a script names its own
//	traffic [GATEWAY] every=DURATION [tokens=20] [patience=1m] [model=NAME]
//
// Events of an engine, or with NAME/N of one of its ranks:
//
//	hang       its core stands still, its connections stay
//	mute       it answers probes and nothing else; with samples=yes what it is sampled by, too
//	nostart    it begins no request, and goes on with those that it has
//	slow by=N  each step takes N times as long
//	fail       it answers 500
//	overload   it answers 429
//	kill       it is gone, connections are refused
//	partition  nothing reaches it or comes from it; what was sent comes when it heals
//	probes every=N  it answers each N-th probe
//	heal       all is well again
//	drain, undrain
//
// Events of a gateway:
//
//	pause [GATEWAY] for=DURATION  it stands still
//	behind [GATEWAY] by=DURATION  what engines say is read so much later
//
// The rest:
//
//	run for=DURATION      go on, print each transition and what became of requests
//	states                print each rank as an operator sees it
func TestScripts(t *testing.T) {
	scripttest.Files(t, runScript)
}

// runScript gives the script with its output replaced by what it prints now.
func runScript(t *testing.T, text string) string {
	s := &script{t: t, world: &world{}}
	s.world.log = func(line string) { fmt.Fprintln(&s.out, line) }
	return scripttest.Run(text, &s.out, s.command)
}

type script struct {
	t     *testing.T
	world *world
	out   strings.Builder
}

// line is a command's name and arguments.
type line struct {
	t    *testing.T
	text string
	name string
	args map[string]string
}

func (l *line) word(k, otherwise string) string {
	v, ok := l.args[k]
	if !ok {
		return otherwise
	}
	delete(l.args, k)
	return v
}

func (l *line) dur(k, otherwise string) time.Duration {
	d, err := time.ParseDuration(l.word(k, otherwise))
	if err != nil {
		l.t.Fatalf("%q: %v", l.text, err)
	}
	return d
}

func (l *line) float(k, otherwise string) float64 {
	x, err := strconv.ParseFloat(l.word(k, otherwise), 64)
	if err != nil {
		l.t.Fatalf("%q: %v", l.text, err)
	}
	return x
}

func (s *script) command(text string) {
	words := strings.Fields(text)
	l := &line{t: s.t, text: text, args: map[string]string{}}
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			l.args[k] = v
		} else {
			l.name = w
		}
	}
	switch words[0] {
	case "engine":
		s.engine(l)
	case "gateway":
		s.world.gateway(l.name, Limits{Share: l.float("share", "0")})
	case "traffic":
		g := s.gateway(l)
		g.every, g.tokens, g.patience, g.model = l.dur("every", "0s"), int(l.float("tokens", "20")), l.dur("patience", "1m"), l.word("model", "")
		g.next = s.world.now + grain
	case "pause":
		s.gateway(l).paused = s.world.now + int64(l.dur("for", "0s"))
	case "behind":
		s.gateway(l).behind = l.dur("by", "0s")
	case "run":
		s.run(l.dur("for", "0s"))
	case "states":
		s.states()
	default:
		s.happen(words[0], l)
	}
	if len(l.args) > 0 {
		s.t.Fatalf("%q: no arguments %v", text, slices.Collect(maps.Keys(l.args)))
	}
}

func (s *script) engine(l *line) {
	e := &simEngine{
		name: l.name, step: l.dur("step", "50ms"), prefill: l.dur("prefill", "20ms"), predict: -1,
		generates: l.word("probe", "fence") == "generate", counted: l.word("counted", "no") == "yes", samples: l.word("samples", "no") == "yes", serves: strings.Split(l.word("serves", "m"), ","),
	}
	if p := l.word("predict", fmt.Sprint(float64(e.prefill.Milliseconds()))); p != "unknown" {
		var err error
		if e.predict, err = strconv.ParseFloat(p, 64); err != nil {
			s.t.Fatalf("%q: %v", l.text, err)
		}
	}
	s.world.engine(e, int(l.float("ranks", "1")))
}

func (s *script) gateway(l *line) *simGateway {
	if len(s.world.gateways) == 0 {
		s.world.gateway("gateway", Limits{})
	}
	for _, g := range s.world.gateways {
		if l.name == "" || l.name == g.name {
			return g
		}
	}
	s.t.Fatalf("%q: no such gateway", l.text)
	return nil
}

// ranks are those that a command names, and the engine's own all.
func (s *script) ranks(l *line) (*simEngine, []*simRank) {
	name, rank, one := strings.Cut(l.name, "/")
	for _, e := range s.world.engines {
		if e.name != name {
			continue
		}
		if !one {
			return e, e.ranks
		}
		if n, err := strconv.Atoi(rank); err == nil && n < len(e.ranks) {
			return e, e.ranks[n : n+1]
		}
	}
	s.t.Fatalf("%q: no such engine", l.text)
	return nil, nil
}

func (s *script) happen(what string, l *line) {
	e, ranks := s.ranks(l)
	switch what {
	case "kill":
		e.kill(s.world.now)
		return
	case "fail":
		e.failing = true
		return
	case "overload":
		e.overloaded = true
		return
	case "partition":
		e.partitioned = true
		return
	case "heal":
		e.heal()
		return
	case "probes":
		e.answersEvery = int(l.float("every", "2"))
		return
	}
	by, samples := l.float("by", "1"), l.word("samples", "no") == "yes"
	for _, x := range ranks {
		switch what {
		case "hang":
			x.hung = true
		case "mute":
			x.mute, x.hung, x.samples = true, true, samples
		case "nostart":
			x.noStart = true
		case "slow":
			x.slow = by
		case "drain", "undrain":
			for _, g := range s.world.gateways {
				if r := g.judge(x); what == "drain" {
					r.Drain(s.world.now, "by command")
				} else {
					r.Undrain(s.world.now, "by command")
				}
				g.report()
			}
		default:
			s.t.Fatalf("no command %q", l.text)
		}
	}
}

func (s *script) run(d time.Duration) {
	s.gateway(&line{t: s.t})
	s.world.run(d)
	for _, g := range s.world.gateways {
		name := ""
		if len(s.world.gateways) > 1 {
			name = g.name + ": "
		}
		fmt.Fprintf(&s.out, "%6.1fs %s%s\n", time.Duration(s.world.now).Seconds(), name, g.tally())
	}
}

func (s *script) states() {
	for _, g := range s.world.gateways {
		for _, r := range g.ranks {
			v := r.View()
			fmt.Fprintf(&s.out, "%v is %v and takes %v: %d open, silent for %v", r, v.State, v.Takes, v.Open, v.Silence)
			if v.Limit >= 0 {
				fmt.Fprintf(&s.out, ", room for %d more", v.Limit)
			}
			if v.Ejections > 0 {
				fmt.Fprintf(&s.out, ", ejected %d times", v.Ejections)
			}
			fmt.Fprintln(&s.out)
		}
		if len(g.ranks) > len(s.world.engines) {
			for _, e := range s.world.engines {
				fmt.Fprintf(&s.out, "engine %s is %v\n", e.name, stateOf(g.fleet, e.name))
			}
		}
	}
}

// A request that the gateway sent late counts against the engine only from when it was sent.
func TestSentLate(t *testing.T) {
	f := NewFleet(Limits{}, 0)
	r := f.Add(Member{Engine: "a", Rank: -1, Serves: []string{"m"}})
	f.Add(Member{Engine: "b", Rank: -1, Serves: []string{"m"}}).Joined(0, true)
	r.Joined(0, true)
	now := int64(0)
	until := func(at time.Duration) {
		for ; now < int64(at); now += int64(100 * time.Millisecond) {
			f.Tick(now, 0)
		}
	}
	var q, other Request
	r.HandedOver(&q, 0, 0)
	until(3 * time.Second)
	if r.state != Soft {
		t.Fatalf("after 3 s without a word: %v", r.state)
	}
	q.Sent(now, int64(2900*time.Millisecond))
	if r.state != Up {
		t.Errorf("it was sent 100 ms ago: %v, %s", r.state, r.why)
	}
	until(5 * time.Second)
	if r.state != Soft {
		t.Errorf("2 s after it was sent: %v", r.state)
	}
	// Another one that was late says nothing of this one.
	r.HandedOver(&other, now, 0)
	other.Sent(now, now)
	if r.state != Soft {
		t.Errorf("one of two was sent late: %v", r.state)
	}
	q.Sent(now, 0) // earlier than was said
	q.Ended(now, Done)
	other.Ended(now, Done)
	q.Sent(now, now) // what is over counts for nothing
	if r.tokens.n != 0 || r.firsts.n != 0 || r.state != Up {
		t.Errorf("%v with %d and %d requests", r.state, r.tokens.n, r.firsts.n)
	}
}

// A soft rank whose requests were all given up owes no less because the next one was sent
// late by the gateway.
func TestSentLateIsNoProgress(t *testing.T) {
	f := NewFleet(Limits{}, 0)
	r := f.Add(Member{Engine: "e", Rank: -1, Serves: []string{"m"}})
	r.Joined(0, true)
	now := int64(0)
	pass := func(d int64) {
		for end := now + d; now < end; {
			now += 100 * ms
			f.Tick(now, 0)
		}
	}
	pass(100 * ms)
	var first, second Request
	r.HandedOver(&first, now, 10)
	pass(1500 * ms)
	if r.state != Soft {
		t.Fatalf("it is %v after 1.5 s", r.state)
	}
	first.Ended(now, GaveUp)
	r.HandedOver(&second, now, 10)
	pass(500 * ms)
	second.Sent(now, now-300*ms)
	if r.state != Soft {
		t.Errorf("it is %v, %s, and nothing has come of it", r.state, r.why)
	}
	// Where that was the only one that it owed, it owes nothing yet.
	pass(2000 * ms)
	second.Sent(now, now-300*ms)
	if r.state != Up {
		t.Errorf("it is %v, %s, and owes what was sent 300 ms ago", r.state, r.why)
	}
}
