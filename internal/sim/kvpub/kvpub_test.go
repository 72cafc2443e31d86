package kvpub

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/kvindex"
	"weir/internal/sim"
	"weir/internal/wire/zmtp"
	"weir/internal/workload/content"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testWords(t *testing.T) *content.Words {
	t.Helper()
	words, err := content.New(1400, func(id uint32) ([]byte, bool) {
		if id < 300 {
			return nil, false
		}
		n := id - 300
		return []byte{' ', 'a' + byte(n%26), 'a' + byte(n/26%26), 'a' + byte(n/676%26)}, n < 1024
	})
	if err != nil {
		t.Fatal(err)
	}
	return words
}

// root is where prompts of an adapter and with a salt begin in the index.
func root(lora, salt string) kvindex.Block { return kvindex.Root(0, lora, salt) }

// The published events of an engine that is used at random describe what its cache holds: a reader
// of the batches knows of every prompt how much of it would be found. It does in each form, except
// that an adapter's blocks cannot be told from the model's in the form of arrays.
func TestWhatIsPublishedIsWhatIsThere(t *testing.T) {
	words := testWords(t)
	rapid.Check(t, func(t *rapid.T) {
		form := rapid.SampledFrom([]Form{VLLM, SGLang, SGLangArrays}).Draw(t, "form")
		page := 16 * rapid.IntRange(1, 3).Draw(t, "page")
		core, err := sim.New(sim.Options{Words: words, EOS: []uint32{2}, KVTokens: page * rapid.IntRange(10, 40).Draw(t, "pages"), PageSize: page,
			LoRAs: []string{"x"}, KVEvents: true, Cost: sim.Constant{Prefill: time.Millisecond, Decode: time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		e := newEncoder(form, 0, page)
		known := kvevents.New(kvevents.Options{IndexTokens: 16, Replays: true, Budget: kvevents.NewBudget(1 << 24), Root: root})
		defer known.Close()
		var seq uint64
		tell := func() {
			if events := core.KVEvents(0, nil); len(events) > 0 {
				if r := known.Live(0, seq, e.batch(float64(seq), events)); r.Replay {
					t.Fatalf("batch %d has others asked for", seq)
				}
				seq++
			}
		}
		now := int64(0)
		var prompts [][]uint32
		draw := func() sim.Params {
			p := sim.Params{MaxTokens: rapid.IntRange(1, 3*page).Draw(t, "max"), IgnoreEOS: true}
			if len(prompts) > 0 && rapid.Bool().Draw(t, "again") {
				p.Prompt = slices.Clone(rapid.SampledFrom(prompts).Draw(t, "which"))
				p.Prompt = p.Prompt[:rapid.IntRange(1, len(p.Prompt)).Draw(t, "of it")]
			}
			for range rapid.IntRange(1, 4*page).Draw(t, "more") {
				p.Prompt = append(p.Prompt, uint32(300+len(p.Prompt)%3))
			}
			if form != SGLangArrays && rapid.IntRange(0, 3).Draw(t, "lora") == 0 {
				p.LoRA = "x"
			}
			if form != SGLangArrays {
				p.CacheSalt = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "salt")
			}
			return p
		}
		look := func() {
			p := draw()
			r, err := core.Options().Prepare(p)
			if err != nil {
				return
			}
			chain := kvindex.AppendChain(nil, root(p.LoRA, p.CacheSalt), p.Prompt, 16)
			if got, want := known.Resident(chain, len(p.Prompt))*16, core.Resident(0, &r); got != want && known.Unit() > 0 {
				t.Fatalf("%d of %d tokens are believed to be there, %d are", got, len(p.Prompt), want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(*rapid.T) {
				p := draw()
				if r, err := core.Options().Prepare(p); err == nil {
					if _, err := core.Submit(now, now, r); err != nil {
						t.Fatal(err)
					}
					prompts = append(prompts, p.Prompt)
				}
			},
			"run": func(t *rapid.T) {
				for range rapid.IntRange(1, 60).Draw(t, "steps") {
					at, ok := core.Due()
					if !ok {
						break
					}
					now = at
					core.Advance(now)
					tell()
				}
			},
			"flush": func(*rapid.T) {
				core.FlushCache()
				tell()
			},
			"look": func(*rapid.T) { look() },
		})
		s := known.Stats()
		if seq > 0 && known.Knowledge() != kvevents.Known || s.Bad+s.Gaps+s.Strange+s.Ignored+s.Rebuilds > 0 {
			t.Fatalf("%v, %+v", known.Knowledge(), s)
		}
	})
}

// listening is a publisher that is served until the test ends.
func listening(t *testing.T, config string, o Options) *Publisher {
	t.Helper()
	c, err := ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Listen(c, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Serve(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return p
}

const patience = time.Minute

func dial(t *testing.T, endpoint string, as zmtp.Type) *zmtp.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	c, err := zmtp.Handshake(conn, zmtp.Config{Type: as, HandshakeTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.NetConn().SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.NetConn().Close() })
	return c
}

// page is the event of a prompt's only page.
func pageOf(id uint32) []sim.KVEvent {
	return []sim.KVEvent{{Kind: sim.KVStored, Page: uint64(id), Tokens: slices.Repeat([]uint32{id}, 16)}}
}

// subscribe listens, and returns when the rank has heard of it.
func subscribe(t *testing.T, p *Publisher, rank int, topic string) *zmtp.Conn {
	t.Helper()
	c := dial(t, p.Sources()[rank].Endpoint, zmtp.Sub)
	r := p.ranks[rank]
	// Those that have topics, other than those of before. One of before may leave meanwhile.
	heard := func(but map[*subscriber]bool) map[*subscriber]bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		all := map[*subscriber]bool{}
		for s := range r.subscribers {
			s.mu.Lock()
			if len(s.topics) > 0 && !but[s] {
				all[s] = true
			}
			s.mu.Unlock()
		}
		return all
	}
	before := heard(nil)
	if err := c.Subscribe(topic); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); len(heard(before)) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the subscription did not come")
		}
	}
	return c
}

