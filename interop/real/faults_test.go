//go:build interop_engines

package real

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// TestVLLMFaults stops and kills the core of vLLM under streams, at each depth, beside a
// simulated engine of the same model: what a client sees, what weir does with the engine,
// and that it serves again. It logs how long each took.
func TestVLLMFaults(t *testing.T) {
	port, handshake := freePort(t), freePort(t)
	dial := []string{"--headless", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", handshake}
	for _, depth := range []struct {
		name  string
		args  []string // of vLLM
		real  string   // to weir
		wire  string   // of the simulated engine
		model []string
	}{
		{"relay", []string{"--port", port}, "openai=http://127.0.0.1:" + port + ",model=tiny,name=real", "relay", nil},
		{"vllm-core", dial, "vllm-core=tcp://127.0.0.1:" + handshake + ",model=tiny,name=real", "plane", []string{"--model", "tiny=" + folder}},
	} {
		t.Run(depth.name, func(t *testing.T) {
			spare := harness.StartSim(t, "--model", folder, "--cost", "constant", "--prefill-cost", "2ms", "--decode-cost", "10ms")
			p := vllm(t, nil, depth.args...)
			g := serve(t, append([]string{"--policy", "round-robin", "--engine", depth.real,
				"--engine", spare.Spec(depth.wire) + ",model=tiny,name=spare"}, depth.model...)...)
			g.ready(true, p)
			f := &faulted{t: t, g: g, way: way{depth.name, g.URL, "tiny"}}
			f.serves("before")

			end := f.streams()
			if f.real().Health.Requests == 0 {
				t.Fatal("no stream is at vLLM")
			}
			core := coreOf(t, p)
			began := time.Now()
			_ = syscall.Kill(core, syscall.SIGSTOP)
			defer syscall.Kill(core, syscall.SIGCONT)
			f.becomes("stopped", began, "soft", "suspect", "probing", "down")
			f.serves("while its core is stopped")
			f.becomes("stopped", began, "down")
			f.serves("while it is out")
			began = time.Now()
			_ = syscall.Kill(core, syscall.SIGCONT)
			f.becomes("continued", began, "up")
			for _, a := range end() {
				if a.Failed || !a.Done {
					t.Errorf("a stream over the stop: %+v", a)
				}
			}
			f.serves("afterwards")

			end = f.streams()
			began = time.Now()
			_ = syscall.Kill(coreOf(t, p), syscall.SIGKILL)
			broken := 0
			for _, a := range end() {
				if a.Failed {
					broken++
				}
				// vLLM's own server ends such a stream by an error event and [DONE], which a
				// relay passes on.
				if !a.Failed && !a.Done || a.Failed && a.Done && depth.name != "relay" {
					t.Errorf("a stream over the kill: %+v", a)
				}
			}
			t.Logf("killed: %d of 4 streams ended with an error, the last of them after %v", broken, time.Unix(0, f.broke.Load()).Sub(began).Round(10*time.Millisecond))
			if broken == 0 {
				t.Error("no stream was at vLLM")
			}
			f.becomes("killed", began, "down", "gone")
			f.serves("while it is gone")
			p.Kill()
			p = vllm(t, nil, depth.args...)
			began = time.Now()
			f.becomes("started again", began, "up")
			f.serves("in the end")
		})
	}
}

// streams opens four, two at each engine, and returns when all have begun. end waits for
// their ends.
func (f *faulted) streams() (end func() [4]answer) {
	f.t.Helper()
	f.broke.Store(0)
	return four(harness.Context(f.t), f.way, long, func(a answer) bool { return len(a.Text) > 20 }, func(a answer) {
		if a.Failed {
			f.broke.Store(time.Now().UnixNano())
		}
	})
}

// faulted is a gateway before vLLM and a simulated engine.
type faulted struct {
	t   *testing.T
	g   gateway
	way way

	broke atomic.Int64 // when the latest stream ended with an error
}

// judged is an engine as /engines has it.
type judged struct {
	Name, Error string
	Ready       bool
	Health      struct {
		State, Why string
		Requests   int
	}
}

// real is vLLM, as weir sees it.
func (f *faulted) real() (e judged) {
	var all []judged
	if err := json.Unmarshal(harness.Get(f.t, f.g.Admin+"/engines").Body, &all); err != nil {
		f.t.Fatal(err)
	}
	for _, e := range all {
		if e.Name == "real" {
			return e
		}
	}
	f.t.Fatal("no engine is vLLM")
	return e
}

// becomes waits until vLLM is in one of the states, and logs when that was.
func (f *faulted) becomes(what string, since time.Time, states ...string) {
	f.t.Helper()
	var now judged
	harness.Eventually(f.t, what+": "+strings.Join(states, " or "), func() bool {
		now = f.real()
		state := now.Health.State
		if !now.Ready {
			state = "gone"
		}
		for _, want := range states {
			if state == want {
				return true
			}
		}
		return false
	}, f.g.Process)
	f.t.Logf("%s: after %v %s: %s%s", what, time.Since(since).Round(100*time.Millisecond), now.Health.State, now.Health.Why, now.Error)
}

// serves wants eight requests answered, whoever does it, and logs how long the slowest took.
func (f *faulted) serves(when string) {
	f.t.Helper()
	var slowest time.Duration
	for range 8 {
		began := time.Now()
		a, err := f.way.ask(harness.Context(f.t), completionPath, completion, nil)
		if err != nil || a.Status != 200 || a.Failed || a.OutputTokens == 0 {
			f.t.Errorf("%s: %+v, %v", when, a, err)
		}
		slowest = max(slowest, time.Since(began))
	}
	f.t.Logf("%s: the slowest of 8 requests took %v", when, slowest.Round(10*time.Millisecond))
}

// coreOf finds the process of an engine's core among the descendants of its server. Where
// there is none the server's is the core itself.
func coreOf(t *testing.T, p *harness.Process) int {
	t.Helper()
	for pid, name := range family(p) {
		if strings.Contains(name, "EngineCore") || strings.Contains(name, "Engine_Core") {
			return pid
		}
	}
	t.Fatalf("no core among the processes of %d", p.Cmd.Process.Pid)
	return 0
}

// family returns the process of a program and its descendants, with what they call themselves.
func family(p *harness.Process) map[int]string {
	parents, names := map[int]int{}, map[int]string{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, at := range stats {
		b, err := os.ReadFile(at)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(at)))
		open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
		parents[pid], _ = strconv.Atoi(strings.Fields(string(b[end+1:]))[1])
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(at), "cmdline"))
		names[pid] = string(b[open+1:end]) + " " + string(line)
	}
	for pid := range names {
		at := pid
		for at > 1 && at != p.Cmd.Process.Pid {
			at = parents[at]
		}
		if at <= 1 {
			delete(names, pid)
		}
	}
	return names
}
