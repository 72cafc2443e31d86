package timeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sample(id string) *trace.Record {
	r := &trace.Record{
		RequestID: id, Endpoint: "/v1/completions", Model: "m", Stream: true, Outcome: infer.Failed,
		Code: "engine", Message: "it \"broke\"\n\xff", Status: 502, PromptTokens: 3,
		Arrival: 1000, Received: 1100, Parsed: 1200, TokenizeStart: 1300, TokenizeEnd: 1350, FirstFlushed: 1900, Finished: 2000,
		Attempts: []trace.Attempt{
			{Legs: []trace.Leg{{Role: "full", Engine: "a", DPRank: -1, Outcome: "unavailable"}}},
			{Legs: []trace.Leg{{Role: "full", Engine: "b", DPRank: 2, Outcome: "engine", ToServer: 1400, Acked: 1450,
				Stamps: infer.Stamps{QueueStart: 1460, QueueEnd: 1500, PrefillStart: 1500, FirstToken: 1700, FirstOutput: 1750}}}},
		},
	}
	r.Ledger.Start(trace.Read, 1000)
	r.Ledger.Enter(trace.PoolWait, 1250)
	r.Ledger.Enter(trace.Tokenize, 1300)
	r.Ledger.Enter(trace.Engine, 1400)
	r.Ledger.Enter(trace.Finish, 1990)
	r.Ledger.Enter(trace.Finish, 2000)
	return r
}

// The stalls that a request lived through are in its record, each whole, and of their sum
// what was within its time.
func TestAppendStalls(t *testing.T) {
	r := sample("x")
	r.Stalls = []trace.Stall{{Start: 900, End: 1200, Why: "tokenize"}, {Start: 1900, End: 2500}}
	var got struct {
		Stalled int64
		Stalls  []map[string]any
	}
	if err := json.Unmarshal(Append(nil, r, "boot"), &got); err != nil {
		t.Fatal(err)
	}
	if got.Stalled != 300 || len(got.Stalls) != 2 || got.Stalls[0]["start_time"] != 900.0 || got.Stalls[0]["duration"] != 300.0 || got.Stalls[0]["why"] != "tokenize" || len(got.Stalls[1]) != 2 {
		t.Errorf("%+v", got)
	}
}

