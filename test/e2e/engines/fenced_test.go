package engines

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/engine/vllmcore/coretest"
	"weir/test/e2e/harness"
)

// sayers are two engines in this process, over a wire that the simulated engine does not
// speak, and a gateway before them.
type sayers struct {
	g         *harness.Gateway
	bad, good *harness.Sayer
	kill      func() // the bad one
	restart   func()
}

func schedulerPair(t *testing.T) *sayers {
	bad := &schedulers{Sayer: harness.NewSayer(t), dir: filepath.Join(harness.SocketDir(t), "bad")}
	good := &schedulers{Sayer: harness.NewSayer(t), dir: filepath.Join(harness.SocketDir(t), "good")}
	g := harness.StartUnready(t, "serve", "--policy", "round-robin", "--engine", "sglang-ipc="+bad.dir+",model=weir-sim,name=bad", "--engine", "sglang-ipc="+good.dir+",model=weir-sim,name=good")
	var first *schedtest.Scheduler
	start := func() { first = bad.start() }
	start()
	good.start()
	for _, c := range []*schedulers{bad, good} {
		if err := schedtest.Write(c.dir, schedtest.Manifest(nil)); err != nil {
			t.Fatal(err)
		}
	}
	return &sayers{g, bad.Sayer, good.Sayer, func() { first.Close() }, start}
}

func corePair(t *testing.T) *sayers {
	bad, good := harness.NewCores(t), harness.NewCores(t)
	_, env := harness.ShortTemp(t)
	atBad, atGood := harness.FreeAddress(t), harness.FreeAddress(t)
	g := harness.StartUnreadyWith(t, env, "serve", "--policy", "round-robin", "--engine", "vllm-core=tcp://"+atBad+",model=weir-sim,name=bad", "--engine", "vllm-core=tcp://"+atGood+",model=weir-sim,name=good")
	var first *coretest.Core
	start := func() { first = bad.Start(coretest.Options{Handshake: "tcp://" + atBad}) }
	start()
	good.Start(coretest.Options{Handshake: "tcp://" + atGood})
	return &sayers{g, bad.Sayer, good.Sayer, func() { first.Close() }, start}
}

// The gateway avoids an engine that stands still, and takes it out once its fence is not
// answered. It notices at once that an engine is gone. Later requests wait for neither engine.
// The answers that an engine had begun are whole when it goes on, and both engines come back
// by themselves.
func TestSickFencedEngine(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *sayers{"sglang-ipc": schedulerPair, "vllm-core": corePair} {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s := start(t)
			g := s.g
			harness.Eventually(t, "both well", func() bool { return up(t, g) == 2 })
			// Until then nothing is known of how long a probe may wait.
			harness.Eventually(t, "what a request costs is known", func() bool {
				g.Sentences(s.bad.IDs, 1)
				return learned(t, g, "bad")
			})

			goOn := s.bad.Stand()
			var waiting sync.WaitGroup
			for open(t, g, "bad") == 0 {
				over := make(chan struct{})
				waiting.Go(func() { defer close(over); g.Sentences(s.bad.IDs, 2) })
				harness.Eventually(t, "it has the request, or the other one has answered it", func() bool {
					select {
					case <-over:
						return true
					default:
						return open(t, g, "bad") > 0
					}
				})
			}
			harness.Eventually(t, "it is avoided", func() bool { return up(t, g) == 1 })
			there := open(t, g, "bad")
			for range 10 {
				g.Sentences(s.bad.IDs, 1)
			}
			if more := open(t, g, "bad") - there; more > 3 {
				t.Errorf("%d requests more are there", more)
			}
			harness.Eventually(t, "it is out", func() bool { return healths(t, g)["bad"].State == "down" })
			if h := healths(t, g); !strings.Contains(h["bad"].Why, "was not answered for") || h["good"].State != "up" {
				t.Errorf("%+v", h)
			}
			g.Sentences(s.bad.IDs, 1)
			goOn()
			waiting.Wait()
			harness.Eventually(t, "both well again", func() bool { return up(t, g) == 2 })

			s.kill()
			harness.Eventually(t, "it is gone", func() bool { return up(t, g) == 1 })
			for range 4 {
				g.Sentences(s.bad.IDs, 1)
			}
			s.restart()
			harness.Eventually(t, "it is there again", func() bool { return up(t, g) == 2 })
			if a := harness.Get(t, g.Admin+"/readyz"); a.Status != http.StatusOK {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			g.Interrupt()
		})
	}
}

// learned reports whether enough was measured of an engine to rely on what is predicted.
func learned(t *testing.T, g *harness.Gateway, name string) bool {
	t.Helper()
	var engines []struct {
		Name  string
		Books struct{ Learned bool }
	}
	if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &engines); err != nil {
		t.Fatal(err)
	}
	for _, e := range engines {
		if e.Name == name {
			return e.Books.Learned
		}
	}
	return false
}
