//go:build linux

package neighbour

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/lab/proc"
	"weir/test/e2e/harness"
)

// Options are the options of a Bed.
type Options struct {
	Protocol Protocol
	Path     string // to the engine: one of harness.Paths
	Streams  int    // good ones at once
	Tokens   int    // of each
	Step     time.Duration
}

// Bed is a gateway with an engine and with good streams.
type Bed struct {
	t       *testing.T
	options Options
	Gateway *harness.Gateway
	engine  *harness.Sim
	good    *child
	target  target
	bad     []*Neighbour // at work
	before  counts
}

// counts are what a gateway has of things that are to be as many afterwards.
type counts struct{ goroutines, descriptors int }

// Make starts it, and waits until all its streams are there.
func Make(t *testing.T, o Options) *Bed {
	t.Helper()
	b := &Bed{t: t, options: o}
	b.engine = harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", o.Step.String(), "--max-running-requests", "16384")
	args := []string{"serve", "--engine", b.engine.Spec(o.Path)}
	b.target.Protocol = o.Protocol
	if o.Protocol != Plain {
		dir := t.TempDir()
		cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		harness.KeyPair(t, cert, key, 1)
		args = append(args, "--tls-cert", cert, "--tls-key", key)
		b.target.Roots = cert
	}
	b.Gateway = harness.StartGateway(t, args...)
	_, b.target.Address, _ = strings.Cut(b.Gateway.URL, "://")
	b.good = start(t, role{Target: b.target, Good: &goodOrder{Engine: b.engine.OpenAI, Streams: o.Streams, Tokens: o.Tokens, Connections: max(1, o.Streams/64), Step: o.Step}})
	b.wait("all streams there", func() bool {
		s := b.state()
		return s.Live >= o.Streams*9/10 && s.Whole > 0 // some are always between two
	})
	b.before = b.count()
	return b
}

// wait waits for something that needs the gateway, the good streams and the neighbours.
func (b *Bed) wait(what string, holds func() bool) {
	b.t.Helper()
	harness.Eventually(b.t, what, func() bool {
		if s := b.state(); s.Broken > 0 {
			b.t.Fatalf("not %s: %d good streams broken; %s", what, s.Broken, s.First)
		}
		return holds()
	}, b.processes()...)
}

// processes are those that the bed has started and not ended.
func (b *Bed) processes() []*harness.Process {
	all := []*harness.Process{b.Gateway.Process, b.engine.Process, b.good.Process}
	for _, n := range b.bad {
		all = append(all, n.Process)
	}
	return all
}

func (b *Bed) state() (s goodState) {
	b.t.Helper()
	b.good.last(&s)
	return s
}

func (b *Bed) count() counts {
	b.t.Helper()
	return counts{b.Gateway.Goroutines(), b.descriptors()}
}

// descriptors is how many the gateway has.
func (b *Bed) descriptors() int {
	b.t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.Gateway.Cmd.Process.Pid))
	if err != nil {
		b.t.Fatal(err)
	}
	return len(files)
}

// CPU is what a phase took, in CPUs: 1 is all of one core's time.
type CPU struct {
	Gateway, Engine, Good, Bad float64
	Others                     float64 // that are not the bed's
}

// used is what each has taken so far, in seconds.
func (b *Bed) used() (u CPU, machine float64) {
	b.t.Helper()
	of := func(pids ...int) float64 {
		used, err := proc.Of(pids)
		if err != nil {
			b.t.Fatal(err)
		}
		return used.CPU
	}
	u.Gateway, u.Engine = of(b.Gateway.Cmd.Process.Pid), of(b.engine.Cmd.Process.Pid)
	u.Good = of(b.good.Cmd.Process.Pid)
	for _, c := range b.bad {
		u.Bad += of(c.Cmd.Process.Pid)
	}
	machine, err := proc.MachineCPU()
	if err != nil {
		b.t.Fatal(err)
	}
	return u, machine - u.Gateway - u.Engine - u.Good - u.Bad - of(os.Getpid())
}

// Phase lets the good streams begin a phase, and waits until it has lasted for a while,
// each stream of it could have come once, and those that began in it are over. It gives
// the CPU that was taken meanwhile.
func (b *Bed) Phase(name string, least time.Duration) CPU {
	b.t.Helper()
	begun := time.Now()
	before, othersBefore := b.used()
	b.good.order(name)
	b.wait("through phase "+name, func() bool {
		s := b.state()
		return s.Phase == name && s.Whole >= b.options.Streams && s.Earlier == 0 && time.Since(begun) >= least
	})
	after, othersAfter := b.used()
	took := time.Since(begun).Seconds()
	b.good.order("behind " + name)
	b.wait("over with phase "+name, func() bool { s := b.state(); return s.Phase == "behind "+name && s.Earlier == 0 })
	return CPU{Gateway: (after.Gateway - before.Gateway) / took, Engine: (after.Engine - before.Engine) / took,
		Good: (after.Good - before.Good) / took, Bad: (after.Bad - before.Bad) / took, Others: max(0, othersAfter-othersBefore) / took}
}

// Neighbour is a bad one at work.
type Neighbour struct {
	*child
	bed   *Bed
	order badOrder
}

func (n *Neighbour) state() (s badState) {
	n.T.Helper()
	n.last(&s)
	return s
}

// Scale is how much of a bad neighbour there is.
type Scale struct {
	Many  int           // uploads, streams or connections at once, or of those that come and go
	Bytes int           // of an upload, and of a huge field
	Pace  time.Duration // the least time between one of those that come and go and the next
	Nice  int           // of its process
}

