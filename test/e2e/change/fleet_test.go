package change

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// engineFlags are those of engines that keep up with the load.
var engineFlags = harness.FastSim

// member is an engine at an address that it has again after a restart.
type member struct {
	name, kind, addr string
	*harness.Process
}

func startMember(t *testing.T, name, kind string) *member {
	m := &member{name: name, kind: kind, addr: harness.FreeAddress(t)}
	m.start(t)
	return m
}

func (m *member) start(t *testing.T) {
	wire := map[string]string{"openai": "openai", "weir": "weir", "sglang": "sglang", "vllm": "vllm"}[m.kind]
	m.Process = harness.Start(t, append([]string{"engine", "--wire", wire + "=" + m.addr, "--admin-listen", "127.0.0.1:0"}, engineFlags...)...)
	m.Line(wire)
}

func (m *member) spec() string {
	at := m.addr
	if m.kind != "weir" {
		at = "http://" + at
	}
	return m.kind + "=" + at + ",name=" + m.name
}

// All engines of a fleet are started again, one after the other, each when it is drained. No
// request fails.
func TestRollingRestart(t *testing.T) {
	for _, kind := range harness.Few(t, []string{"weir", "openai", "sglang", "vllm"}) {
		t.Run(kind, func(t *testing.T) {
			harness.Beside(t, harness.Heavy)
			args := []string{"serve", "--submit-timeout", harness.Unhurried}
			var all []*member
			for i := range 4 {
				m := startMember(t, fmt.Sprint("e", i+1), kind)
				all, args = append(all, m), append(args, "--engine", m.spec())
			}
			g := harness.StartGateway(t, args...)
			harness.Eventually(t, "of four engines", func() bool {
				for _, m := range all {
					if stateOf(g, m.name) != "ready" {
						return false
					}
				}
				return true
			})
			stop := underLoad(t, g.URL, *streams, 40)
			for _, m := range all {
				if out, stderr, code := harness.Finish(t, "", "engines", "drain", m.name, "--wait", "--admin", g.Admin); code != 0 {
					t.Fatalf("drain: %d %s %s", code, out, stderr)
				}
				m.Kill()
				m.start(t)
				harness.Eventually(t, "connected again", func() bool {
					return harness.Metric(t, g.Admin, "weir_engine_ready", `engine="`+m.name+`"`) == 1
				})
				if got := stateOf(g, m.name); got != "drained" {
					t.Fatalf("after its restart engine %s is %s, and was drained", m.name, got)
				}
				if out, stderr, code := harness.Finish(t, "", "engines", "resume", m.name, "--admin", g.Admin); code != 0 {
					t.Fatalf("resume: %d %s %s", code, out, stderr)
				}
			}
			whole, wrong := stop()
			ended := g.Balanced()
			t.Logf("%d streams at once, %d whole, %v", *streams, whole, ended)
			if wrong != nil || ended["failed"]+ended["rejected"]+ended["cancelled"] > 0 || whole == 0 {
				t.Errorf("%d whole, %v; %v", whole, ended, wrong)
			}
			if n := harness.Metric(t, g.Admin, "weir_retries_total"); n > 0 {
				t.Errorf("%v requests were repeated at another engine, and no engine had any when it ended", n)
			}
		})
	}
}

