package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/load"
	"weir/internal/trace"
)

// For any stamps with any values, spans follow one another without a gap, and with the residual
// they are all of the request's time.
func TestSpansPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Row{Sample: *sample(0, 1e18)}
		stamp := func(name string) int64 {
			if rapid.Bool().Draw(t, "no "+name) {
				return 0
			}
			return 1e18 + rapid.Int64Range(-1e8, 2e9).Draw(t, name)
		}
		if rapid.Bool().Draw(t, "gateway") {
			leg := Leg{ToServer: stamp("leg")}
			r.Gateway = &Record{Stages: map[string]int64{"pool_wait": rapid.Int64Range(0, 1e9).Draw(t, "wait"), "queue": rapid.Int64Range(0, 1e9).Draw(t, "queue"),
				"read": rapid.Int64Range(0, 1e9).Draw(t, "read"), "render": rapid.Int64Range(0, 1e9).Draw(t, "render"), "tokenize": rapid.Int64Range(0, 1e9).Draw(t, "tokenize"),
				"flush": rapid.Int64Range(0, 3e9).Draw(t, "flush")},
				Attempts: slices.Repeat([]Attempt{{Legs: []Leg{leg}}}, rapid.IntRange(1, 3).Draw(t, "attempts"))}
			r.Arrival, r.FirstFlushed, r.FirstReceived = stamp("arrival"), stamp("flushed"), stamp("received")
		}
		r.ToServer, r.ServerCreated, r.QueueStart, r.QueueEnd = stamp("to"), stamp("created"), stamp("queued"), stamp("start")
		r.ServerFirstToken, r.PrefillEnd, r.FirstOutput = stamp("token"), stamp("prefill"), stamp("output")
		if r.Gateway != nil && rapid.Bool().Draw(t, "pair") {
			r.Gateway.Pair = new(Pair)
			r.Met, r.Prefilled, r.Transferred, r.Running = stamp("met"), stamp("prefilled"), stamp("transferred"), stamp("running")
		}
		spans, residual := r.Spans()
		var at int64
		for _, s := range spans {
			if s.Start != at || s.For <= 0 || !slices.Contains(stageOrder, s.Stage) {
				t.Fatalf("%+v, want it to begin at %d", s, at)
			}
			at += s.For
		}
		if at+residual != r.LastByte-r.Intended {
			t.Fatalf("%d and residual %d of %d", at, residual, r.LastByte-r.Intended)
		}
		for _, b := range Attribute([]Row{r, r}) {
			sum := b.Residual
			for _, p := range b.Stages {
				sum += p.Mean
			}
			if math.Abs(sum-b.Mean) > 1e-6*max(1, b.Mean) {
				t.Fatalf("%s: stages and residual are %v of %v", b.Metric, sum, b.Mean)
			}
		}
	})
}

// A delay in one stage of the slow requests is found there, whichever stage it is.
func TestAttribution(t *testing.T) {
	for _, c := range []struct {
		stage string
		delay func(ms map[string]int64)
	}{
		{StageClient, shift("sent", "arrival_time", "to", "created", "start", "end", "token", "output", "flushed", "content")},
		{StageTransport, shift("arrival_time", "to", "created", "start", "end", "token", "output", "flushed", "content")},
		{StageTokenWait, func(ms map[string]int64) {
			shift("to", "created", "start", "end", "token", "output", "flushed", "content")(ms)
			ms["pool_wait"] += extra
		}},
		{StageRead, before("read")},
		{StageTemplate, before("render")},
		{StageTokenize, before("tokenize")},
		{StageQueue, func(ms map[string]int64) {
			shift("to", "created", "start", "end", "token", "output", "flushed", "content")(ms)
			ms["queue"] += extra
		}},
		{StageRouter, shift("to", "created", "start", "end", "token", "output", "flushed", "content")},
		{StageDispatch, shift("created", "start", "end", "token", "output", "flushed", "content")},
		{StageIntake, shift("start", "end", "token", "output", "flushed", "content")},
		{StageWaiting, shift("end", "token", "output", "flushed", "content")},
		{StagePrefill, shift("token", "output", "flushed", "content")},
		{StageOutput, shift("output", "flushed", "content")},
		{StagePath, shift("flushed", "content")},
		{StageDelivery, shift("content")},
	} {
		var b Book
		b.records, b.boot = map[string]*Record{}, "b"
		base := trace.Now()
		for i := range 200 {
			ms := map[string]int64{"sent": 0, "arrival_time": 2, "pool_wait": 1, "queue": 1, "to": 10, "created": 12, "start": 13, "end": 23, "token": 50, "output": 52, "flushed": 55, "content": 56}
			if i >= 150 {
				c.delay(ms)
			}
			at := func(name string) int64 { return base + ms[name]*1e6 }
			s := sample(i, at("sent"))
			s.Intended, s.Started, s.FirstContent, s.FirstToken = base-1e6, base, at("content"), at("content")
			b.Add(s)
			line := fmt.Sprintf(`{"request_id":"r-%d","boot_id":"b","arrival_time":%d,"first_flushed_time":%d,"finish_time":%d,"stages":{"pool_wait":%d,"queue":%d,"read":%d,"render":%d,"tokenize":%d},`+
				`"attempts":[{"legs":[{"engine":"e","to_server_time":%d,"server_created_time":%d,"queue_time_start":%d,"queue_time_end":%d,"server_first_token_time":%d,"first_output_time":%d}]}]}`,
				i, at("arrival_time"), at("flushed"), base+1e9, ms["pool_wait"]*1e6, ms["queue"]*1e6, ms["read"]*1e6, ms["render"]*1e6, ms["tokenize"]*1e6, at("to"), at("created"), at("start"), at("end"), at("token"), at("output"))
			if err := b.take([]byte(line), nil); err != nil {
				t.Fatal(err)
			}
		}
		all := Attribute(b.Rows())
		slow := all[3]
		if slow.Metric != "ttft" || slow.From != 99 || slow.Requests != 2 || math.Abs(slow.Excess-extra) > 0.01 || slow.Residual != 0 {
			t.Errorf("%s: %+v", c.stage, slow)
		}
		for _, p := range slow.Stages {
			if want := map[bool]float64{true: extra}[p.Stage == c.stage]; math.Abs(p.Excess-want) > 0.01 {
				t.Errorf("delayed in %s: %s has %+v", c.stage, p.Stage, p)
			}
		}
		if want := fmt.Sprintf("100 %% of that is %s (+50.0 ms)", c.stage); !strings.Contains(slow.Sentence, want) {
			t.Errorf("%q lacks %q", slow.Sentence, want)
		}
	}
	if got := Attribute([]Row{{Sample: load.Sample{Outcome: load.Errored}}}); len(got) != 0 {
		t.Errorf("of nothing complete: %+v", got)
	}
}

