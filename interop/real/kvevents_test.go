//go:build interop_engines

package real

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"weir/test/e2e/harness"
)

// kvView is what /engines says of an engine's KV events.
type kvView struct {
	Name     string
	Ready    bool
	Note     string
	KVEvents *struct {
		Knowledge, Error            string
		Blocks, Gaps, Rebuilds, Bad int
		Replays, Batches, Ignored   int
		BlockTokens                 int `json:"block_tokens"`
	} `json:"kv_events"`
}

func (g gateway) kv() []kvView { return engines[kvView](g) }

// known waits until the KV cache of every engine is known by its events.
func (g gateway) known(needs ...*harness.Process) {
	g.T.Helper()
	harness.Eventually(g.T, "known by events", func() bool {
		views := g.kv()
		for _, v := range views {
			if v.KVEvents == nil || v.KVEvents.Knowledge != "known" {
				return false
			}
		}
		return len(views) > 0
	}, append(needs, g.Process)...)
}

// conversations are prompts that grow turn by turn, and share what they begin with.
type conversations struct {
	random *rand.Rand
	texts  []string
}

func newConversations(seed uint64, n int) *conversations {
	c := &conversations{random: rand.New(rand.NewPCG(seed, 1))}
	systems := []string{c.words(300), c.words(300)}
	for i := range n {
		c.texts = append(c.texts, systems[i%2])
	}
	return c
}

func (c *conversations) words(n int) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "%x ", c.random.Uint32N(1<<16))
	}
	return b.String()
}

// next returns the next turn of some conversation. One that is too long begins anew.
func (c *conversations) next() string {
	i := c.random.IntN(len(c.texts))
	if len(c.texts[i]) > 5000 {
		c.texts[i] = c.texts[i][:1500]
	}
	c.texts[i] += c.words(20 + c.random.IntN(150))
	return c.texts[i]
}

// predicted counts the requests of a timeline of which the engine said how much of the
// prompt it had: all, those that were predicted to the token, and those that had some.
func predicted(t *testing.T, file string) (all, right, hits int, wrong []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := json.NewDecoder(f); d.More(); {
		var r struct {
			Attempts []struct {
				Choice struct {
					Prompt    int  `json:"prompt_tokens"`
					Predicted int  `json:"predicted_cached_tokens"`
					Cached    *int `json:"cached_tokens"`
				}
			}
		}
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		for _, a := range r.Attempts {
			if a.Choice.Cached == nil {
				continue
			}
			all++
			if *a.Choice.Cached > 0 {
				hits++
			}
			if *a.Choice.Cached == a.Choice.Predicted {
				right++
			} else {
				wrong = append(wrong, fmt.Sprintf("%d/%d of %d", a.Choice.Predicted, *a.Choice.Cached, a.Choice.Prompt))
			}
		}
	}
	return all, right, hits, wrong
}

// knownCaches are engines that publish what their caches hold, in blocks of some tokens.
type knownCaches struct {
	engines   []string // as weir is given them
	processes []*harness.Process
	block     int
}

// run has a new weir serve conversations, and returns which share of its predictions is what the
// engines report. option is added to each engine.
func (k knownCaches) run(t *testing.T, name, option string, n, callers int, c *conversations) (share float64) {
	t.Helper()
	args := []string{"--model", "tiny=" + folder}
	for _, e := range k.engines {
		args = append(args, "--engine", e+option)
	}
	g := serve(t, args...)
	g.ready(true, k.processes...)
	if option == "" && name != "first" {
		g.known(k.processes...)
	}
	ctx := harness.Context(t)
	prompts := make(chan string)
	var asking sync.WaitGroup
	for range callers {
		asking.Go(func() {
			for p := range prompts {
				a, err := way{name, g.URL, "tiny"}.ask(ctx, completionPath, fields{"prompt": p, "max_tokens": 6, "temperature": 0, "ignore_eos": true}.with(streamed), nil)
				if err != nil || !a.Done || a.OutputTokens != 6 {
					t.Errorf("%s: %+v, %v", name, a, err)
				}
			}
		})
	}
	for range n {
		prompts <- c.next()
	}
	close(prompts)
	asking.Wait()
	for _, v := range g.kv() {
		if v.KVEvents != nil {
			t.Logf("%s: %s %+v %s", name, v.Name, *v.KVEvents, v.Note)
			if v.KVEvents.Knowledge != "known" || v.KVEvents.Bad+v.KVEvents.Gaps+v.KVEvents.Rebuilds > 0 || v.KVEvents.BlockTokens != k.block {
				t.Errorf("%s: %s %+v", name, v.Name, *v.KVEvents)
			}
		} else if option == "" {
			t.Errorf("%s: no KV events: %+v", name, v)
		}
	}
	g.Balanced()
	g.Interrupt()
	all, right, hits, wrong := predicted(t, g.Timeline)
	t.Logf("%s: %d of %d predictions of cached tokens are what was reported (%.1f %%); %d prompts had some cached; predicted/reported of the others, the first 20: %v",
		name, right, all, 100*float64(right)/float64(all), hits, wrong[:min(len(wrong), 20)])
	if all != n || hits < n/3 {
		t.Errorf("%s: %d requests told of, %d with hits", name, all, hits)
	}
	return float64(right) / float64(all)
}

// TestKVEvents: of two engines whose caches are small, what is predicted to be cached by
// their events is what they report, to the token, and weir knows it again after a restart.
// Without events it does not.
func TestKVEvents(t *testing.T) {
	var engines []string
	var processes []*harness.Process
	for range 2 {
		handshake, events, replay := freePort(t), freePort(t), freePort(t)
		config := fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s","topic":"kv@tiny"}`, events, replay)
		processes = append(processes, vllm(t, nil, "--headless", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", handshake,
			"--kv-events-config", config, "--num-gpu-blocks-override", "128", "--block-size", "128"))
		engines = append(engines, "vllm-core=tcp://127.0.0.1:"+handshake+",model=tiny")
	}
	known := knownCaches{engines: engines, processes: processes, block: 128}
	c := newConversations(1, 40)
	for _, phase := range []struct {
		name    string
		n       int
		callers int
		least   float64
	}{
		{"first", 300, 1, 0.99},
		{"after a restart of weir", 200, 1, 0.99},
		// Nobody can know, when an engine is chosen, which blocks it will evict for one request
		// after it was given another.
		{"several at once", 300, 3, 0.95},
	} {
		if share := known.run(t, phase.name, "", phase.n, phase.callers, c); share < phase.least {
			t.Errorf("%s: %.3f of the predictions are right, want %.2f", phase.name, share, phase.least)
		}
	}
	if share := known.run(t, "without events", ",kv-events=off", 150, 1, c); share > 0.9 {
		t.Errorf("without events %.3f of the predictions are right: the caches are too large for a test of them", share)
	}
}
