package plane

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"weir/internal/engine/enginetest"
	"weir/internal/engine/plane/planepb"
)

// sameAsGenerated compares a frame with what the generated decoder made of the
// same bytes.
func sameAsGenerated(t interface{ Fatalf(string, ...any) }, f *frame, want *planepb.Step) {
	switch {
	case f.sequence != want.GetSequence(),
		uint64(f.sendTime) != want.GetSendTime(),
		f.running != want.GetRunning(),
		f.waiting != want.GetWaiting(),
		!slices.Equal(f.slot, want.GetSlot()),
		!slices.Equal(f.count, want.GetCount()),
		!slices.Equal(f.total, want.GetTotal()),
		!slices.Equal(f.id, want.GetId()),
		!sameFloats(f.own, want.GetLogprob()),
		!slices.Equal(f.topID, want.GetTopId()),
		!sameFloats(f.top, want.GetTopLogprob()),
		!slices.EqualFunc(f.notices, want.GetNotice(), func(a, b *planepb.Notice) bool { return proto.Equal(a, b) }):
		t.Fatalf("frame %+v, generated decoder %v", f, want)
	}
}

// sameFloats compares bits: what is no number is itself.
func sameFloats(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func FuzzDecode(f *testing.F) {
	step := &planepb.Step{
		Sequence: 300, SendTime: 1 << 40, Slot: []uint32{0, 127, 128, 70000}, Count: []uint32{1, 2, 0, 1},
		Total: []uint32{1, 200, 20000, 1 << 31}, Id: []uint32{1, 1 << 14, 1<<21 - 1, 1<<32 - 1},
		Notice: []*planepb.Notice{
			{Slot: 3, Stamps: &planepb.Stamps{QueueStart: 5}},
			{Slot: 4, Finish: &planepb.Finish{Reason: planepb.Finish_REASON_ERROR, Message: "é"}},
		}, Running: 5, Waiting: 6,
		Logprob: []float32{-0.5, float32(math.Inf(-1))}, TopId: []uint32{7, 70000}, TopLogprob: []float32{0, -3},
	}
	whole, err := proto.Marshal(step)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte(nil))
	for _, n := range []int{1, 5, 11, 20, len(whole) - 1} {
		f.Add(whole[:n])
	}
	// Unpacked columns, a column in two parts, an unknown field, an unknown
	// group, a known field of the wrong type, an overlong number.
	b := protowire.AppendTag(nil, fieldSlot, protowire.VarintType)
	b = protowire.AppendVarint(b, 77)
	f.Add(slices.Concat(whole, b))
	f.Add(slices.Concat(whole, whole))
	b = protowire.AppendTag(nil, 15, protowire.BytesType)
	f.Add(protowire.AppendBytes(b, []byte("later")))
	f.Add([]byte{15<<3 | 3, 8, 1, 15<<3 | 4})
	f.Add([]byte{fieldSequence<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{fieldID<<3 | 2, 11, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01})
	f.Add([]byte{fieldID<<3 | 2, 2, 0x80, 0x80})
	f.Add([]byte{fieldLogprob<<3 | 2, 5, 1, 2, 3, 4, 5})
	f.Add([]byte{fieldTop<<3 | 5, 1, 2, 3, 4, fieldLogprob<<3 | 5, 5, 6})
	f.Add([]byte("\x80\x80\x80\x8000")) // a field number that only protobuf's own check refuses

	var reused frame
	f.Fuzz(func(t *testing.T, b []byte) {
		kept := bytes.Clone(b)
		err := reused.decode(b)
		var want planepb.Step
		wantErr := proto.Unmarshal(b, &want)
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("decode: %v, generated decoder: %v", err, wantErr)
		}
		if !bytes.Equal(b, kept) {
			t.Fatal("decode wrote into its input")
		}
		if err == nil {
			sameAsGenerated(t, &reused, &want)
			_ = reused.check()
		}
	})
}

