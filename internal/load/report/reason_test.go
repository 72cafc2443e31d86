package report

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/trace"
)

// spent is a record with a stage of the gateway's that lasted this many milliseconds before
// the request was sent to its engine.
func spent(stage trace.Stage, ms int64) *trace.Record {
	r := recorded("r", ms, 5, 20, 1)
	r.Ledger.Spent[stage] = ms * 1e6
	r.CompletionTokens = 20
	return r
}

// The stage that took longest is named, and whose time it was.
func TestReason(t *testing.T) {
	for _, c := range []struct {
		name  string
		of    *trace.Record
		stage string
		says  []string
	}{
		{"a full pool", spent(trace.PoolWait, 3000), StageTokenWait, []string{"Its first output took 3.0 s, and 3.0 s of that (99 %) was tokenize wait: it waited for the tokenizing pool"}},
		{"a long template", spent(trace.Render, 400), StageTemplate, []string{"400 ms", "was template: the model's chat template"}},
		{"a long text", spent(trace.Tokenize, 400), StageTokenize, []string{"was tokenize: its text became ids"}},
		{"a client that sends slowly", spent(trace.Read, 900), StageRead, []string{"its client had not sent all of it"}},
		{"no room", spent(trace.Queue, 900), StageQueue, []string{"until an engine had room"}},
		{"a slow engine", recorded("r", 1, 5, 800, 1), StagePrefill, []string{"was prefill: engine a computed the prompt"}},
		{"a full engine", recorded("r", 1, 800, 20, 1), StageWaiting, []string{"engine a had it wait for a batch"}},
		{"a slow client", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Finished, r.Ledger.Spent[trace.Flush], r.CompletionTokens = r.Finished+4e9, 4e9, 1
			return r
		}(), StageFlush, []string{"From there 1 token took 4.1 s, and 4.0 s of that (98 %) was flush: its client did not take what weir wrote."}},
		{"an engine that generates slowly", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Finished += 4e9
			return r
		}(), StageDecode, []string{"was decode: engine a generated."}},
		{"a stall", func() *trace.Record {
			r := recorded("r", 1, 5, 600, 1)
			r.Stalls = []trace.Stall{{Start: r.Arrival - 1e8, End: r.Arrival + 3e8, Why: "tokenize, 400 ms (other)"}, {Start: r.Arrival + 4e8, End: r.Arrival + 5e8}}
			return r
		}(), StageStall, []string{"For 400 ms of it weir itself stood still, held by tokenize, 400 ms (other)."}},
		{"one that went back to the queue", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Attempts[0].Legs[0].Stamps.Retracted = 2
			return r
		}(), StageDecode, []string{"Engine a sent it back to its queue 2 times."}},
		{"one that failed", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Outcome, r.Code, r.Message = infer.Failed, "engine", "it broke"
			return r
		}(), StageDecode, []string{"It failed: engine (it broke). Its first output took"}},
		{"one that had no answer", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Attempts[0].Legs[0].Stamps, r.FirstReceived, r.FirstFlushed, r.Pace, r.Outcome, r.Code = infer.Stamps{}, 0, 0, nil, infer.Failed, "deadline"
			return r
		}(), StageEngine, []string{"was engine: engine a had it, and does not say more."}},
		{"one that was sent nowhere", func() *trace.Record {
			r := spent(trace.Queue, 700)
			r.Attempts, r.FirstReceived, r.FirstFlushed, r.Pace, r.Outcome, r.Code = nil, 0, 0, nil, infer.Rejected, "overloaded"
			return r
		}(), StageQueue, []string{"It was rejected: overloaded. It took", "router queue"}},
		{"an answer in one piece", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Stream, r.FirstFlushed, r.Pace.Sent = false, r.Finished, r.Pace.Last+1e5
			return r
		}(), StageDecode, []string{"It took 134 ms, and", "was decode"}},
		{"an answer in one piece that waits in weir", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Pace.Sent, r.Finished = r.Pace.Last+2e9, r.Finished+2e9
			r.Stream, r.FirstFlushed = false, r.Finished
			return r
		}(), StagePath, []string{"was output path: weir had the first output"}},
		{"an answer in one piece whose client is slow", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Pace.Sent, r.Finished = r.Pace.Last+1e5, r.Finished+2e9
			r.Stream, r.FirstFlushed, r.Ledger.Spent[trace.Flush] = false, r.Finished, 2e9
			return r
		}(), StageFlush, []string{"was flush: its client"}},
		{"an answer in one piece that comes in parts, whose client is slow", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Attempts[0].Legs[0].Stamps = infer.Stamps{}
			r.Pace.Sent, r.Pace.Last, r.Finished = r.FirstReceived+1e5, r.Pace.Last+2e9, r.Finished+2e9
			r.Stream, r.FirstFlushed, r.Ledger.Spent[trace.Flush] = false, r.Finished, 2e9
			return r
		}(), StageFlush, []string{"2.0 s of that", "was flush: its client did not take what weir wrote"}},
		{"a hop that is held", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			for _, at := range []*int64{&r.FirstReceived, &r.FirstFlushed, &r.Pace.Sent, &r.Pace.Last, &r.Finished} {
				*at += 2e9
			}
			return r
		}(), StageHop, []string{"2.0 s of that (98 %) was hop: on its way from engine a to weir"}},
		{"a freeze", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Pace.Last, r.Finished, r.CompletionTokens = r.Pace.Last+2e9, r.Finished+2e9, 20
			r.Pace.Gap = trace.Gap{For: 201e7, Before: 2e9, Token: 17}
			return r
		}(), StageGap, []string{"Its longest gap was 2.0 s, before token 17, and 2.0 s of that was before weir: engine a sent nothing"}},
		{"a gap in weir", func() *trace.Record {
			r := recorded("r", 1, 5, 20, 1)
			r.Pace.Last, r.Finished, r.CompletionTokens = r.Pace.Last+2e9, r.Finished+2e9, 20
			r.Pace.Gap = trace.Gap{For: 2e9, Before: 1e7, Token: 17}
			return r
		}(), StagePath, []string{"2.0 s of that was in weir"}},
	} {
		got := ReasonOf(Of(c.of))
		if got.Stage != c.stage || got.For <= 0 || len(got.Stages) == 0 {
			t.Errorf("%s: %+v, want %s", c.name, got, c.stage)
		}
		for _, part := range c.says {
			if !strings.Contains(got.Sentence, part) {
				t.Errorf("%s: %q lacks %q", c.name, got.Sentence, part)
			}
		}
	}
}

