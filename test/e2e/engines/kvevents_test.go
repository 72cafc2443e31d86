package engines

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/internal/wire/zmtp"
	"weir/test/e2e/harness"
)

// kvEngine is a simulated engine that publishes what its KV caches hold.
type kvEngine struct {
	name       string
	url, admin string
	vllm       string
	plane      string
	replays    []string // where each rank's batches can be asked for again
	count      []uint64 // of the batches of each, as far as was looked
}

// startKVEngine starts one with caches of 32 pages.
func startKVEngine(t *testing.T, name string, ranks int) *kvEngine {
	t.Helper()
	p := harness.Start(t, "engine", "--wire", "sglang=127.0.0.1:0", "--wire", "vllm=127.0.0.1:0", "--wire", "weir=127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms", "--max-total-tokens", "2048", "--page-size", "64", "--dp-size", fmt.Sprint(ranks), "--enable-prompt-tokens-details",
		"--kv-events-config", `{"endpoint":"tcp://127.0.0.1:0","replay_endpoint":"tcp://127.0.0.1:0","topic":"kv@m"}`)
	e := &kvEngine{name: name, url: p.Line("sglang"), vllm: p.Line("vllm"), plane: p.Line("weir"), admin: p.Line("admin"), count: make([]uint64, ranks)}
	var sources map[string]struct {
		Replay string `json:"replay_endpoint"`
	}
	if err := json.Unmarshal(harness.Get(t, p.Line("vllm")+"/kv_event_sources").Body, &sources); err != nil || len(sources) != ranks {
		t.Fatalf("%v: %+v", err, sources)
	}
	for i := range ranks {
		e.replays = append(e.replays, strings.TrimPrefix(sources[fmt.Sprint(i)].Replay, "tcp://"))
	}
	return e
}

// published is how many batches the engine has published since it began.
func (e *kvEngine) published(t *testing.T) (all float64) {
	t.Helper()
	for i, at := range e.replays {
		e.count[i] = again(t, at, e.count[i])
		all += float64(e.count[i])
	}
	return all
}

// again asks for batches from a number on, and gives the number behind the last one.
func again(t *testing.T, address string, from uint64) uint64 {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, harness.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c, err := zmtp.Handshake(conn, zmtp.Config{Type: zmtp.Dealer, HandshakeTimeout: harness.Patience})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(harness.Patience)); err != nil {
		t.Fatal(err)
	}
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		t.Fatal(err)
	}
	for {
		frames, err := c.Recv()
		if err != nil || len(frames) < 3 {
			t.Fatalf("%q, %v", frames, err)
		}
		seq := binary.BigEndian.Uint64(frames[len(frames)-2])
		if seq == math.MaxUint64 {
			return from
		}
		from = seq + 1
	}
}

// beside has each rank asked by somebody else than weir.
func (e *kvEngine) beside(t *testing.T, time int) {
	t.Helper()
	for i := range e.replays {
		body := fmt.Sprintf(`{"text":"For time %d somebody else asks rank %d.","routed_dp_rank":%d,"sampling_params":{"max_new_tokens":140,"ignore_eos":true}}`, time, i, i)
		if a := harness.Post(t, e.url+"/generate", body); a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
}

// faults replaces the engine's faults.
func (e *kvEngine) faults(t *testing.T, faults ...string) {
	t.Helper()
	body, err := json.Marshal(map[string][]string{"faults": faults})
	if err != nil {
		t.Fatal(err)
	}
	if a := harness.Post(t, e.admin+"/admin/faults", string(body)); a.Status/100 != 2 {
		t.Fatalf("faults: %d %s", a.Status, a.Body)
	}
}

// kvGateway is a gateway of such engines, and what it is asked.
type kvGateway struct {
	*harness.Gateway
	t       *testing.T
	engines []*kvEngine
	random  *rand.Rand
	talks   []string
	asked   int
	hits    int // requests that had something cached

	checked, wrong int // predictions, and those that were not what is reported
}

func (g *kvGateway) words(n int) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "%x ", g.random.Uint32N(1<<16))
	}
	return b.String()
}