// A record becomes one JSON object with the design's names; what was never
// stamped is left out.
func TestAppend(t *testing.T) {
	line := Append(nil, sample("x"), "boot")
	if bytes.ContainsRune(line, '\n') {
		t.Fatalf("not one line: %s", line)
	}
	var got map[string]any
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	for key, want := range map[string]any{
		"request_id": "x", "boot_id": "boot", "outcome": "failed", "code": "engine", "error": "it \"broke\"\n\ufffd",
		"arrival_time": 1000.0, "total_latency": 1000.0, "ttft": 900.0, "residual": 0.0,
		"tokenize_wait": 50.0, "tokenize_duration": 50.0, "queue_time_in_router": 400.0, "queue_time_in_server": 100.0, "pure_queue_time": 40.0,
		"schedule_overhead": 110.0, "prefill_duration": 200.0, "output_path_delay": 150.0, "server_latency": 600.0,
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	for _, key := range []string{"rendered_time", "queued_time", "stalls", "stalled"} {
		if v, ok := got[key]; ok {
			t.Errorf("%s is %v, although it was never stamped", key, v)
		}
	}
	legs := got["attempts"].([]any)[1].(map[string]any)["legs"].([]any)[0].(map[string]any)
	if legs["engine"] != "b" || legs["dp_rank"] != 2.0 || legs["acked_time"] != 1450.0 || legs["prefill_end_time"] != nil {
		t.Errorf("leg %v", legs)
	}
}

// Where two engines served a request the record says where its time went between them.
func TestAppendPair(t *testing.T) {
	r := sample("x")
	r.FirstReceived = 1800
	r.Attempts[1].Legs = []trace.Leg{
		{Role: "prefill", Engine: "p", DPRank: -1, Outcome: "finished", Handed: 1390, ToServer: 1395, Answered: 1760, Fetched: 1760, Stamps: infer.Stamps{BootstrapEnd: 1420, PrefillEnd: 1600}},
		{Role: "decode", Engine: "d", DPRank: -1, Outcome: "finished", ToServer: 1400, Stamps: infer.Stamps{TransferEnd: 1700, WaitingToRunning: 1720}},
	}
	var got struct {
		Pair    map[string]int64
		Prefill int64 `json:"prefill_duration"`
		Router  int64 `json:"queue_time_in_router"`
	}
	if err := json.Unmarshal(Append(nil, r, ""), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"handed_time": 1390, "met_time": 1420, "prefilled_time": 1600, "transferred_time": 1700, "running_time": 1720, "first_output_time": 1800,
		"bootstrap": 30, "prefill": 180, "transfer": 100, "waiting_to_running": 20, "decode": 280, "handover": 40}
	if !maps.Equal(got.Pair, want) || got.Prefill != 180 || got.Router != 395 {
		t.Errorf("%+v, want %v", got, want)
	}
	r.Attempts[1].Legs[0].Stamps, r.Attempts[1].Legs[1].Stamps = infer.Stamps{}, infer.Stamps{}
	got.Pair = nil
	if err := json.Unmarshal(Append(nil, r, ""), &got); err != nil {
		t.Fatal(err)
	}
	if want = map[string]int64{"handed_time": 1390, "transferred_time": 1760, "first_output_time": 1800, "decode": 200, "handover": 40}; !maps.Equal(got.Pair, want) {
		t.Errorf("without stamps %v, want %v", got.Pair, want)
	}
}

// For any strings, the line is valid JSON.
func TestAppendIsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := sample(string(rapid.SliceOf(rapid.Byte()).Draw(t, "id")))
		r.Model = rapid.String().Draw(t, "model")
		r.Attempts = r.Attempts[:rapid.IntRange(0, 2).Draw(t, "attempts")]
		if line := Append(nil, r, ""); !json.Valid(line) {
			t.Fatalf("%s", line)
		}
	})
}

func TestRecorder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.jsonl")
	r, err := New(Options{File: file, Keep: 3})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		r.Add(sample(fmt.Sprint(i)))
	}
	for i := range 10 {
		if _, ok := r.Find(fmt.Sprint(i)); ok != (i >= 7) {
			t.Errorf("record %d kept: %t", i, ok)
		}
	}
	// A caller's id hides no other's record, and weir's own ids find them as well.
	twice := sample("9")
	twice.Attempts = []trace.Attempt{{Legs: []trace.Leg{{RequestID: "own-1"}}}, {Legs: []trace.Leg{{RequestID: "own-2"}}}}
	r.Add(twice)
	if lines, ok := r.Find("9"); !ok || bytes.Count(lines, []byte(`"request_id":"9"`)) != 2 || bytes.Count(lines, []byte("\n")) != 1 || bytes.Index(lines, []byte("own-2")) > bytes.IndexByte(lines, '\n') {
		t.Errorf("two records of one id: %s", lines)
	}
	for _, id := range []string{"own-1", "own-2"} {
		if lines, ok := r.Find(id); !ok || bytes.Contains(lines, []byte("\n")) {
			t.Errorf("%s: %s", id, lines)
		}
	}
	for i := range 3 {
		r.Add(sample(fmt.Sprint("later", i)))
	}
	for _, id := range []string{"9", "own-1", "own-2"} {
		if lines, ok := r.Find(id); ok {
			t.Errorf("%s is still kept: %s", id, lines)
		}
	}
	if r.Kept() != 3 {
		t.Errorf("%d records are kept, want 3", r.Kept())
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(data, []byte("\n")); n != 14 || r.Written() != 14 || r.Dropped() != 0 {
		t.Errorf("%d lines, %d written, %d dropped", n, r.Written(), r.Dropped())
	}
	// After Close nothing is written, and that is counted.
	r.Add(sample("late"))
	if r.Dropped() != 1 {
		t.Errorf("dropped %d, want 1", r.Dropped())
	}
}