// For any record, its stages follow one another from its arrival on, and their names are those of
// all reports.
func TestReasonPartitions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := func(name string) int64 { return rapid.Int64Range(0, 500).Draw(t, name) }
		r := recorded("r", ms("tokenize"), ms("queue"), ms("prefill"), ms("output"))
		for _, s := range []trace.Stage{trace.Read, trace.Render, trace.PoolWait, trace.Tokenize, trace.Queue, trace.Flush} {
			r.Ledger.Spent[s] = ms(s.String()) * 1e6
		}
		leg := &r.Attempts[0].Legs[0]
		if r.Stream = rapid.Bool().Draw(t, "streamed"); rapid.Bool().Draw(t, "without stamps") {
			leg.Stamps = infer.Stamps{}
		}
		r.CompletionTokens, r.Pace.Gap = rapid.IntRange(0, 9).Draw(t, "tokens"), trace.Gap{For: ms("gap") * 1e6, Before: ms("before") * 1e6, Token: 2}
		switch rapid.IntRange(0, 3).Draw(t, "without") {
		case 1:
			r.FirstFlushed, r.Pace.Sent = 0, 0
		case 2:
			r.FirstFlushed, r.FirstReceived, r.Pace, leg.Stamps = 0, 0, nil, infer.Stamps{}
		case 3:
			r.FirstFlushed, r.FirstReceived, r.Pace, r.Attempts = 0, 0, nil, nil
		}
		got := ReasonOf(Of(r))
		at := 0.0
		for _, s := range got.Stages {
			if math.Abs(s.Start-at) > 0.01 || s.For < 0 || reasons[s.Stage] == "" && s.Stage != StageEnd {
				t.Fatalf("%+v begins not at %v", s, at)
			}
			at = s.Start + s.For
		}
		if total := float64(r.Total()) / 1e6; math.Abs(at-total) > 0.01 || got.Sentence == "" || strings.Contains(got.Sentence, "%!") {
			t.Fatalf("%v of %v: %+v", at, total, got)
		}
	})
}

// The slowest requests are in a timeline's report with their reasons, and so is each stall
// with those that lived through it.
func TestTimelineNamesTheSlow(t *testing.T) {
	all := []*trace.Record{spent(trace.PoolWait, 3000), spent(trace.Render, 2000)}
	all[0].RequestID, all[1].RequestID = "pooled", "templated"
	for range 20 {
		r := recorded("fast", 1, 5, 20, 1)
		r.Stalls = []trace.Stall{{Start: r.Arrival, End: r.Arrival + 3e7, Why: "the garbage collector <b>"}}
		all = append(all, r)
	}
	got, err := ReadTimeline([]string{written(t, all...)})
	if err != nil {
		t.Fatal(err)
	}
	var text, html strings.Builder
	if err := got.Text(&text); err != nil {
		t.Fatal(err)
	}
	if err := got.WriteHTML(&html); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"slowest     pooled: Its first output took 3.0 s", "slowest     templated: ", "was template",
		"stall       30 ms in which weir itself stood still, and 20 requests with it, held by the garbage collector <b>"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("no %q in\n%s", part, text.String())
		}
	}
	if strings.Contains(html.String(), "collector <b>") || !strings.Contains(html.String(), "the garbage collector &lt;b&gt;") {
		t.Error("the page has what a record says as it is")
	}
	if len(got.Slowest) < 2 || got.Slowest[0].RequestID != "pooled" || got.Slowest[0].Stage != StageTokenWait || len(got.Stalls) != 1 || got.Stalls[0].Requests != 20 {
		t.Errorf("%+v, %+v", got.Slowest, got.Stalls)
	}
}
