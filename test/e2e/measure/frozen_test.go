//go:build measure

package measure

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"weir/internal/lab/calibrate"
	"weir/internal/load"
	"weir/internal/workload/latency"
	"weir/test/e2e/harness"
)

// A load generator that is stopped now and then reports the range of each percentile, and
// reports none as known that is not. The truth is the engine's own stamps.
// TestStoppedGenerator of internal/load does the same in virtual time, with many more kinds of
// stops.
func TestFrozenGenerator(t *testing.T) {
	harness.Beside(t, harness.Alone)
	worst, valid := 0.0, 0
	for _, share := range []float64{0, 0.2, 0.5, 0.8} {
		for _, period := range []time.Duration{10, 75, 500} {
			name := fmt.Sprintf("stopped for %g of every %d ms", share, period)
			known, r := frozen(t, share, period*time.Millisecond)
			if r.Complete != 160 {
				t.Fatalf("%s: %d complete: %v", name, r.Complete, r.Examples)
			}
			if r.Verdict.Trust == load.Valid {
				valid++
			}
			for _, m := range []struct {
				name  string
				truth []int64
				got   *latency.Judged
			}{{"TTFT", known.TTFT, &r.TTFT}, {"ITL", known.ITL, &r.ITL}} {
				all := latency.New(time.Hour)
				for _, v := range m.truth {
					all.Add(v)
				}
				truth := all.Judge(false)
				for _, f := range []struct {
					name       string
					got, truth latency.Figure
				}{{"p50", m.got.P50, truth.P50}, {"p90", m.got.P90, truth.P90}, {"p99", m.got.P99, truth.P99}} {
					if f.got.Refused() {
						t.Errorf("%s: no %s of %s", name, f.name, m.name)
						continue
					}
					in, ok := m.got.Bounds[f.name]
					if !ok {
						in = latency.Range{f.got, f.got}
					}
					// The engine stamps before it writes, and both share the machine's cores.
					allowed := 1 + 0.02*float64(f.truth)
					off := max(float64(in[0]-f.truth), float64(f.truth-in[1]), 0)
					worst = max(worst, off)
					if off > allowed {
						t.Errorf("%s, %s: %s %s is %.2f ms, said to be %.2f, between %.2f and %.2f", name, r.Verdict.Trust, m.name, f.name, f.truth, f.got, in[0], in[1])
					}
					if far := math.Abs(float64(f.got - f.truth)); r.Verdict.Trust == load.Valid && far > allowed+max(1, 0.01*float64(f.got)) {
						t.Errorf("%s: VALID, and %s %s is %.2f ms, said to be %.2f", name, m.name, f.name, f.truth, f.got)
					}
				}
			}
			t.Logf("%s: %s, %.1f %% of events without a time of their own", name, r.Verdict.Trust, 100*float64(r.Receive.Unknown)/float64(max(1, r.TextEvents)))
		}
	}
	figure("frozen generator/farthest from its bounds", worst, "ms")
	if valid == 12 {
		t.Error("every run was VALID: nothing was stopped")
	}
}

// frozen loads an engine of known times with weir bench, which is stopped for a share of
// each period.
func frozen(t *testing.T, share float64, period time.Duration) (*calibrate.Known, *load.Report) {
	t.Helper()
	const streams, requests, tokens = 8, 160, 30
	file := filepath.Join(t.TempDir(), "r.json")
	known, err := calibrate.Watch(t.Context(), calibrate.Options{
		Self: []string{harness.Binary, "bench-process"}, Streams: streams, Requests: requests, Tokens: tokens, TTFT: 20 * time.Millisecond, ITL: 5 * time.Millisecond,
	}, func(url string) error {
		p := harness.Start(t, "bench", url, "--model", "exact", "--concurrency", fmt.Sprint(streams), "--requests", fmt.Sprint(requests), "--output-tokens", fmt.Sprint(tokens),
			"--admin", "off", "--verify", "off", "--json", file)
		for running := true; running; {
			if stop := time.Duration(share * float64(period)); stop > 0 {
				// A signal to a process that has just ended is lost, which the loop finds out.
				_ = p.Cmd.Process.Signal(syscall.SIGSTOP)
				time.Sleep(stop)
				_ = p.Cmd.Process.Signal(syscall.SIGCONT)
			}
			select {
			case <-p.Exited:
				running = false
			case <-time.After(period - time.Duration(share*float64(period))):
			}
		}
		p.Exits(0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := new(load.Report)
	if err := json.Unmarshal(text, r); err != nil {
		t.Fatal(err)
	}
	return known, r
}