// A fleet that changes all the time fails no request, and keeps nothing of the engines that
// have gone.
func TestManyChanges(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	var sims []*harness.Sim
	for range 3 {
		sims = append(sims, harness.StartSim(t, engineFlags...))
	}
	paths := []string{"plane", "relay", "sglang"}
	g := harness.StartGateway(t, "serve", "--submit-timeout", harness.Unhurried, "--engine", sims[0].Spec("plane")+",name=stays")
	stop := underLoad(t, g.URL, *streams, 20)
	random := rand.New(rand.NewPCG(1, 2))
	var goroutines, heap []float64
	begin := time.Now()
	there := map[string]bool{}
	refused := 0
	for i := range *changes {
		if d := *within; d > 0 {
			time.Sleep(time.Until(begin.Add(d * time.Duration(i) / time.Duration(*changes))))
		}
		at := 1 + random.IntN(2)
		name := fmt.Sprint("e", at)
		switch status := 0; {
		case !there[name]:
			if i%10 == 0 { // a name that was never there
				name = fmt.Sprint(name, "-", i)
			}
			status, _ = ask(g, http.MethodPut, engineAt(name), map[string]any{"spec": sims[at].Spec(paths[0]), "weight": 0.5})
			if status == http.StatusOK {
				there[name] = true
			} else {
				refused++ // another name has the address
			}
		default:
			verb := []string{"weight", "drain", "resume", "remove"}[random.IntN(4)]
			var out outcome
			switch verb {
			case "weight":
				status, out = ask(g, http.MethodPut, engineAt(name)+"/weight", map[string]any{"weight": 0.1 + 0.9*random.Float64()})
			case "remove":
				status, out = ask(g, http.MethodDelete, engineAt(name)+"?timeout=30s", nil)
				delete(there, name)
			default:
				status, out = ask(g, http.MethodPost, engineAt(name)+"/"+verb, nil)
			}
			if status != http.StatusOK {
				t.Fatalf("%s %s: %d %+v", verb, name, status, out.Error)
			}
		}
		for other := range there { // a name of its own is removed at once
			if strings.Contains(other, "-") {
				wants(g, http.MethodDelete, engineAt(other)+"?timeout=30s", nil)
				delete(there, other)
			}
		}
		if i%(*changes/10) == 0 {
			goroutines = append(goroutines, harness.Metric(t, g.Admin, "go_goroutines"))
			heap = append(heap, harness.Metric(t, g.Admin, "go_memstats_heap_inuse_bytes")/1e6)
		}
	}
	took := time.Since(begin)
	whole, wrong := stop()
	for name := range there {
		wants(g, http.MethodDelete, engineAt(name), nil)
	}
	harness.Eventually(t, "alone with its first engine", func() bool { v := fleet(g); return len(v.Engines) == 1 && len(v.Leaving) == 0 })
	ended := g.Balanced()
	t.Logf("%d changes (%d generations) in %v with %d streams at once: %d whole, %v; goroutines %.0f, heap in use %.0f MB", *changes, fleet(g).Generation, took.Round(time.Millisecond), *streams, whole, ended, goroutines, heap)
	if wrong != nil || ended["failed"]+ended["rejected"]+ended["cancelled"] > 0 || whole == 0 {
		t.Errorf("%d whole, %v; %v", whole, ended, wrong)
	}
	if refused == *changes {
		t.Error("no change was made")
	}
	harness.Eventually(t, "without series of engines that are gone", func() bool {
		said := string(harness.Get(t, g.Admin+"/metrics").Body)
		return !strings.Contains(said, `engine="e1`) && !strings.Contains(said, `engine="e2`)
	})
	first := harness.StartGateway(t, "serve", "--engine", sims[0].Spec("plane")+",name=stays") // one that never had another
	g.Has(first.Goroutines())
}

// A stream at an engine that is removed goes on to its end. One that does not end in time
// goes on at the other engine where its ids are known, without a token lost or repeated, and
// is cut with an error that says so where they are not.
func TestRemovalOfABusyEngine(t *testing.T) {
	for _, path := range harness.Paths {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			busy, other := harness.StartSim(t, engineFlags...), harness.StartSim(t, engineFlags...)
			g := harness.StartGateway(t, "serve", "--engine", busy.Spec(path)+",name=busy", "--engine", other.Spec(path)+",name=other")
			ready := func() bool { return stateOf(g, "busy") == "ready" && stateOf(g, "other") == "ready" }
			harness.Eventually(t, "of two engines", ready)
			wants(g, http.MethodPost, engineAt("other")+"/drain", nil)
			const body = `{"model":"weir-sim","messages":[{"role":"user","content":"a b c"}],"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_tokens":%d}`
			answers := make(chan harness.Answer, 2)
			var asking sync.WaitGroup
			defer asking.Wait()
			const long = 800 // more tokens than the removal waits for
			for _, n := range []int{100, long} {
				asking.Go(func() { answers <- harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(body, n)) })
			}
			harness.Eventually(t, "given two requests", func() bool { return harness.EngineState(t, busy.Admin).Running == 2 })
			wants(g, http.MethodPost, engineAt("other")+"/resume", nil)
			wants(g, http.MethodDelete, engineAt("busy")+"?timeout=4s", nil)
			if v := fleet(g); len(v.Leaving) != 1 || v.Leaving[0].State != "leaving" || v.Leaving[0].InFlight != 2 {
				t.Errorf("after the removal: %+v", v)
			}
			wants(g, http.MethodDelete, engineAt("busy"), nil) // which is done already
			if a := <-answers; !strings.HasSuffix(strings.TrimSpace(string(a.Body)), "[DONE]") {
				t.Errorf("the stream that ends in time: %d %.300s", a.Status, a.Body)
			}
			a := <-answers
			tokens, err := harness.Follow(harness.Words(t), bytes.NewReader(a.Body), nil)
			switch goesOn := path != "relay"; {
			case goesOn && (err != nil || tokens != long):
				t.Errorf("the stream that goes on elsewhere has %d tokens, %v: %d ...%.400s", tokens, err, a.Status, a.Body[max(0, len(a.Body)-400):])
			case !goesOn && (strings.Contains(string(a.Body), "[DONE]") || !strings.Contains(string(a.Body), `"error"`)):
				t.Errorf("the stream that does not end: %d ...%.400s", a.Status, a.Body[max(0, len(a.Body)-400):])
			}
			harness.Eventually(t, "free of the engine", func() bool { return len(fleet(g).Leaving) == 0 && harness.EngineState(t, busy.Admin).Running == 0 })
			if a := harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(body, 5)); a.Status != http.StatusOK {
				t.Errorf("afterwards: %d %s", a.Status, a.Body)
			}
			if !strings.Contains(g.Process.Stderr.String(), "engine was removed before its requests had ended") {
				t.Error("the log does not say that requests were cut")
			}
		})
	}
}

