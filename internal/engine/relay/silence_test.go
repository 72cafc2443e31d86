package relay_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/relay"
)

// An engine that could give ids says so where they are not asked for, and no other.
func TestNote(t *testing.T) {
	for name, c := range map[string]struct {
		pages  map[string]string
		verify bool
		noted  bool
	}{
		"vllm":           {enginetest.VLLMPages, false, true},
		"sglang":         {enginetest.SGLangPages, false, true},
		"verified":       {enginetest.VLLMPages, true, false},
		"another server": {map[string]string{"/v1/models": `{"data":[{"id":"m"}]}`}, false, false},
	} {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, ok := c.pages[r.URL.Path]; ok {
				_, _ = w.Write([]byte(body))
				return
			}
			http.NotFound(w, r)
		}))
		u, err := url.Parse(h.URL)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		relay.New(relay.Options{Name: "e", URL: u, VerifyIDs: c.verify}).Run(ctx, func(s engine.State) {
			if cancel(); !s.Ready || strings.Contains(s.Note, "verify=ids") != c.noted {
				t.Errorf("%s: %+v", name, s)
			}
		})
		h.Close()
	}
}

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
