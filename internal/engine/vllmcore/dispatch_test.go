package vllmcore

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"
	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/engine/coreclient"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/mux"
	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/infer"
	"weir/internal/trace"
)

// core is the pure core with one accepted generation of 5 prompt ids and at most
// 10 new ones, which ends at id 2 or 7.
type core struct {
	*session
	t    *testing.T
	g    *coreclient.Generation
	sink *enginetest.Recorder
}

func newCore(t *testing.T) *core {
	e := New(Options{Options: coreclient.Options{Name: "e", Model: "m"}, EndIDs: []uint32{2}})
	c := &core{session: e.newSession(t.Context(), 0, ready{contextLength: 100}, nil), t: t, sink: enginetest.NewRecorder(1)}
	c.g = c.seat("r", c.sink)
	c.g.Hear(1)
	t.Cleanup(func() {
		for _, f := range c.sink.Faults() {
			t.Error(f)
		}
	})
	return c
}

func (c *core) seat(id string, sink *enginetest.Recorder) *coreclient.Generation {
	req := &infer.Request{ID: id, Prompt: make([]uint32, 5), MaxTokens: 10, StopIDs: []uint32{7}}
	g := newGeneration(c.session, req, 1, sink)
	if ok, _ := c.Table.Seat(g); !ok {
		c.t.Fatal("no seat")
	}
	return g
}

// says dispatches a message with the outputs given.
func (c *core) says(outs ...coretest.Output) bool {
	return c.Receive([][]byte{coretest.Append(nil, coretest.Batch{Outputs: outs}, "0.33.0")}, trace.Now())
}