func TestDecodeAnyStep(t *testing.T) {
	var f frame
	rapid.Check(t, func(t *rapid.T) {
		column := rapid.SliceOfN(rapid.Uint32(), 0, 40)
		floats := rapid.SliceOfN(rapid.Float32(), 0, 40)
		step := &planepb.Step{
			Sequence: rapid.Uint64().Draw(t, "sequence"), SendTime: rapid.Uint64().Draw(t, "send"),
			Slot: column.Draw(t, "slot"), Count: column.Draw(t, "count"),
			Total: column.Draw(t, "total"), Id: column.Draw(t, "id"),
			Running: rapid.Uint32().Draw(t, "running"),
			Logprob: floats.Draw(t, "logprob"), TopId: column.Draw(t, "top ids"), TopLogprob: floats.Draw(t, "top"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "notices") {
			step.Notice = append(step.Notice, &planepb.Notice{
				Slot:   rapid.Uint32().Draw(t, "slot"),
				Finish: &planepb.Finish{Message: rapid.String().Draw(t, "message")},
			})
		}
		b, err := proto.Marshal(step)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.decode(b); err != nil {
			t.Fatal(err)
		}
		sameAsGenerated(t, &f, step)
	})
}

func TestCheckColumns(t *testing.T) {
	for _, c := range []struct {
		name string
		f    frame
		ok   bool
	}{
		{"empty", frame{}, true},
		{"one each", frame{slot: []uint32{1, 2}, total: []uint32{1, 1}, id: []uint32{5, 6}}, true},
		{"counted", frame{slot: []uint32{1, 2}, count: []uint32{0, 2}, total: []uint32{1, 2}, id: []uint32{5, 6}}, true},
		{"total missing", frame{slot: []uint32{1, 2}, total: []uint32{1}, id: []uint32{5, 6}}, false},
		{"total too many", frame{total: []uint32{1}}, false},
		{"id missing", frame{slot: []uint32{1, 2}, total: []uint32{1, 1}, id: []uint32{5}}, false},
		{"ids without slots", frame{id: []uint32{5}}, false},
		{"counts without slots", frame{count: []uint32{0}}, false},
		{"count missing", frame{slot: []uint32{1, 2}, count: []uint32{2}, total: []uint32{1, 1}, id: []uint32{5, 6}}, false},
		{"counts too high", frame{slot: []uint32{1}, count: []uint32{3}, total: []uint32{3}, id: []uint32{5, 6}}, false},
		{"counts wrap around 32 bits", frame{
			slot: []uint32{1, 2}, count: []uint32{1<<32 - 1, 3}, total: []uint32{1, 1}, id: []uint32{5, 6},
		}, false},
	} {
		if err := c.f.check(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// The cost of a step is bounded by its bytes, whatever lengths it claims.
func TestClaims(t *testing.T) {
	empty := []byte{fieldNotice<<3 | 2, 0}
	for name, wire := range map[string][]byte{
		"notices":       bytes.Repeat(empty, 4<<20),
		"a long column": {fieldID<<3 | 2, 0xff, 0xff, 0xff, 0xff, 0x07},
		"a long notice": {fieldNotice<<3 | 2, 0xff, 0xff, 0xff, 0xff, 0x07},
	} {
		var f frame
		var failed error
		if n := enginetest.Allocated(func() { failed = f.decode(wire) }); failed == nil || n > uint64(4*len(wire))+64<<10 {
			t.Errorf("%s: %d bytes for a step of %d: %v", name, n, len(wire), failed)
		}
	}
	m := messages{limit: 16 << 20}
	if n := enginetest.Allocated(func() {
		m.feed([]byte{0, 0, 0xff, 0xff, 0xff, 1, 2})
		if _, ok, err := m.next(); ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
	}); n > 64<<10 {
		t.Errorf("%d bytes for a message of 7", n)
	}
}

// Buffers that a very large step needed are dropped with the next step.
func TestLargeStepIsNotKept(t *testing.T) {
	ids := make([]uint32, 1<<20)
	large, err := proto.Marshal(&planepb.Step{Slot: []uint32{1}, Count: []uint32{1 << 20}, Total: []uint32{1 << 20}, Id: ids, Logprob: make([]float32, 1<<20)})
	if err != nil {
		t.Fatal(err)
	}
	small, err := proto.Marshal(&planepb.Step{Slot: []uint32{1}, Count: []uint32{1}, Total: []uint32{1}, Id: ids[:1]})
	if err != nil {
		t.Fatal(err)
	}
	var f frame
	for _, b := range [][]byte{large, small} {
		if err := f.decode(b); err != nil {
			t.Fatal(err)
		}
	}
	if cap(f.id) > keepColumn || cap(f.own) > keepColumn {
		t.Errorf("room for %d ids and %d log probabilities is kept", cap(f.id), cap(f.own))
	}
	m := messages{limit: 16 << 20}
	framed := append([]byte{0, 0, 0x40, 0, 0}, make([]byte, 4<<20)...)
	for _, payload := range [][]byte{framed[:1<<20], framed[1<<20:], {0, 0, 0}} {
		for m.feed(payload); ; {
			if _, ok, err := m.next(); err != nil {
				t.Fatal(err)
			} else if !ok {
				break
			}
		}
	}
	if cap(m.held) > keepHeld {
		t.Errorf("%d bytes are held for a message of which 3 have come", cap(m.held))
	}
}