func recv(t *testing.T, c *zmtp.Conn) (topic string, seq uint64, batch []byte) {
	t.Helper()
	frames, err := c.Recv()
	if err != nil || len(frames) != 3 {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	return string(frames[0]), binary.BigEndian.Uint64(frames[1]), slices.Clone(frames[2])
}

// ask asks for batches again.
func ask(t *testing.T, p *Publisher, rank int, from uint64) (seqs []uint64) {
	t.Helper()
	c := dial(t, *p.Sources()[rank].ReplayEndpoint, zmtp.Dealer)
	if err := c.Send(nil, []byte("no number"), nil); err != nil { // is passed over
		t.Fatal(err)
	}
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		t.Fatal(err)
	}
	for {
		frames, err := c.Recv()
		if err != nil || len(frames) < 3 || len(frames[0]) > 0 {
			t.Fatalf("%q, %v", frames, err)
		}
		n := len(frames)
		seq := binary.BigEndian.Uint64(frames[n-2])
		if seq == math.MaxUint64 {
			return seqs
		}
		if bare := p.ranks[rank].bare; bare != (n == 3) || !bare && string(frames[1]) != p.config.Topic {
			t.Fatalf("%q", frames)
		}
		seqs = append(seqs, seq)
	}
}

// Each rank has numbers and ports of its own. Who listens hears what is published from
// then on, under his topic; who asks has what is kept; a mute publisher keeps all the
// same; and one that restarts has no past.
func TestPublisher(t *testing.T) {
	for _, form := range []Form{VLLM, SGLangArrays} {
		p := listening(t, `{"endpoint":"tcp://127.0.0.1:0","replay_endpoint":"tcp://127.0.0.1:0","topic":"kv@m","buffer_steps":3}`, Options{Form: form, PageSize: 16, Ranks: 2})
		at := func(r int) (ports []int) {
			for _, e := range []string{p.Sources()[r].Endpoint, *p.Sources()[r].ReplayEndpoint} {
				var port int
				if _, err := fmt.Sscanf(e, "tcp://127.0.0.1:%d", &port); err != nil {
					t.Fatalf("%s: %v", e, err)
				}
				ports = append(ports, port)
			}
			return ports
		}
		if zero, one := at(0), at(1); one[0] != zero[0]+1 || one[1] != zero[1]+1 {
			t.Errorf("the ports are %v and %v", zero, one)
		}
		p.Publish(time.Unix(1, 0), 0, pageOf(1)) // nobody hears it
		all, mine, other := subscribe(t, p, 0, ""), subscribe(t, p, 0, "kv@"), subscribe(t, p, 0, "no")
		p.Publish(time.Unix(2, 0), 1, pageOf(9))
		p.Publish(time.Unix(2, 0), 0, pageOf(2))
		p.Publish(time.Unix(2, 0), 0, nil)
		p.Mute(true)
		p.Publish(time.Unix(3, 0), 0, pageOf(3))
		p.Mute(false)
		p.Publish(time.Unix(4, 0), 0, pageOf(4))
		for _, c := range []*zmtp.Conn{all, mine} {
			for _, want := range []uint64{1, 3} {
				if topic, seq, batch := recv(t, c); topic != "kv@m" || seq != want || len(batch) < 50 {
					t.Errorf("%q %d %q, want %d", topic, seq, batch, want)
				}
			}
		}
		if got := ask(t, p, 0, 0); !slices.Equal(got, []uint64{1, 2, 3}) {
			t.Errorf("of the last three batches %v are had again", got)
		}
		if got := ask(t, p, 0, 3); !slices.Equal(got, []uint64{3}) {
			t.Errorf("from 3 on %v are had", got)
		}
		if got := ask(t, p, 1, 0); !slices.Equal(got, []uint64{0}) {
			t.Errorf("of the other rank %v are had", got)
		}
		p.Restart()
		for _, c := range []*zmtp.Conn{all, other} { // other has heard nothing
			if frames, err := c.Recv(); err == nil {
				t.Errorf("%q after a restart", frames)
			}
		}
		if got := ask(t, p, 0, 0); len(got) > 0 {
			t.Errorf("the new one has %v", got)
		}
		again := subscribe(t, p, 0, "")
		p.Publish(time.Unix(5, 0), 0, pageOf(5))
		if _, seq, _ := recv(t, again); seq != 0 {
			t.Errorf("the new one begins with %d", seq)
		}
	}
}

