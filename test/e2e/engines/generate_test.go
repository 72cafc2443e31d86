package engines

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"weir/internal/engine/vllmcore/coretest"
	"weir/test/e2e/harness"
)

// The same over vLLM's engine core, whose ids are a sentence.
func TestGenerateVLLMCore(t *testing.T) {
	harness.Beside(t, harness.Light)
	c := harness.NewCores(t)
	_, env := harness.ShortTemp(t)
	at := harness.FreeAddress(t)
	g := harness.StartUnreadyWith(t, env, "serve", "--engine", "vllm-core=tcp://"+at+",model=weir-sim")
	core := c.Start(coretest.Options{Handshake: "tcp://" + at})
	harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
	var all sync.WaitGroup
	for i := range 256 {
		all.Go(func() {
			n := 1 + i%3
			stream, incremental := i%3 != 0, i%3 == 2
			got, err := harness.NativeAnswer(harness.Post(t, g.URL+"/generate", fmt.Sprintf(`{"text":"Say it.","stream":%v,"incremental_streaming_output":%v,"sampling_params":{"max_new_tokens":%d}}`,
				stream, incremental, n*len(c.IDs))), stream, incremental)
			if err != nil || got.Text != strings.Repeat(harness.Said, n) || !slices.Equal(got.IDs, slices.Repeat(c.IDs, n)) || got.Done != stream || got.Last.Meta.Finish.Type != "length" {
				t.Errorf("caller %d: %v, %q, %+v", i, err, got.Text, got.Last.Meta)
			}
		})
	}
	all.Wait()

	// An engine that dies in the middle leaves an answer that says so.
	c.Hold(true)
	resp, err := http.Post(g.URL+"/generate", "application/json", strings.NewReader(`{"text":"Say it.","stream":true,"sampling_params":{"max_new_tokens":50}}`))
	if err != nil {
		t.Fatal(err)
	}
	core.Close()
	harness.WantAborted(t, harness.Read(resp), 1)
	g.Balanced()
	g.Interrupt()
}
