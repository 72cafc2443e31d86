package relay_test

import (
	"net/url"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/relay"
)

func TestSilence(t *testing.T) {
	for name, s := range map[string]enginetest.Silent{
		"vllm":   {Pages: enginetest.VLLMPages, Later: enginetest.VLLMLater, Restarted: enginetest.VLLMRestarted, Kept: []string{"/kv_event_sources"}},
		"sglang": {Pages: enginetest.SGLangPages, Later: enginetest.SGLangLater, Restarted: enginetest.SGLangRestarted, Kept: []string{"/model_info"}},
	} {
		t.Run(name, func(t *testing.T) {
			s.New = func(u *url.URL, interval, patience time.Duration) engine.Adapter {
				return relay.New(relay.Options{Name: "e", URL: u, Model: "m", ProbeInterval: interval, ReadTimeout: patience})
			}
			enginetest.Silence(t, s)
		})
	}
}
