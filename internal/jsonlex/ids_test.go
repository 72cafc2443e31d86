package jsonlex

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestAppendIDs compares with strconv.
func TestAppendIDs(t *testing.T) {
	want := func(ids []uint32) string {
		var words []string
		for _, id := range ids {
			words = append(words, strconv.Itoa(int(id)))
		}
		return strings.Join(words, ",")
	}
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(0, 1000), rapid.Uint32Range(0, 300000), rapid.SampledFrom([]uint32{9999, 10000, 99999999, 100000000, 1<<32 - 1}))
		ids := rapid.SliceOfN(id, 0, 200).Draw(t, "ids")
		if got := string(AppendIDs([]byte("x"), ids)); got != "x"+want(ids) {
			t.Fatalf("%v: %s", ids, got)
		}
	})
	for v := uint32(0); v < 1e8; v += 1 + v/5000 { // each below 5,000
		if got := string(appendMany(nil, []uint32{v})); got != strconv.Itoa(int(v)) {
			t.Fatalf("%d: %s", v, got)
		}
	}
}

// BenchmarkAppendIDs writes a prompt's ids.
func BenchmarkAppendIDs(b *testing.B) {
	ids := make([]uint32, 42000)
	for i := range ids {
		ids[i] = rand.Uint32N(1 << rand.IntN(18))
	}
	dst := make([]byte, 0, 7*len(ids))
	b.Run("ids", func(b *testing.B) {
		for b.Loop() {
			AppendIDs(dst, ids)
		}
	})
	b.Run("strconv", func(b *testing.B) {
		for b.Loop() {
			out := dst
			for _, id := range ids {
				out = append(strconv.AppendUint(out, uint64(id), 10), ',')
			}
		}
	})
}
