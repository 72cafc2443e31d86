package sglangipc

import (
	"bytes"
	"context"
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
	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/infer"
	"weir/internal/trace"
)

// core is the pure core with one generation of 5 prompt ids and at most 10 new ones.
type core struct {
	*session
	t    testing.TB
	g    *coreclient.Generation
	sink *enginetest.Recorder
}

const requestID = "request-000001"

func newCore(t testing.TB) *core {
	h, c, err := parseManifest(schedtest.Manifest(nil))
	if err != nil {
		t.Fatal(err)
	}
	e := New(Options{Options: coreclient.Options{Name: "e"}})
	s := &core{session: e.newSession(context.Background(), h, c, nil), t: t, sink: enginetest.NewRecorder(1)}
	s.g = s.seat(requestID, s.sink)
	return s
}

func (c *core) seat(id string, sink *enginetest.Recorder) *coreclient.Generation {
	g := coreclient.NewGeneration(c.Out, &infer.Request{ID: id, Prompt: make([]uint32, 5), MaxTokens: 10}, 1, sink)
	if ok, _ := c.Table.Seat(g); !ok {
		c.t.Fatal("no seat")
	}
	return g
}

func (c *core) wire(b []byte) bool { return c.Receive([][]byte{b}, trace.Now()) }

// says dispatches a step with the outputs given.
func (c *core) says(outs ...schedtest.Output) bool { return c.wire(schedtest.AppendStep(nil, outs...)) }

// How often a request went back to the queue is told as far as it is known, with the
// output that follows.
func TestRetracted(t *testing.T) {
	c := newCore(t)
	for i, n := range []int{0, 1, 1, 3} {
		out := schedtest.Output{ID: requestID, IDs: []uint32{9}, Prompt: 5, Count: i + 1, Retracted: n}
		if i == 2 {
			out.IDs, out.Count = nil, 2 // a message without output
		}
		if i == 3 {
			out.Count, out.Finish = 3, map[string]any{"type": "stop", "matched": int64(9)}
		}
		c.says(out)
	}
	c.finish()
	if s := c.sink.Stamps(); s == nil || s.Retracted != 3 {
		t.Errorf("%+v", s)
	}
}

func (c *core) finish() *infer.Finish {
	c.t.Helper()
	f, err := c.sink.WaitFinish(done())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, fault := range c.sink.Faults() {
		c.t.Error(fault)
	}
	return f
}

func ids(n int) []uint32 { return slices.Repeat([]uint32{9}, n) }

func stop(matched any) map[string]any { return map[string]any{"type": "stop", "matched": matched} }

func length(n int) map[string]any { return map[string]any{"type": "length", "length": n} }

func TestFaults(t *testing.T) {
	for _, test := range []struct {
		reason mux.FaultReason
		before int // ids received before it
		out    schedtest.Output
	}{
		{coreclient.FaultCount, 0, schedtest.Output{IDs: ids(1), Count: 2}},
		{coreclient.FaultCount, 3, schedtest.Output{IDs: ids(1), Count: 3}},
		{coreclient.FaultCount, 3, schedtest.Output{Count: 4, Finish: length(4)}},
		{coreclient.FaultCount, 3, schedtest.Output{Count: 5, Finish: abortReason(nil)}},
		{mux.FaultLimit, 10, schedtest.Output{IDs: ids(1), Count: 11}},
		{mux.FaultLimit, 0, schedtest.Output{IDs: ids(11), Count: 11, Finish: length(11)}},
		{coreclient.FaultLength, 3, schedtest.Output{IDs: ids(1), Count: 4, Finish: length(5)}},
		{coreclient.FaultStop, 3, schedtest.Output{IDs: ids(1), Count: 4, Finish: stop(8)}},
		{coreclient.FaultStop, 3, schedtest.Output{IDs: ids(1), Count: 4, Finish: stop([]any{9, 8})}},
		{coreclient.FaultStop, 0, schedtest.Output{Finish: stop(8)}},
		{coreclient.FaultPrompt, 0, schedtest.Output{IDs: ids(1), Count: 1, Prompt: 6}},
		{mux.FaultReasonWord, 3, schedtest.Output{IDs: ids(1), Count: 4, Finish: stop("NaN happened")}},
	} {
		t.Run(fmt.Sprintf("%s/%d", test.reason, test.before), func(t *testing.T) {
			c := newCore(t)
			c.g.Hear(1)
			other := enginetest.NewRecorder(1)
			c.seat("other-00000001", other).Hear(1)
			if test.before > 0 && !c.says(schedtest.Output{ID: requestID, IDs: ids(test.before), Count: test.before, Prompt: 5}) {
				t.Fatal("the session ended")
			}
			test.out.ID = requestID
			if test.out.Prompt == 0 {
				test.out.Prompt = 5
			}
			if !c.says(test.out, schedtest.Output{ID: "other-00000001", IDs: ids(2), Count: 2, Prompt: 5}) {
				t.Fatal("the session ended for a fault of one request")
			}
			f := c.finish()
			var fault *mux.Fault
			if !errors.As(f.Err, &fault) || fault.Reason != test.reason || f.Err.Code != infer.CodeIntegrity || !f.Err.Retryable {
				t.Fatalf("%v", f.Err)
			}
			if fault.Part == nil || fault.Part.Before != test.before || fault.Part.Total != test.out.Count || fault.RequestID != requestID || len(fault.Frames) == 0 || fault.Shared() {
				t.Errorf("evidence %+v", fault)
			}
			if got := c.sink.IDs(); len(got) != test.before {
				t.Errorf("%d ids delivered, want %d", len(got), test.before)
			}
			if got := other.IDs(); len(got) != 2 {
				t.Errorf("the other request has %d ids", len(got))
			}
			_, _, aborts := c.Out.Take(1)
			if want := test.out.Finish == nil; (aborts == 1) != want {
				t.Errorf("%d aborts", aborts)
			}
		})
	}
}

