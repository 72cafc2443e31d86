//go:build interop_engines

package real

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The list of vLLM's metrics that the simulated engine is tested against is what the
// installed vLLM registers.
func TestMetricsList(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join(venv, "lib/python*/site-packages/vllm/v1/metrics/loggers.py"))
	if err != nil || len(sources) != 1 {
		t.Fatalf("%q, %v", sources, err)
	}
	got, err := exec.Command(filepath.Join(venv, "bin/python"), "../metrics/names.py", sources[0], "PrometheusStatLogger").Output()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../internal/sim/simserver/testdata/metrics-vllm-0.32.0.tsv")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("vLLM registers:\n%s", got)
	}
}
