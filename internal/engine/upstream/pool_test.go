package upstream

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Of an engine that closes idle connections after a time, and of one that does not and
// now and then loses some for another reason, what is learned is right: of the first no
// connection is used any more that is about to be closed, and those of the second are
// used again soon.
func TestPatience(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p patience
		keeps := time.Duration(rapid.Int64Range(1000, int64(10*time.Second)).Draw(t, "keeps"))
		closes := rapid.Bool().Draw(t, "closes")
		least := time.Duration(0) // of those found closed, unless much older ones are open
		for range rapid.IntRange(1, 100).Draw(t, "uses") {
			rested := time.Duration(rapid.Int64Range(0, int64(4*keeps)).Draw(t, "rested"))
			lost := !closes && rapid.IntRange(0, 9).Draw(t, "lost") == 0
			late := time.Duration(rapid.Int64Range(0, int64(keeps*9/10)).Draw(t, "late")) // of the engine's timer
			if closes && rested >= keeps+late || lost {
				if p.closed(rested); least == 0 || rested < least {
					least = max(rested, 1)
				}
				continue
			}
			used := p.open(rested)
			switch {
			case closes && least > 0 && used != (rested < least/2):
				t.Fatalf("keeps %v, learned %v: after %v used: %v", keeps, least, rested, used)
			case !closes && rested > 2*least && !used:
				t.Fatalf("not used after %v, though older ones than %v are open", rested, least)
			}
			if !closes && rested > 2*least {
				least = 0
			}
		}
	})
}