// Correct output for each way in which a generation can end.
func TestEnds(t *testing.T) {
	for _, test := range []struct {
		name      string
		out       schedtest.Output
		reason    infer.Reason
		code      infer.Code
		retryable bool
		ids       int
	}{
		{"end id", schedtest.Output{IDs: []uint32{9, 2}, Count: 2, Finish: stop(2)}, infer.ReasonStop, 0, false, 2},
		{"end ids", schedtest.Output{IDs: []uint32{9, 2}, Count: 2, Finish: stop([]any{9, 2})}, infer.ReasonStop, 0, false, 2},
		{"limit", schedtest.Output{IDs: ids(10), Count: 10, Finish: length(10)}, infer.ReasonLength, 0, false, 10},
		{"memory", schedtest.Output{IDs: ids(4), Count: 4, Finish: length(4)}, infer.ReasonLength, 0, false, 4},
		{"refused", schedtest.Output{IDs: ids(1), Count: 1, Prompt: 1, Finish: abortReason(400)}, infer.ReasonError, infer.CodeInvalid, false, 0},
		{"preempted", schedtest.Output{Count: 0, Finish: abortReason(503)}, infer.ReasonError, infer.CodeOverloaded, true, 0},
		{"failed", schedtest.Output{IDs: ids(1), Count: 1, Finish: abortReason(500)}, infer.ReasonError, infer.CodeEngine, true, 1},
		{"aborted by another", schedtest.Output{Finish: abortReason(nil)}, infer.ReasonError, infer.CodeEngine, true, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCore(t)
			c.g.Hear(1)
			test.out.ID, test.out.Cached = requestID, 3
			if test.out.Prompt == 0 {
				test.out.Prompt = 5
			}
			c.says(test.out)
			f := c.finish()
			if f.Reason != test.reason || f.Err != nil && (f.Err.Code != test.code || f.Err.Retryable != test.retryable) || f.PromptTokens != 5 || f.CachedTokens != 3 {
				t.Fatalf("%+v, %+v", f, f.Err)
			}
			if got := c.sink.IDs(); len(got) != test.ids {
				t.Errorf("%d ids", len(got))
			}
			if c.Table.Live() != 0 {
				t.Error("it is still known")
			}
			c.says(schedtest.Output{ID: requestID, IDs: ids(1), Count: 1, Prompt: 5}) // too late
			if c.e.meters.Late.Load() != 1 {
				t.Errorf("%d late", c.e.meters.Late.Load())
			}
		})
	}
}