// A bad request for a change changes nothing, and its answer names the error.
func TestBadChanges(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up", "--engines", "2")
	harness.Eventually(t, "of two engines", func() bool { return stateOf(g, "sim-1") == "ready" && stateOf(g, "sim-2") == "ready" })
	for _, c := range []struct {
		method, path string
		body         any
		status       int
		want         string
	}{
		{"DELETE", engineAt("nope"), nil, 404, `no engine "nope"; the engines are: sim-1, sim-2`},
		{"POST", engineAt("nope") + "/drain", nil, 404, `no engine "nope"`},
		{"POST", engineAt("nope") + "/resume", nil, 404, `no engine "nope"`},
		{"PUT", engineAt("nope") + "/weight", map[string]any{"weight": 1}, 404, `no engine "nope"`},
		{"PUT", engineAt("sim-1") + "/weight", map[string]any{"weight": 0}, 400, "drain it"},
		{"PUT", engineAt("sim-1") + "/weight", map[string]any{"wieght": 1}, 400, "wieght"},
		{"PUT", engineAt("sim-1") + "/weight", map[string]any{}, 400, "missing"},
		{"PUT", engineAt("x"), map[string]any{}, 400, "spec"},
		{"PUT", engineAt("x"), map[string]any{"spec": "openia=http://h:1"}, 400, `did you mean`},
		{"PUT", engineAt("x"), map[string]any{"spec": "openai=http://h:1,name=y"}, 400, `"y"`},
		{"PUT", engineAt("x"), map[string]any{"spec": "openai=http://h:1,key-file=/etc/shadow"}, 400, "/etc/shadow is named by no engine"},
		{"PUT", engineAt("x"), map[string]any{"spec": "vllm-core=tcp://127.0.0.1:5570,model=llama"}, 200, ""},
		{"DELETE", engineAt("x"), nil, 200, ""},
		{"PUT", engineAt("x"), map[string]any{"spec": fleet(g).Engines[0].Spec}, 409, "the same engine twice"},
		{"POST", engineAt("sim-1") + "/drain?timeout=soon", nil, 400, "timeout=soon"},
		{"DELETE", engineAt("sim-1") + "?force=maybe", nil, 400, "force=maybe"},
		{"POST", engineAt("sim-1") + "/drain", nil, 200, ""},
		{"POST", engineAt("sim-2") + "/drain", nil, 409, "only engine that takes requests"},
		{"DELETE", engineAt("sim-2"), nil, 409, "only engine that takes requests"},
		{"DELETE", engineAt("sim-2") + "?force=true", nil, 200, ""},
		{"DELETE", "/admin/models/nope", nil, 404, `no model "nope"`},
		{"PUT", "/admin/models/m", map[string]any{"spec": "m=/no/such/folder"}, 400, "/no/such/folder"},
		{"POST", "/admin/reload", nil, 400, "no configuration"},
	} {
		if status, out := ask(g, c.method, c.path, c.body); status != c.status || !strings.Contains(out.Error.Message, c.want) {
			t.Errorf("%s %s %v: %d %+v, want %d with %q", c.method, c.path, c.body, status, out.Error, c.status, c.want)
		}
	}
	if status, out := ask(g, "POST", engineAt("sim-1")+"/resume", nil, "If-Match", `"1"`); status != http.StatusPreconditionFailed {
		t.Errorf("a change of an old generation: %d %+v", status, out)
	}
	if a := harness.Get(t, g.Admin+"/readyz"); a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "drained") {
		t.Errorf("/readyz of a fleet that is drained: %d %s", a.Status, a.Body)
	}
	if a := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"a","max_tokens":2}`); a.Status != http.StatusServiceUnavailable {
		t.Errorf("a request for a fleet that is drained: %d %s", a.Status, a.Body)
	}
	none := harness.StartGateway(t, "up", "--admin-changes", "off")
	if status, out := ask(none, "POST", engineAt("sim-1")+"/drain", nil); status != http.StatusForbidden {
		t.Errorf("where changes are off: %d %+v", status, out)
	}
}

// Two concurrent changes of the same thing are made one after the other: the final state is
// the one that one of them asked for.
func TestChangesAtOnce(t *testing.T) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t)
	g := harness.StartGateway(t, "up", "--engines", "1")
	var both sync.WaitGroup
	for i := range 8 {
		both.Go(func() {
			for range 10 {
				ask(g, "PUT", engineAt("x"), map[string]any{"spec": sim.Spec([]string{"plane", "relay"}[i%2])})
				ask(g, "DELETE", engineAt("x"), nil)
			}
		})
	}
	both.Wait()
	wants(g, "PUT", engineAt("x"), map[string]any{"spec": sim.Spec("plane")})
	harness.Eventually(t, "of the one that was wanted last", func() bool { return stateOf(g, "x") == "ready" && len(fleet(g).Leaving) == 0 })
	if v := fleet(g); len(v.Engines) != 2 {
		t.Errorf("%+v", v)
	}
}

// signal sends the gateway a SIGHUP.
func hangUp(g *harness.Gateway) { _ = g.Cmd.Process.Signal(syscall.SIGHUP) }
