package kvevents

import (
	"testing"

	"github.com/tinylib/msgp/msgp"
	"pgregory.net/rapid"
)

// oddEvent draws an event that no engine should send, and what it is. BlockStored and BlockRemoved
// name blocks that may be known.
func oddEvent(t *rapid.T, f form, names []uint64) (b []byte, is Odd) {
	name := rapid.SampledFrom(append([]uint64{1, 2}, names...)).Draw(t, "name")
	event := func(tag string, members ...any) []byte {
		if f == vllmArray || f == sglangArray {
			b = msgp.AppendArrayHeader(nil, uint32(len(members)/2+1))
		} else {
			b = msgp.AppendString(msgp.AppendMapHeader(nil, uint32(len(members)/2+1)), "type")
		}
		b = msgp.AppendString(b, tag)
		for i := 0; i < len(members); i += 2 {
			if f == vllmMap || f == sglangMap {
				b = msgp.AppendString(b, members[i].(string))
			}
			var err error
			if b, err = msgp.AppendIntf(b, members[i+1]); err != nil {
				t.Fatal(err)
			}
		}
		return b
	}
	hashes, ids := []any{name}, []any{uint32(1), uint32(2)}
	stored := func(hashes, parent, ids, size any) []byte {
		return event("BlockStored", "block_hashes", hashes, "parent_block_hash", parent, "token_ids", ids, "block_size", size)
	}
	switch rapid.SampledFrom([]string{"placeholder", "other placeholder", "no blocks", "no size", "no ids", "ids in words", "no number", "no list", "no event", "nested", "no tag", "another kind"}).Draw(t, "odd") {
	case "placeholder":
		return event("BlockStored", "block_hashes", hashes, "parent_block_hash", nil, "token_ids", []any{}, "block_size", 0, "lora_id", nil, "medium", "CPU"), Placeholder
	case "other placeholder":
		return stored(hashes, name, []any{}, 16), Placeholder
	case "no blocks":
		return stored([]any{}, nil, []any{}, nil), Placeholder
	case "no size":
		return stored(hashes, nil, ids, 0), Unreadable
	case "no ids":
		return stored(hashes, nil, "ids", 16), Unreadable
	case "ids in words":
		return stored(hashes, nil, []any{"one", "two"}, 2), Unreadable
	case "no number":
		return stored(hashes, map[string]any{"x": name}, ids, 2), Unreadable
	case "no list":
		return event("BlockRemoved", "block_hashes", name), Unreadable
	case "no event":
		return rapid.SampledFrom([][]byte{{0xc0}, {0x07}, msgp.AppendString(nil, "BlockStored"), {0x90}, msgp.AppendFloat64(nil, 1.5)}).Draw(t, "value"), Unreadable
	case "nested":
		b, _ = msgp.AppendIntf(nil, []any{[]any{"BlockRemoved", hashes}, map[string]any{"type": "AllBlocksCleared"}})
		return b, Unreadable
	case "no tag":
		b, _ = msgp.AppendIntf(nil, []any{3, hashes})
		return b, Unreadable
	default:
		return event("BlockMoved", "block_hashes", hashes), Strange
	}
}

// An odd event costs itself: whatever odd ones are among those of a batch, the index is that of the
// good ones alone. Only a batch whose events cannot be told apart is a gap.
func TestOddEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 16
		f := rapid.SampledFrom([]form{vllmMap, vllmArray, sglangArray, sglangMap}).Draw(t, "form")
		r, want := newRank(false), newRank(false)
		texts := [][]uint32{idsFrom(1, 4*size), idsFrom(2, 4*size), idsFrom(3, 4*size)}
		var names []uint64
		for _, ids := range texts {
			names = append(names, named(ids, size)...)
		}
		odd := [NumOdd]uint64{}
		for seq := range uint64(rapid.IntRange(1, 6).Draw(t, "batches")) {
			var good []Event
			n, events := 0, []byte(nil)
			for range rapid.IntRange(0, 5).Draw(t, "events") {
				n++
				if rapid.Bool().Draw(t, "is odd") {
					b, is := oddEvent(t, f, names)
					odd[is]++
					events = append(events, b...)
					continue
				}
				ids := rapid.SampledFrom(texts).Draw(t, "text")
				e := prompt(ids, size)
				if rapid.IntRange(0, 3).Draw(t, "removed") == 0 {
					e = Event{Kind: Removed, Hashes: named(ids, size)[rapid.IntRange(0, 3).Draw(t, "from"):]}
				}
				good = append(good, e)
				events = appendEvent(events, f, &e)
			}
			b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1)
			b = append(msgp.AppendArrayHeader(b, uint32(n)), events...)
			r.Live(0, seq, msgp.AppendNil(b))
			want.Live(0, seq, batchOf(f, good...))
		}
		got, plain := r.Stats(), want.Stats()
		if got.Odd != odd || got.Bad != 0 || got.Rebuilds != plain.Rebuilds || got.Blocks != plain.Blocks || got.Events != plain.Events || r.Knowledge() != want.Knowledge() {
			t.Fatalf("%+v and %v, of the good ones %+v and %v; odd are %v", got, r.Knowledge(), plain, want.Knowledge(), odd)
		}
		for _, ids := range texts {
			chain := chainOf("", ids)
			if got, want := r.Resident(chain, len(ids)+1), want.Resident(chain, len(ids)+1); got != want {
				t.Fatalf("%d blocks, of the good ones %d", got, want)
			}
		}
		whole := batchOf(f, prompt(texts[0], size))
		r.Live(0, r.last+1, whole[:rapid.IntRange(12, len(whole)-2).Draw(t, "cut")])
		if s := r.Stats(); s.Bad != 1 || s.Blocks != 0 || r.Knowledge() != Partial {
			t.Fatalf("a cut batch: %+v, %v", s, r.Knowledge())
		}
	})
}