func (c *core) finish() *infer.Finish {
	c.t.Helper()
	f, err := c.sink.WaitFinish(done())
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

// How often an engine has sent a request back to its queue adds up, whatever else a message
// says of it, and whether or not its clock is known.
func TestPreempted(t *testing.T) {
	for _, oneClock := range []bool{false, true} {
		c := newCore(t)
		c.oneClock = oneClock
		c.says(coretest.Output{ID: "r", IDs: ids(1), Finish: -1})
		c.says(coretest.Output{ID: "r", Preempted: 2, Finish: -1})
		c.says(coretest.Output{ID: "r", IDs: ids(1), Finish: -1})
		c.says(coretest.Output{ID: "r", IDs: []uint32{7}, Preempted: 1, Finish: finishStop, Stop: int64(7)})
		c.finish()
		if s := c.sink.Stamps(); s == nil || s.Retracted != 3 || (s.FirstToken != 0) != oneClock {
			t.Errorf("one clock %v: %+v", oneClock, s)
		}
	}
}

func ids(n int) []uint32 { return slices.Repeat([]uint32{9}, n) }

func TestFaults(t *testing.T) {
	for _, test := range []struct {
		reason mux.FaultReason
		before int // ids received before it
		out    coretest.Output
	}{
		{mux.FaultLimit, 10, coretest.Output{IDs: ids(1), Finish: -1}},
		{mux.FaultLimit, 0, coretest.Output{IDs: ids(11), Finish: finishLength}},
		{coreclient.FaultLength, 3, coretest.Output{IDs: ids(1), Finish: finishLength}},
		{coreclient.FaultStop, 3, coretest.Output{IDs: ids(1), Finish: finishStop}},
		{coreclient.FaultStop, 3, coretest.Output{IDs: []uint32{7, 9}, Finish: finishStop, Stop: int64(7)}},
		{coreclient.FaultStop, 3, coretest.Output{IDs: []uint32{7}, Finish: finishStop, Stop: int64(2)}},
		{coreclient.FaultStop, 0, coretest.Output{Finish: finishStop}},
		{coreclient.FaultPrompt, 0, coretest.Output{IDs: ids(1), Finish: -1, Prompt: 6}},
		{mux.FaultReasonWord, 3, coretest.Output{IDs: ids(1), Finish: finishRepetition, Stop: "repetition_detected"}},
	} {
		t.Run(fmt.Sprintf("%s/%d", test.reason, test.before), func(t *testing.T) {
			c := newCore(t)
			other := enginetest.NewRecorder(1)
			c.seat("other", other).Hear(1)
			if test.before > 0 && !c.says(coretest.Output{ID: "r", IDs: ids(test.before), Finish: -1}) {
				t.Fatal("the session ended")
			}
			test.out.ID = "r"
			if !c.says(test.out, coretest.Output{ID: "other", IDs: ids(2), Finish: -1}) {
				t.Fatal("the session ended for a fault of one request")
			}
			f := c.finish()
			var fault *mux.Fault
			if !errors.As(f.Err, &fault) || fault.Reason != test.reason || f.Err.Code != infer.CodeIntegrity || !f.Err.Retryable {
				t.Fatalf("%v", f.Err)
			}
			if fault.Part == nil || fault.Part.Before != test.before || fault.RequestID != "r" || len(fault.Frames) == 0 || fault.Shared() {
				t.Errorf("evidence %+v", fault)
			}
			if got := c.sink.IDs(); len(got) != test.before {
				t.Errorf("%d ids delivered, want %d", len(got), test.before)
			}
			if got := other.IDs(); len(got) != 2 {
				t.Errorf("the other request has %d ids", len(got))
			}
			_, _, aborts := c.Out.Take(1)
			if want := test.out.Finish < 0; (aborts == 1) != want {
				t.Errorf("%d aborts", aborts)
			}
		})
	}
}

// A core with a connector ends a request with kv_transfer_params, in either mode: they are
// read, and what is behind them.
func TestTransferParamsAreRead(t *testing.T) {
	for _, push := range []bool{false, true} {
		c := newCore(t)
		params := coretest.Prefilled(&coretest.Request{ID: "cmpl-r-0-80d7c9d5", Prompt: ids(40)}, "engine", "127.0.0.1", 5600, push)
		if !c.says(coretest.Output{ID: "r", IDs: ids(10), Finish: finishLength, Prompt: 5, Cached: 4, Transfer: params}) {
			t.Fatal("the session ended")
		}
		if f := c.finish(); f.Err != nil || f.Reason != infer.ReasonLength || f.CachedTokens != 4 || engine.CheckHanded(f.Params) != nil {
			t.Errorf("push %v: %+v", push, f)
		}
	}
}

// An engine that does not take a guide says so in its log, and allows nothing but an
// end id: an empty answer to a guide that no empty text follows is an error.
func TestGuideNotTaken(t *testing.T) {
	for _, test := range []struct {
		guide  infer.Guide
		speaks bool
	}{
		{infer.Guide{Kind: infer.GuideJSONSchema, Text: "{}"}, true},
		{infer.Guide{Kind: infer.GuideChoice, Choices: []string{"a", "b"}}, true},
		{infer.Guide{Kind: infer.GuideChoice, Choices: []string{"a", ""}}, false},
		{infer.Guide{Kind: infer.GuideStructuralTag, Text: "{}"}, false},
		{infer.Guide{Kind: infer.GuideRegex, Text: ""}, false},
		{infer.Guide{Kind: infer.GuideRegex, Text: "a*"}, false},
		{infer.Guide{Kind: infer.GuideRegex, Text: "(a|b?){3}"}, false},
		{infer.Guide{Kind: infer.GuideRegex, Text: "^$"}, false},
		{infer.Guide{Kind: infer.GuideRegex, Text: "x{0,3}y{0}"}, false},
		{infer.Guide{Kind: infer.GuideRegex, Text: "a*b"}, true},
		{infer.Guide{Kind: infer.GuideRegex, Text: "[0-9]{3}"}, true},
		{infer.Guide{Kind: infer.GuideRegex, Text: "(a|.)+"}, true},
	} {
		got, err := speaks(&test.guide)
		if got != test.speaks || err != nil {
			t.Errorf("%+v: %v, %v", test.guide, got, err)
		}
	}
	if _, err := speaks(&infer.Guide{Kind: infer.GuideRegex, Text: "([0-9"}); err == nil || err.Code != infer.CodeInvalid || !strings.Contains(err.Message, "[0-9") {
		t.Errorf("%v", err)
	}
	for _, test := range []struct {
		out   coretest.Output
		fails bool
	}{
		{coretest.Output{IDs: []uint32{2}, Finish: finishStop}, true},
		{coretest.Output{IDs: []uint32{9, 2}, Finish: finishStop}, false},
		{coretest.Output{IDs: ids(10), Finish: finishLength}, false},
	} {
		c := newCore(t)
		c.g.Guided = true
		test.out.ID = "r"
		c.says(test.out)
		if f := c.finish(); (f.Err != nil) != test.fails || test.fails && (f.Err.Code != infer.CodeInvalid || f.Err.Retryable || f.Reason != infer.ReasonError) {
			t.Errorf("%+v: %+v", test.out, f)
		}
	}
}

// Correct output for each way in which a generation can end.
func TestEnds(t *testing.T) {
	for _, test := range []struct {
		name   string
		out    coretest.Output
		reason infer.Reason
		code   infer.Code
	}{
		{"end id", coretest.Output{IDs: []uint32{9, 2}, Finish: finishStop}, infer.ReasonStop, 0},
		{"stop id", coretest.Output{IDs: []uint32{7}, Finish: finishStop, Stop: int64(7)}, infer.ReasonStop, 0},
		{"limit", coretest.Output{IDs: ids(10), Finish: finishLength}, infer.ReasonLength, 0},
		{"shutting down", coretest.Output{IDs: ids(1), Finish: finishAbort}, infer.ReasonError, infer.CodeUnavailable},
		{"failed", coretest.Output{Finish: finishError}, infer.ReasonError, infer.CodeEngine},
		{"paused", coretest.Output{Finish: finishError, ErrorCode: "engine_paused", ErrorText: "x"}, infer.ReasonError, infer.CodeUnavailable},
		{"refused late", coretest.Output{Finish: finishError, ErrorCode: "validation_error", ErrorText: "x"}, infer.ReasonError, infer.CodeInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCore(t)
			test.out.ID, test.out.Prompt, test.out.Cached = "r", 5, 3
			c.says(test.out)
			f := c.finish()
			if f.Reason != test.reason || f.Err != nil && f.Err.Code != test.code || f.PromptTokens != 5 || f.CachedTokens != 3 {
				t.Fatalf("%+v", f)
			}
			if f.Err != nil && f.Err.Retryable != (test.code != infer.CodeInvalid) {
				t.Errorf("retryable %v", f.Err.Retryable)
			}
			if c.Table.Live() != 0 {
				t.Error("it is still known")
			}
			c.says(coretest.Output{ID: "r", IDs: ids(1), Finish: -1}) // too late
			if c.e.meters.Late.Load() != 1 {
				t.Errorf("%d late", c.e.meters.Late.Load())
			}
		})
	}
	// A context that is full ends a generation before its limit.
	c := newCore(t)
	c.context = 8
	c.says(coretest.Output{ID: "r", IDs: ids(3), Finish: finishLength})
	if f := c.finish(); f.Reason != infer.ReasonLength {
		t.Errorf("%+v", f)
	}
}

