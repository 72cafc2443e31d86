package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/observe/timeline"
	"weir/internal/trace"
)

// recorded is the record of a stream of which each stage took this many milliseconds:
// tokenizing, the engine's queue, its prefill, and the output's way.
func recorded(id string, tokenize, queue, prefill, output int64) *trace.Record {
	const ms = 1e6
	at := int64(1e12)
	r := &trace.Record{RequestID: id, Endpoint: "/v1/chat/completions", Model: "m", Stream: true, Status: 200, Arrival: at, Received: at + ms}
	step := func(of int64) int64 { at += of * ms; return at }
	r.Parsed, r.Rendered, r.TokenizeStart = step(2), step(0), step(0)
	r.TokenizeEnd = step(tokenize)
	r.Queued, r.Routed = step(0), step(1)
	s := infer.Stamps{}
	leg := trace.Leg{Role: "full", Engine: "a", Kind: "weir", DPRank: -1, ToServer: step(1)}
	s.ServerCreated, s.QueueStart, s.QueueEnd, s.PrefillStart = step(1), step(0), step(queue), step(0)
	s.PrefillEnd, s.FirstToken, s.FirstOutput = step(prefill), step(0), step(1)
	leg.Stamps = s
	r.FirstReceived = step(1)
	r.Pace = &trace.Pace{Sent: step(output), Last: at}
	r.FirstFlushed = at
	r.LiveAtFirstToken, r.PendingAtFirstToken = int32(output), int32(output)/2
	r.Pace.Last = step(99)
	r.Finished = step(1)
	r.Attempts = []trace.Attempt{{Legs: []trace.Leg{leg}, Choice: trace.Choice{Cached: -1}}}
	return r
}

// written writes records as a gateway does, and gives the file's name.
func written(t *testing.T, records ...*trace.Record) string {
	t.Helper()
	var b []byte
	for _, r := range records {
		b = append(timeline.Append(b, r, "boot"), '\n')
	}
	name := filepath.Join(t.TempDir(), "t.jsonl")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A record that is converted directly equals the one that is read from its line.
func TestOfIsWhatIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string) int64 { return rapid.Int64Range(0, 50).Draw(t, name) }
		r := recorded("r", number("tokenize"), number("queue"), number("prefill"), number("output"))
		if rapid.Bool().Draw(t, "failed") {
			r.Outcome, r.Code, r.FirstFlushed = infer.Failed, "engine", 0
		}
		r.Ledger.Start(trace.Read, r.Arrival)
		r.Ledger.Enter(trace.Engine, r.Arrival+number("read"))
		r.Ledger.Enter(trace.Finish, r.Finished)
		a := &r.Attempts[0]
		a.Legs[0].Stamps.ClockUncertain, a.Legs[0].Acked, a.Legs[0].Outcome = number("uncertain"), number("acked"), "x"
		if rapid.Bool().Draw(t, "chosen") {
			a.Choice = trace.Choice{Of: 3, Length: 7, Cached: int32(number("cached")) - 1, Regret: 2.5, Best: []trace.Option{{Engine: "a"}}}
		}
		a.Legs[0].Stamps.Retracted, r.CompletionTokens = number("retracted"), int(number("tokens"))
		if rapid.Bool().Draw(t, "stalled") {
			r.Stalls = []trace.Stall{{Start: 3, End: 7, Why: "gc"}, {Start: 8, End: 10}}
		}
		if rapid.Bool().Draw(t, "paired") {
			half := a.Legs[0]
			half.Role, half.Engine, half.Handed, half.Answered = "prefill", "p", r.Routed, r.Routed+number("answered")
			half.Stamps.BootstrapEnd = number("met") * r.Routed
			a.Legs[0].Role, a.Legs[0].Stamps.WaitingToRunning = "decode", number("running")*r.Routed
			a.Legs = []trace.Leg{half, a.Legs[0]}
		}
		if rapid.Bool().Draw(t, "twice") {
			r.Attempts = append(r.Attempts, r.Attempts[0])
		}
		read := &Record{}
		if err := json.Unmarshal(timeline.Append(nil, r, ""), read); err != nil {
			t.Fatal(err)
		}
		if of := Of(r); !reflect.DeepEqual(of, read) {
			t.Fatalf("%+v\nread  %+v", of, read)
		}
	})
}

// The stage that the slow ones spend more time in is found in a gateway's timeline,
// whichever it is, and the whole of their time is explained.
func TestTimelineFindsTheStage(t *testing.T) {
	for _, slow := range []struct {
		stage string
		of    func(id string) *trace.Record
	}{
		{StageWaiting, func(id string) *trace.Record { return recorded(id, 1, 400, 20, 1) }},
		{StagePrefill, func(id string) *trace.Record { return recorded(id, 1, 5, 400, 1) }},
		{StagePath, func(id string) *trace.Record { return recorded(id, 1, 5, 20, 400) }},
		{StageRouter, func(id string) *trace.Record { return recorded(id, 400, 5, 20, 1) }},
	} {
		var all []*trace.Record
		for range 198 {
			all = append(all, recorded("fast", 1, 5, 20, 1))
		}
		all = append(all, slow.of("slow"), slow.of("slow"))
		got, err := ReadTimeline([]string{written(t, all...)})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, b := range got.Attribution {
			if b.Metric != "ttft" || b.From != 99 {
				continue
			}
			found = true
			if !strings.Contains(b.Sentence, "of that is "+slow.stage) || b.Residual != 0 || b.Requests != 2 {
				t.Errorf("%s: %+v", slow.stage, b)
			}
		}
		if !found {
			t.Errorf("%s: no band of the slowest: %+v", slow.stage, got.Attribution)
		}
		records := make([]*Record, len(all))
		for i := range all {
			records[i] = Of(all[i])
		}
		medians := 0
		for _, b := range Shares(records) {
			if b.From == 49 && b.To == 51 {
				medians++
				if b.Requests != 4 || b.Residual != 0 {
					t.Errorf("the median's band: %+v", b)
				}
			}
		}
		if medians != 2 {
			t.Errorf("%d bands of the median, want one of each metric", medians)
		}
	}
}

