package health

import (
	"testing"

	"pgregory.net/rapid"
)

// Overload, a refused request and one that was given up count for nothing: among faults and
// cut connections, however many of them, they bring a rank no nearer to being suspect.
func TestEndsThatCountForNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		how := rapid.SampledFrom([]End{Fault, Cut}).Draw(t, "how")
		generates := rapid.Bool().Draw(t, "generates")
		fleet := NewFleet(Limits{}, 0)
		rank := fleet.Add(Member{Engine: "a", Serves: []string{"m"}, Generates: generates})
		fleet.Add(Member{Engine: "b", Serves: []string{"m"}}).Joined(0, true)
		rank.Joined(0, true)
		now := int64(0)
		end := func(how End) {
			q := new(Request)
			now += ms
			rank.HandedOver(q, now, 1)
			now += ms
			q.Ended(now, how)
		}
		most := Limits{}.orDefaults().Faults
		for n := range most {
			for range rapid.IntRange(0, 3*most).Draw(t, "others") {
				end(rapid.SampledFrom([]End{GaveUp, Overload, Rejected}).Draw(t, "other"))
			}
			if s := rank.View().State; s != Up {
				t.Fatalf("%v behind %d of %v, want it up", s, n, how)
			}
			end(how)
		}
		if s := rank.View().State; s == Up {
			t.Fatalf("up behind %d of %v", most, how)
		}
	})
}