// A request that nobody here knows, of an earlier weir, is aborted; one that is
// ending is not.
func TestStrays(t *testing.T) {
	c := newCore(t)
	c.says(coretest.Output{ID: "a", IDs: ids(1), Finish: -1}, coretest.Output{ID: "b", IDs: ids(10), Finish: finishLength}, coretest.Output{ID: "r", IDs: ids(1), Finish: -1})
	wire, _, _ := c.Out.Take(1)
	if !strings.Contains(string(wire), "\x91\xa1a") || strings.Contains(string(wire), "\xa1b") {
		t.Errorf("%q", wire)
	}
	if got := c.sink.IDs(); len(got) != 1 {
		t.Errorf("ids %v", got)
	}
}

// Faults that end the session: nothing of the message is delivered, and every generation gets its
// terminal delta.
func TestFaultsOfTheSession(t *testing.T) {
	whole := coretest.Append(nil, coretest.Batch{Outputs: []coretest.Output{{ID: "r", IDs: ids(1), Finish: -1}}}, "0.33.0")
	for _, test := range []struct {
		reason mux.FaultReason
		wire   []byte
	}{
		{coreclient.FaultRank, coretest.Append(nil, coretest.Batch{Rank: 1, Outputs: []coretest.Output{{ID: "r", IDs: ids(1), Finish: -1}}}, "0.33.0")},
		{mux.FaultMalformed, whole[:len(whole)-1]},
		{mux.FaultMalformed, append(whole[:len(whole):len(whole)], 0xc0)},
		{mux.FaultMalformed, []byte("{}")},
		{mux.FaultMalformed, nil},
		{mux.FaultMalformed, []byte{0x93, 0, 0x90, 0xc0}},
	} {
		c := newCore(t)
		if c.Receive([][]byte{test.wire}, 1) {
			t.Fatalf("%s: %q was taken", test.reason, test.wire)
		}
		var end *mux.End
		var fault *mux.Fault
		if err := c.Err(); !errors.As(err, &end) || end.Why != mux.LossIntegrity || !errors.As(err, &fault) || fault.Reason != test.reason || !fault.Shared() {
			t.Fatalf("%v", err)
		}
		lost := c.Close(end)
		f := c.finish()
		if f.Err == nil || f.Err.Code != infer.CodeIntegrity || !f.Err.Retryable || len(c.sink.IDs()) != 0 || !slices.Equal(lost, []string{"r"}) {
			t.Errorf("%+v, lost %v", f, lost)
		}
		if c.Receive([][]byte{whole}, 1) {
			t.Error("a message after the end was taken")
		}
	}
}

