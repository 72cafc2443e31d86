package harness

import (
	"encoding/json"
	"testing"
)

// StartWire runs a simulated engine that speaks one wire, and returns its URL
// and that of its state.
func StartWire(t *testing.T, wire string, args ...string) (url, admin string) {
	t.Helper()
	p := Start(t, append([]string{"engine", "--wire", wire + "=127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, args...)...)
	return p.Line(wire), p.Line("admin")
}

// SetFaults replaces an engine's faults.
func (s *Sim) SetFaults(faults ...string) {
	s.T.Helper()
	body, err := json.Marshal(map[string][]string{"faults": faults})
	if err != nil {
		s.T.Fatal(err)
	}
	if a := Post(s.T, s.Admin+"/admin/faults", string(body)); a.Status/100 != 2 {
		s.T.Fatalf("faults: %d %s", a.Status, a.Body)
	}
}

// Sim is a running simulated engine.
type Sim struct {
	*Process
	OpenAI string // base URL
	SGLang string // base URL
	VLLM   string // base URL
	Plane  string // host:port
	Admin  string
}

// Paths are the ways to a simulated engine that most tests take.
var Paths = []string{"plane", "relay", "sglang", "vllm"}

// Spec returns the --engine of a path.
func (s *Sim) Spec(path string) string {
	switch path {
	case "plane":
		return "weir=" + s.Plane
	case "sglang":
		return "sglang=" + s.SGLang
	case "vllm":
		return "vllm=" + s.VLLM
	}
	return "openai=" + s.OpenAI
}

// StartSim runs a simulated engine that speaks four wires on free ports.
func StartSim(t testing.TB, args ...string) *Sim {
	t.Helper()
	p := Start(t, append([]string{"engine", "--wire", "openai=127.0.0.1:0", "--wire", "sglang=127.0.0.1:0", "--wire", "vllm=127.0.0.1:0", "--wire", "weir=127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--enable-deterministic-inference"}, args...)...)
	return &Sim{p, p.Line("openai"), p.Line("sglang"), p.Line("vllm"), p.Line("weir"), p.Line("admin")}
}

// EngineState reads a simulated engine's state.
func EngineState(t testing.TB, admin string) State {
	t.Helper()
	var s State
	if err := json.Unmarshal(Get(t, admin+"/admin/state").Body, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// FastSim are flags of a simulated engine that keeps up with hundreds of streams.
var FastSim = []string{"--cost", "constant", "--prefill-cost", "2ms", "--decode-cost", "10ms", "--max-running-requests", "1024"}

// State is a part of what a simulated engine counts of itself.
type State struct {
	Running, Waiting                      int
	Received, Finished, Aborted, Rejected int
	Retracted                             int // times that a request was sent back to the queue
	GeneratedTokens                       int `json:"generated_tokens"`
}
