//go:build interop_engines

package real

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"weir/test/e2e/harness"
)

// TestSGLangPairs: two engines of which one computes prompts for the other answer as one of them
// alone, by their servers, relayed and by ids, and without servers. KV goes over TCP.
func TestSGLangPairs(t *testing.T) {
	alone, url := sglangServer(t)
	f := &sgPairs{alone: way{sgDirect, url, "tiny"}}
	mode := func(role string, more ...string) []string {
		return append([]string{"--disaggregation-mode", role, "--disaggregation-transfer-backend", "mooncake_tcp", "--disaggregation-bootstrap-port", freePort(t)}, more...)
	}
	backup := []string{"--disaggregation-decode-retraction-backup", "cpu_tensor"} // its default needs HiCache
	model := []string{"--model", "tiny=" + folder, "--policy", "round-robin"}
	prefill, prefillURL := sglangServer(t, mode("prefill")...)
	decode, decodeURL := sglangServer(t, mode("decode", backup...)...)
	relayed := serve(t, append(model, "--engine", "openai="+prefillURL, "--engine", "openai="+decodeURL)...)
	byIDs := serve(t, append(model, "--engine", "sglang="+prefillURL, "--engine", "sglang="+decodeURL)...)
	harness.Eventually(t, "answered by one engine", answers(url+"/v1/models"), alone)
	f.pair(t, prefill, decode, map[string]gateway{"relay": relayed, "ids": byIDs})
	var dirs [2]string
	for i := range dirs {
		dirs[i], _ = harness.ShortTemp(t)
	}
	prefill, decode = schedulers(t, dirs[0], mode("prefill", "--host", "127.0.0.1")...), schedulers(t, dirs[1], mode("decode", backup...)...)
	ipc := serve(t, append(model, "--engine", "sglang-ipc="+dirs[0]+",model=tiny", "--engine", "sglang-ipc="+dirs[1]+",model=tiny")...)
	f.pair(t, prefill, decode, map[string]gateway{"sglang-ipc": ipc})
	f.written(t, "pairs")
}

// sgPairs is what is seen of pairs, beside one engine.
type sgPairs struct {
	seen
	alone way
}

// pair holds a pair's answers against those of one engine. What runs when its decode engine is killed
// ends with an error.
func (f *sgPairs) pair(t *testing.T, prefill, decode *harness.Process, gateways map[string]gateway) {
	const requests = 40
	ctx := harness.Context(t)
	for _, name := range slices.Sorted(maps.Keys(gateways)) {
		g := gateways[name]
		g.ready(true, prefill, decode)
		w, column := way{name, g.URL, "tiny"}, name
		equal := 0
		for n := range requests {
			path, body := asked(n)
			body = without(body, "return_token_ids")
			want, err := f.alone.ask(ctx, path, body, nil)
			if err != nil {
				t.Fatal(err)
			}
			a, err := w.ask(ctx, path, body, nil)
			if d := want.difference(a); err != nil || d != "" {
				t.Errorf("%s, %s %d: %v %s %s", column, path, n, err, a.said, d)
				continue
			}
			equal++
		}
		f.set("requests equal to one engine's", column, fmt.Sprintf("%d of %d", equal, requests))
		hanging, hangUp := context.WithCancel(ctx)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { _, _ = w.ask(hanging, completionPath, sgLong, func(a *answer) bool { return begun(*a) }) })
		}
		all.Wait()
		hangUp()
		harness.Eventually(t, "idle behind the pair, "+column, func() bool {
			busy := 0
			for _, v := range g.engines() {
				if v.Running == nil || v.Waiting == nil {
					return false
				}
				busy += *v.Running + *v.Waiting
			}
			return busy == 0
		}, prefill, decode)
		f.set("8 hang-ups", column, "engines idle")
	}
	var all sync.WaitGroup
	var ready sync.WaitGroup
	ready.Add(len(gateways))
	killed := make(chan struct{})
	for name, g := range gateways {
		all.Go(func() {
			whole, failed, cut, _ := over(t, way{name, g.URL, "tiny"}, 3000, func() { ready.Done(); <-killed })
			if failed != 4 {
				t.Errorf("%s, decode engine killed: %d of 4 streams ended with an error, %d whole, %d cut", name, failed, whole, cut)
			}
			f.set("the decode engine is killed", name, fmt.Sprintf("%d streams end with an error", failed))
		})
	}
	ready.Wait()
	decode.Kill()
	close(killed)
	all.Wait()
	for name, g := range gateways {
		halves := 0
		g.Interrupt()
		for _, r := range g.Records() {
			if n := len(r.Attempts); n > 0 && len(r.Attempts[n-1].Legs) == 2 {
				halves++
			}
		}
		if halves < requests {
			t.Errorf("%s: %d requests in two halves", name, halves)
		}
	}
	prefill.Kill()
}