// Each message is understood, in the words of every release.
func TestDecode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		release := rapid.SampledFrom([]string{"0.20.0", "0.24.0", "0.28.0", "0.33.0"}).Draw(t, "release")
		m := coretest.Batch{Rank: rapid.IntRange(0, 65535).Draw(t, "rank"), Timestamp: rapid.Int64Range(1, 1<<50).Draw(t, "timestamp")}
		id := rapid.SampledFrom([]uint32{0, 127, 128, 255, 256, 65535, 65536, 1<<31 - 1, 1<<32 - 1})
		for i := range rapid.IntRange(0, 5).Draw(t, "outputs") {
			o := coretest.Output{ID: fmt.Sprint(rapid.IntRange(0, 1<<40).Draw(t, "id"), i), IDs: rapid.SliceOf(id).Draw(t, "ids"), Finish: rapid.IntRange(-1, 4).Draw(t, "finish")}
			switch rapid.IntRange(0, 2).Draw(t, "stop") {
			case 1:
				o.Stop = rapid.Int64().Draw(t, "stop id")
			case 2:
				o.Stop = rapid.StringN(0, 40, 40).Draw(t, "stop word")
			}
			if rapid.Bool().Draw(t, "events") {
				o.Queued, o.Scheduled = m.Timestamp, m.Timestamp+1000
			}
			if rapid.Bool().Draw(t, "prefill") {
				o.Prompt, o.Cached = 1+rapid.IntRange(0, 1<<20).Draw(t, "prompt"), rapid.IntRange(0, 100).Draw(t, "cached")
			}
			if release == "0.33.0" && rapid.Bool().Draw(t, "error") {
				o.ErrorCode, o.ErrorText = "validation_error", "why"
			}
			m.Outputs = append(m.Outputs, o)
		}
		if rapid.Bool().Draw(t, "stats") {
			m.Stats = &coretest.Stats{Running: rapid.IntRange(0, 999).Draw(t, "running"), Waiting: rapid.IntRange(0, 999).Draw(t, "waiting"), KVUsage: rapid.Float64Range(0, 1).Draw(t, "kv")}
		}
		m.Call = rapid.Int64().Draw(t, "call")
		m.Complete = rapid.Int64Range(0, 3).Draw(t, "complete")
		m.Start = rapid.Int64Range(0, 3).Draw(t, "start")

		var d batch
		if err := d.decode(coretest.Append(nil, m, release)); err != nil {
			t.Fatal(err)
		}
		near := func(a, b int64) bool { return a-b < 2000 && b-a < 2000 } // of the float's precision
		if d.rank != m.Rank || !near(d.timestamp, m.Timestamp) || len(d.outputs) != len(m.Outputs) || d.utility != (m.Call != 0) || d.utility && d.call != m.Call || d.stats != (m.Stats != nil) {
			t.Fatalf("%+v of %+v", d, m)
		}
		if d.stats && (d.running != m.Stats.Running || d.waiting != m.Stats.Waiting || d.kvUsage != m.Stats.KVUsage) {
			t.Fatalf("%+v of %+v", d, m.Stats)
		}
		if d.waves != (m.Complete+m.Start > 0) || d.waves && (d.complete != m.Complete-1 || d.start != m.Start-1) {
			t.Fatalf("waves %v %d %d of %d %d", d.waves, d.complete, d.start, m.Complete-1, m.Start-1)
		}
		for i, want := range m.Outputs {
			o := &d.outputs[i]
			if string(o.id) != want.ID || !slices.Equal(d.ids[o.from:o.to], want.IDs) || o.finish != want.Finish {
				t.Fatalf("%+v of %+v", o, want)
			}
			var stop any
			if o.stop.isID {
				stop = o.stop.id
			} else if o.stop.given {
				stop = string(o.stop.word)
			}
			if !reflect.DeepEqual(stop, want.Stop) {
				t.Fatalf("stop %v of %v", stop, want.Stop)
			}
			if want.Queued != 0 && !(near(o.queued, want.Queued) && near(o.scheduled, want.Scheduled)) || want.Queued == 0 && o.queued != 0 {
				t.Fatalf("events %+v of %+v", o, want)
			}
			prompt, cached := -1, -1
			if want.Prompt > 0 {
				prompt, cached = want.Prompt, want.Cached
			}
			if o.promptTokens != prompt || o.cachedTokens != cached || string(o.errorCode) != want.ErrorCode || string(o.errorText) != want.ErrorText {
				t.Fatalf("%+v of %+v", o, want)
			}
		}
	})
}