// Who does not read loses batches, and nobody waits for him.
func TestWhoDoesNotRead(t *testing.T) {
	p := listening(t, `{"endpoint":"tcp://127.0.0.1:0","hwm":4}`, Options{PageSize: 16, Ranks: 1})
	c := subscribe(t, p, 0, "")
	const n = 200_000 // more than sockets hold
	for i := range n {
		p.Publish(time.Unix(1, 0), 0, pageOf(uint32(300+i%1000)))
	}
	s := func() *subscriber {
		p.ranks[0].mu.Lock()
		defer p.ranks[0].mu.Unlock()
		for s := range p.ranks[0].subscribers {
			return s
		}
		return nil
	}()
	s.mu.Lock()
	waiting := len(s.queue)
	s.mu.Unlock()
	if waiting > 4 {
		t.Errorf("%d batches wait for him", waiting)
	}
	for want := uint64(0); ; want++ {
		p.Publish(time.Unix(2, 0), 0, pageOf(1)) // now that he reads
		_, seq, _ := recv(t, c)
		if seq < want {
			t.Fatalf("%d after %d", seq, want-1)
		}
		if seq > want {
			break // some are lost to him
		}
	}
	if p.ranks[0].kept != nil {
		t.Error("batches are kept that nobody can ask for")
	}
}

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig(`{}`)
	if err != nil || !c.On() || c.Endpoint != "tcp://*:5557" || c.ReplayEndpoint != nil || c.BufferSteps != 10_000 || c.HWM != 100_000 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, off := range []string{`{"publisher":"null"}`, `{"enable_kv_cache_events":false}`} {
		if c, err := ParseConfig(off); err != nil || c.On() {
			t.Errorf("%s: %+v, %v", off, c, err)
		}
	}
	for text, mention := range map[string]string{
		`{"endpont":"x"}`:               "endpont",
		`nonsense`:                      "for example",
		`{"publisher":"kafka"}`:         "zmq",
		`{"endpoint":"tcp://*"}`:        "HOST:PORT",
		`{"endpoint":"tcp://*:70000"}`:  "65535",
		`{"replay_endpoint":"udp://x"}`: "udp",
		`{"hwm":-1}`:                    "negative",
		`{"bind":false}`:                "leave bind out",
		`{"format":"dynamo"}`:           "leave format out",
	} {
		if _, err := ParseConfig(text); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%s: %v does not speak of %q", text, err, mention)
		}
	}
	c.Endpoint = "ipc:///tmp/weir-no-such"
	if _, err := Listen(c, Options{PageSize: 16, Ranks: 2}); err == nil || !strings.Contains(err.Error(), "no port") {
		t.Errorf("two ranks at one path: %v", err)
	}
}