// A request that ends outside of a step: while it waited, aborted by us or by the
// engine, before its hand-over was confirmed or after.
func TestEchoes(t *testing.T) {
	for _, confirmed := range []bool{false, true} {
		c := newCore(t)
		if confirmed {
			c.g.Hear(1)
		}
		if !c.wire(schedtest.AppendEcho(nil, requestID, abortReason(503))) || c.Table.Live() != 0 {
			t.Fatal("not taken in")
		}
		err := c.g.Await(done(), &trace.Leg{})
		if confirmed {
			err = c.finish().Err
		}
		var e *infer.Error
		if !errors.As(err, &e) || e.Code != infer.CodeOverloaded || !e.Retryable {
			t.Errorf("confirmed %v: %v", confirmed, err)
		}
	}
	c := newCore(t)
	c.g.Hear(1)
	c.g.Abort()
	c.wire(schedtest.AppendEcho(nil, requestID, nil))
	if f := c.finish(); f.Reason != infer.ReasonAbort {
		t.Errorf("%v", f)
	}
	if !c.wire(schedtest.AppendEcho(nil, "somebody-else", nil)) {
		t.Error("the session ended for an end of nobody's")
	}
}

// An engine that knows of an abort and does not end the request is not waited for
// without a bound.
func TestOverdue(t *testing.T) {
	c := newCore(t)
	c.g.Hear(1)
	c.g.Abort()
	if !c.wire(c.fence()) {
		t.Fatal("the session ended")
	}
	now, patience := trace.Now(), int64(c.opts.AbortTimeout)
	c.overdue(now-patience, now)
	if _, err := c.sink.WaitFinish(done()); err == nil {
		t.Fatal("ended at once")
	}
	c.overdue(now+1, now+patience+1)
	if f := c.finish(); f.Reason != infer.ReasonAbort || c.Table.Live() != 0 {
		t.Errorf("%v", f)
	}
}

// fence sends what waits and gives the answer to the fence in it.
func (c *core) fence() []byte {
	wire, _, _ := c.Out.Take(1)
	id := string(wire[strings.Index(string(wire), fenceName):])
	id = id[:strings.IndexByte(id, msgpNil)]
	return schedtest.AppendMessage(nil, tagFence, append([]any{id}, make([]any, len(schedtest.Fields(tagFence))-1)...)...)
}

// A request that nobody here knows, of an earlier weir, is aborted; one that is
// ending is not, nor one whose id could be that of many.
func TestStrays(t *testing.T) {
	c := newCore(t)
	c.g.Hear(1)
	c.says(schedtest.Output{ID: "stray-00000001", IDs: ids(1), Count: 7}, schedtest.Output{ID: "ending-0000001", Count: 7, Finish: length(7)},
		schedtest.Output{ID: "short", IDs: ids(1), Count: 7}, schedtest.Output{IDs: ids(1), Count: 7},
		schedtest.Output{ID: requestID, IDs: ids(1), Count: 1, Prompt: 5})
	wire, _, _ := c.Out.Take(1)
	if !strings.Contains(string(wire), "stray-00000001") || strings.Contains(string(wire), "ending") || strings.Contains(string(wire), "short") || strings.Count(string(wire), tagAbort) != 1 {
		t.Errorf("%q", wire)
	}
	if got := c.sink.IDs(); len(got) != 1 {
		t.Errorf("ids %v", got)
	}
}

// Faults that end the session: nothing of the message is delivered, and every generation gets its
// terminal delta.
func TestFaultsOfTheSession(t *testing.T) {
	whole := schedtest.AppendStep(nil, schedtest.Output{ID: requestID, IDs: ids(1), Count: 1, Prompt: 5})
	for name, frames := range map[string][][]byte{
		"cut":         {whole[:len(whole)-1]},
		"more":        {append(whole[:len(whole):len(whole)], 0xc0)},
		"text":        {[]byte("{}")},
		"nothing":     {nil},
		"empty":       {[]byte{0x90}},
		"two frames":  {whole, whole},
		"no columns":  {schedtest.AppendMessage(nil, tagOutputs)},
		"a number":    {[]byte{7}},
		"no rid":      {schedtest.AppendMessage(nil, tagAbort, nil, nil, false, nil, nil, nil)},
		"fewer ids":   {[]byte(strings.Replace(string(whole), "\x91\xae"+requestID, "\x90", 1))},
		"another end": {schedtest.AppendStep(nil, schedtest.Output{ID: requestID, Finish: map[string]any{"type": "bored"}})},
		"negative":    {schedtest.AppendStep(nil, schedtest.Output{ID: requestID, Count: -1})},
	} {
		c := newCore(t)
		c.g.Hear(1)
		if c.Receive(frames, 1) {
			t.Fatalf("%s: taken", name)
		}
		var end *mux.End
		var fault *mux.Fault
		if err := c.Err(); !errors.As(err, &end) || end.Why != mux.LossIntegrity || !errors.As(err, &fault) || fault.Reason != mux.FaultMalformed || !fault.Shared() {
			t.Fatalf("%s: %v", name, err)
		}
		c.Close(end)
		f := c.finish()
		if f.Err == nil || f.Err.Code != infer.CodeIntegrity || !f.Err.Retryable || len(c.sink.IDs()) != 0 {
			t.Errorf("%s: %+v", name, f)
		}
		if c.wire(whole) {
			t.Error("a message after the end was taken")
		}
	}
}