// Other maps at the moving positions, and what later releases may append.
func TestUnknownFieldsAreSkipped(t *testing.T) {
	b := msgp.AppendArrayHeader(nil, 11)
	b = msgp.AppendInt(b, 0)
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendArrayHeader(b, 14)
	b = msgp.AppendString(b, "r")
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendInt(b, 9)
	b = msgp.AppendMapHeader(b, 0) // logprobs, which nobody asked for
	b = msgp.AppendArrayHeader(msgp.AppendNil(msgp.AppendNil(b)), 0)
	b = msgp.AppendNil(msgp.AppendNil(b))
	for _, v := range []any{map[string]any{"do_remote_decode": true}, map[string]any{"num_cached_tokens": "x"}, map[string]any{}, []any{map[string]any{"code": 1}}} {
		var err error
		if b, err = msgp.AppendIntf(b, v); err != nil {
			t.Fatal(err)
		}
	}
	b = msgp.AppendMapHeader(b, 1)
	b = msgp.AppendString(msgp.AppendInt(b, 1), "a key that is not a name")
	b = msgp.AppendMapHeader(b, 1)
	b = msgp.AppendInt(msgp.AppendString(b, "num_prompt_tokens"), 77)
	b = msgp.AppendNil(b)
	b = msgp.AppendInt(b, 12) // a timestamp that Python wrote as an integer
	for range 6 {
		b = msgp.AppendNil(b)
	}
	b = msgp.AppendString(b, "later")
	var d batch
	err := d.decode(b)
	if err == nil || !strings.Contains(err.Error(), "finish_reason") && !strings.Contains(err.Error(), "field 5") {
		t.Fatalf("a list where finish_reason stands: %v", err)
	}
	b = []byte(strings.Replace(string(b), "\x80\xc0\xc0\x90\xc0\xc0", "\x80\xc0\xc0\xc0\xc0\xc0", 1))
	if err := d.decode(b); err != nil {
		t.Fatal(err)
	}
	if len(d.outputs) != 1 || d.outputs[0].promptTokens != 77 || d.timestamp != 12e9 {
		t.Errorf("%+v", d)
	}
}