func (g *kvGateway) metric(name string, e *kvEngine, labels ...string) float64 {
	g.t.Helper()
	return harness.Metric(g.t, g.Admin, name, append(labels, `engine="`+e.name+`"`)...)
}

// heard waits until all is known that the engines have published.
func (g *kvGateway) heard() {
	g.t.Helper()
	for _, e := range g.engines {
		want := e.published(g.t)
		harness.Eventually(g.t, "heard what is published", func() bool { return g.metric("weir_engine_kv_events", e, `what="batches"`) == want }, g.Process)
	}
}

// known waits until every rank's cache is known by its events.
func (g *kvGateway) known() {
	g.t.Helper()
	for _, e := range g.engines {
		harness.Eventually(g.t, "known by events", func() bool {
			return g.metric("weir_engine_kv_knowledge", e, `"known"`) == float64(len(e.replays))
		}, g.Process)
	}
}

// ask has some conversation take its next turn, and gives what was predicted and reported
// to be cached.
func (g *kvGateway) ask() (predicted, cached int) {
	g.t.Helper()
	i := g.random.IntN(len(g.talks))
	if len(g.talks[i]) > 2500 { // about half as many tokens
		g.talks[i] = g.talks[i][:1000]
	}
	g.talks[i] += g.words(10 + g.random.IntN(60))
	body, err := json.Marshal(map[string]any{"model": "weir-sim", "prompt": g.talks[i], "max_tokens": 1 + g.random.IntN(40), "ignore_eos": true})
	if err != nil {
		g.t.Fatal(err)
	}
	g.asked++
	id := fmt.Sprintf("kv-%d", g.asked)
	if a := harness.Post(g.t, g.URL+"/v1/completions", string(body), "X-Request-Id", id); a.Status != http.StatusOK {
		g.t.Fatalf("%d %s", a.Status, a.Body)
	}
	var r struct {
		Attempts []struct {
			Choice struct {
				Predicted int  `json:"predicted_cached_tokens"`
				Cached    *int `json:"cached_tokens"`
			}
		}
	}
	harness.Eventually(g.t, "the record", func() bool {
		a := harness.Get(g.t, g.Admin+"/timeline/"+id)
		return a.Status == http.StatusOK && json.Unmarshal(a.Body, &r) == nil
	}, g.Process)
	if len(r.Attempts) != 1 || r.Attempts[0].Choice.Cached == nil {
		g.t.Fatalf("%s: %+v", id, r)
	}
	return r.Attempts[0].Choice.Predicted, *r.Attempts[0].Choice.Cached
}

// right asks so often, and counts the predictions that are not what is reported.
func (g *kvGateway) right(what string, n int) {
	g.t.Helper()
	hits := 0
	for i := range n {
		g.heard()
		predicted, cached := g.ask()
		if g.checked++; predicted != cached {
			g.wrong++
			g.t.Logf("%s, request %d: %d tokens are predicted to be cached, %d were", what, i, predicted, cached)
		}
		if cached > 0 {
			hits++
		}
	}
	g.hits += hits
	g.t.Logf("%s: %d of %d requests had something cached", what, hits, n)
}

