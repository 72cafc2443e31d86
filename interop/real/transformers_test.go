//go:build interop_engines

package real

import (
	"strings"
	"sync"
	"testing"

	"weir/test/e2e/harness"
)

// transformers' server has no list of models but of those in a cache, and sends no
// [DONE].
func TestTransformers(t *testing.T) {
	port := freePort(t)
	direct := "http://127.0.0.1:" + port
	server := start(t, []string{"HF_HUB_OFFLINE=1", "HF_HUB_CACHE=" + t.TempDir(), "OMP_NUM_THREADS=1"},
		"transformers", "serve", "--host", "127.0.0.1", "--port", port, "--device", "cpu", "--dtype", "float32", folder)
	harness.Eventually(t, "answered by transformers' server", answers(direct+"/health"), server)
	g := serve(t, "--engine", direct+",model="+folder)
	g.ready(true, server)
	if v := g.engines()[0]; v.Kind != "openai" {
		t.Errorf("%+v", v)
	}
	ways := []way{{"itself", direct, folder}, {"relay", g.URL, folder}}
	ask := fields{"messages": chat["messages"], "temperature": 0, "max_tokens": 24}

	ctx := harness.Context(t)
	for _, form := range []fields{nil, {"stream": true}} {
		var want answer
		for i, w := range ways {
			a, err := w.ask(ctx, chatPath, ask.with(form), nil)
			switch {
			case err != nil || a.Status != 200 || a.Failed || a.Reason != "length" || a.OutputTokens != 24 || a.Text == "":
				t.Errorf("%s: %+v %s, %v", w.name, a, a.said, err)
			case i == 0:
				want = a
			case want.difference(a) != "":
				t.Errorf("%s: %s", w.name, want.difference(a))
			}
		}
	}

	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			a, err := ways[1].ask(ctx, chatPath, ask.with(fields{"stream": true}), nil)
			if err != nil || a.Failed || a.Reason != "length" || a.OutputTokens != 24 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	all.Wait()

	killed := false
	a, _ := ways[1].ask(ctx, chatPath, ask.with(fields{"stream": true, "max_tokens": 3000}), func(a *answer) bool {
		if !killed && len(strings.Fields(a.Text)) > 2 {
			killed = true
			server.Kill()
		}
		return false
	})
	if !killed || !a.Failed || a.Done {
		t.Errorf("killed %v: %+v", killed, a)
	}
}
