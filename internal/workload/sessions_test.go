package workload

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestSessions holds the form of a session: who follows on whom, what is shared, and
// that a session is the same whenever it is asked for.
func TestSessions(t *testing.T) {
	w, err := NewSessions("rate=2,turns=4,branch=3,think=2s,duration=1m,input=uniform(10,20),output=5,prefix=100,groups=3", 7)
	if err != nil {
		t.Fatal(err)
	}
	groups, keys := map[uint64]int{}, map[uint64]bool{}
	n := 0
	for last := time.Duration(0); ; n++ {
		at, more := w.Next()
		if !more {
			break
		}
		if at < last || at >= time.Minute {
			t.Fatalf("session %d comes at %v after %v", n, at, last)
		}
		last = at
		turns := w.Session(n)
		if diff := cmp.Diff(turns, w.Session(n)); diff != "" {
			t.Fatal(diff)
		}
		// One first turn, and three after each that goes on.
		if len(turns) != 1+3*3 {
			t.Fatalf("%d turns", len(turns))
		}
		for i, turn := range turns {
			own := turn.Parts[len(turn.Parts)-1]
			if keys[own.Key] || own.Tokens < 10 || own.Tokens > 20 || turn.Output != 5 {
				t.Fatalf("turn %d: %+v", i, turn)
			}
			keys[own.Key] = true
			if want := []int{-1, 0, 0, 0, 1, 1, 1, 4, 4, 4}[i]; turn.After != want {
				t.Fatalf("turn %d is after %d, want %d", i, turn.After, want)
			}
			if (i == 0) != (len(turn.Parts) == 2) {
				t.Fatalf("turn %d has %d parts", i, len(turn.Parts))
			}
		}
		groups[turns[0].Parts[0].Key]++
	}
	if n < 80 || n > 160 || len(groups) != 3 {
		t.Errorf("%d sessions of %d groups", n, len(groups))
	}
	if w.Think() != 2*time.Second || w.Users() != 0 {
		t.Errorf("think %v, %d users", w.Think(), w.Users())
	}
}
