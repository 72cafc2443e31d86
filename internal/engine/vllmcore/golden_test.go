package vllmcore

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// TestGolden decodes what releases of vLLM have encoded themselves, from their own
// structures (interop/vllm-core/golden.py).
func TestGolden(t *testing.T) {
	b, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string]struct{ Step, Answer, Wave, Word []byte }
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden) < 5 {
		t.Errorf("%d releases", len(golden))
	}
	for release, wire := range golden {
		t.Run(release, func(t *testing.T) {
			var d batch
			if err := d.decode(wire.Step); err != nil {
				t.Fatal(err)
			}
			if d.rank != 3 || d.timestamp != 12.5e9 || !d.stats || d.running != 2 || d.waiting != 1 || d.kvUsage != 0.25 || d.utility || d.waves || len(d.outputs) != 3 {
				t.Fatalf("%+v", d)
			}
			first, stopped, failed := &d.outputs[0], &d.outputs[1], &d.outputs[2]
			if string(first.id) != "first" || !slices.Equal(d.ids[first.from:first.to], []uint32{5, 200, 70000}) || first.finish != -1 ||
				first.queued != 10.5e9 || first.scheduled != 10.75e9 || first.promptTokens != 9 || first.cachedTokens != 4 {
				t.Errorf("%+v", first)
			}
			if string(stopped.id) != "stopped" || !slices.Equal(d.ids[stopped.from:stopped.to], []uint32{2}) || stopped.finish != finishStop ||
				!stopped.stop.isID || stopped.stop.id != 7 || stopped.promptTokens != -1 || len(stopped.errorCode) > 0 {
				t.Errorf("%+v", stopped)
			}
			if got := string(paramsJSON(d.params(stopped))); got != `{"do_remote_decode":true,"remote_block_ids":[1,2]}` {
				t.Errorf("kv_transfer_params %s", got)
			}
			word := ""
			if release == "0.33.0" {
				word = "validation_error"
			}
			if string(failed.id) != "failed" || failed.from != failed.to || failed.finish != finishError || string(failed.errorCode) != word {
				t.Errorf("%+v", failed)
			}
			if err := d.decode(wire.Answer); err != nil || !d.utility || d.call != 1<<40 || d.stats || len(d.outputs) != 0 || d.timestamp != 13e9 {
				t.Errorf("%+v, %v", d, err)
			}
			if err := d.decode(wire.Wave); err != nil || d.utility || !d.waves || d.complete != 6 || d.start != -1 {
				t.Errorf("%+v, %v", d, err)
			}
			r, err := decodeReady(wire.Word)
			if err != nil || r.contextLength != 4096 {
				t.Fatalf("%+v, %v", r, err)
			}
			if warning, err := r.judge(false); err != nil || warning != "" {
				t.Errorf("%q, %v", warning, err)
			}
			if release != "0.20.0" && release != "0.22.1" && r.version != release {
				t.Errorf("version %q", r.version)
			}
		})
	}
}
