package engines

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/load"
	"weir/test/e2e/harness"
)

// rankNow is a rank as /engines has it.
type rankNow struct {
	Rank   int
	Ready  bool
	Health struct {
		State, Why, Cause string
		Requests          int
		Silence           float64 `json:"silence_seconds"`
		For               float64 `json:"for_seconds"`
	}
}

// ranksOf returns the ranks of a gateway's only engine.
func ranksOf(t *testing.T, g *harness.Gateway) []rankNow {
	t.Helper()
	var engines []struct{ Ranks []rankNow }
	if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &engines); err != nil || len(engines) != 1 {
		t.Fatalf("%v, %d engines", err, len(engines))
	}
	return engines[0].Ranks
}

// One rank of an engine stands still: requests go to the others only, and the engine goes
// on serving. The rank comes back by itself.
func TestWedgedRank(t *testing.T) {
	t.Parallel()
	for wire, start := range map[string]func(t *testing.T) (g *harness.Gateway, wedge func(bool), ask func(n int)){
		"sglang": rankedSGLang, "vllm-core": rankedCores, "sglang-ipc": rankedSchedulers,
	} {
		if testing.Short() && wire == "sglang-ipc" {
			continue
		}
		t.Run(wire, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			g, wedge, ask := start(t)
			ups := func(want string) func() bool {
				return func() bool {
					var now []string
					for _, r := range ranksOf(t, g) {
						if r.Ready && r.Health.State == "up" {
							now = append(now, fmt.Sprint(r.Rank))
						}
					}
					return strings.Join(now, " ") == want
				}
			}
			harness.Eventually(t, "both ranks well", ups("0 1"))
			ask(24)
			booked := func(rank string) float64 {
				return harness.Metric(t, g.Admin, "weir_engine_rank_requests_total", `rank="`+rank+`"`)
			}
			if booked("0") == 0 || booked("1") == 0 {
				t.Errorf("rank 0 had %v requests, rank 1 %v", booked("0"), booked("1"))
			}
			rank1 := booked("1")
			wedge(true)
			var stuck sync.WaitGroup
			harness.Eventually(t, "one rank is known to stand still", func() bool {
				if ranksOf(t, g)[1].Health.Requests == 0 { // that met it before anybody could know
					stuck.Go(func() { ask(4) })
				}
				return ups("0")()
			})
			there := ranksOf(t, g)[1]
			if there.Health.Cause != "silence" && there.Health.Cause != "starts" || there.Health.Why == "" || there.Health.Silence == 0 || there.Health.Requests == 0 {
				t.Errorf("%+v", there)
			}
			ask(24)
			if now := ranksOf(t, g); now[1].Health.Requests > there.Health.Requests || now[0].Health.State != "up" {
				t.Errorf("meanwhile %+v", now)
			}
			if n := harness.Metric(t, g.Admin, "weir_engine_rank_state", `rank="1"`, `state="up"`); n != 0 {
				t.Error("its metric says that it is up")
			}
			if n := harness.Metric(t, g.Admin, "weir_engine_state", `state="up"`); n != 1 {
				t.Error("the engine's metric says that it is not up")
			}
			if out, _, code := harness.Finish(t, "", "engines", "--admin", g.Admin); code != 0 || !strings.Contains(out, "\nengine/1: ") || strings.Contains(out, "\nengine/0: ") {
				t.Errorf("exit code %d, %s", code, out)
			}
			if n := harness.Metric(t, g.Admin, "weir_engine_rank_requests_total", `rank="1"`); n < rank1 {
				t.Errorf("rank 1 was handed %v requests, and %v before it stood still", n, rank1)
			}
			if wire == "sglang" { // whose description of itself asks each rank
				harness.Eventually(t, "what the engine says is old", func() bool {
					return harness.Metric(t, g.Admin, "weir_engine_facts_age_seconds", `page="/server_info"`) > 0 && harness.Metric(t, g.Admin, "weir_engine_rank_report_behind_seconds", `rank="1"`) > 0
				})
				if out, _, _ := harness.Finish(t, "", "engines", "--admin", g.Admin); !strings.Contains(out, "its /server_info could not be read") {
					t.Error(out)
				}
			}
			wedge(false)
			harness.Eventually(t, "both ranks well again", ups("0 1"))
			stuck.Wait()
			before := booked("1")
			harness.Eventually(t, "a part of the requests", func() bool {
				ask(8)
				return booked("1") >= before+4
			})
			if ended := g.Balanced(); ended["failed"] != 0 || ended["cancelled"] != 0 {
				t.Errorf("%v", ended)
			}
		})
	}
}

