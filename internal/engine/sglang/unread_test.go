package sglang_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/sglang"
)

// A server whose description of itself does not answer when weir comes, as one of its schedulers
// hangs, has its ranks by their loads: requests that name none would hang with it.
func TestRanksOfASilentServer(t *testing.T) {
	speaks := make(chan struct{})
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/server_info" {
			select {
			case <-speaks:
			case <-r.Context().Done():
				return
			}
		}
		if body, ok := enginetest.SGLangPages[r.URL.Path]; ok {
			_, _ = w.Write([]byte(body))
			return
		}
		http.NotFound(w, r)
	}))
	defer h.Close()
	u, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	states, done := make(chan engine.State, 64), make(chan struct{})
	e := sglang.New(sglang.Options{Name: "e", URL: u, ProbeInterval: time.Millisecond, ReadTimeout: 50 * time.Millisecond})
	go func() {
		defer close(done)
		e.Run(ctx, func(s engine.State) { states <- s })
	}()
	s := <-states
	if f := s.Facts; !s.Ready || len(f.Ranks) != 2 || !f.Ranks[1].Ready || f.Ranks[1].Number != 1 || f.SideBySide != 2 || len(f.Old) != 1 || f.Old[0].Page != "/server_info" || f.Old[0].Why == "" {
		t.Errorf("%+v", s)
	}
	close(speaks)
	if s = <-states; !s.Ready || len(s.Facts.Ranks) != 2 || len(s.Facts.Old) != 0 || s.Facts.Instance == "" || s.Facts.Ranks[1].KVTokens != 5000 {
		t.Errorf("%+v", s)
	}
	cancel()
	<-done
}
