package timeline

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/infer"
	"weir/internal/trace"
)

// A usage log on a full disk has whole lines, as many as are counted as written, and keeps no
// records in memory. Names are quoted as JSON.
func TestUsageOnAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage.jsonl")
	full := new(smallDisk)
	full.room.Store(2000)
	r, err := New(Options{File: path, Form: Usage, Keep: -1, Queue: 64, open: full.open})
	if err != nil {
		t.Fatal(err)
	}
	const requests = 40
	for range requests {
		r.Add(&trace.Record{RequestID: "a", Tenant: "re\"search", Key: "alice", Model: "m", Outcome: infer.Finished, Used: trace.Used{Prompt: 3, Cached: 2, Completion: 1}})
	}
	if err := r.Close(); err == nil || !strings.Contains(err.Error(), "usage log: ") {
		t.Errorf("closed with %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := uint64(0)
	for line := range strings.Lines(string(data)) {
		var u struct {
			Tenant string
			Prompt int `json:"prompt_tokens"`
		}
		if err := json.Unmarshal([]byte(line), &u); err != nil || u.Tenant != `re"search` || u.Prompt != 3 {
			t.Fatalf("%v: %q", err, line)
		}
		lines++
	}
	if lines == 0 || lines != r.Written() || r.Written()+r.Dropped() != requests || r.Kept() != 0 {
		t.Errorf("%d lines, %d counted as written and %d as lost, of %d; %d in memory", lines, r.Written(), r.Dropped(), requests, r.Kept())
	}
}
