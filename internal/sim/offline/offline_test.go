package offline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/workload"
	"weir/internal/workload/content"
)

// words is a synthetic vocabulary of 1024 words, ids 10 to 1033.
func words(t testing.TB) *content.Words {
	t.Helper()
	w, err := content.New(2000, func(id uint32) ([]byte, bool) {
		if id < 10 {
			return nil, false
		}
		n := id - 10
		return []byte{' ', 'a' + byte(n%26), 'a' + byte(n/26%26), 'a' + byte(n/676%26)}, n < 1024
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func synthetic(t testing.TB, settings string, seed uint64) *workload.Workload {
	t.Helper()
	w, err := workload.NewSynthetic(settings, workload.Options{Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func mooncake(t testing.TB, lines string) *workload.Workload {
	t.Helper()
	w, err := workload.NewTrace(strings.NewReader(lines), "trace.jsonl", workload.Mooncake, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// replay runs a workload to its end and gives its report and records.
func replay(t testing.TB, o Options) (*Report, []Record) {
	t.Helper()
	if o.Engine.Words == nil {
		o.Engine.Words = words(t)
	}
	var records []Record
	o.OnRequest = func(r *Record) error {
		records = append(records, *r)
		return nil
	}
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return report, records
}

// TestCostModelComesBack holds that a request alone on its engine takes what
// the cost model says, to the nanosecond, whatever the model.
func TestCostModelComesBack(t *testing.T) {
	table, err := sim.ReadTable(strings.NewReader("phase,tokens,batch,ms\nprefill,100,,10\nprefill,4000,,217.5\ndecode,100,1,6.25\ndecode,9000,1,9\ndecode,100,2,7\ndecode,9000,2,11\n"), "t")
	if err != nil {
		t.Fatal(err)
	}
	costs := map[string]sim.CostModel{
		"constant": sim.Constant{Prefill: 33 * time.Millisecond, Decode: 7 * time.Millisecond}, "per-batch": sim.PerBatch{}, "table": table,
	}
	for _, p := range sim.Profiles() {
		costs[p.Name] = p.Cost
	}
	const input, output = 3000, 57
	for name, cost := range costs {
		t.Run(name, func(t *testing.T) {
			report, records := replay(t, Options{
				Engine:   sim.Options{Cost: cost},
				Workload: mooncake(t, fmt.Sprintf(`{"timestamp": 5, "input_length": %d, "output_length": %d}`, input, output)),
			})
			ttft := cost.StepTime(sim.Batch{Prefill: input, Chunks: 1, Attended: input * input})
			var rest time.Duration
			for n := 1; n < output; n++ {
				rest += cost.StepTime(sim.Batch{Decode: 1, Context: int64(input + n)})
			}
			if len(records) != 1 {
				t.Fatalf("%d requests", len(records))
			}
			r := records[0]
			if r.TTFT() != ttft || r.TPOT() != rest/(output-1) || r.Finish-r.Stamps.FirstToken != int64(rest) {
				t.Errorf("TTFT %v, TPOT %v, the rest in %v; want %v, %v and %v", r.TTFT(), r.TPOT(), time.Duration(r.Finish-r.Stamps.FirstToken), ttft, rest/(output-1), rest)
			}
			for what, got := range map[string][2]float64{
				"TTFT": {report.TTFT.Max, ms(ttft)}, "mean TTFT": {report.TTFT.Mean, ms(ttft)},
				"TPOT": {report.TPOT.Max, ms(rest / (output - 1))}, "E2E": {report.E2E.Max, ms(ttft + rest)}, "mean ITL": {report.ITL.Mean, ms(rest) / (output - 1)},
			} {
				if math.Abs(got[0]-got[1]) > 1e-9*got[1] {
					t.Errorf("%s is %v ms in the report, want %v", what, got[0], got[1])
				}
			}
			if report.ITL.Count != output-1 || report.Steps != output || report.Queue.Max != 0 || report.Busy != 1 || report.OutputTokens != output || report.PromptTokens != input {
				t.Errorf("report %+v", report)
			}
		})
	}
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// TestQueueing holds the waiting times of an engine that serves one request at
// a time, in equal times, against what theory says of that queue (M/D/1): the
// mean wait is rho/(2(1-rho)) services.
func TestQueueing(t *testing.T) {
	const service = 0.100 // s: 10 ms of prompt, 9 tokens of 10 ms
	requests, slack := 60_000, 0.05
	if testing.Short() {
		requests, slack = 6_000, 0.15
	}
	for _, rho := range []float64{0.4, 0.75} {
		report, _ := replay(t, Options{
			Engine:   sim.Options{MaxRunning: 1, Cost: sim.Constant{Prefill: 10 * time.Millisecond, Decode: 10 * time.Millisecond}},
			Workload: synthetic(t, fmt.Sprintf("rate=%v,requests=%d,input=5,output=10", rho/service, requests), 11),
		})
		want := rho / (2 * (1 - rho)) * service * 1e3
		if math.Abs(report.Queue.Mean/want-1) > slack {
			t.Errorf("load %v: a mean wait of %v ms, want %v", rho, report.Queue.Mean, want)
		}
		if math.Abs(report.Busy/rho-1) > 0.4*slack || math.Abs(report.Running.Mean/rho-1) > 0.4*slack {
			t.Errorf("load %v: busy %v, running %v", rho, report.Busy, report.Running.Mean)
		}
		// Little's law.
		if l := report.RequestsPerSecond * report.Queue.Mean / 1e3; math.Abs(l/report.Waiting.Mean-1) > 0.001 {
			t.Errorf("load %v: %v waiting, and Little's law says %v", rho, report.Waiting.Mean, l)
		}
	}
}

// TestConservation replays workloads of any kind on engines of any kind, and
// holds that every request ends once, with what it asked for, in an order of
// stamps that makes sense, and that the report adds them up.
func TestConservation(t *testing.T) {
	vocabulary := words(t)
	rapid.Check(t, func(t *rapid.T) {
		engine := sim.Options{
			Words:          vocabulary,
			MaxRunning:     rapid.IntRange(1, 20).Draw(t, "max_running"),
			MaxQueued:      rapid.IntRange(0, 10).Draw(t, "max_queued"),
			StepTokens:     rapid.IntRange(20, 500).Draw(t, "step_tokens"),
			ContextLength:  rapid.IntRange(50, 600).Draw(t, "context_length"),
			KVTokens:       rapid.SampledFrom([]int{0, 200, 700, 5000}).Draw(t, "kv_tokens"),
			PageSize:       rapid.SampledFrom([]int{1, 7, 16, 64}).Draw(t, "page_size"),
			DPSize:         rapid.IntRange(1, 3).Draw(t, "dp_size"),
			ChunkedPrefill: rapid.SampledFrom([]int{0, 10, 100}).Draw(t, "chunked_prefill"),
			StreamInterval: rapid.SampledFrom([]int{1, 1, 5}).Draw(t, "stream_interval"),
			Speculation:    rapid.SampledFrom([]float64{1, 1, 2.5}).Draw(t, "speculation"),
			Cost:           sim.PerBatch{},
		}
		loop := rapid.SampledFrom([]string{"rate=20", "rate=200,arrival=gamma(3)", "rate=ramp(1,300,2s)", "concurrency=7", "concurrency=30,think=10ms"}).Draw(t, "loop")
		w, err := workload.NewSynthetic(loop+",requests=80,input=uniform(1,300),output=uniform(1,60),prefix=50,groups=3", workload.Options{Seed: rapid.Uint64().Draw(t, "seed")})
		if err != nil {
			t.Fatal(err)
		}
		seen := make([]bool, 80)
		var finished, refused int
		var inputs, outputs int64
		last := int64(0)
		report, err := Run(context.Background(), Options{Engine: engine, Workload: w, OnRequest: func(r *Record) error {
			if seen[r.Index] {
				t.Fatalf("request %d ended twice", r.Index)
			}
			seen[r.Index] = true
			if r.Refused != nil {
				refused++
				var e *infer.Error
				if !errors.As(r.Refused, &e) || e.Code != infer.CodeOverloaded && e.Code != infer.CodeContext {
					t.Fatalf("refused: %v", r.Refused)
				}
				if e.Code == infer.CodeOverloaded && engine.MaxQueued == 0 {
					t.Fatalf("refused without a bound: %v", r.Refused)
				}
				return nil
			}
			finished++
			inputs, outputs = inputs+int64(r.Input), outputs+int64(r.Output)
			s := r.Stamps
			if !(r.Arrival <= s.QueueStart && s.QueueStart <= s.QueueEnd && s.QueueEnd <= s.PrefillStart && s.PrefillStart < s.PrefillEnd &&
				s.PrefillEnd <= s.FirstToken && s.FirstToken <= r.Finish && last <= r.Finish) {
				t.Fatalf("stamps of %+v", r)
			}
			last = r.Finish
			if r.Reason != infer.ReasonLength || r.Input < 51 || r.Output < 1 || r.Output > 60 {
				t.Fatalf("record %+v", r)
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if report.Requests != 80 || report.Finished != finished || report.Refused != refused || finished+refused != 80 || report.Unfinished != 0 || report.Interrupted {
			t.Fatalf("%d finished and %d refused; the report has %d of %d and %d", finished, refused, report.Finished, report.Requests, report.Refused)
		}
		if report.PromptTokens != inputs || report.OutputTokens != outputs || report.TTFT.Count != int64(finished) || report.Running.Max > int64(engine.MaxRunning*engine.DPSize) {
			t.Fatalf("report %+v", report)
		}
		if size := int64(engine.KVTokens * engine.DPSize); size > 0 && (report.KVUsed.Max > size || report.KVKept.Max > size) {
			t.Fatalf("of a cache of %d %+v are held and %+v kept", engine.KVTokens, report.KVUsed, report.KVKept)
		}
		// Each gap brings one token or, by speculation or an interval, several.
		if gaps, rest := report.ITL.Count, outputs-int64(finished); gaps > rest || gaps < rest && engine.Speculation == 1 && engine.StreamInterval == 1 {
			t.Fatalf("%d gaps in %d outputs of %d requests", report.ITL.Count, outputs, finished)
		}
	})
}

// TestReproducible holds that nothing but its input decides a report.
func TestReproducible(t *testing.T) {
	run := func(seed uint64) *Report {
		report, _ := replay(t, Options{
			Engine:   sim.Options{MaxRunning: 16},
			Workload: synthetic(t, "rate=20,arrival=gamma(2),requests=500,input=lognormal(800,900),output=exponential(50)", seed),
		})
		return report
	}
	if a, b := run(1), run(1); !reflect.DeepEqual(a, b) {
		t.Errorf("two runs differ:\n%+v\n%+v", a, b)
	}
	if reflect.DeepEqual(run(1), run(2)) {
		t.Error("the seed changes nothing")
	}
}

// TestClosedLoop holds that a closed loop keeps its users busy, and no more.
func TestClosedLoop(t *testing.T) {
	// A request takes 100 ms, so with a pause of 100 ms a user sends five a second.
	engine := sim.Options{Cost: sim.Constant{Prefill: 10 * time.Millisecond, Decode: 10 * time.Millisecond}, MaxRunning: 4}
	report, _ := replay(t, Options{Engine: engine, Workload: synthetic(t, "concurrency=1,think=100ms,duration=10s,input=5,output=10", 1)})
	if report.Requests != 50 || report.Running.Max != 1 || report.VirtualSeconds != 9.9 {
		t.Errorf("%d requests, at most %d at once, in %v s", report.Requests, report.Running.Max, report.VirtualSeconds)
	}
	// A user's next request comes too late for the step that begins with the answer: four may have
	// been answered at once, and wait.
	report, _ = replay(t, Options{Engine: engine, Workload: synthetic(t, "concurrency=6,requests=100,input=5,output=10", 1)})
	if report.Requests != 100 || report.Running.Max != 4 || report.Waiting.Max != 4 || report.Running.P50 != 4 || report.Waiting.P50 != 2 {
		t.Errorf("report %+v", report)
	}
	// Users who are refused come back, but not at once.
	engine.MaxQueued = 1
	report, _ = replay(t, Options{Engine: engine, Workload: synthetic(t, "concurrency=50,duration=2s,input=5,output=10", 1)})
	if report.Refused == 0 || report.Refused > 50*41 || report.Finished < 40 {
		t.Errorf("report %+v", report)
	}
}

// TestUsersInOrder holds that users send in the order of their times, whatever
// their pauses.
func TestUsersInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := runner{o: &Options{Workload: &workload.Workload{Closed: &workload.Closed{}}}}
		for i, pause := range rapid.SliceOf(rapid.Int64Range(0, 100)).Draw(t, "pauses") {
			r.now = int64(i)
			r.again(time.Duration(pause))
			if !slices.IsSorted(r.ready) || len(r.ready) != i+1 || !slices.Contains(r.ready, r.now+pause) {
				t.Fatalf("users send at %v", r.ready)
			}
		}
	})
}

// TestRefusals holds that a request the engine cannot take is counted with its
// cause and its place, and the rest goes on.
func TestRefusals(t *testing.T) {
	report, records := replay(t, Options{
		Engine: sim.Options{ContextLength: 1000, Cost: sim.Constant{Prefill: time.Millisecond, Decode: time.Millisecond}},
		Workload: mooncake(t, `{"timestamp":0,"input_length":10,"output_length":5}
{"timestamp":0,"input_length":990,"output_length":11}
{"timestamp":0,"input_length":10,"output_length":0}
{"timestamp":0,"input_length":0,"output_length":5}
{"timestamp":0,"input_length":268435456,"output_length":5}
{"timestamp":0,"input_length":995,"output_length":5}`),
	})
	want := []Refusal{
		{"context_length", 2, "line 2: 990 tokens of prompt and 11 of output; the engine's context is 1000"},
		{"invalid", 1, "line 4: the prompt is empty; send at least one token"},
		{"the trace gives it no output", 1, "line 3"},
	}
	if !reflect.DeepEqual(report.Refusals, want) || report.Refused != 4 || report.Finished != 2 || len(records) != 6 {
		t.Errorf("%d refused, %d finished: %+v", report.Refused, report.Finished, report.Refusals)
	}
}

// TestTraceError holds that a broken line ends the replay with its place.
func TestTraceError(t *testing.T) {
	_, err := Run(t.Context(), Options{
		Engine:   sim.Options{Words: words(t)},
		Workload: mooncake(t, `{"timestamp":0,"input_length":10,"output_length":5}`+"\n{}"),
	})
	if err == nil || !strings.HasPrefix(err.Error(), "trace.jsonl:2: timestamp: ") {
		t.Errorf("error %v", err)
	}
	failed := errors.New("disk full")
	_, err = Run(t.Context(), Options{
		Engine:    sim.Options{Words: words(t)},
		Workload:  mooncake(t, `{"timestamp":0,"input_length":10,"output_length":5}`),
		OnRequest: func(*Record) error { return failed },
	})
	if !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if _, err := Run(t.Context(), Options{Workload: mooncake(t, "")}); err == nil {
		t.Error("an engine without words was accepted")
	}
}

// TestInterrupted holds that a replay cut short reports what it had.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last Progress
	report, err := Run(ctx, Options{
		Engine:   sim.Options{Words: words(t)},
		Workload: synthetic(t, "rate=20,duration=1h,input=1000,output=100", 1),
		OnProgress: func(p Progress) {
			if p.Virtual < last.Virtual || p.Taken < last.Taken {
				t.Errorf("%+v after %+v", p, last)
			}
			last = p
			if p.Virtual > time.Minute {
				cancel()
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Interrupted || report.VirtualSeconds < 60 || report.VirtualSeconds > 3000 || report.Unfinished == 0 ||
		report.Requests != report.Finished+report.Refused+report.Unfinished || report.Finished != last.Ended {
		t.Errorf("report %+v, last told %+v", report, last)
	}
	var text strings.Builder
	if err := report.Text(&text); err != nil || !strings.Contains(text.String(), "INTERRUPTED after ") {
		t.Errorf("%v, %s", err, text.String())
	}
}

// TestEmpty holds that a workload without requests has a report all the same.
func TestEmpty(t *testing.T) {
	report, _ := replay(t, Options{Workload: mooncake(t, "\n\n")})
	if report.Requests != 0 || report.Text(&strings.Builder{}) != nil {
		t.Errorf("report %+v", report)
	}
}

// BenchmarkHour replays an hour of seven requests a second, of lengths like
// those of Mooncake's conversations.
func BenchmarkHour(b *testing.B) {
	for name, kvTokens := range map[string]int{"unlimited": 0, "kv": 2114224} {
		b.Run(name, func(b *testing.B) {
			engine := sim.Options{Words: words(b), Cost: costOf(b, "llama-3.1-8b-h100-tp2"), ContextLength: 1 << 17, KVTokens: kvTokens}
			for b.Loop() {
				report, err := Run(b.Context(), Options{
					Engine:   engine,
					Workload: synthetic(b, "rate=7,duration=1h,input=lognormal(6000,9000),prefix=lognormal(6000,3000),groups=500,zipf=1,output=lognormal(340,300)", 1),
				})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(report.PromptTokens+report.OutputTokens), "tokens/op")
				b.ReportMetric(report.CacheHitRate, "hit-rate")
			}
		})
	}
}

func costOf(t testing.TB, name string) sim.CostModel {
	for _, p := range sim.Profiles() {
		if p.Name == name {
			return p.Cost
		}
	}
	t.Fatalf("no profile %s", name)
	return nil
}

// TestCache holds the figures of the KV cache: a prompt that is sent again is
// found but for its last page, at the time that leaves; and a cache too small
// for its requests sends some of them back, and loses none.
func TestCache(t *testing.T) {
	engine := sim.Options{KVTokens: 1 << 16, PageSize: 16, Cost: sim.PerBatch{}}
	twice := `{"timestamp":0,"input_length":2000,"output_length":10,"hash_ids":[1,2,3,4]}
{"timestamp":60000,"input_length":2000,"output_length":10,"hash_ids":[1,2,3,4]}
{"timestamp":120000,"input_length":2000,"output_length":10,"hash_ids":[1,2,5,6]}`
	report, records := replay(t, Options{Engine: engine, Workload: mooncake(t, twice)})
	for i, cached := range []int{0, 1984, 1024} {
		left := 2000 - cached
		ttft := engine.Cost.StepTime(sim.Batch{Prefill: left, Chunks: 1, Attended: int64(2000*2000 - cached*cached)})
		if r := records[i]; r.Cached != cached || r.TTFT() != ttft {
			t.Errorf("request %d: %d cached, TTFT %v; want %d and %v", i, r.Cached, r.TTFT(), cached, ttft)
		}
	}
	if report.CachedTokens != 1984+1024 || report.CacheHitRate != 3008.0/6000 || report.EvictedTokens != 0 || report.Retractions != 0 {
		t.Errorf("report %+v", report)
	}
	// When the last one ended, its prompt's pages are kept, and those of the
	// others that it did not share. What is held at the most is one request.
	if report.KVUsed.Max < 2000 || report.KVUsed.Max > 2032 || report.KVKept.Max < 2000 || report.KVKept.P50 == 0 {
		t.Errorf("held %+v, kept %+v", report.KVUsed, report.KVKept)
	}

	engine = sim.Options{KVTokens: 4096, PageSize: 16, Conservativeness: 0.01}
	report, records = replay(t, Options{Engine: engine, Workload: synthetic(t, "rate=50,requests=500,input=uniform(100,900),output=uniform(50,400)", 1)})
	sum := 0
	for _, r := range records {
		sum += r.Retractions
	}
	if report.Finished != 500 || report.Retractions == 0 || uint64(sum) != report.Retractions || report.EvictedTokens == 0 || report.KVUsed.Max > 4096 {
		t.Errorf("%d retractions in records; report %+v", sum, report)
	}
}
