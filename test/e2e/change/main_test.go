// Package change tests a fleet that changes while it runs: engines and models that come and go
// over the admin listener and by files, and a gateway that takes another one's place.
package change

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"weir/internal/load"
	"weir/models"
	"weir/test/e2e/harness"
)

var (
	streams = flag.Int("streams", 24, "streams under way while the fleet changes")
	changes = flag.Int("changes", 100, "changes of the fleet under load")
	within  = flag.Duration("within", 0, "the time over which the changes are spread; 0: they come one after the other")
)

func TestMain(m *testing.M) { harness.Main(m) }

// outcome is what the admin listener answers to a change.
type outcome struct {
	Generation int
	Changes    []struct{ Verb, Name, What string }
	Notes      []string
	Error      struct{ Code, Message string }
}

// ask asks the admin listener.
func ask(g *harness.Gateway, method, path string, body any, headers ...string) (status int, out outcome) {
	g.T.Helper()
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			g.T.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(g.T.Context(), method, g.Admin+path, bytes.NewReader(data))
	if err != nil {
		g.T.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.T.Fatal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil {
		g.T.Fatal(err)
	}
	if err := json.Unmarshal(said, &out); err != nil {
		g.T.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, said)
	}
	return resp.StatusCode, out
}

// wants asks for a change that is to be made.
func wants(g *harness.Gateway, method, path string, body any) outcome {
	g.T.Helper()
	status, out := ask(g, method, path, body)
	if status != http.StatusOK {
		g.T.Fatalf("%s %s: %d %+v", method, path, status, out.Error)
	}
	return out
}

func engineAt(name string) string { return "/admin/engines/" + url.PathEscape(name) }

// wanted is an engine as the admin listener shows it.
type wanted struct {
	Name, Spec, Origin, State string
	Generation                int
	InFlight                  int `json:"in_flight"`
}

// fleet is the fleet as the admin listener shows it.
func fleet(g *harness.Gateway) (v struct {
	Generation       int
	Engines, Leaving []wanted
	Models           []struct{ Name string }
}) {
	g.T.Helper()
	if a := harness.Get(g.T, g.Admin+"/admin/fleet"); json.Unmarshal(a.Body, &v) != nil {
		g.T.Fatalf("%d %s", a.Status, a.Body)
	}
	return v
}

// restart is a flag that waits for a restart.
type restart struct {
	Name    string `json:"name"`
	InForce string `json:"in_force"`
	Wanted  string `json:"wanted"`
}

// pending is what a gateway wants and has not in force.
func pending(g *harness.Gateway) (v struct {
	Reading struct{ Result, Error string }
	Restart []restart
	Engines []wanted
}) {
	g.T.Helper()
	if a := harness.Get(g.T, g.Admin+"/admin/pending"); json.Unmarshal(a.Body, &v) != nil {
		g.T.Fatalf("%d %s", a.Status, a.Body)
	}
	return v
}

// stateOf is how an engine is.
func stateOf(g *harness.Gateway, name string) string {
	for _, e := range fleet(g).Engines {
		if e.Name == name {
			return e.State
		}
	}
	return "none"
}

// underLoad keeps streams under way until stop is called, which gives how many ended whole and
// what was wrong with any other.
func underLoad(t *testing.T, url string, streams, tokens int) (stop func() (whole int, wrong error)) {
	words := harness.Words(t)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	var whole int
	var wrong error
	var running sync.WaitGroup
	running.Go(func() {
		for seed := uint64(1); wrong == nil; seed++ {
			select {
			case <-stopped:
				return
			default:
			}
			r, err := load.Run(ctx, load.Plan{URL: url, Model: models.SimName, Verify: words, Timeout: 5 * time.Minute, Seed: seed,
				Concurrency: streams, Requests: 2 * streams, InputTokens: 8, OutputTokens: tokens, Body: map[string]any{"ignore_eos": true}})
			switch {
			case err != nil:
				wrong = err
			case r.Complete != 2*streams || r.Lost != 0:
				wrong = fmt.Errorf("%d of %d complete, %d lost: %v %v", r.Complete, 2*streams, r.Lost, r.Errors, r.Examples)
			default:
				whole += r.Complete
			}
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	var once sync.Once
	return func() (int, error) {
		once.Do(func() { close(stopped) })
		running.Wait()
		return whole, wrong
	}
}
