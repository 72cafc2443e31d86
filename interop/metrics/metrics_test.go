//go:build interop

// Package metrics holds the lists of metrics that the simulated engine is tested against to
// the packages that they are of.
//
//	go test -tags interop ./interop/metrics/
//
// WEIR_PYTHON names an interpreter, WEIR_SGLANG_PARSERS the folder of SGLang's package.
// WEIR_UPDATE=1 writes the lists anew.
package metrics

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// The list of SGLang's metrics is what its source registers.
func TestSGLang(t *testing.T) {
	folder := os.Getenv("WEIR_SGLANG_PARSERS")
	if folder == "" {
		t.Fatal("WEIR_SGLANG_PARSERS names no folder; make interop sets it")
	}
	Compare(t, filepath.Join(folder, "sglang/srt/observability/metrics_collector.py"), "metrics-sglang-0.5.23.tsv", "SchedulerMetricsCollector", "TokenizerMetricsCollector")
}

// Compare reads a source's metrics and compares them with a list.
func Compare(t *testing.T, source, list string, classes ...string) {
	t.Helper()
	list = filepath.Join("../../internal/sim/simserver/testdata", list)
	cmd := exec.Command(harness.Python(t), append([]string{"names.py", source}, classes...)...)
	cmd.Stderr = os.Stderr
	got, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("WEIR_UPDATE") != "" {
		if err := os.WriteFile(list, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not what %s registers; WEIR_UPDATE=1 writes it anew:\n%s", list, source, got)
	}
}