// Each message is understood.
func TestDecode(t *testing.T) {
	_, codec, err := parseManifest(schedtest.Manifest(nil))
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		var said []schedtest.Output
		id := rapid.SampledFrom([]uint32{0, 127, 128, 255, 256, 65535, 65536, 1<<31 - 1, 1<<32 - 1})
		for i := range rapid.IntRange(0, 20).Draw(t, "outputs") {
			o := schedtest.Output{ID: fmt.Sprint(rapid.IntRange(0, 1<<60).Draw(t, "id"), i), IDs: rapid.SliceOfN(id, 0, 40).Draw(t, "ids"),
				Count: rapid.IntRange(0, 1<<30).Draw(t, "count"), Prompt: rapid.IntRange(0, 1<<20).Draw(t, "prompt"), Cached: rapid.IntRange(0, 300).Draw(t, "cached")}
			switch rapid.IntRange(0, 4).Draw(t, "finish") {
			case 1:
				o.Finish = stop(rapid.Int64().Draw(t, "matched"))
			case 2:
				o.Finish = stop(rapid.StringN(0, 40, 40).Draw(t, "word"))
			case 3:
				o.Finish = length(rapid.IntRange(0, 1<<30).Draw(t, "length"))
			case 4:
				o.Finish = abortReason(rapid.IntRange(1, 599).Draw(t, "status"))
			}
			said = append(said, o)
		}
		d := batch{codec: codec}
		if err := d.decode(schedtest.AppendStep(nil, said...)); err != nil {
			t.Fatal(err)
		}
		if d.kind != outputs || len(d.outputs) != len(said) {
			t.Fatalf("%+v of %+v", d, said)
		}
		for i, want := range said {
			o := &d.outputs[i]
			if string(o.id) != want.ID || !slices.Equal(d.ids[o.from:o.to], want.IDs) || o.count != want.Count || o.prompt != want.Prompt || o.cached != want.Cached {
				t.Fatalf("%+v of %+v", o, want)
			}
			var got map[string]any
			switch o.end.how {
			case stopped:
				got = stop(string(o.end.word))
				if o.end.isID {
					got = stop(o.end.matched)
				}
			case full:
				got = length(o.end.length)
			case aborted:
				got = abortReason(o.end.status)
			}
			if !reflect.DeepEqual(got, want.Finish) {
				t.Fatalf("%v of %v", got, want.Finish)
			}
		}
	})
}

// skip passes over exactly what another decoder does.
func TestSkip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var value func(depth int) any
		value = func(depth int) any {
			switch k := rapid.IntRange(0, 8-min(depth, 1)*2).Draw(t, "kind"); k {
			case 0:
				return nil
			case 1:
				return rapid.Bool().Draw(t, "bool")
			case 2:
				return rapid.Int64().Draw(t, "int")
			case 3:
				return rapid.Float64().Draw(t, "float")
			case 4:
				return rapid.StringN(0, 300, 300).Draw(t, "text")
			case 5:
				return rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes")
			case 6:
				return &msgp.RawExtension{Type: 3, Data: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "extension")}
			case 7:
				list := []any{}
				for range rapid.IntRange(0, 20).Draw(t, "n") {
					list = append(list, value(depth+1))
				}
				return list
			default:
				fields := map[string]any{}
				for i := range rapid.IntRange(0, 20).Draw(t, "n") {
					fields[fmt.Sprint(i)] = value(depth + 1)
				}
				return fields
			}
		}
		b, err := msgp.AppendIntf(nil, value(0))
		if err != nil {
			t.Fatal(err)
		}
		tail := "tail"
		rest, err := skip(append(b, tail...))
		if err != nil || string(rest) != tail {
			t.Fatalf("%d of %d bytes left, %v", len(rest), len(b), err)
		}
		if _, err := skip(b[:len(b)-1]); err == nil {
			t.Fatal("passed over a value that is cut short")
		}
	})
}

