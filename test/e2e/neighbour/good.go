//go:build linux

package neighbour

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/trace"
	"weir/test/e2e/harness"
)

// goodOrder describes the load of the client of the good streams.
type goodOrder struct {
	Engine      string        // the base URL of the engine's own API, for the witness
	Streams     int           // at once, each followed by the next one
	Tokens      int           // of each
	Connections int           // of HTTP/2; otherwise each stream has its own
	Step        time.Duration // of the engine
}

// Times are percentiles over the streams that began in a phase, in milliseconds. TTFT is from a request's
// sending to its first word, Late from an engine's step, as a stream that goes past the
// gateway sees it, to the word's arrival.
type Times struct {
	Streams  int
	Words    int
	TTFT50   float64
	TTFT99   float64
	Late50   float64
	Late99   float64
	LateMost float64
}

// goodState is what the client prints, as it goes and at its end.
type goodState struct {
	Phase   string
	Earlier int    // streams under way that began before this phase
	Live    int    // streams under way whose answers have begun
	Whole   int    // streams that began in this phase and ended, every word right
	Broken  int    // streams that did not, in all phases
	First   string `json:",omitempty"` // how the first of those broke
	Dials   int    // connections opened
	// At the end.
	Times map[string]Times `json:",omitempty"`
}

// phase collects the times of the streams that began in it.
type phase struct {
	name       string
	open       int // streams under way
	streams    int // that ended whole
	words      int
	ttft, late []float64
}

// good is the client of the good streams.
type good struct {
	target     target
	order      goodOrder
	transports []*http.Transport
	dials      atomic.Int64
	live       atomic.Int64
	seeds      atomic.Int64

	mu     sync.Mutex
	phases []*phase // the last one is under way
	broken int
	first  string

	witness struct {
		sync.Mutex
		steps []int64 // when each word of the engine's own stream came
	}
}

// runGood runs the streams until standard input ends. Each line there is the name of
// a phase that begins.
func runGood(g target, o goodOrder) error {
	c := &good{target: g, order: o, phases: []*phase{{name: "begin"}}}
	connections := 1
	if g.Protocol == HTTP2 {
		connections = o.Connections
	}
	for range connections {
		t, err := g.transport()
		if err != nil {
			return err
		}
		t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c.dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		c.transports = append(c.transports, t)
	}
	if _, err := harness.SimWords(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- c.watch(ctx) }()
	// The streams begin over the time of one, as those of many users do.
	var streams sync.WaitGroup
	stop := make(chan struct{})
	for i := range o.Streams {
		streams.Go(func() {
			wait := time.NewTimer(time.Duration(i) * time.Duration(o.Tokens) * o.Step / time.Duration(o.Streams))
			defer wait.Stop()
			select {
			case <-wait.C:
			case <-stop:
				return
			}
			for {
				select {
				case <-stop:
					return
				default:
					c.one(ctx, c.transports[i%len(c.transports)])
				}
			}
		})
	}
	ordered := make(chan string)
	go func() {
		defer close(ordered)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			ordered <- lines.Text()
		}
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case name, ok := <-ordered:
			if !ok {
				close(stop)
				streams.Wait()
				s := c.state()
				s.Times = c.times()
				print(s)
				return nil
			}
			c.mu.Lock()
			c.phases = append(c.phases, &phase{name: name})
			c.mu.Unlock()
		case <-tick.C:
			print(c.state())
		case err := <-failed:
			return fmt.Errorf("the engine's own stream: %w", err)
		}
	}
}

func (c *good) state() goodState {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.phases) - 1
	s := goodState{Phase: c.phases[last].name, Live: int(c.live.Load()), Whole: c.phases[last].streams, Broken: c.broken, First: c.first, Dials: int(c.dials.Load())}
	for _, p := range c.phases[:last] {
		s.Earlier += p.open
	}
	return s
}