func FuzzOutputs(f *testing.F) {
	for _, release := range []string{"0.20.0", "0.33.0"} {
		f.Add(coretest.Append(nil, coretest.Batch{Outputs: []coretest.Output{
			{ID: "r", IDs: []uint32{1, 200, 70_000}, Finish: finishStop, Stop: int64(2), Queued: 1e9, Scheduled: 2e9, Prompt: 5, Cached: 2},
			{ID: "s", Finish: finishError, ErrorCode: "engine_paused"},
		}, Stats: &coretest.Stats{Running: 1}, Call: 7, Complete: 1}, release))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var d, again batch
		err := d.decode(wire)
		if rank := rankOf(wire); err == nil && rank != d.rank {
			t.Fatalf("rank %d and %d", rank, d.rank)
		}
		if (again.decode(wire) == nil) != (err == nil) || !reflect.DeepEqual(d, again) {
			t.Fatalf("%+v, then %+v", d, again)
		}
		for i := range d.outputs {
			if o := &d.outputs[i]; err == nil && (o.from > o.to || int(o.to) > len(d.ids)) {
				t.Fatalf("ids %d to %d of %d", o.from, o.to, len(d.ids))
			}
		}
		// The engine's word reaches a session of one request whole or not at all.
		e := New(Options{Options: coreclient.Options{Name: "e", Model: "m"}, EndIDs: []uint32{2}})
		s := e.newSession(t.Context(), 0, ready{contextLength: 100}, nil)
		sink := enginetest.NewRecorder(1)
		g := newGeneration(s, &infer.Request{ID: "r", Prompt: make([]uint32, 5), MaxTokens: 10}, 1, sink)
		s.Table.Seat(g)
		g.Hear(1)
		s.Receive([][]byte{wire}, 1)
		s.Close(&mux.End{Why: mux.LossClosed})
		if faults := sink.Faults(); len(faults) > 0 {
			t.Fatal(faults)
		}
		if _, err := sink.WaitFinish(done()); err != nil {
			t.Fatal(err)
		}
	})
}

// The cost of a message is bounded by its bytes, whatever numbers it claims.
func TestClaims(t *testing.T) {
	head := []byte{0x94, 0} // of a batch: the engine's index, and then its outputs
	output := []byte{0x98, 0xa0, 0x90, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0}
	for name, wire := range map[string][]byte{
		"many outputs":   append(msgp.AppendArrayHeader(slices.Clip(head), 1<<20), bytes.Repeat(output, 1<<20)...),
		"outputs":        msgp.AppendArrayHeader(slices.Clip(head), 1<<31),
		"ids":            msgp.AppendArrayHeader(append(slices.Clip(head), 0x91, 0x98, 0xa0), 1<<31),
		"fields":         msgp.AppendArrayHeader(nil, 1<<31),
		"events":         msgp.AppendArrayHeader(append(slices.Clip(head), 0x91, 0x98, 0xa0, 0x90, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0), 1<<31),
		"a map of stats": msgp.AppendMapHeader(append(slices.Clip(head), 0x90), 1<<31),
	} {
		var d batch
		var failed error
		if n := enginetest.Allocated(func() { failed = d.decode(wire) }); failed == nil || n > uint64(4*len(wire))+64<<10 {
			t.Errorf("%s: %d bytes for a message of %d: %v", name, n, len(wire), failed)
		}
	}
}

func FuzzWordOfItself(f *testing.F) {
	f.Add([]byte("\x82\xadmax_model_len\xcd\x10\x00\xacvllm_version\xa60.33.0"))
	f.Add([]byte("\x81\xa6status\xa5HELLO"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeReady(b); err == nil {
			if r.contextLength <= 0 {
				t.Fatalf("%+v", r)
			}
			r.judge(false)
		}
		if h, err := decodeHello(b); err == nil && h.status == "" {
			t.Fatal("no status")
		}
	})
}

