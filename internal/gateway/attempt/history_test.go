package attempt

import (
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// TestHistory: a history has the ids that it was given, and counts its bytes.
func TestHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.Uint32Range(0, maxPacked), 0, 40)
		prompt, out := ids.Draw(t, "prompt"), ids.Draw(t, "out")
		var h history
		var bytes atomic.Int64
		if !h.keep(prompt, &bytes, 1000) {
			t.Fatal("there is no room")
		}
		for part := range slices.Chunk(out, 3) {
			h.add(part)
		}
		if got := h.all(); !slices.Equal(got, slices.Concat(prompt, out)) || h.came() != len(out) {
			t.Fatalf("%v of %v and %v", got, prompt, out)
		}
		if want := int64(cap(h.prompt) + cap(h.out)); bytes.Load() != want || want < int64(3*(len(prompt)+len(out))) {
			t.Fatalf("%d bytes counted, %d kept", bytes.Load(), want)
		}
		if h.drop(); bytes.Load() != 0 {
			t.Fatalf("%d bytes are left", bytes.Load())
		}
	})
}
