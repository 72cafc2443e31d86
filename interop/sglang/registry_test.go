//go:build interop

package sglang

import (
	"encoding/json"
	"net"
	"reflect"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// TestRegistry: what weir's launcher starts for a prefill engine is SGLang's own registry.
// SGLang's own code registers its ranks there and finds them as a decode engine does, and
// finds the same at a simulated prefill engine.
func TestRegistry(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := newSetup(t)
	prefill := harness.Start(t, "engine", "--wire", "sglang=127.0.0.1:0", "--role", "prefill", "--disaggregation-bootstrap-port", "0", "--dp-size", "2")
	t.Cleanup(prefill.Interrupt)
	_, port, _ := net.SplitHostPort(harness.FreeAddress(t))
	p := s.start("registry.py", "--port", port, "--sim", strings.TrimPrefix(prefill.Line("bootstrap"), "http://"))
	var read struct{ Own, Sim map[string]any }
	if err := json.Unmarshal([]byte(p.Find("what was read", func(l string) bool { return strings.HasPrefix(l, `{"own"`) })), &read); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(read.Own, read.Sim) || read.Own["dp_size"] != 2.0 || read.Own["follow_bootstrap_room"] != true || read.Own["nobody"] != nil {
		t.Errorf("of SGLang's own registry %v, of the simulated one %v", read.Own, read.Sim)
	}
}