// Log probabilities are read wherever an engine puts their data and however wide
// it writes ids, those beyond what was asked for are left out, and what is not of
// the ids that came is a fault of its request.
func TestLogprobs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.IntRange(0, 5).Draw(t, "rows")
		cols := rapid.IntRange(0, 4).Draw(t, "alternatives sent")
		top := rapid.IntRange(0, cols).Draw(t, "alternatives asked for")
		l := coretest.Logprobs{Wide: rapid.Bool().Draw(t, "wide")}
		var want infer.Logprobs
		for range rows {
			l.Of = append(l.Of, rapid.Uint32Max(1<<31-1).Draw(t, "id"))
			l.Own = append(l.Own, rapid.Float32().Draw(t, "own"))
			for k := range cols {
				l.TopIDs = append(l.TopIDs, rapid.Uint32Max(1<<31-1).Draw(t, "top id"))
				l.Top = append(l.Top, rapid.Float32().Draw(t, "top"))
				if k < top {
					want.TopIDs, want.Top = append(want.TopIDs, l.TopIDs[len(l.TopIDs)-1]), append(want.Top, l.Top[len(l.Top)-1])
				}
			}
		}
		want.Own = l.Own
		ids, values := l.Frames()
		var aux [][]byte
		if rapid.Bool().Draw(t, "in frames") {
			l.Frame = 2
			aux = [][]byte{nil, ids, values}
		}
		var d batch
		wire := coretest.Append(nil, coretest.Batch{Outputs: []coretest.Output{{ID: "r", IDs: l.Of, Logprobs: &l, Finish: -1}}}, "0.33.0")
		if err := d.decode(wire); err != nil {
			t.Fatal(err)
		}
		got := infer.Logprobs{Own: make([]float32, 3)} // of the output before
		if err := readLogprobs(d.logprobs(&d.outputs[0]), aux, d.ids, top, &got); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Own, want.Own) || !slices.Equal(got.TopIDs, want.TopIDs) || !slices.Equal(got.Top, want.Top) {
			t.Fatalf("%v, want %v", got, want)
		}
		if rows == 0 {
			return
		}
		for name, bad := range map[string]error{
			"another id":         readLogprobs(d.logprobs(&d.outputs[0]), aux, append([]uint32{l.Of[0] + 1}, l.Of[1:]...), top, &got),
			"an id more":         readLogprobs(d.logprobs(&d.outputs[0]), aux, append(l.Of[:rows:rows], 1), top, &got),
			"an id less":         readLogprobs(d.logprobs(&d.outputs[0]), aux, l.Of[:rows-1], top, &got),
			"more alternatives":  readLogprobs(d.logprobs(&d.outputs[0]), aux, l.Of, cols+1, &got),
			"none":               readLogprobs(nil, aux, l.Of, top, &got),
			"a part":             readLogprobs(d.logprobs(&d.outputs[0])[:10], aux, l.Of, top, &got),
			"without its frames": readLogprobs(withFrame(l), nil, l.Of, top, &got),
		} {
			if bad == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}

func withFrame(l coretest.Logprobs) []byte {
	l.Frame = 1
	var d batch
	if err := d.decode(coretest.Append(nil, coretest.Batch{Outputs: []coretest.Output{{ID: "r", Logprobs: &l, Finish: -1}}}, "0.33.0")); err != nil {
		panic(err)
	}
	return d.logprobs(&d.outputs[0])
}

func FuzzLogprobs(f *testing.F) {
	l := coretest.Logprobs{Of: []uint32{5}, Own: []float32{-1}, TopIDs: []uint32{5, 6}, Top: []float32{-1, -2}}
	f.Add(withFrame(l))
	var d batch
	if err := d.decode(coretest.Append(nil, coretest.Batch{Outputs: []coretest.Output{{ID: "r", Logprobs: &l, Finish: -1}}}, "0.33.0")); err != nil {
		f.Fatal(err)
	}
	f.Add(d.logprobs(&d.outputs[0]))
	ids, values := l.Frames()
	f.Fuzz(func(t *testing.T, b []byte) {
		var got infer.Logprobs
		for top := range 3 {
			if err := readLogprobs(b, [][]byte{ids, values}, l.Of, top, &got); err == nil && len(b) > 0 && !got.Fits(1, top) {
				t.Fatalf("%v taken for one position with %d alternatives", got, top)
			}
		}
	})
}

// Buffers that a very large message needed are dropped with the next message.
func TestLargeMessageIsNotKept(t *testing.T) {
	var d batch
	for _, ids := range [][]uint32{make([]uint32, 1<<20), {1}} {
		if err := d.decode(coretest.Append(nil, coretest.Batch{Outputs: []coretest.Output{{ID: "r", IDs: ids, Finish: -1}}}, "0.33.0")); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.ids) != 1 || cap(d.ids) > keepIDs {
		t.Errorf("%d ids, with room for %d", len(d.ids), cap(d.ids))
	}
}