// Small is the scale of every run.
func Small(kind Kind) Scale {
	s := Scale{Many: 16, Bytes: 1 << 20, Pace: 20 * time.Millisecond}
	if kind == Idle {
		s.Many = 500
	}
	return s
}

// Full is the scale of make measure. There are as many idle connections as the limit of
// descriptors leaves room for beside the good streams. The neighbour comes last in the
// kernel's eyes: on a machine of its own it would take none of the gateway's CPU.
func Full(t *testing.T, kind Kind) Scale {
	t.Helper()
	s := Scale{Many: 64, Bytes: 8 << 20, Pace: 100 * time.Millisecond, Nice: 19}
	switch kind {
	case StalledReader, NoDescriptors:
		s.Many = 256
	case HugeField:
		s.Many, s.Pace = 2, 500*time.Millisecond
	case Idle:
		var l unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
			t.Fatal(err)
		}
		s.Many = int(min(l.Max-1024, 25_000)) // the client's ports end at 28,000
	}
	return s
}

// Bad starts a bad neighbour and waits until it is at work.
func (b *Bed) Bad(kind Kind, scale Scale) *Neighbour {
	b.t.Helper()
	many := scale.Many
	free := b.descriptors()
	switch kind {
	case NoDescriptors:
		b.limit(unix.RLIMIT_NOFILE, uint64(free+8))
	case FullDisk:
		info, err := os.Stat(b.Gateway.Timeline)
		if err != nil {
			b.t.Fatal(err)
		}
		b.limit(unix.RLIMIT_FSIZE, uint64(info.Size()))
	}
	order := badOrder{kind, scale}
	n := &Neighbour{start(b.t, role{Target: b.target, Bad: &order}), b, order}
	if scale.Nice > 0 {
		if err := unix.Setpriority(unix.PRIO_PGRP, n.Cmd.Process.Pid, scale.Nice); err != nil {
			b.t.Fatal(err)
		}
	}
	b.bad = append(b.bad, n)
	b.wait("at work: "+string(kind), func() bool {
		s := n.state()
		switch kind {
		case SlowUpload, StalledReader, Idle:
			return s.Standing == many || s.Standing > 0 && s.Done >= many // some may be refused
		case NoDescriptors:
			return b.descriptors() >= free+8 && s.Standing < many
		case FullDisk:
			ended := harness.Metric(b.t, b.Gateway.Admin, "weir_requests_total")
			return s.Done >= many && ended-harness.Metric(b.t, b.Gateway.Admin, "weir_timeline_written_total") >= float64(many)
		}
		return s.Done >= many
	})
	return n
}

// limit changes a limit of the gateway's process; the most that it may be stays.
func (b *Bed) limit(resource int, value uint64) {
	b.t.Helper()
	var l unix.Rlimit
	pid := b.Gateway.Cmd.Process.Pid
	err := unix.Prlimit(pid, resource, nil, &l)
	if err == nil {
		l.Cur = min(value, l.Max)
		err = unix.Prlimit(pid, resource, &l, nil)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// End ends the neighbour and waits until nothing of it is left: no request in the
// engine, no descriptor, no goroutine, and who comes anew is served. It returns what the
// neighbour saw.
func (n *Neighbour) End() (standing int, answers map[string]int) {
	b := n.bed
	b.t.Helper()
	s := n.state()
	n.end()
	b.bad = slices.DeleteFunc(b.bad, func(o *Neighbour) bool { return o == n })
	switch n.order.Kind {
	case NoDescriptors:
		b.limit(unix.RLIMIT_NOFILE, unix.RLIM_INFINITY)
	case FullDisk:
		b.limit(unix.RLIMIT_FSIZE, unix.RLIM_INFINITY)
		b.wait("written again", func() bool {
			return harness.Metric(b.t, b.Gateway.Admin, "weir_requests_total")-harness.Metric(b.t, b.Gateway.Admin, "weir_timeline_written_total") < float64(b.options.Streams)
		})
	}
	b.wait("free of "+string(n.order.Kind), func() bool {
		now := b.count()
		state := harness.EngineState(b.t, b.engine.Admin)
		return state.Running+state.Waiting <= b.options.Streams+1 && // the witness
			now.descriptors <= b.before.descriptors+8 && now.goroutines <= b.before.goroutines+b.options.Streams/4+16
	})
	b.anew()
	return s.Standing, s.Answers
}

// anew wants a client that comes anew to be served.
func (b *Bed) anew() {
	b.t.Helper()
	transport, err := b.target.transport()
	if err != nil {
		b.t.Fatal(err)
	}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: harness.Patience}
	resp, err := client.Post(b.target.url()+chats, "application/json", strings.NewReader(chat(4, true, "hi")))
	if err != nil {
		b.t.Errorf("a client that came afterwards: %v", err)
		return
	}
	harness.WantComplete(b.t, harness.Read(resp))
}

// Peak is the most memory that the gateway has had resident, in bytes.
func (b *Bed) Peak() int64 {
	b.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.Gateway.Cmd.Process.Pid))
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				b.t.Fatal(err)
			}
			return kb << 10
		}
	}
	b.t.Fatal("/proc has no VmHWM")
	return 0
}

// End ends the good streams, wants all of them whole, and the gateway's accounts to add
// up. It returns the times of each phase.
func (b *Bed) End() map[string]Times {
	b.t.Helper()
	b.good.end()
	s := b.state()
	if s.Broken > 0 || s.Times == nil {
		b.t.Errorf("%d good streams broken; %s", s.Broken, s.First)
	}
	b.Gateway.Balanced()
	harness.Eventually(b.t, "engine free", func() bool { return harness.EngineState(b.t, b.engine.Admin).Running == 0 })
	b.Gateway.Interrupt()
	return s.Times
}