// The gateway knows to the token what simulated engines publish of their caches, which are so
// small that they evict all the time. It knows this from the first batch on, after a gap was
// filled, after the engines restarted with empty caches, and when the gateway came later. Each
// of several ranks has its own events.
func TestKVEventsOfEngines(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		kind  string
		ranks int
	}{{"sglang", 1}, {"sglang", 2}, {"vllm", 1}, {"weir", 1}} {
		t.Run(fmt.Sprintf("%s, %d ranks", test.kind, test.ranks), func(t *testing.T) {
			harness.Beside(t, harness.Light)
			g := &kvGateway{t: t, random: rand.New(rand.NewPCG(7, uint64(test.ranks)))}
			var args []string
			for _, name := range []string{"a", "b"} {
				e := startKVEngine(t, name, test.ranks)
				g.engines = append(g.engines, e)
				at := map[string]string{"sglang": e.url, "vllm": e.vllm, "weir": e.plane}[test.kind]
				args = append(args, "--engine", test.kind+"="+at+",name="+name)
			}
			systems := []string{g.words(80), g.words(80), g.words(80), g.words(80), "", ""} // what several have in common
			for i := range 12 {
				g.talks = append(g.talks, systems[i%len(systems)])
			}
			serve := func() {
				t.Helper()
				g.Gateway = harness.StartGateway(t, append([]string{"serve"}, args...)...)
				harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 }, g.Process)
			}
			serve()
			g.known() // to have nothing
			for _, e := range g.engines {
				e.beside(t, 0)
			}
			g.right("from the first batch on", 40)

			for _, e := range g.engines {
				e.faults(t, "mute")
			}
			for range 10 {
				g.ask()
			}
			for _, e := range g.engines {
				e.faults(t)
			}
			for tries := 0; ; tries++ { // until each has published something that is heard
				behind := 0.0
				for _, e := range g.engines {
					behind += e.published(t) - g.metric("weir_engine_kv_events", e, `what="batches"`)
				}
				if behind == 0 {
					break
				}
				if tries == 500 {
					t.Fatalf("%v batches are missing", behind)
				}
				for _, e := range g.engines { // the gateway may have reasons to ask one alone
					e.beside(t, 1+tries)
				}
			}
			gaps, rebuilds := 0.0, 0.0
			for _, e := range g.engines {
				gaps += g.metric("weir_engine_kv_events", e, `what="gaps"`)
				rebuilds += g.metric("weir_engine_kv_events", e, `what="rebuilds"`)
			}
			if gaps == 0 || rebuilds > 0 {
				t.Errorf("%v gaps, %v rebuilds", gaps, rebuilds)
			}
			g.known()
			g.right("behind a gap", 20)

			g.heard()
			was := map[string]string{}
			for _, now := range enginesOf(t, g.Gateway) {
				was[now.Name] = now.Instance
			}
			for _, e := range g.engines {
				e.faults(t, "restart")
				clear(e.count)
			}
			// An engine that begins anew is another life, and its counts begin at 0.
			harness.Eventually(t, "both are others", func() bool {
				for _, now := range enginesOf(t, g.Gateway) {
					if now.Instance == "" || now.Instance == was[now.Name] {
						return false
					}
				}
				return true
			}, g.Process)
			// It is known that they have nothing, before they have published anything.
			for _, e := range g.engines {
				harness.Eventually(t, "forgotten what it had", func() bool { return g.metric("weir_engine_kv_event_blocks", e) == 0 }, g.Process)
			}
			harness.Eventually(t, "both ready again", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 }, g.Process)
			g.known()
			g.right("with empty caches", 30)

			g.Interrupt()
			serve()
			g.known()
			g.right("after a restart of weir", 20)
			evicted := 0
			for _, e := range g.engines {
				var state struct {
					Evicted int `json:"evicted_tokens"`
				}
				if err := json.Unmarshal(harness.Get(t, e.admin+"/admin/state").Body, &state); err != nil {
					t.Fatal(err)
				}
				evicted += state.Evicted
			}
			if g.hits < 10 || evicted == 0 {
				t.Errorf("%d of %d requests had something cached, %d tokens were evicted: that says too little", g.hits, g.asked, evicted)
			}
			// A block that was evicted right after it was placed may be believed for a moment.
			if g.wrong*100 > g.checked {
				t.Errorf("%d of %d predictions are not what is reported, at most 1 %% may be", g.wrong, g.checked)
			}
		})
	}
}