func rankedSGLang(t *testing.T) (*harness.Gateway, func(bool), func(int)) {
	e := harness.StartSim(t, append(harness.FastSim, "--dp-size", "2")...)
	g := harness.StartGateway(t, "serve", "--engine", e.Spec("sglang")+",name=engine", "--submit-timeout", "2m")
	return g, func(on bool) {
			if on {
				e.SetFaults("wedge,rank=1")
			} else {
				e.SetFaults()
			}
		}, func(n int) {
			if r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 4, Requests: n, OutputTokens: 20, Body: map[string]any{"ignore_eos": true}}); r.Complete != n {
				t.Errorf("%d of %d complete: %v %v", r.Complete, n, r.Errors, r.Examples)
			}
		}
}

func rankedCores(t *testing.T) (*harness.Gateway, func(bool), func(int)) {
	c := harness.NewCores(t)
	_, env := harness.ShortTemp(t)
	at := harness.FreeAddress(t)
	g := harness.StartUnreadyWith(t, env, "serve", "--engine", "vllm-core=tcp://"+at+",model=weir-sim,dp=2,name=engine", "--submit-timeout", "2m")
	var still sync.RWMutex // held while rank 1 stands still
	c.Start(coretest.Options{Handshake: "tcp://" + at})
	c.Start(coretest.Options{Handshake: "tcp://" + at, Index: 1, Receive: func(*coretest.Core, coretest.Message) {
		still.RLock()
		defer still.RUnlock() // it only waits
	}})
	return g, func(on bool) {
		if on {
			still.Lock()
		} else {
			still.Unlock()
		}
	}, sentences(g, c.IDs)
}

func rankedSchedulers(t *testing.T) (*harness.Gateway, func(bool), func(int)) {
	c := &schedulers{Sayer: harness.NewSayer(t), dir: filepath.Join(harness.SocketDir(t), "sg"), ranks: 2}
	g := harness.StartUnready(t, "serve", "--engine", "sglang-ipc="+c.dir+",model=weir-sim,name=engine", "--submit-timeout", "2m")
	harness.Eventually(t, "its folder", func() bool { return schedtest.Write(c.dir, schedtest.Manifest(map[string]any{"dp_size": 2})) == nil })
	c.start()
	harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
	return g, func(on bool) {
		if on {
			c.stop(1)
		} else {
			c.stop(0)
		}
	}, sentences(g, c.IDs)
}

// sentences asks for n sentences, four at a time.
func sentences(g *harness.Gateway, ids []uint32) func(n int) {
	return func(n int) {
		for ; n > 0; n -= 4 {
			var all sync.WaitGroup
			for range min(n, 4) {
				all.Go(func() { g.Sentences(ids, 1) })
			}
			all.Wait()
		}
	}
}

// A prefill engine whose role cannot be read yet, as one of its ranks hangs, is given nothing: it
// would answer whole requests with 400. The role is known when the rank goes on.
func TestRoleUnread(t *testing.T) {
	harness.Beside(t, harness.Light)
	h := startHalf(t, "sglang", "bootstrap", "--dp-size", "2", "--role", "prefill", "--disaggregation-bootstrap-port", "0", "--fault", "wedge,rank=1")
	g := harness.StartUnready(t, "serve", "--engine", "sglang="+h.url+",name=ids", "--engine", "openai="+h.url+",name=relayed", "--engine", h.url+",name=found")
	type view struct {
		Name, Role, Error string
		Ready             bool
	}
	all := func(is func(view) bool) func() bool {
		return func() bool {
			var engines []view
			if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &engines); err != nil || len(engines) != 3 {
				t.Fatalf("%v, %d engines", err, len(engines))
			}
			for _, e := range engines {
				if e.Ready && e.Role != "prefill" {
					t.Fatalf("%+v", e)
				}
				if !is(e) {
					return false
				}
			}
			return true
		}
	}
	harness.Eventually(t, "none is ready", all(func(e view) bool { return !e.Ready && (e.Name == "found" || strings.Contains(e.Error, "/server_info")) }), g.Process)
	if a := harness.Post(t, h.url+"/admin/faults", `{"faults":[]}`); a.Status/100 != 2 {
		t.Fatalf("%+v", a)
	}
	harness.Eventually(t, "all are prefill engines", all(func(e view) bool { return e.Role == "prefill" }), g.Process)
}