// The cost of a message is bounded by its bytes, whatever numbers it claims.
func TestClaims(t *testing.T) {
	_, codec, err := parseManifest(schedtest.Manifest(nil))
	if err != nil {
		t.Fatal(err)
	}
	head := msgp.AppendString(msgp.AppendArrayHeader(nil, uint32(len(schedtest.Fields(tagOutputs))+1)), tagOutputs)
	for name, wire := range map[string][]byte{
		"a column of ids":        append(msgp.AppendArrayHeader(head, 1<<20), bytes.Repeat([]byte{0xa0}, 1<<20)...),
		"a column that is short": msgp.AppendArrayHeader(head, 1<<31),
		"an array":               msgp.AppendArrayHeader(nil, 1<<31),
		"a text":                 append(msgp.AppendArrayHeader(nil, 2), 0xdb, 0x7f, 0xff, 0xff, 0xff),
		"a map":                  msgp.AppendMapHeader(msgp.AppendString(msgp.AppendArrayHeader(nil, 3), tagStateOut), 1<<31),
		"an extension":           append(msgp.AppendArrayHeader(head, 1), 0xa1, 'r', 0xc9, 0x7f, 0xff, 0xff, 0xff, extIDs),
	} {
		d := batch{codec: codec}
		var failed error
		if n := enginetest.Allocated(func() { failed = d.decode(wire) }); failed == nil || n > uint64(4*len(wire))+64<<10 {
			t.Errorf("%s: %d bytes for a message of %d: %v", name, n, len(wire), failed)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(schedtest.AppendStep(nil, schedtest.Output{ID: requestID, IDs: []uint32{1, 200, 70_000}, Count: 3, Prompt: 5, Finish: stop(70_000)},
		schedtest.Output{ID: "other-00000001", Count: 2, Finish: abortReason(503)}))
	f.Add(schedtest.AppendEcho(nil, requestID, abortReason(400)))
	for _, g := range readGolden(f) {
		for _, m := range g.Messages {
			f.Add(m)
		}
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		c := newCore(t)
		c.g.Hear(1)
		d, again := batch{codec: c.codec}, batch{codec: c.codec}
		err := d.decode(wire)
		if (again.decode(wire) == nil) != (err == nil) || !reflect.DeepEqual(d, again) {
			t.Fatalf("%+v, then %+v", d, again)
		}
		for i := range d.outputs {
			if o := &d.outputs[i]; err == nil && (o.from > o.to || o.to > len(d.ids)) {
				t.Fatalf("ids %d to %d of %d", o.from, o.to, len(d.ids))
			}
		}
		// An error of the engine reaches a session of one request whole or not at all.
		c.wire(wire)
		c.Close(&mux.End{Why: mux.LossClosed})
		if faults := c.sink.Faults(); len(faults) > 0 {
			t.Fatal(faults)
		}
		if _, err := c.sink.WaitFinish(done()); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzWord(f *testing.F) {
	f.Add(schedtest.Manifest(nil))
	for _, g := range readGolden(f) {
		f.Add([]byte(g.Manifest))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, c, err := parseManifest(b)
		if err != nil {
			return
		}
		h.judge(false)
		req := whole()
		if h.check(req, &engine.Additions{}) == nil {
			wrote := c.appendRequest(nil, req, &engine.Additions{}, "id", -1)
			if rest, err := skip(wrote); err != nil || len(rest) > 0 {
				t.Fatalf("a request that is no message: %v, %d bytes left", err, len(rest))
			}
		}
	})
}

// Buffers that a very large message needed are dropped with the next message.
func TestLargeMessageIsNotKept(t *testing.T) {
	_, codec, err := parseManifest(schedtest.Manifest(nil))
	if err != nil {
		t.Fatal(err)
	}
	d := batch{codec: codec}
	for _, ids := range [][]uint32{make([]uint32, 1<<20), {1}} {
		if err := d.decode(schedtest.AppendStep(nil, schedtest.Output{ID: "r", IDs: ids, Count: len(ids)})); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.ids) != 1 || cap(d.ids) > keepIDs {
		t.Errorf("%d ids, with room for %d", len(d.ids), cap(d.ids))
	}
}