// Output that is late when much is going on is seen to be.
func TestTimelineDelays(t *testing.T) {
	var all []*trace.Record
	for i := range int64(100) {
		all = append(all, recorded("r", 1, 1, 1, i/10*10)) // its output is late by 10 ms for ten streams
	}
	got, err := ReadTimeline([]string{written(t, all...)})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Live) < 4 || len(got.Pending) < 4 {
		t.Fatalf("bands %+v and %+v", got.Live, got.Pending)
	}
	requests := 0
	for i, b := range got.Live {
		requests += b.Requests
		if i > 0 && (b.From <= got.Live[i-1].To || b.P50 <= got.Live[i-1].P50) {
			t.Errorf("band %+v after %+v", b, got.Live[i-1])
		}
	}
	if requests != 100 {
		t.Errorf("%d requests in the bands", requests)
	}
}

// Stamps that contradict each other are told of, with how often, how much and in whose
// record; what the uncertainty of a clock explains is none.
func TestTimelineDisorder(t *testing.T) {
	bad, worse, unsure := recorded("bad", 1, 1, 1, 1), recorded("worse", 1, 1, 1, 1), recorded("unsure", 1, 1, 1, 1)
	bad.Attempts[0].Legs[0].Stamps.QueueStart -= 50e6
	worse.Attempts[0].Legs[0].Stamps.QueueStart -= 80e6
	unsure.Attempts[0].Legs[0].Stamps.FirstOutput += 30e6
	unsure.Attempts[0].Legs[0].Stamps.ClockUncertain = 40e6
	got, err := ReadTimeline([]string{written(t, recorded("good", 1, 1, 1, 1), bad, worse, unsure)})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Disorder) != 1 {
		t.Fatalf("%+v", got.Disorder)
	}
	d := got.Disorder[0]
	if d.Stamp != "queue_time_start" || d.Before != "server_created_time" || d.Requests != 2 || d.Worst != 80 || d.Example != "worse" {
		t.Errorf("%+v", d)
	}
}

// For each kind of engine that leaves stamps empty, the report says which setting gives them.
func TestTimelineEmptyStamps(t *testing.T) {
	for kind, want := range map[string]string{"sglang": "--enable-metrics", "vllm-core": "--disable-log-stats", "openai": "no flag", "sglang-ipc": "no flag", "weir": "plane.proto", "": "older weir"} {
		r := recorded("r", 1, 1, 1, 1)
		r.Attempts[0].Legs[0].Kind, r.Attempts[0].Legs[0].Stamps = kind, infer.Stamps{FirstOutput: r.FirstReceived}
		got, err := ReadTimeline([]string{written(t, r)})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Empty) != 1 || !strings.Contains(got.Empty[0].Advice, want) || len(got.Empty[0].Stamps) != 6 {
			t.Errorf("%q: %+v", kind, got.Empty)
		}
	}
	if got, err := ReadTimeline([]string{written(t, recorded("r", 1, 1, 1, 1))}); err != nil || len(got.Empty) != 0 {
		t.Errorf("all are there: %+v, %v", got.Empty, err)
	}
}

// A file's torn end is left out and said; what is no timeline is refused with its line.
func TestTimelineFiles(t *testing.T) {
	name := written(t, recorded("a", 1, 1, 1, 1), recorded("b", 1, 1, 1, 1))
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) string {
		name := filepath.Join(t.TempDir(), "t")
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	torn, err := ReadTimeline([]string{write(whole[:len(whole)-9])})
	if err != nil || torn.Requests != 1 || !torn.Torn {
		t.Errorf("torn: %+v, %v", torn, err)
	}
	if _, err := ReadTimeline([]string{write(append(bytes.Clone(whole), "{\"x\":1}\n"...))}); err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Errorf("another line: %v", err)
	}
	for content, want := range map[string]bool{string(whole): true, `{"requests": 1}`: false, "": false, "{": false} {
		if is, err := IsTimeline(write([]byte(content))); is != want || err != nil {
			t.Errorf("%.20q: %t, %v", content, is, err)
		}
	}
	var text, page bytes.Buffer
	hostile := recorded("<script>alert(1)</script>", 1, 1, 1, 1)
	hostile.Attempts[0].Legs[0].Engine, hostile.Attempts[0].Legs[0].Stamps.QueueStart = "<img src=x onerror=alert(1)>", 5
	got, err := ReadTimeline([]string{written(t, hostile, hostile)})
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Text(&text); err != nil || !strings.Contains(text.String(), "requests    2 in ") {
		t.Errorf("%v: %s", err, &text)
	}
	if err := got.WriteHTML(&page); err != nil || strings.Contains(page.String(), "<script>") || strings.Contains(page.String(), "<img") || !strings.Contains(page.String(), "&lt;script&gt;") {
		t.Errorf("%v: %s", err, &page)
	}
}
