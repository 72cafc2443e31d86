package auto_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/auto"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/relay"
	"weir/internal/engine/sglang"
	"weir/internal/infer"
)

// A server of prefill halves that has not yet said so, as one of its schedulers hangs, is nobody's
// whole engine: it is not ready until it speaks. If it keeps silent, it is taken without a role, with
// its ranks by their loads where requests can name one.
func TestUnread(t *testing.T) {
	const patience = 50 * time.Millisecond
	of := map[string]func(u *url.URL, folder bool) engine.Adapter{
		"sglang": func(u *url.URL, _ bool) engine.Adapter {
			return sglang.New(sglang.Options{Name: "e", URL: u, ProbeInterval: time.Millisecond, ReadTimeout: patience})
		},
		"relay": func(u *url.URL, _ bool) engine.Adapter {
			return relay.New(relay.Options{Name: "e", URL: u, ProbeInterval: time.Millisecond, ReadTimeout: patience})
		},
	}
	of["auto"] = func(u *url.URL, folder bool) engine.Adapter {
		return auto.New(auto.Options{
			Name: "e", URL: u, ReadTimeout: patience, Folder: func(string) bool { return folder }, Found: func(auto.Finding) {},
			Describe: func(context.Context, string) (engine.Facts, error) { return engine.Facts{}, errors.New("no plane") },
			New: func(kind string) engine.Adapter {
				return of[map[string]string{auto.SGLang: "sglang", auto.OpenAI: "relay"}[kind]](u, folder)
			},
		})
	}
	for _, c := range []struct {
		name, adapter string
		folder        bool
		ranks         int
	}{{"sglang", "sglang", true, 2}, {"relay", "relay", false, 0}, {"found, by ids", "auto", true, 2}, {"found, relayed", "auto", false, 0}} {
		for _, speaks := range []bool{true, false} {
			name := c.name + " that keeps silent"
			if speaks {
				name = c.name + " that speaks"
			}
			t.Run(name, func(t *testing.T) {
				began := time.Now()
				h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					// An adapter's first reading has no answer in either case.
					if r.URL.Path == "/server_info" && (!speaks || time.Since(began) < patience*5/4) {
						<-r.Context().Done()
						return
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
				go func() {
					defer close(done)
					of[c.adapter](u, c.folder).Run(ctx, func(s engine.State) { states <- s })
				}()
				defer func() { cancel(); <-done }()
				s := <-states
				for ; !s.Ready; s = <-states {
					if s.Err == nil {
						t.Errorf("%+v", s)
					}
				}
				f := s.Facts
				switch {
				case speaks && (f.Role != infer.RolePrefill || !f.RoleSaid || len(f.Old) > 0):
					t.Errorf("ready as %+v", f)
				case speaks:
				case time.Since(began) < 2*patience || f.RoleSaid || len(f.Old) != 1 || f.Old[0].Page != "/server_info" || f.Old[0].Why == "":
					t.Errorf("ready after %v as %+v", time.Since(began), f)
				case len(f.Ranks) != c.ranks || c.ranks > 0 && (!f.Ranks[1].Ready || f.Ranks[1].Number != 1 || f.SideBySide != 2):
					t.Errorf("ranks %+v", f.Ranks)
				}
			})
		}
	}
}