// The time of a pair is its stages', as far as both engines tell; two that nobody tells apart
// are the engine's.
func TestPairSpans(t *testing.T) {
	const base = int64(1e18)
	for _, c := range []struct {
		name                                 string
		met, prefilled, transferred, running int64
		want                                 string
	}{
		{"all", 30, 100, 130, 140, "bootstrap 10, prefill 70, transfer 30, to running 10, engine 20"},
		{"SGLang without stamps", 0, 0, 130, 0, "engine 110, engine 30"},
		{"vLLM", 0, 100, 0, 0, "prefill 80, engine 60"},
		{"vLLM by ids", 0, 100, 0, 140, "prefill 80, engine 40, engine 20"},
		{"nothing", 0, 0, 0, 0, "engine 140"},
	} {
		at := func(ms int64) int64 {
			if ms == 0 {
				return 0
			}
			return base + ms*1e6
		}
		r := Row{Sample: *sample(0, base), Gateway: &Record{Pair: new(Pair), Attempts: []Attempt{{Legs: []Leg{{ToServer: at(20)}}}}}, PrefillEngine: "p",
			Arrival: at(10), ToServer: at(20), Met: at(c.met), Prefilled: at(c.prefilled), Transferred: at(c.transferred), Running: at(c.running), FirstReceived: at(160), FirstFlushed: at(170)}
		spans, residual := r.Spans()
		var got []string
		for _, s := range spans {
			if slices.Contains([]string{StageBootstrap, StagePrefill, StageTransfer, StageToRunning, StageEngine}, s.Stage) {
				got = append(got, fmt.Sprintf("%s %d", s.Stage, s.For/1e6))
			}
		}
		if text := strings.Join(got, ", "); text != c.want || residual != 0 {
			t.Errorf("%s: %s, residual %d", c.name, text, residual)
		}
	}
}

const extra = 50 // ms

// before puts it into a stage of the gateway's before the engine.
func before(stage string) func(map[string]int64) {
	return func(ms map[string]int64) {
		shift("to", "created", "start", "end", "token", "output", "flushed", "content")(ms)
		ms[stage] += extra
	}
}

// shift puts 50 ms before some of the moments.
func shift(names ...string) func(map[string]int64) {
	return func(ms map[string]int64) {
		for _, n := range names {
			ms[n] += extra
		}
	}
}

// A write may return after its reader has what was written; that is a residual,
// and none of -0.0.
func TestSmallResidual(t *testing.T) {
	b := average([]taken{{total: 1e6, residual: -100, by: map[string]int64{StagePath: 1e6 + 100}}})
	for _, from := range []float64{0, 50} {
		b.From = from
		if text := b.say("some"); !strings.HasSuffix(text, "residual 0.0 ms") {
			t.Errorf("%q", text)
		}
	}
}

// An engine that tells nothing has its time as one stage, and none is guessed.
func TestAttributionWithoutStamps(t *testing.T) {
	var b Book
	for i := range 4 {
		b.Add(sample(i, 1e18))
	}
	rows := b.Rows()
	spans, residual := rows[0].Spans()
	want := []string{StageClient, StageEngine, StageDecode, StageEnd}
	if len(spans) != len(want) || residual != 0 {
		t.Fatalf("%+v, residual %d", spans, residual)
	}
	for i, s := range spans {
		if s.Stage != want[i] {
			t.Errorf("%+v, want %s", s, want[i])
		}
	}
}
