//go:build interop_engines

package real

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// transformers' server has no list of models but of those in a cache, and sends no
// [DONE].
func TestTransformers(t *testing.T) {
	port := freePort(t)
	direct := fmt.Sprintf("http://127.0.0.1:%d", port)
	server := start(t, []string{"HF_HUB_OFFLINE=1", "HF_HUB_CACHE=" + t.TempDir(), "OMP_NUM_THREADS=1"},
		filepath.Join(venv, "bin", "transformers"), "serve", "--host", "127.0.0.1", "--port", fmt.Sprint(port), "--device", "cpu", "--dtype", "float32", folder)
	eventually(t, "transformers' server", answers(direct+"/health"), server)
	g := serve(t, "--engine", direct+",model="+folder)
	g.ready(true, server)
	if v := g.engines()[0]; v.Kind != "openai" {
		t.Errorf("%+v", v)
	}
	ways := []way{{"itself", direct, folder}, {"relay", g.api, folder}}
	ask := fields{"messages": chat["messages"], "temperature": 0, "max_tokens": 24}

	ctx := testContext(t)
	for _, form := range []fields{nil, {"stream": true}} {
		var want answer
		for i, w := range ways {
			a, err := w.ask(ctx, chatPath, ask.with(form), nil)
			switch {
			case err != nil || a.Status != 200 || a.Failed || a.Reason != "length" || a.OutputTokens != 24 || a.Text == "":
				t.Errorf("%s: %+v %s, %v", w.name, a, a.said, err)
			case i == 0:
				want = a
			case a != want:
				t.Errorf("%s: %s", w.name, cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", a)))
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
			server.kill()
		}
		return false
	})
	if !killed || !a.Failed || a.Done {
		t.Errorf("killed %v: %+v", killed, a)
	}
}