func (c *good) times() map[string]Times {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]Times{}
	for _, p := range c.phases {
		slices.Sort(p.ttft)
		slices.Sort(p.late)
		t := Times{Streams: p.streams, Words: p.words, TTFT50: share(p.ttft, 50), TTFT99: share(p.ttft, 99), Late50: share(p.late, 50), Late99: share(p.late, 99)}
		if len(p.late) > 0 {
			t.LateMost = p.late[len(p.late)-1]
		}
		all[p.name] = t
	}
	return all
}

// share is a percentile of sorted values, 0 of none.
func share(sorted []float64, percent int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

// ask sends a request for a stream.
func (c *good) ask(ctx context.Context, transport *http.Transport, base string, tokens int) (*http.Response, error) {
	body := fmt.Sprintf(`{"model":"weir-sim","stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_tokens":%d,"seed":%d,"messages":[{"role":"user","content":"go on"}]}`, tokens, c.seeds.Add(1))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		a := harness.Read(resp)
		return nil, fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	}
	return resp, nil
}

// watch reads one stream of the engine's own. At each step the engine sends a word to all running
// streams, so the words of this one show when the steps were.
func (c *good) watch(ctx context.Context) error {
	words, err := harness.SimWords()
	if err != nil {
		return err
	}
	resp, err := c.ask(ctx, new(http.Transport), c.order.Engine, 50_000)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = harness.Follow(words, resp.Body, func(int) {
		at := trace.Now()
		c.witness.Lock()
		defer c.witness.Unlock()
		c.witness.steps = append(c.witness.steps, at)
	})
	if err != nil {
		return err
	}
	return errors.New("at its end after 50,000 words")
}

// one runs a stream to its end.
func (c *good) one(ctx context.Context, transport *http.Transport) {
	ctx, cancel := context.WithTimeout(ctx, harness.Patience)
	defer cancel()
	c.mu.Lock()
	p := c.phases[len(c.phases)-1]
	p.open++
	c.mu.Unlock()
	begun := trace.Now()
	resp, err := c.ask(ctx, transport, c.target.url(), c.order.Tokens)
	var arrivals []int64 // of each word
	if err == nil {
		c.live.Add(1)
		defer c.live.Add(-1)
		words, _ := harness.SimWords() // they were there before
		var n int
		n, err = harness.Follow(words, resp.Body, func(n int) {
			at := trace.Now()
			for len(arrivals) < n {
				arrivals = append(arrivals, at)
			}
		})
		resp.Body.Close()
		if err == nil && (n != c.order.Tokens || len(arrivals) != n) {
			err = fmt.Errorf("%d words, %d of them seen, want %d", n, len(arrivals), c.order.Tokens)
		}
	}
	late := c.late(arrivals)
	c.mu.Lock()
	defer c.mu.Unlock()
	p.open--
	if err != nil {
		if c.broken++; c.first == "" {
			c.first = fmt.Sprintf("in phase %s: %v", p.name, err)
		}
		return
	}
	p.streams++
	p.words += len(arrivals)
	p.ttft = append(p.ttft, float64(arrivals[0]-begun)/1e6)
	p.late = append(p.late, late...)
}

// late returns how much later than its step each word of a stream came. The stream's first
// step is the latest one for which no word came before its step, within the lateness of the
// two clients themselves.
func (c *good) late(arrivals []int64) []float64 {
	c.witness.Lock()
	steps := c.witness.steps[:len(c.witness.steps):len(c.witness.steps)]
	c.witness.Unlock()
	if len(arrivals) == 0 || len(steps) == 0 {
		return nil
	}
	slack := int64(c.order.Step) / 4
	at, _ := slices.BinarySearch(steps, arrivals[0]+slack)
	for at--; at >= 0; at-- {
		fits := true
		for i, a := range arrivals {
			if fits = at+i >= len(steps) || a >= steps[at+i]-slack; !fits {
				break
			}
		}
		if fits {
			break
		}
	}
	if at < 0 {
		return nil
	}
	out := make([]float64, 0, len(arrivals))
	for i, a := range arrivals {
		if at+i < len(steps) {
			out = append(out, float64(max(0, a-steps[at+i]))/1e6)
		}
	}
	return out
}
