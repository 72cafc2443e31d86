package auto_test

import (
	"context"
	"errors"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/auto"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/relay"
	"weir/internal/engine/sglang"
	"weir/internal/engine/vllm"
)

// A page that does not answer makes no other engine of the one that was found: its adapter, which
// has the requests, stays.
func TestSilence(t *testing.T) {
	for name, c := range map[string]struct {
		enginetest.Silent
		folder bool
	}{
		"sglang":         {enginetest.Silent{Pages: enginetest.SGLangPages, Later: enginetest.SGLangLater, Restarted: enginetest.SGLangRestarted}, true},
		"vllm":           {enginetest.Silent{Pages: enginetest.VLLMPages, Later: enginetest.VLLMLater, Restarted: enginetest.VLLMRestarted}, true},
		"relayed sglang": {enginetest.Silent{Pages: enginetest.SGLangPages, Later: enginetest.SGLangLater, Restarted: enginetest.SGLangRestarted, Kept: []string{"/model_info"}}, false},
		"relayed vllm":   {enginetest.Silent{Pages: enginetest.VLLMPages, Later: enginetest.VLLMLater, Restarted: enginetest.VLLMRestarted, Kept: []string{"/kv_event_sources"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var made atomic.Int32
			c.New = func(u *url.URL, interval, patience time.Duration) engine.Adapter {
				return auto.New(auto.Options{
					Name: "e", URL: u, Folder: func(string) bool { return c.folder }, Found: func(auto.Finding) {},
					Describe: func(context.Context, string) (engine.Facts, error) { return engine.Facts{}, errors.New("no plane") },
					New: func(kind string) engine.Adapter {
						made.Add(1)
						switch kind {
						case auto.SGLang:
							return sglang.New(sglang.Options{Name: "e", URL: u, ProbeInterval: interval, ReadTimeout: patience})
						case auto.VLLM:
							return vllm.New(vllm.Options{Name: "e", URL: u, ProbeInterval: interval, ReadTimeout: patience}, vllm.Flags{})
						}
						return relay.New(relay.Options{Name: "e", URL: u, ProbeInterval: interval, ReadTimeout: patience})
					},
				})
			}
			enginetest.Silence(t, c.Silent)
			if n := made.Load(); n != 2 {
				t.Errorf("%d adapters for two engines", n)
			}
		})
	}
}
